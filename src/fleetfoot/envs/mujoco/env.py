"""The embedded default environment: many copies of one robot in MuJoCo, on the CPU cores.

Physics runs in MuJoCo's own thread pool (`physics.py`), what the robot is to do stands in a
`Task` (`tasks.py`), and this file makes the environment contract out of the two. No step loops
over environments in Python.

Actions are in [-1, 1] and are mapped affinely onto each actuator's control range; what lies outside
is clipped. Above 300 lines: one class that keeps the contract, and what it alone needs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import mujoco
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleetfoot.config import at_least, part
from fleetfoot.data import Continuous, EnvSpec, Obs, Step
from fleetfoot.envs.draw import Draw
from fleetfoot.envs.mujoco import tasks as mujoco_tasks
from fleetfoot.envs.mujoco.physics import Simulation, compile_spec, load_spec, without_textures
from fleetfoot.envs.mujoco.tasks import Array, Physics, Task, names
from fleetfoot.envs.render import Renderer, View, add_backdrop, back_on_ground
from fleetfoot.errors import UserError

__all__ = ["Draw", "MuJoCoConfig", "MuJoCoEnv", "Physics", "Task", "View", "names"]

Range = tuple[float, float]


@part
class MuJoCoConfig:
    """One of Gymnasium's MuJoCo v5 tasks by name. `names()` lists them."""

    on_host: ClassVar[bool] = True  # simulated on the CPU, whatever the device

    task: str = "HalfCheetah-v5"
    """Name of the task."""
    threads: int = 0
    """Physics threads; 0: all available cores."""
    episode_length: int | None = None
    """Steps after which training episodes are truncated; evaluation uses the task's own length. If many
    environments start together and never restart, the learner sees little beyond their common start."""
    mass_range: Range | None = None
    """Factors on each body's mass and inertia, drawn per environment."""
    friction_range: Range | None = None
    """One factor on all friction coefficients, drawn per environment."""
    gain_range: Range | None = None
    """Factors on each actuator's strength, drawn per environment."""
    render_width: int = 640
    """Pixels."""
    render_height: int = 480
    """Pixels."""

    def __post_init__(self) -> None:
        at_least(self, "env", threads=0, episode_length=1, render_width=1, render_height=1)

    def build(self, num_envs: int, seed: int, device: torch.device) -> MuJoCoEnv:
        task = mujoco_tasks.find(self.task)
        if self.episode_length is not None:
            task = dataclasses.replace(task, episode_length=self.episode_length)
        return MuJoCoEnv(
            task,
            num_envs,
            seed,
            device,
            threads=self.threads,
            mass_range=self.mass_range,
            friction_range=self.friction_range,
            gain_range=self.gain_range,
            render_width=self.render_width,
            render_height=self.render_height,
        )

    def for_evaluation(self) -> MuJoCoConfig:
        return dataclasses.replace(
            self, episode_length=None, mass_range=None, friction_range=None, gain_range=None
        )


class MuJoCoEnv:
    """N environments of one task (`VecEnv`). The n-th start of environment i depends on (seed, i, n) alone."""

    def __init__(
        self,
        task: Task,
        num_envs: int,
        seed: int,
        device: torch.device | str = "cpu",
        *,
        threads: int = 0,
        mass_range: Range | None = None,
        friction_range: Range | None = None,
        gain_range: Range | None = None,
        render_width: int = 640,
        render_height: int = 480,
    ) -> None:
        if num_envs < 1:
            raise UserError(f"num_envs must be at least 1, not {num_envs}")
        if threads < 0:
            raise UserError(f"threads must be 0 (all usable cores) or more, not {threads}")
        ranges = {"mass": mass_range, "friction": friction_range, "gain": gain_range}
        for name, bounds in ranges.items():
            if bounds is not None and not 0.0 < bounds[0] <= bounds[1]:
                raise UserError(f"{name}_range must be two factors 0 < low <= high, not {bounds}")

        spec = without_textures(load_spec(task.model))
        task.edit(spec)
        model = compile_spec(spec)
        self._centre, self._half = _control_range(model)
        self._task, self._seed = task, seed & (2**63 - 1)
        self._randomised = any(bounds is not None for bounds in ranges.values())

        def vary(copy: mujoco.MjModel, env: int) -> None:
            _randomise(copy, self._seed, env, mass_range, friction_range, gain_range)

        self._sim = Simulation(
            model, num_envs, task.frame_skip, threads, vary if self._randomised else None
        )
        self._dt = float(model.opt.timestep) * task.frame_skip
        self._slices = {
            model.sensor(i).name: slice(adr, adr + dim)
            for i, (adr, dim) in enumerate(zip(model.sensor_adr, model.sensor_dim, strict=True))
        }
        self._rest_qpos, self._rest_qvel = model.qpos0.copy(), np.zeros(model.nv)
        self._clock = np.zeros(num_envs, dtype=np.int64)  # control steps of the running episode
        self._episode = np.zeros(num_envs, dtype=np.int64)  # episodes begun
        self._size = (render_width, render_height)
        self._renderer: Renderer | None = None
        self.spec = EnvSpec(
            name=task.name,
            num_envs=num_envs,
            obs_shape=(self._obs_size(),),
            action=Continuous(int(model.nu)),
            device=torch.device(device),
            episode_length=task.episode_length,
            step_seconds=self._dt,
            description={
                "control_hz": 1.0 / self._dt,
                "action": {
                    "offset": self._centre.tolist(),
                    "scale": self._half.tolist(),
                    "names": [model.actuator(i).name for i in range(model.nu)],
                },
            },
        )

    def reset(self) -> Obs:
        self._restart(np.arange(self.spec.num_envs))
        return self._obs(self._task.observe(self._physics()))

    def step(self, action: Tensor) -> Step:
        control = self._control(action)
        before = self._physics()
        self._sim.advance(control)
        after = self._physics()
        self._clock += 1
        reward, info = self._reward(before, control, after)
        terminated = self._task.terminated(after)
        truncated = (self._clock >= self._task.episode_length) & ~terminated
        rows = self._task.observe(after)
        next_obs = obs = self._obs(rows)
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            self._restart(ended)
            rows = rows.copy()
            rows[ended] = self._task.observe(self._physics(ended))
            obs = self._obs(rows)
        return Step(
            obs=obs,
            next_obs=next_obs,
            reward=self._to_device(reward.astype(np.float32)),
            terminated=self._to_device(terminated),
            truncated=self._to_device(truncated),
            info=info,
        )

    def _reward(
        self, before: Physics, control: Array, after: Physics
    ) -> tuple[Array, dict[str, Tensor]]:
        """The reward, and its terms for the log where the task tells them."""
        paid = self._task.reward(before, control, after)
        if not isinstance(paid, Mapping):
            return paid, {}
        terms = np.stack([np.asarray(term, np.float64) for term in paid.values()])  # [K, N]
        names = [f"env/reward_{name}" for name in paid]
        rows = self._to_device(terms.astype(np.float32))  # all at once, for a GPU
        total = terms[0]
        for term in terms[1:]:  # in the order of the task: a sum over the axis may take another
            total = total + term
        return total, dict(zip(names, rows, strict=True))

    def state_dict(self) -> dict[str, Any]:
        arrays = {
            "state": self._sim.state,
            "sensor": self._sim.sensor,
            "warmstart": self._sim.warmstart,
            "clock": self._clock,
            "episode": self._episode,
        }
        copies = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
        return {"task": self._task.name, "seed": self._seed, **copies}

    def load_state_dict(self, state: dict[str, Any]) -> Obs:
        if state.get("task") != self._task.name:
            raise UserError(
                f"this saved state is of {state.get('task')!r}, not {self._task.name!r}"
            )
        if tuple(state["state"].shape) != self._sim.state.shape:
            raise UserError(
                f"this saved state is of {len(state['state'])} environments; build as many, "
                f"not {self.spec.num_envs}"
            )
        if self._randomised and state["seed"] != self._seed:
            raise UserError(
                f"this saved state is of robots randomised with seed {state['seed']}; "
                "build with that seed"
            )
        arrays = {
            name: value.cpu().numpy().copy()
            for name, value in state.items()
            if isinstance(value, Tensor)
        }
        self._seed = int(state["seed"])
        self._sim.state, self._sim.sensor = arrays["state"], arrays["sensor"]
        self._sim.warmstart = arrays["warmstart"]
        self._clock, self._episode = arrays["clock"], arrays["episode"]
        return self._obs(self._task.observe(self._physics()))

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        if not 0 <= index < self.spec.num_envs:
            raise UserError(
                f"there is no environment {index}; they are 0 to {self.spec.num_envs - 1}"
            )
        self._require_reset()
        if self._renderer is None:
            spec = load_spec(self._task.model)  # with its textures
            add_backdrop(spec)
            self._renderer = Renderer(compile_spec(spec), *self._size, self._task.view)
        qpos = self._sim.qpos()[index]
        if self._task.view.endless:
            qpos = back_on_ground(self._renderer.model, qpos)
        return self._renderer.picture(qpos, self._sim.qvel()[index])

    def close(self) -> None:
        self._sim.close()
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _restart(self, rows: NDArray[np.int64]) -> None:
        draw = Draw(self._seed, rows, self._episode[rows])
        shape = (len(rows), 1)
        qpos, qvel = self._task.start(
            draw, np.tile(self._rest_qpos, shape), np.tile(self._rest_qvel, shape)
        )
        self._sim.restart(rows, qpos, qvel)
        self._episode[rows] += 1
        self._clock[rows] = 0

    def _physics(self, rows: NDArray[np.int64] | None = None) -> Physics:
        sim = self._sim
        state, sensor = (
            (sim.state, sim.sensor) if rows is None else (sim.state[rows], sim.sensor[rows])
        )
        velocities = 1 + sim.nq
        activations = velocities + sim.nv
        return Physics(
            qpos=state[:, 1:velocities],
            qvel=state[:, velocities:activations],
            act=state[:, activations : activations + sim.model.na],
            sensor={name: sensor[:, span] for name, span in self._slices.items()},
            dt=self._dt,
        )

    def _control(self, action: Tensor) -> Array:
        self._require_reset()
        expected = (self.spec.num_envs, self._sim.nu)
        if tuple(action.shape) != expected:
            raise UserError(f"actions must have shape {expected}, not {tuple(action.shape)}")
        given = action.detach().to("cpu", torch.float64).numpy()
        if np.isnan(given).any():
            raise UserError(
                "an action is NaN: the policy has diverged; lower the learning rate "
                "or clip its gradients"
            )
        clipped: Array = np.clip(given, -1.0, 1.0)
        return self._centre + self._half * clipped

    def _require_reset(self) -> None:
        if not self._episode[0]:
            raise UserError("call reset() first: no episode has begun")

    def _obs(self, rows: Array) -> Obs:
        tensor = self._to_device(rows.astype(np.float32))
        return Obs(tensor, tensor)

    def _to_device(self, array: NDArray[Any]) -> Tensor:
        """On the CPU the array itself is handed out: it is new, and nothing here writes to it again."""
        tensor = torch.from_numpy(array)
        if self.spec.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self.spec.device, non_blocking=True)

    def _obs_size(self) -> int:
        now = self._physics(np.zeros(1, dtype=np.int64))
        rows = self._task.observe(now)
        if rows.ndim != 2 or len(rows) != 1:
            raise UserError(
                f"observe() of {self._task.name} must return [environments, features], "
                f"not shape {rows.shape}"
            )
        return int(rows.shape[1])


def _control_range(model: mujoco.MjModel) -> tuple[Array, Array]:
    if model.nu == 0:
        raise UserError("the model has no actuators; add an <actuator> section")
    for i in np.flatnonzero(~model.actuator_ctrllimited.astype(bool)).tolist():
        name = model.actuator(i).name or i
        raise UserError(
            f"actuator {name!r} has no ctrlrange; actions in [-1, 1] are mapped onto it"
        )
    low, high = model.actuator_ctrlrange.T
    return (low + high) / 2, (high - low) / 2


def _randomise(
    model: mujoco.MjModel,
    seed: int,
    env: int,
    mass_range: Range | None,
    friction_range: Range | None,
    gain_range: Range | None,
) -> None:
    """Scale the numbers of environment `env`'s own model. Episode -1 keeps these draws apart from the starts."""
    draw = Draw(seed, np.array([env]), np.array([-1]))
    if mass_range is not None:
        factor = draw.uniform(*mass_range, int(model.nbody))[0]
        model.body_mass *= factor
        model.body_inertia *= factor[:, None]
    if friction_range is not None:
        model.geom_friction *= draw.uniform(*friction_range, 1)[0]
        model.pair_friction *= draw.uniform(*friction_range, 1)[0]
    if gain_range is not None:
        factor = draw.uniform(*gain_range, int(model.nu))[0]
        # Both, so that a position servo keeps its set point: force = k * control - k * position.
        model.actuator_gainprm *= factor[:, None]
        model.actuator_biasprm *= factor[:, None]
    mujoco.mj_setConst(model, mujoco.MjData(model))
