"""One Gymnasium environment inside a set, in the process of the run or in its own."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from fleetfoot.envs.info import numbers
from fleetfoot.errors import Hung, UserError, nearest, one_line, place
from fleetfoot.extras import install_line

FAULT = "fleetfoot_fault"  # in the info of a copy that misbehaved: what it did


def names() -> list[str]:
    """Ids registered with Gymnasium, except Atari's, which `AtariConfig` lists: whether they are registered depends on
    what was imported before."""
    made = ((name, str(spec.entry_point or "")) for name, spec in gymnasium.registry.items())
    return sorted(name for name, where in made if where and not where.startswith("ale_py"))


class Copy(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One copy inside the set, possibly in a process of its own.

    Observations are copied: some environments hand out one array again and again, and restarting would overwrite the
    last observation of the episode before anyone has read it. Of `info` only numbers are passed on, as floats:
    Gymnasium would give a name the type of its first value, and send everything else between processes. What the
    environment does wrong is told in `info` too: between processes an exception may be lost, and prints a traceback.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], index: int) -> None:
        super().__init__(env)
        self.index = index
        space: Any = env.observation_space
        self.blank = np.zeros(space.shape or (), space.dtype)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        begun = time.monotonic()
        try:
            obs, _ = self.env.reset(**options)
            return self._whole(obs), {}
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self.blank, {FAULT: _fault(error, begun)}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        begun = time.monotonic()
        try:
            obs, reward, terminated, truncated, info = self.env.step(action)
            told = numbers(info) if info else {}
            ended = _flag("terminated", terminated), _flag("truncated", truncated)
            return self._whole(obs), float(reward), *ended, told
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self.blank, 0.0, False, False, {FAULT: _fault(error, begun)}

    def _whole(self, obs: Any) -> NDArray[Any]:
        rows = np.array(obs)
        if rows.shape != self.blank.shape or rows.dtype.kind not in "biuf":
            given = "None" if obs is None else f"{list(rows.shape)} {rows.dtype}"
            wanted = f"{list(self.blank.shape)} {self.blank.dtype}"
            raise Wrong(f"returned observations {given} instead of {wanted}")
        return rows

    def picture(self, index: int) -> Any:
        """A picture if this copy is meant, or why there is none: an exception ends the process."""
        if index != self.index:
            return None
        try:
            if _is_mujoco(self):
                _choose_gl()
            picture = self.env.render()
        except NotImplementedError:
            return "the environment has no method render"
        except Exception as error:
            return one_line(error)
        right = isinstance(picture, np.ndarray) and picture.ndim == 3 and picture.shape[2] == 3
        return picture if right else "the environment has no render mode rgb_array"


class Wrong(Exception):  # noqa: N818
    """An environment returned what its spaces do not allow."""


def _flag(name: str, value: Any) -> bool:
    flag = np.asarray(value)
    if flag.size != 1 or flag.dtype.kind not in "biu":
        raise Wrong(f"returned {name} {value!r:.80} instead of True or False")
    return bool(flag.item())


def _fault(error: BaseException, begun: float) -> str:
    """What a copy did wrong, as the end of a sentence that begins with its name."""
    if isinstance(error, Hung):
        return silent(begun)
    return str(error) if isinstance(error, Wrong) else f"failed: {one_line(error)}{place(error)}"


def silent(begun: float) -> str:
    return f"has not answered for {time.monotonic() - begun:.0f} s"


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    return f"was ended by {name}{' (often: not enough memory)' if name == 'SIGKILL' else ''}"


def _belong_to_parent() -> None:
    """In a process of its own: signals that a terminal or a scheduler sends to all processes are for the parent, which
    then closes this one. It also ends when the parent ends in whatever way, even if it hangs."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        set_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def _is_mujoco(env: gymnasium.Env[Any, Any]) -> bool:
    return any(
        cls.__module__.startswith("gymnasium.envs.mujoco") for cls in type(env.unwrapped).mro()
    )


def _choose_gl() -> None:
    """Name an OpenGL that works: without a screen, Gymnasium's own search can end the process."""
    from fleetfoot.envs.render import backend

    if (gl := backend()) != "native":
        os.environ["MUJOCO_GL"] = gl


def make_copy(
    name: str, kwargs: dict[str, Any], render_mode: str | None, index: int, parent: int
) -> Copy:
    if os.getpid() != parent:
        _belong_to_parent()
    # A class that never draws need not have the argument `render_mode`.
    drawing = {"render_mode": render_mode} if render_mode else {}
    arguments: dict[str, Any] = {"disable_env_checker": True, **drawing, **kwargs}
    try:
        return Copy(gymnasium.make(name, **arguments), index)
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv):
        raise UserError(
            f"Gymnasium knows no environment {name!r}.{nearest(name, names())} "
            "One that another package registers is written 'package:Id-v0'; a module of your own needs --import MODULE."
        ) from None
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        if "box2d" in str(error).lower():  # Gymnasium's advice is to compile it
            raise UserError(f"{name} needs Box2D: {install_line('box2d')}") from None
        raise UserError(f"{name} needs a package that is missing: {one_line(error)}") from None
    except (gymnasium.error.Error, TypeError) as error:
        raise UserError(
            f"{name!r} cannot be made with kwargs {kwargs}: {one_line(error)}"
        ) from None
