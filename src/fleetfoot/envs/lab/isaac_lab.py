"""Simulators with the environment API of Isaac Lab, and Isaac Lab itself.

`LabEnv` adapts that API to the `VecEnv` contract; `fleetfoot.envs.lab.mjlab` builds on it. What the API gives:
`reset() -> (obs, extras)` and `step(action) -> (obs, reward, terminated, time_out, extras)`, torch tensors on the
simulator's device, with observations in named groups ("policy" or "actor", and "critic" where it sees more). Nothing is
copied to another device and nothing here asks the device for a value.

Isaac Lab restarts environments inside `step`, so the last observation of an episode is lost
(`EnvSpec.exact_final_obs` is False): replay then takes no target from a truncated row. It also runs one simulation per
process. Evaluation therefore borrows the simulation of training; when it comes back, every episode that was running has
been cut, with its last observation lost.

Above 300 lines: the adapter, next to the one simulator that needs exceptions from it.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import random
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleetfoot.config import part
from fleetfoot.data import Continuous, EnvSpec, Obs, Step
from fleetfoot.envs.host import NoState
from fleetfoot.envs.vec_env import check_module
from fleetfoot.errors import UserError, nearest

ACTOR_GROUPS = ("actor", "policy")  # mjlab's name and Isaac Lab's
MISSING = (
    "Isaac Lab tasks need Isaac Sim and Isaac Lab in this Python environment; see "
    "https://isaac-sim.github.io/IsaacLab for their installation."
)


class OwnRandom:
    """A random stream for one simulator of those that draw from torch's global generators.

    Inside this context the global generators continue the stream of this simulator. Outside they are as they were, for
    a second simulator as for the initial weights of a network.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self.generators = [torch.default_generator]
        if device.type == "cuda":
            current = torch.cuda.current_device()  # also makes the generators
            index = current if device.index is None else device.index
            self.generators.append(torch.cuda.default_generators[index])
        outside = [generator.get_state() for generator in self.generators]
        for generator in self.generators:
            generator.manual_seed(seed)
        self.inside = self._exchange(outside)

    def __enter__(self) -> None:
        self.outside = self._exchange(self.inside)

    def __exit__(self, *_: object) -> None:
        self.inside = self._exchange(self.outside)

    def _exchange(self, states: list[Tensor]) -> list[Tensor]:
        # The state of a CUDA generator is two numbers on the host: this does not wait for the device.
        before = [generator.get_state() for generator in self.generators]
        for generator, state in zip(self.generators, states, strict=True):
            generator.set_state(state)
        return before


@contextlib.contextmanager
def building(stream: OwnRandom) -> Iterator[None]:
    """For the time a simulator is built: it then seeds Python's and numpy's global generators too."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with stream:
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


class LabEnv(NoState):
    """The first `rows` environments of a simulator `envs` that has Isaac Lab's API; all of them, if it is not told."""

    # The state is spread over the simulator, its managers, timers, delays and curricula; no one call tells it.
    why_no_state = "its simulator does not tell all of its state"

    def __init__(
        self,
        envs: Any,
        name: str,
        stream: OwnRandom,
        device: torch.device,
        *,
        action_scale: float,
        spread_ends: bool,
        episode_length: int | None = None,
        exact_final_obs: bool = False,
        rows: int | None = None,
    ) -> None:
        self.envs, self.stream = envs, stream
        self.action_scale, self.spread_ends = action_scale, spread_ends
        self.rows: int = envs.num_envs if rows is None else rows
        spaces: dict[str, Any] = dict(envs.single_observation_space.spaces)
        self.actor = next((group for group in ACTOR_GROUPS if group in spaces), "policy")
        if unknown := sorted(set(spaces) - {self.actor, "critic"}):
            raise UserError(
                f"{name} has the observation groups {', '.join(sorted(spaces))}; only "
                f"{' or '.join(ACTOR_GROUPS)} and critic are understood, not {unknown[0]}."
            )
        for group, space in spaces.items():
            if len(space.shape or ()) != 1:
                raise UserError(
                    f"{name} has observations {group!r} of shape {space.shape}; only flat ones are "
                    "understood (concatenate_terms=True, no images)."
                )
        self.privileged = "critic" in spaces
        self.spec = EnvSpec(
            name=name,
            num_envs=self.rows,
            obs_shape=tuple(int(size) for size in spaces[self.actor].shape),
            critic_shape=(int(spaces["critic"].shape[0]),) if self.privileged else None,
            action=Continuous(math.prod(envs.single_action_space.shape)),
            device=device,
            # Where the first episodes end anywhere, no length holds for all of them.
            episode_length=None if spread_ends else episode_length,
            exact_final_obs=exact_final_obs,
            any_stream=device.type != "cuda",  # Warp and PhysX step on streams of their own
            step_seconds=float(envs.step_dt),
        )
        # Of a finite task the end of the time is the end, and nothing is worth anything beyond it.
        self.finite = bool(getattr(envs.cfg, "is_finite_horizon", False))
        self.closed = False

    def reset(self) -> Obs:
        with self.stream:
            groups, _ = self.envs.reset()
            if self.spread_ends:
                clock = self.envs.episode_length_buf
                clock.copy_(torch.randint_like(clock, int(self.envs.max_episode_length)))
        return self._obs(groups)

    def step(self, action: Tensor) -> Step:
        with self.stream:
            groups, reward, terminated, time_out, _ = self.envs.step(self._command(action))
            # The simulator writes to its own flags and rewards again: these are copies.
            reward = reward[: self.rows].to(torch.float32, copy=True)
            terminated, time_out = terminated[: self.rows].clone(), time_out[: self.rows]
            if self.finite:
                terminated |= time_out
            truncated = time_out & ~terminated
            next_obs, info = self._obs(groups), self._info()
            obs = self._restart(next_obs, terminated | truncated)
        return Step(obs, next_obs, reward, terminated, truncated, info)

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        raise UserError(
            f"{self.spec.name} cannot be rendered here; use Isaac Lab's own `play.py --video`."
        )

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.envs.close()

    def _command(self, action: Tensor) -> Tensor:
        """The action of every environment of the simulator; those beyond `rows` are told to do nothing."""
        scaled = action.clamp(-1.0, 1.0) * self.action_scale
        idle = self.envs.num_envs - self.rows
        return torch.cat([scaled, scaled.new_zeros(idle, scaled.shape[1])]) if idle else scaled

    def _obs(self, groups: dict[str, Tensor]) -> Obs:
        # Copies: not every task of Isaac Lab makes new tensors for each step.
        actor = groups[self.actor][: self.rows].to(torch.float32, copy=True)
        if not self.privileged:
            return Obs(actor, actor)
        return Obs(actor, groups["critic"][: self.rows].to(torch.float32, copy=True))

    def _info(self) -> dict[str, Tensor]:
        """What each term of the reward paid in this step, per second and weighted."""
        manager = getattr(self.envs, "reward_manager", None)  # some tasks have a function instead
        if manager is None:
            return {}
        paid = manager._step_reward[: self.rows].clone().unbind(1)
        return {
            f"env/reward_{term}": row for term, row in zip(manager.active_terms, paid, strict=True)
        }

    def _restart(self, next_obs: Obs, ended: Tensor) -> Obs:
        """What to act on now. Here the simulator has restarted what ended, and shows nothing else."""
        return next_obs


@part
class IsaacLabConfig:
    """A task of Isaac Lab by its Gymnasium id. Not tried with Isaac Sim itself, which is not on any package index."""

    id: str = "Isaac-Velocity-Flat-G1-v0"
    action_scale: float = 1.0
    """What an action of 1 becomes; actions of these tasks are unbounded."""
    spread_ends: bool = True
    """The first episodes end at random times instead of all at once."""

    def __post_init__(self) -> None:
        check_scale(self.action_scale)

    def build(self, num_envs: int, seed: int, device: torch.device) -> IsaacLabEnv:
        if num_envs < 1:
            raise UserError(f"num_envs must be at least 1, not {num_envs}.")
        simulation = Simulation.running
        if simulation is None:
            simulation = Simulation(self.id, num_envs, seed, device)
        elif simulation.id != self.id or num_envs > simulation.envs.num_envs:
            raise UserError(
                f"Isaac Sim runs one simulation per process: {simulation.envs.num_envs} x {simulation.id} is running, "
                f"{num_envs} x {self.id} was asked for. Evaluation needs the same task and no more environments."
            )
        return IsaacLabEnv(self, simulation, num_envs, device)

    def when_stored(self) -> IsaacLabConfig:
        check_module(self.id)
        return self

    def for_evaluation(self) -> IsaacLabConfig:
        """The same simulation, randomisation and all: there is only one."""
        return IsaacLabConfig(id=self.id, action_scale=self.action_scale, spread_ends=False)


def check_scale(action_scale: float) -> None:
    if not 0 < action_scale < math.inf:
        raise UserError(f"env.action_scale must be a positive number, not {action_scale}.")


class Simulation:
    """The one simulation of this process, and who is using it."""

    running: Simulation | None = None
    app: Any = None  # Isaac Sim; it starts once and ends with the process

    def __init__(self, name: str, num_envs: int, seed: int, device: torch.device) -> None:
        self.id = name
        self.stream = OwnRandom(seed, device)
        with building(self.stream):
            self.envs = self._make(name, num_envs, seed % 2**31, device)
        self.user: IsaacLabEnv | None = None
        self.users = 0
        Simulation.running = self

    @staticmethod
    def _make(name: str, num_envs: int, seed: int, device: torch.device) -> Any:
        try:
            if Simulation.app is None:  # before the tasks are imported: they import the simulator
                launcher = importlib.import_module("isaaclab.app").AppLauncher
                Simulation.app = launcher(headless=True, device=str(device))
            importlib.import_module("isaaclab_tasks")
            parse = importlib.import_module("isaaclab_tasks.utils.parse_cfg").parse_env_cfg
        except ImportError:
            raise UserError(MISSING) from None
        known = [
            key for key, spec in gymnasium.registry.items() if "env_cfg_entry_point" in spec.kwargs
        ]
        if name not in known:
            raise UserError(f"Isaac Lab knows no task {name!r}.{nearest(name, known)}")
        cfg = parse(name, device=str(device), num_envs=num_envs)
        cfg.seed = seed
        return gymnasium.make(name, cfg=cfg).unwrapped


class IsaacLabEnv(LabEnv):
    """N environments of Isaac Lab. Others may use the same simulation: whoever resets it has it."""

    def __init__(
        self, config: IsaacLabConfig, simulation: Simulation, rows: int, device: torch.device
    ) -> None:
        super().__init__(
            simulation.envs,
            f"isaac_lab/{config.id}",
            simulation.stream,
            device,
            action_scale=config.action_scale,
            spread_ends=config.spread_ends,
            rows=rows,
        )
        self.simulation = simulation
        simulation.users += 1

    def reset(self) -> Obs:
        self.simulation.user = self
        return super().reset()

    def step(self, action: Tensor) -> Step:
        if self.simulation.user is not self:
            return self._cut()
        return super().step(action)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.simulation.users -= 1
            if self.simulation.users == 0:
                self.envs.close()
                Simulation.running = None

    def _cut(self) -> Step:
        """End all episodes, because others have used the simulation in between.

        They are truncated and their last observation is lost, so the agent learns nothing from them; new ones begin.
        """
        obs = self.reset()
        never = torch.zeros(self.rows, dtype=torch.bool, device=self.spec.device)
        return Step(obs, obs, torch.zeros_like(never, dtype=torch.float32), never, ~never, {})
