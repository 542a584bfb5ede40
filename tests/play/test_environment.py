"""Environments that are no robots of ours, as pictures, with keys."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fleetfoot import UserError, deploy
from fleetfoot.envs.atari import AtariConfig
from fleetfoot.envs.gym import GymConfig
from fleetfoot.envs.vec_env import EnvConfig
from fleetfoot.play.environment import RANDOM, YOU, EnvironmentSession, jpeg
from fleetfoot.play.keys import keys_of, pressed_action
from fleetfoot.play.source import open_source
from support.extras import needs
from support.tabs import wait_until

needs("viser")


@pytest.fixture
def session(run: Path) -> Iterator[EnvironmentSession]:
    source = open_source([run])
    assert source.env is not None
    made = EnvironmentSession(source.policies, source.env, host="127.0.0.1", port=0)
    made.speed = 1e6
    yield made
    made.close()


def test_a_run_plays_as_pictures(session: EnvironmentSession) -> None:
    wait_until(lambda: session.steps > 20)
    picture = Image.open(io.BytesIO(session.picture))
    assert min(picture.size) > 50
    assert session.state()["policy"] == "run"
    session.choose(RANDOM)
    wait_until(lambda: session.scores)
    session.press("restart")
    wait_until(lambda: not session._restart)
    assert session.failed is None


def test_who_presses_a_key_plays(session: EnvironmentSession) -> None:
    session.press("pause")
    session.hear({"key": "ArrowRight", "down": True})
    assert session.current == YOU
    assert session.action() == pytest.approx([1.0])
    session.hear({"key": "ArrowRight", "down": False})
    assert session.action() == pytest.approx([0.0])
    for nonsense in ({"key": "F1", "down": True}, {"key": 3}, {"press": 3}, {}, {"steer": [1]}):
        session.hear(nonsense)
    assert not session.held


def test_a_choice_that_is_under_way_is_not_taken_back(session: EnvironmentSession) -> None:
    session.chosen = SimpleNamespace(value=RANDOM)  # chosen in a browser, and not yet told
    session._refresh()
    assert session.chosen.value == RANDOM
    session.hear({"key": "ArrowRight", "down": True})
    session._refresh()
    assert session.chosen.value == YOU


def test_what_is_no_picture_is_one_line() -> None:
    wrong: list[Any] = [None, np.zeros((4, 4, 3))]
    for picture in wrong:
        with pytest.raises(UserError, match="does not render"):
            jpeg(picture)


class Fixed(deploy.Policy):
    """Action 0 for anything."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.about: Any = type("About", (), {"obs_shape": shape, "raw": {"obs": {"terms": []}}})

    def __call__(self, obs: Any, task: Any = None) -> deploy.Output:
        return deploy.Output(np.zeros((), np.int64))


def made(config: EnvConfig, shape: tuple[int, ...]) -> EnvironmentSession:
    return EnvironmentSession({"fixed": Fixed(shape)}, config, host="127.0.0.1", port=0)


def test_discrete_actions_have_keys() -> None:
    session = made(GymConfig(id="CartPole-v1"), (4,))
    try:
        assert {"ArrowLeft", "ArrowRight", "Digit0", "Digit1"} == set(session.codes())
        session.press("pause")
        session.hear({"key": "ArrowRight", "down": True})
        assert session.action() == 1
        session.hear({"key": "", "down": False})
        assert session.action() == 1  # it has no action that does nothing: the last one stays
    finally:
        session.close()


def test_a_console_has_its_buttons() -> None:
    pytest.importorskip("ale_py")
    session = made(AtariConfig(game="Pong"), (4, 84, 84))
    try:
        assert session.buttons[:2] == ["NOOP", "FIRE"]
        session.press("pause")
        session.hear({"key": "ArrowRight", "down": True})
        assert session.buttons[session.action()] == "RIGHT"
        session.hear({"key": "Space", "down": True})
        assert session.buttons[session.action()] == "RIGHTFIRE"
        session.hear({"key": "", "down": False})
        assert session.buttons[session.action()] == "NOOP"
    finally:
        session.close()


def test_keys_of_games() -> None:
    assert keys_of("gym/LunarLander-v3", 4) == (
        {"Digit0": 0, "Digit1": 1, "Digit2": 2, "Digit3": 3, "ArrowLeft": 1, "ArrowUp": 2}
        | {"ArrowRight": 3},
        0,
    )
    assert keys_of("gym/Somebody-v0", 3) == ({"Digit0": 0, "Digit1": 1, "Digit2": 2}, None)
    buttons = ["NOOP", "FIRE", "UP", "RIGHT", "LEFT", "DOWN", "UPRIGHT"]
    assert buttons[pressed_action(buttons, {"ArrowUp", "ArrowRight"})] == "UPRIGHT"
    assert buttons[pressed_action(buttons, {"ArrowUp", "ArrowDown", "Space"})] in buttons[1:]
    assert pressed_action(buttons, set()) == 0
    pong = [
        "NOOP",
        "FIRE",
        "RIGHT",
        "LEFT",
        "RIGHTFIRE",
        "LEFTFIRE",
    ]  # its paddle goes up with RIGHT
    assert pong[pressed_action(pong, {"ArrowUp", "Space"})] == "RIGHTFIRE"
    assert pong[pressed_action(pong, {"ArrowDown"})] == "LEFT"
    assert pong[pressed_action(pong, {"ArrowUp", "ArrowLeft"})] == "LEFT"
