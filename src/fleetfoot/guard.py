"""Environments that cannot take a run with them: whatever one of them does becomes one line.

`build_env` builds the environments of a config inside a `Guarded`. What they return is compared with their spec (None,
other shapes, other dtypes and, on a CPU, NaN), an exception or SystemExit in them becomes a `Halted`, and so does a
call that takes longer than `Recipe.env_timeout` (`Watch`).

More than 300 lines: the watch and what it guards know each other.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleetfoot.data import EnvSpec, Obs, Step
from fleetfoot.envs.vec_env import EnvConfig, EnvFault, TwoHalves, VecEnv
from fleetfoot.errors import Halted, Hung, Notice, Program, UserError, one_line, place
from fleetfoot.system import free_bytes, out_of_memory

T = TypeVar("T")

TICK = 0.25  # seconds between two looks at the calls
GRACE = 10.0  # seconds that a call which is interrupted has to end
AGAIN = 3.0  # seconds between two interruptions of one call
AT_ONCE = 1.0  # seconds that a step has to end after Ctrl-C
CLOSING = 30.0  # seconds that environments have to close
LEAST = 256  # bytes of an environment: a small state, observations, actions, what is computed in between


def build_env(
    config: EnvConfig,
    num_envs: int,
    seed: int,
    device: torch.device,
    timeout: float = math.inf,
) -> VecEnv:
    """The environments of `config`. `timeout`: seconds that a reset or a step of all of them may take."""
    name = type(config).__name__
    why = f"{num_envs:,} environments do not fit in memory; use fewer (--num-envs, --episodes)"
    try:
        if num_envs * LEAST > free_bytes(
            device
        ):  # systems without memory end programs without a word
            raise UserError(f"{name} cannot be built: {why}.")
        env = config.build(num_envs, seed, device)
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if out_of_memory(error):
            raise UserError(f"{name} cannot be built: {why}.") from error
        raise UserError(f"{name} cannot be built: {one_line(error)}{place(error)}.") from error
    kind = GuardedHalves if isinstance(env, TwoHalves) else Guarded
    return kind(env, seed, timeout)


@dataclass
class Call:
    """A call of an environment that has not returned."""

    name: str
    deadline: float
    code: int = 2  # with which the program ends where the call cannot be interrupted
    again: float = -math.inf  # when it may be interrupted once more
    begun: float = field(default_factory=time.monotonic)

    def seconds(self) -> float:
        return time.monotonic() - self.begun


class Watch:
    """Notices calls that take too long. In the main thread `Hung` is raised inside such a call. Where that has no
    effect, because it is compiled code or another thread, the program says so and, if it may, ends."""

    def __init__(self) -> None:
        self.calls: dict[int, Call] = {}  # by thread
        self.abandoned = False  # a thread hangs for ever, and Python would wait for it at its end
        self.watching: int | None = (
            None  # the process whose calls are watched: a fork has no thread
        )

    @contextlib.contextmanager
    def limit(self, name: str, seconds: float) -> Iterator[None]:
        if self.watching != os.getpid():
            self._start()
        thread = threading.get_ident()
        outer = self.calls.get(thread)
        self.calls[thread] = Call(name, time.monotonic() + seconds)
        try:
            yield
        finally:
            if outer is None:
                self.calls.pop(thread, None)
            else:
                self.calls[thread] = outer

    def wait_for(self, coming: Future[T]) -> T:
        """The result of a call in another thread. If that thread hangs in an environment it is left there, and the
        caller gets a `Halted`."""
        while True:
            with contextlib.suppress(TimeoutError):
                return coming.result(TICK)
            if coming.done():
                return coming.result()
            here = threading.get_ident()
            for thread, call in list(self.calls.items()):
                if thread != here and call.deadline <= time.monotonic():
                    self.calls.pop(thread, None)
                    self.abandoned = True
                    raise Halted(f"{call.name} has not answered for {call.seconds():.0f} s")

    def hurry(self) -> None:
        """Ctrl-C was pressed: what does not return soon hangs."""
        soon = time.monotonic() + AT_ONCE
        for call in list(self.calls.values()):
            call.deadline, call.code = min(call.deadline, soon), 130

    def _start(self) -> None:
        self.calls.clear()
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, self._interrupt):
            signal.signal(signal.SIGALRM, self._interrupt)
        self.watching = os.getpid()
        threading.Thread(target=self._look, name="watch", daemon=True).start()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """In the main thread. Not at each look: what an interrupted call leaves behind may take a moment to clear
        away, and a second `Hung` would then hit those who handle the first."""
        call, now = self.calls.get(threading.get_ident()), time.monotonic()
        if call is not None and call.deadline <= now and call.again <= now:
            call.again = now + AGAIN
            raise Hung

    def _look(self) -> None:
        while True:
            time.sleep(TICK)
            for thread, call in list(self.calls.items()):
                late = time.monotonic() - call.deadline
                if late < 0:
                    continue
                if thread == threading.main_thread().ident:
                    with contextlib.suppress(OSError, ValueError):
                        if signal.getsignal(signal.SIGALRM) == self._interrupt:
                            signal.pthread_kill(thread, signal.SIGALRM)
                if late > GRACE:
                    self._give_up(call)

    def _give_up(self, call: Call) -> None:
        call.deadline = math.inf
        line = f"{call.name} does not answer and cannot be interrupted"
        if not Program.is_ours:
            print(f"fleetfoot: {line}.", file=sys.stderr, flush=True)
            return
        with contextlib.suppress(OSError):
            print(f"fleetfoot: {line}; resume continues from the last checkpoint.", file=sys.stderr)
            sys.stderr.flush()
        os._exit(call.code)


WATCH = Watch()


class Guarded:
    """A `VecEnv` whose mistakes become one line."""

    def __init__(self, env: VecEnv, seed: int, timeout: float):
        self.env, self.seed, self.timeout = env, seed, timeout
        self.spec: EnvSpec = env.spec
        spec = env.spec
        critic = spec.obs_shape if spec.critic_shape is None else spec.critic_shape
        # What each tensor of an observation must be; the critic's dtype may be either of the two.
        self.actor_shape = (spec.num_envs, *spec.obs_shape)
        self.critic_shape = (spec.num_envs, *critic)
        self.action: Tensor | None = None  # of the step under way

    def reset(self) -> Obs:
        obs = self._call(self.env.reset)
        self._check_obs("reset", obs)
        return obs

    def step(self, action: Tensor) -> Step:
        self.action = action
        return self._checked(self._call(self.env.step, action))

    def load_state_dict(self, state: dict[str, Any]) -> Obs:
        obs = self._call(self.env.load_state_dict, state)
        self._check_obs("load_state_dict", obs)
        return obs

    def state_dict(self) -> dict[str, Any] | None:
        return self._call(self.env.state_dict)

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        return self._call(self.env.render, index)

    def close(self) -> None:
        """What fails now is too late to matter: the run is over, and saved."""
        try:
            with WATCH.limit(self.spec.name, min(self.timeout, CLOSING)):
                self.env.close()
        except (Exception, SystemExit, Hung) as error:
            warnings.warn(
                f"closing {self.spec.name} failed: {one_line(error)}", Notice, stacklevel=2
            )

    def __getattr__(self, name: str) -> Any:
        """What else an environment offers is its own."""
        if name == "env":  # not built yet
            raise AttributeError(name)
        return getattr(self.env, name)

    def _call(self, method: Callable[..., T], *arguments: Any) -> T:
        begun = time.monotonic()
        try:
            with WATCH.limit(f"{self.spec.name} (seed {self.seed})", self.timeout):
                return method(*arguments)
        except (UserError, KeyboardInterrupt):
            raise
        except EnvFault as fault:
            who = f"{fault.who} {fault.index} of {self.spec.name} (seed {fault.seed})"
            raise Halted(f"{who} {fault.what}") from fault
        except Hung:
            seconds = f"{time.monotonic() - begun:.0f} s"
            raise self._halted(f"has not answered for {seconds}") from None
        except BaseException as error:
            raise self._halted(f"failed: {one_line(error)}{place(error)}") from error

    def _halted(self, what: str, row: int | None = None) -> Halted:
        who = self.spec.name if row is None else f"environment {row} of {self.spec.name}"
        return Halted(f"{who} (seed {self.seed}) {what}")

    def _checked(self, step: Step) -> Step:
        if not isinstance(step, Step):
            raise self._halted(f"returned {_shown(step)} instead of a Step")
        self._check_obs("step", step.obs)
        next_obs = step.next_obs
        if not isinstance(next_obs, Obs) or next_obs.actor is not step.obs.actor:
            self._check_obs("step", next_obs)
        rows = (self.spec.num_envs,)
        for name, dtype in (("terminated", torch.bool), ("truncated", torch.bool)):
            self._check_tensor(name, getattr(step, name), rows, dtype)
        self._check_tensor("reward", step.reward, rows, torch.float32)
        self._check_finite("reward", step.reward)
        return step

    def _check_obs(self, method: str, obs: Obs) -> None:
        if not isinstance(obs, Obs):
            raise self._halted(f"returned {_shown(obs)} instead of an Obs from {method}")
        self._check_tensor("obs.actor", obs.actor, self.actor_shape, self.spec.obs_dtype)
        self._check_finite("obs.actor", obs.actor)
        if obs.critic is not obs.actor:
            self._check_tensor("obs.critic", obs.critic, self.critic_shape, None)
            self._check_finite("obs.critic", obs.critic)

    def _check_tensor(
        self, name: str, value: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None
    ) -> None:
        right = isinstance(value, Tensor) and value.shape == shape
        if not (right and (dtype is None or value.dtype == dtype)):
            wanted = f"{list(shape)}" + ("" if dtype is None else f" {dtype}")
            raise self._halted(f"returned {name} {_shown(value)} instead of {wanted}")

    def _check_finite(self, name: str, value: Tensor) -> None:
        """On a GPU looking would wait for the device; there the log notices it. So it does where the action was no
        number: that is the learner's fault."""
        if value.device.type != "cpu" or not value.is_floating_point():
            return
        if math.isfinite(float(value.sum())):
            return
        if self.action is not None and not bool(torch.isfinite(self.action).all()):
            return
        finite = torch.isfinite(value).flatten(1).all(1) if value.dim() > 1 else value.isfinite()
        if not bool(finite.all()):  # a sum may also overflow
            row = int((~finite).nonzero()[0])
            raise self._halted(f"returned {name} that is NaN or infinite", row)


class GuardedHalves(Guarded):
    """The same for one whose step has two halves."""

    def send(self, action: Tensor) -> None:
        self.action = action
        self._call(cast(TwoHalves, self.env).send, action)

    def receive(self) -> Step:
        return self._checked(self._call(cast(TwoHalves, self.env).receive))


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{list(value.shape)} {value.dtype}"
    return "None" if value is None else f"a {type(value).__name__}"
