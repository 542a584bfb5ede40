"""Any environment that can be drawn, played in the browser as pictures: by its policy, or by whoever holds the keys."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fleetfoot import deploy
from fleetfoot.data import Discrete, Obs
from fleetfoot.envs.vec_env import EnvConfig
from fleetfoot.errors import UserError
from fleetfoot.guard import build_env
from fleetfoot.play.controls import SPEEDS, fraction
from fleetfoot.play.extra import start_viser, stop_viser
from fleetfoot.play.keys import BUTTONS, DOWN, LEFT, RIGHT, SPACE, UP, Keys, keys_of, pressed_action
from fleetfoot.play.page import Json, Page

YOU, RANDOM = "you", "random actions"
CPU = torch.device("cpu")
FRAMES = 30.0  # pictures a second
QUALITY = 85  # of JPEG


class EnvironmentSession:
    """Plays until `close`. One thread steps and draws."""

    def __init__(
        self,
        policies: Mapping[str, deploy.Policy],
        config: EnvConfig,
        *,
        host: str,
        port: int | None,
        title: str = "fleetfoot play",
        extra: Callable[[Any], Callable[[], None]] | None = None,
    ) -> None:
        self.policies, self.current = dict(policies), next(iter(policies))
        self.env = build_env(config.for_evaluation(), 1, 0, CPU)
        self.spec = self.env.spec
        self._check()
        self.picture = b""
        self.random = np.random.default_rng(0)
        self.paused, self.speed = False, 1.0
        self.score, self.scores, self.steps = 0.0, list[float](), 0
        self.held: set[str] = set()
        self.buttons = list(self.spec.description.get("actions", ()))
        self.keys: Keys = {}
        self.idle: int | None = None
        if isinstance(self.spec.action, Discrete):
            self.keys, self.idle = keys_of(self.spec.name, self.spec.action.count)
            self.last = self.idle or 0
        self._single = self._restart = False
        self.failed: UserError | None = None
        self.chosen: Any = None
        self._more: Callable[[], None] = lambda: None
        self._begin()
        self.server = start_viser(title)
        if extra is not None:
            self._more = extra(self.server.gui)
        self._panel()
        config_of_page = {
            "kind": "image",
            "title": title,
            "keys": [*self.codes()],
            "hint": self._hint(),
        }
        try:
            self.page = Page(
                host,
                port,
                self.server.get_port(),
                config=config_of_page,
                state=self.state,
                hear=self.hear,
                picture=lambda: self.picture,
            )
        except BaseException:
            self._closed.set()
            stop_viser(self.server)
            raise

    def _begin(self) -> None:
        """One thread does all with the environment: what draws is often bound to the thread that began it."""
        self._closed, begun = threading.Event(), threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(begun,), name="environment", daemon=True
        )
        self._thread.start()
        begun.wait()
        if self.failed is not None:
            raise self.failed

    def _check(self) -> None:
        for name, policy in self.policies.items():
            if policy.about.obs_shape != self.spec.obs_shape:
                raise UserError(
                    f"{name} sees observations of shape {policy.about.obs_shape}, and {self.spec.name} shows "
                    f"{self.spec.obs_shape}."
                )

    def codes(self) -> list[str]:
        """Keys that play."""
        if self.buttons:
            return list(BUTTONS.values())
        return list(self.keys) or [UP, DOWN, LEFT, RIGHT]

    def _hint(self) -> str:
        names = [code.removeprefix("Arrow").removeprefix("Digit").lower() for code in self.codes()]
        pause = "" if SPACE in self.codes() else "    space: pause"
        return f"you play with {' '.join(names)}{pause}    .: step    R: restart"

    def _panel(self) -> None:
        gui = self.server.gui
        names = [*self.policies, RANDOM, YOU]
        self._shown = self.current
        self.chosen = gui.add_dropdown("Who plays", names, initial_value=self.current)
        self.chosen.on_update(lambda _: self.choose(str(self.chosen.value)))
        with gui.add_folder("Time"):
            buttons = gui.add_button_group("", ("Pause", "Step", "Restart"))
            buttons.on_click(lambda event: self.press(str(event.target.value).lower()))
            speed = gui.add_dropdown("Speed", SPEEDS, initial_value="1")
            speed.on_update(lambda _: setattr(self, "speed", fraction(speed.value)))

    def _refresh(self) -> None:
        """The panel, once there is one."""
        self._more()
        # Only what a key has changed: a choice in the panel that is under way must not be taken back.
        if self.chosen is not None and self._shown != self.current:
            self._shown = self.chosen.value = self.current

    def choose(self, name: str) -> None:
        if name in (*self.policies, RANDOM, YOU):
            self.current = name

    def replace(self, name: str, policy: deploy.Policy) -> None:
        """A newer version of a policy."""
        self.policies[name] = policy

    def press(self, name: str) -> None:
        if name == "pause":
            self.paused = not self.paused
        elif name == "step":
            self.paused = self._single = True
        elif name == "restart":
            self._restart = True

    def hear(self, said: Json) -> None:
        """From a browser. Whoever presses a key that plays, plays from then on."""
        match said:
            case {"key": str(code), "down": bool(down)} if code in self.codes():
                if down:
                    self.held.add(code)
                    self.current = YOU
                else:
                    self.held.discard(code)
            case {"key": ""}:
                self.held.clear()
            case {"press": str(name)}:
                self.press(name)

    def state(self) -> Json:
        lines = [
            ("return", f"{self.score:.1f}", "command"),
            ("steps", f"{self.steps}", ""),
        ]
        if self.scores:
            lines.append(("last", "  ".join(f"{score:.1f}" for score in self.scores[-4:]), ""))
        if self.paused:
            lines.append(("", "paused", "warn"))
        if self.failed is not None:
            lines.append(("", str(self.failed), "warn"))
        return {
            "policy": self.current,
            "lines": lines,
            "steps": self.steps,
            "return": self.score,
            "episodes": len(self.scores),
            "paused": self.paused,
        }

    def action(self) -> Any:
        """Of whoever plays now: an action [A] or a number."""
        discrete = isinstance(self.spec.action, Discrete)
        if self.current == YOU:
            return self._by_keys(discrete)
        if self.current == RANDOM:
            if isinstance(self.spec.action, Discrete):
                return int(self.random.integers(self.spec.action.count))
            return self.random.uniform(-1.0, 1.0, self.spec.action.size)
        policy = self.policies[self.current]
        task = None if self.obs.task is None else int(self.obs.task[0])
        return policy(physical(policy.about, self.obs)[0], task).action

    def _by_keys(self, discrete: bool) -> Any:
        held = set(self.held)
        if self.buttons:
            return pressed_action(self.buttons, held)
        if discrete:
            chosen = [self.keys[code] for code in self.keys if code in held]
            if chosen:
                self.last = chosen[0]
            elif self.idle is not None:
                self.last = self.idle
            return self.last
        assert not isinstance(self.spec.action, Discrete)
        action = np.zeros(self.spec.action.size)
        action[0] = (RIGHT in held) - (LEFT in held)
        action[-1] += (UP in held) - (DOWN in held)
        return action

    def _run(self, begun: threading.Event) -> None:
        try:
            self.obs = self.env.reset()
            self.picture = jpeg(self.env.render(0))
        except UserError as error:
            self.failed = error
            self._closed.set()
        finally:
            begun.set()
        self._play()
        self.env.close()

    def _play(self) -> None:
        due = drawn = time.monotonic()
        while not self._closed.is_set():
            try:
                if self._restart:
                    self._restart, self.score = False, 0.0
                    self.obs = self.env.reset()
                if not self.paused or self._single:
                    self._single = False
                    self._step()
                now = time.monotonic()
                if now >= drawn:
                    self.picture = jpeg(self.env.render(0))
                    self._refresh()
                    drawn = now + 1.0 / FRAMES
            except UserError as error:  # an environment that fails stays as it is, and says why
                self.failed, self.paused = error, True
                self._closed.wait(0.5)
            due = max(due + self.spec.step_seconds / self.speed, time.monotonic() - 0.1)
            self._closed.wait(max(0.0, due - time.monotonic()))

    def _step(self) -> None:
        action = torch.as_tensor(self.action())
        whole = torch.int64 if isinstance(self.spec.action, Discrete) else torch.float32
        step = self.env.step(action.to(whole)[None])
        self.obs = step.obs
        self.score += float(step.reward[0])
        self.steps += 1
        if bool(step.terminated[0] | step.truncated[0]):
            self.scores.append(self.score)
            self.score = 0.0

    def close(self) -> None:
        self._closed.set()
        self._thread.join(5.0)
        self.page.close()
        stop_viser(self.server)


def physical(about: deploy.About, obs: Obs) -> NDArray[Any]:
    """Observations [N, ...] of an environment in the units that an exported policy of it takes."""
    rows: NDArray[Any] = obs.actor.cpu().numpy()
    terms = about.raw["obs"]["terms"]
    if not terms:
        return rows
    gain, shift = (
        np.concatenate([np.broadcast_to(term[key], term["size"]) for term in terms])
        for key in ("scale", "offset")
    )
    shown: NDArray[Any] = rows / np.tile(gain, about.history) + np.tile(shift, about.history)
    return shown.astype(np.float32)


def jpeg(picture: NDArray[np.uint8]) -> bytes:
    from PIL import Image

    if not isinstance(picture, np.ndarray) or picture.dtype != np.uint8:
        raise UserError("the environment does not render 8-bit colour pictures.")
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "JPEG", quality=QUALITY)
    return out.getvalue()
