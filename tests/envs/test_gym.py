"""The Gymnasium adapter, and the example that shows how to bring an environment."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from fleetfoot import recipes, train
from fleetfoot.config import from_json, to_json
from fleetfoot.data import Continuous, Discrete
from fleetfoot.envs.check import check_env
from fleetfoot.envs.gym import GymConfig, names
from fleetfoot.envs.info import MOST_NAMES, InfoRows
from fleetfoot.errors import UserError
from fleetfoot.evaluate import first_episodes

CPU = torch.device("cpu")


class Counter(gymnasium.Env[Any, Any]):
    """Hands out one buffer again and again; ends in both ways at once when asked to.

    Its observation is [steps so far, last action], or a picture of a given shape.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}  # noqa: RUF012

    def __init__(
        self,
        render_mode: str | None = None,
        observation: spaces.Space[Any] | None = None,
        action: spaces.Space[Any] | None = None,
        terminate_at: int = 1000,
        truncate_at: int = 1000,
        picture: str = "good",
    ) -> None:
        self.render_mode = render_mode
        self.observation_space = observation or spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = action or spaces.Box(np.float32(-3.0), np.float32(5.0), (1,))
        self.ends = terminate_at, truncate_at
        self.picture = picture
        self.buffer = np.zeros(self.observation_space.shape or (2,), self.observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.clock = 0
        self.buffer.flat[:2] = self.np_random.integers(100, 200, 2)
        return self.buffer, {}

    def step(self, action: Any) -> Any:
        self.clock += 1
        assert self.action_space.contains(action), action
        self.buffer.flat[:2] = self.clock, np.ravel(action)[0]
        terminated, truncated = (self.clock >= end for end in self.ends)
        return self.buffer, float(np.ravel(action)[0]), terminated, truncated, {"clock": self.clock}

    def render(self) -> Any:
        if self.picture == "bad":
            raise RuntimeError("no\nscreen")
        return np.full((4, 6, 3), self.clock, np.uint8)


gymnasium.register("FleetfootCounter-v0", Counter)  # type: ignore[arg-type]
COUNTER = "FleetfootCounter-v0"


def counter(num_envs: int = 3, asynchronous: bool = False, **kwargs: Any) -> Any:
    config = GymConfig(id=COUNTER, kwargs=kwargs, asynchronous=asynchronous)
    return config.build(num_envs, 0, CPU)


@pytest.mark.parametrize(
    ("config", "vec_steps"),
    [
        (GymConfig(id="Pendulum-v1"), 405),
        (GymConfig(id="CartPole-v1"), 200),
        (GymConfig(id="CartPole-v1", kwargs={"max_episode_steps": 12}), 60),
        (GymConfig(id="MountainCar-v0"), 205),
        (GymConfig(id="Acrobot-v1", asynchronous=True), 60),
    ],
    ids=str,
)
def test_contract(config: GymConfig, vec_steps: int) -> None:
    report = check_env(config, vec_steps=vec_steps, num_envs=2 if config.asynchronous else 4)
    assert not report.saves_state
    if not config.asynchronous:
        assert report.terminations + report.truncations > 0


def test_mujoco_by_name() -> None:
    report = check_env(GymConfig(id="Hopper-v5"), vec_steps=60, render=False)
    assert report.spec.obs_shape == (11,)
    assert report.spec.action == Continuous(3)
    assert report.spec.episode_length == 1000
    assert report.terminations > 0


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_final_observation_and_kind_of_end_are_true(asynchronous: bool) -> None:
    env = counter(2, asynchronous, terminate_at=4, truncate_at=3)
    try:
        assert (env.reset().actor >= 100).all()
        for t in (1, 2, 3):
            step = env.step(torch.full((2, 1), 0.5))
            assert step.next_obs.actor.tolist() == [[t, 3.0]] * 2
        assert step.truncated.all()
        assert not step.terminated.any()
        assert (step.obs.actor >= 100).all()  # the next episode
    finally:
        env.close()


class Talker(gymnasium.Env[Any, Any]):
    """Tells numbers of several kinds, some always, some at the end of an episode, and what is no number."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.clock = 0
        return np.zeros(1, np.float32), {"of_reset": 7.0, "reward_forward": 1e9}

    def step(self, action: Any) -> Any:
        self.clock += 1
        over = self.clock == 3
        info: dict[str, Any] = {
            "reward_forward": float(action[0]),
            "count": self.clock,  # an int first, which must not make ints of what follows
            "array0": np.array(0.5),
            "flag": np.bool_(True),
            "reward": 5.0,
            "lost": float("nan"),
            "huge": 10**400,
            "text": "hello",
            "vector": np.zeros(3),
            "nested": {"a": 1.0},
        }
        if self.clock > 1:
            info["count"] = self.clock + 0.5
        if over:
            info |= {"is_success": action[0] > 0, "score": 10.0 * float(action[0])}
        return np.zeros(1, np.float32), 0.0, False, over, info


gymnasium.register("FleetfootTalker-v0", lambda **_: Talker())


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_numbers_of_info_reach_the_log(asynchronous: bool) -> None:
    env = GymConfig(id="FleetfootTalker-v0", asynchronous=asynchronous).build(2, 0, CPU)
    try:
        env.reset()
        action = torch.tensor([[0.5], [-0.5]])
        first, second, end, after = (env.step(action) for _ in range(4))
    finally:
        env.close()
    always = {"env/reward_forward", "env/count", "env/array0", "env/flag", "env/reward_in_info"}
    assert set(first.info) == set(second.info) == always
    assert first.info["env/reward_forward"].tolist() == [0.5, -0.5]
    assert all(row.dtype == torch.float32 and row.shape == (2,) for row in first.info.values())
    assert [step.info["env/count"].tolist() for step in (first, second)] == [[1, 1], [2.5, 2.5]]
    # Of the last step of an episode, not of the reset that follows in the same call.
    assert end.truncated.all()
    assert end.info["env/reward_forward"].tolist() == [0.5, -0.5]
    assert end.info["env/count"].tolist() == [3.5, 3.5]
    assert end.info["env/score"].tolist() == [5, -5]
    assert end.info["success"].tolist() == [1, 0]
    # Names stay. A value is held until it is told again, but success is that of the step.
    assert set(after.info) == set(end.info) == always | {"env/score", "success"}
    assert after.info["env/score"].tolist() == [5, -5]
    assert after.info["success"].tolist() == [0, 0]
    assert first.info["env/reward_forward"].tolist() == [0.5, -0.5], "rows belong to the caller"


def test_what_only_some_copies_tell_has_the_mean_of_those() -> None:
    rows = InfoRows(3)
    rows.tell("speed", np.array([1.0, 9.0, 3.0]), np.array([True, False, True]))
    assert rows.rows()["env/speed"].tolist() == [1, 2, 3]
    rows.tell("speed", np.array([0.0, 8.0, 0.0]), np.array([False, True, False]))
    assert rows.rows()["env/speed"].tolist() == [1, 8, 3]
    rows.tell("height", np.full(3, np.nan), np.zeros(3, bool))  # nobody tells it
    assert "env/height" not in rows.rows()
    for number in range(100):
        rows.tell(f"object {number}", np.zeros(3), np.ones(3, bool))
    assert len(rows.rows()) == MOST_NAMES


def test_what_was_told_before_a_reset_is_forgotten() -> None:
    """An evaluation begins with a reset, and takes in only what is told from its first step on."""
    env = GymConfig(id="FleetfootTalker-v0").build(2, 0, CPU)
    for _ in range(2):
        found = first_episodes(lambda obs: torch.full((2, 1), 0.5), env, env.reset(), 9).metrics()  # type: ignore[arg-type]
        assert "eval/score" not in found  # told at the end alone
        assert found["eval/reward_forward"] == 0.5
        assert found["eval/success"] == 1.0
    env.close()


def test_environments_that_tell_nothing_have_no_info() -> None:
    env = GymConfig(id="Pendulum-v1").build(2, 0, CPU)
    env.reset()
    assert env.step(torch.zeros(2, 1)).info == {}
    env.close()


def test_success_is_evaluated_and_terms_are_logged(tmp_path: Path) -> None:
    recipe = recipes.get("fast_td3/pendulum")
    recipe = replace(
        recipe,
        env=GymConfig(id="FleetfootTalker-v0"),
        num_envs=4,
        batch_size=8,
        total_vec_steps=12,
        device="cpu",
        threads=1,
        evaluation=replace(recipe.evaluation, episodes=3, every_vec_steps=0),
        log=replace(recipe.log, every_vec_steps=6, console=False, tensorboard=False),
        replay=replace(recipe.off_policy_replay(), capacity=400),
        pace=replace(recipe.pace, warmup_vec_steps=6),
    )
    train(recipe, tmp_path / "run")
    lines = [json.loads(x) for x in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["eval/success"] in (0.0, 1.0)  # the policy does the same in all of them
    assert lines[0]["env/count"] == pytest.approx((1 + 2.5 + 3.5) / 3)
    assert "env/reward_forward" in lines[0]
    assert lines[0]["env/reward"] == 0.0


def test_both_ends_at_once_is_a_termination() -> None:
    env = counter(2, terminate_at=2, truncate_at=2)
    env.reset()
    env.step(torch.zeros(2, 1))
    step = env.step(torch.zeros(2, 1))
    assert step.terminated.all()
    assert not step.truncated.any()
    env.close()


def test_actions_are_mapped_onto_the_bounds() -> None:
    env = counter(3)
    env.reset()
    step = env.step(torch.tensor([[-1.0], [0.0], [1.0]]))
    assert step.reward.tolist() == [-3.0, 1.0, 5.0]
    env.close()


def test_action_spaces_of_other_shapes() -> None:
    box = spaces.Box(np.zeros((2, 3), np.float32), np.full((2, 3), 4, np.float32))
    env = counter(2, action=box)
    assert env.spec.action == Continuous(6)
    env.reset()
    assert env.step(torch.zeros(2, 6)).reward.tolist() == [2.0, 2.0]
    env.close()
    env = counter(2, action=spaces.Discrete(3, start=5))
    assert env.spec.action == Discrete(3)
    env.reset()
    assert env.step(torch.tensor([0, 2])).reward.tolist() == [5.0, 7.0]
    env.close()


@pytest.mark.parametrize(
    ("given", "shape"),
    [((5, 7, 3), (3, 5, 7)), ((4, 5, 7), (4, 5, 7)), ((5, 7), (1, 5, 7))],
)
def test_images_become_channels_first(given: tuple[int, ...], shape: tuple[int, ...]) -> None:
    env = counter(2, observation=spaces.Box(0, 255, given, np.uint8))
    assert env.spec.obs_shape == shape
    assert env.spec.obs_dtype == torch.uint8
    env.reset()
    image = env.step(torch.ones(2, 1)).obs.actor
    assert image.shape == (2, *shape)
    original = np.zeros(given, np.uint8)
    original.flat[:2] = 1, 5
    wanted = original.transpose(2, 0, 1) if given == (5, 7, 3) else original.reshape(shape)
    assert image[0].tolist() == wanted.tolist()
    env.close()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"observation": spaces.Dict({"a": spaces.Discrete(2)})}, "FlattenObservation"),
        ({"observation": spaces.Tuple([spaces.Discrete(2)])}, "FlattenObservation"),
        ({"observation": spaces.Discrete(4)}, "FlattenObservation"),
        ({"observation": spaces.Box(0, 1, (2, 2))}, "FlattenObservation"),
        ({"action": spaces.Box(-np.inf, np.inf, (2,))}, "without bounds"),
        ({"action": spaces.MultiDiscrete([2, 2])}, "only Box of floats and Discrete"),
        ({"action": spaces.Box(0, 9, (2,), np.int64)}, "only Box of floats and Discrete"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_spaces_that_are_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        counter(2, **kwargs)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (GymConfig(id="Pendulm-v1"), "Did you mean Pendulum-v1"),
        (GymConfig(id="HalfCheeta-v5"), "HalfCheetah-v5"),
        (GymConfig(id="CartPole-v77"), "CartPole-v1"),
        (GymConfig(id="Nowhere/Nothing-v0"), "package:Id-v0"),
        (GymConfig(id="no_such_package:Thing-v0"), "no_such_package"),
        (GymConfig(id="not an id"), "Malformed"),
        (GymConfig(kwargs={"gravity": 1}), "gravity"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_made_gets_one_line(config: GymConfig, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        config.build(2, 0, CPU)
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(*args: Any, **kwargs: Any) -> None:
        raise gymnasium.error.DependencyNotInstalled('run `pip install "gymnasium[box2d]"`')

    monkeypatch.setattr(gymnasium, "make", make)
    with pytest.raises(UserError, match=r"gymnasium\[box2d\]"):
        GymConfig(id="LunarLander-v3").build(1, 0, CPU)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_pictures_are_of_the_copy_asked_for(asynchronous: bool) -> None:
    env = counter(2, asynchronous, truncate_at=2)
    try:
        env.reset()
        env.step(torch.zeros(2, 1))
        assert env.render(1).tolist() == np.full((4, 6, 3), 1).tolist()
        assert env.render(1).dtype == np.uint8
        assert env.spec.step_seconds == pytest.approx(0.04)
    finally:
        env.close()


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_failing_picture_leaves_the_environments_alive(asynchronous: bool) -> None:
    env = counter(2, asynchronous, picture="bad")
    try:
        env.reset()
        with pytest.raises(UserError, match="cannot be rendered here: RuntimeError: no screen"):
            env.render()
        assert env.step(torch.zeros(2, 1)).next_obs.actor[:, 0].tolist() == [1, 1]
    finally:
        env.close()


def test_no_render_mode_is_refused() -> None:
    env = counter(1, render_mode=None)
    env.reset()
    env.envs.envs[0].unwrapped.render = lambda: None
    with pytest.raises(UserError, match="no render mode rgb_array"):
        env.render()
    env.close()


def test_later_resets_go_on_in_the_stream() -> None:
    env = counter(2)
    first, second = env.reset().actor, env.reset().actor
    assert not torch.equal(first, second)
    env.close()


def test_state_cannot_be_saved() -> None:
    env = counter(1)
    assert env.state_dict() is None
    with pytest.raises(UserError, match="do not tell their state"):
        env.load_state_dict({})
    env.close()


def test_configs_survive_json_and_names_are_listed() -> None:
    config = GymConfig(id="CartPole-v1", asynchronous=True, kwargs={"max_episode_steps": 7})
    assert from_json(to_json(config)) == config
    assert config.for_evaluation() is config
    assert {"Pendulum-v1", "HalfCheetah-v5", COUNTER} <= set(names())
    with pytest.raises(UserError, match="at least 1, not 0"):
        config.build(0, 0, CPU)


@pytest.fixture(scope="module")
def example() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "own_environment.py"
    spec = importlib.util.spec_from_file_location("own_environment", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_passes_the_contract(
    example: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    example.main([])
    out = capsys.readouterr().out
    assert "gym/Reach-v0: passed" in out
    assert "springs: passed" in out


def test_the_examples_springs_hold_no_surprise(example: ModuleType) -> None:
    env = example.SpringsConfig().build(16, 0, CPU)
    obs, total = env.reset(), torch.zeros(16)
    for _ in range(100):
        step = env.step((-obs.actor[:, 1:]).clamp(-1, 1))  # damping brings the mass to rest
        total, obs = total + step.reward, step.obs
    assert step.truncated.all()
    assert (step.reward > -0.01).all()


def test_the_guide_shows_the_code_of_the_example() -> None:
    root = Path(__file__).parents[2]
    guide = (root / "docs/guides/own-environment.md").read_text()
    source = (root / "examples/own_environment.py").read_text()
    blocks = [block.split("```")[0] for block in guide.split("```python\n")[1:]]
    shown = [block for block in blocks if block.startswith(("class", "@part", "gymnasium"))]
    assert len(shown) >= 3
    for block in shown:
        assert block in source, block
