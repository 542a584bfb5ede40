"""MuJoCo Playground: robots on MuJoCo Warp or MJX, thousands at once on one GPU.

Simulation is JAX, everything else is torch. Tensors cross between the two through DLPack, without a copy and without a
word to the host: each side's stream waits for the other's. One vec step is one compiled call (`playground_step`), and
this file makes the environment contract of it. How a task is found and loaded stands in `playground_task`.

JAX is imported when an environment is built, never before.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from fleetfoot.config import at_least, part
from fleetfoot.data import Continuous, EnvSpec, Obs, Step
from fleetfoot.envs.playground import task as playground_task
from fleetfoot.envs.render import Renderer, View
from fleetfoot.envs.robot.config import stock_of
from fleetfoot.errors import UserError

if TYPE_CHECKING:
    from fleetfoot.envs.playground.step import Program, World


@part
class PlaygroundConfig:
    """One task of MuJoCo Playground by name. `names()` lists them."""

    task: str = "CartpoleBalance"
    impl: Literal["auto", "warp", "jax"] = "auto"
    """The physics: MuJoCo Warp or MJX. auto: warp; on a CPU, jax for tasks without contacts, where it is faster."""
    episode_length: int = 0
    """Steps until truncation in training; 0: the task's own length, which evaluation always uses."""
    randomize_domain: bool = False
    """Randomise masses, friction and gains per robot, as the task defines it."""
    pushes: bool = False
    """Push the robot, if the task defines pushes."""
    tuned_reward: bool = False
    """FastTD3's reward weights, for the joystick tasks of T1 and G1."""
    start_states: int = 1024
    """Start states drawn when the environments are built; each episode begins with one of them."""
    metrics: bool = False
    """Log the task's own metrics, such as its reward terms."""
    overrides: tuple[str, ...] = ()
    """Changes to the task's config, as in noise_config.level=0.5, and to MuJoCo Warp's options, as in
    warp.graph_conditional=false."""
    menagerie: str = ""
    """Folder with the robot models; empty: FLEETFOOT_MENAGERIE, or a download."""
    render_width: int = 640
    """Pixels."""
    render_height: int = 480
    """Pixels."""

    def __post_init__(self) -> None:
        at_least(self, "env", episode_length=0, start_states=1, render_width=1, render_height=1)
        if self.tuned_reward and self.task not in playground_task.TUNED_TASKS:
            known = ", ".join(playground_task.TUNED_TASKS)
            raise UserError(f"env.tuned_reward is for {known}, not for {self.task}.")

    def build(self, num_envs: int, seed: int, device: torch.device) -> PlaygroundEnv:
        if num_envs < 1:
            raise UserError(f"num_envs must be at least 1, not {num_envs}.")
        return PlaygroundEnv(self, num_envs, seed, device)

    def for_evaluation(self) -> PlaygroundConfig:
        """The task as its return is reported: stock reward, no pushes, nothing randomised, its own length."""
        return dataclasses.replace(
            self, episode_length=0, randomize_domain=False, pushes=False, tuned_reward=False
        )


def names() -> list[str]:
    """Every task of the installed Playground."""
    return playground_task.names()


class PlaygroundEnv:
    """N robots behind the `VecEnv` contract. Nothing is compiled before the first `reset`."""

    def __init__(
        self, config: PlaygroundConfig, num_envs: int, seed: int, device: torch.device
    ) -> None:
        playground_task.prepare(device)
        self._step: Any = importlib.import_module("fleetfoot.envs.playground.step")
        self._program: Program = self._step.program(
            playground_task.Wanted.of(config, device), num_envs
        )
        self._settings = self._program.settings(config)
        self._seed = seed % 2**32
        self._world: World | None = None
        self._running: list[Any] = []
        self._held: tuple[Any, ...] = ()
        self._size = (config.render_width, config.render_height)
        self._renderer: Renderer | None = None
        task = self._program.task
        stock = stock_of(config.task)
        # Overrides may change what the task shows and commands; its joints are read from the task itself.
        told = stock.description if stock is not None and not config.overrides else {}
        self.spec = EnvSpec(
            name=f"playground/{config.task}",
            num_envs=num_envs,
            obs_shape=(task.obs_size,),
            action=Continuous(task.action_size),
            device=device,
            critic_shape=(task.critic_size,) if task.critic_size else None,
            critic_prefix=task.critic_prefix,
            episode_length=config.episode_length or task.episode_length,
            step_seconds=task.step_seconds,
            description={**told, **task.description},
            symmetry=None if stock is None else stock.symmetry,
        )

    def reset(self) -> Obs:
        world = self._begin()
        self._running, shown = self._program.restart(world, self._running)
        return self._obs(shown)

    def step(self, action: Tensor) -> Step:
        if self._world is None:
            raise UserError("call reset() first: no episode has begun")
        wanted = (self.spec.num_envs, self._program.task.action_size)
        if action.shape != wanted or action.dtype != torch.float32:
            raise UserError(
                f"actions must be float32 of shape {wanted}, not {action.dtype} {tuple(action.shape)}"
            )
        given = self._step.from_torch(action)
        self._running, shown = self._program.step(self._world, self._running, given)
        # JAX may still be reading the action. What follows on this torch stream waits for the outputs below, so
        # one step later the memory may go back to torch's allocator.
        self._held = (action, given)
        metrics = from_dlpack(shown["metrics"]).unbind() if "metrics" in shown else ()
        return Step(
            obs=self._obs(shown["obs"]),
            next_obs=self._obs(shown["next_obs"]),
            reward=from_dlpack(shown["reward"]),
            terminated=from_dlpack(shown["terminated"]),
            truncated=from_dlpack(shown["truncated"]),
            info=dict(zip(self._program.task.metrics, metrics, strict=bool(metrics))),
        )

    def state_dict(self) -> dict[str, Any]:
        """What the next step reads. What it computes anew (contacts, constraints) is left out."""
        self._require_reset()
        return {
            "task": self.spec.name,
            "seed": self._seed,
            "running": self._program.saved(self._running),
        }

    def load_state_dict(self, state: dict[str, Any]) -> Obs:
        if state.get("task") != self.spec.name:
            raise UserError(f"this saved state is of {state.get('task')!r}, not {self.spec.name!r}")
        rows = len(state["running"]["clock"])
        if rows != self.spec.num_envs:
            raise UserError(
                f"this saved state is of {rows} environments; build as many, "
                f"not {self.spec.num_envs}"
            )
        if state["seed"] != self._seed:  # other start states, other randomised robots
            self._seed, self._world = int(state["seed"]), None
        self._begin()
        self._running, shown = self._program.restored(self._running, state["running"])
        return self._obs(shown)

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        if not 0 <= index < self.spec.num_envs:
            raise UserError(
                f"there is no environment {index}; they are 0 to {self.spec.num_envs - 1}"
            )
        self._require_reset()
        if self._renderer is None:
            self._renderer = Renderer(self._program.task.drawn_model(), *self._size, View())
        return self._renderer.picture(*self._program.posture(self._running, index))

    def close(self) -> None:
        self._running, self._held, self._world = [], (), None
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _begin(self) -> World:
        """Start states and robots of this seed, made once."""
        if self._world is None:
            limit = self.spec.episode_length or 0  # never None here
            self._world, self._running = self._program.world(self._seed, limit, self._settings)
        return self._world

    def _require_reset(self) -> None:
        if self._world is None:
            raise UserError("call reset() first: no episode has begun")

    def _obs(self, shown: tuple[Any, ...]) -> Obs:
        """JAX never writes to a buffer it has handed out, so torch may keep it as it is."""
        actor = from_dlpack(shown[0])
        return Obs(actor, actor if len(shown) == 1 else from_dlpack(shown[1]))
