"""N copies of one MuJoCo model, stepped by MuJoCo's own thread pool (`mujoco.rollout`).

What `mujoco.rollout` gives back is the physics state after every substep and the sensor values *as
`mj_step` leaves them*. Two facts about `mj_step` shape this file:

1. Sensors (and xpos, contact forces, ...) are computed before the state is integrated, so with the
   Euler and implicit integrators they are one timestep old. That is what Gymnasium reads too, so
   nothing is to be done.
2. With the Runge-Kutta integrator, sensors are computed in the first of four stages only, while
   Gymnasium reads body positions and forces as the *fourth* stage left them. For models that have
   sensors and that integrator, the last substep is therefore made stage by stage here: four
   evaluations, the same work `mj_step` does, and the sensors of the fourth. This is what makes
   rewards equal Gymnasium's.

`mujoco.rollout` does not return the solver's warm start. It is zero at the beginning of every
control step, so that the physics state alone determines the future (and saving it is exact). Where
the stages are made here, or where `warm` asks for it, the last acceleration is carried on.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path

import mujoco
import numpy as np
from mujoco import rollout
from numpy.typing import NDArray

from fleetfoot.envs.mujoco.joints import Joints
from fleetfoot.errors import UserError
from fleetfoot.system import usable_cores

Array = NDArray[np.float64]
FULL = mujoco.mjtState.mjSTATE_FULLPHYSICS.value


def load_spec(model: str) -> mujoco.MjSpec:
    """The editable form of an MJCF file (`model` is a path) or of MJCF text (`model` begins with '<')."""
    if not isinstance(model, str):
        raise UserError(
            f"a model is the path of an MJCF file as a string, or MJCF text, not a {type(model).__name__}; use str()."
        )
    try:
        if model.lstrip().startswith("<"):
            return mujoco.MjSpec.from_string(model)
        if not Path(model).is_file():
            raise UserError(f"there is no MJCF file {model!r}; give a path or the MJCF text itself")
        return mujoco.MjSpec.from_file(model)
    except ValueError as error:
        raise UserError(f"MuJoCo cannot read the model: {' '.join(str(error).split())}") from error


def compile_spec(spec: mujoco.MjSpec) -> mujoco.MjModel:
    try:
        with (
            warnings.catch_warnings()
        ):  # some of Gymnasium's models use attributes MuJoCo will retire
            warnings.filterwarnings("ignore", message="compiler attribute")
            return spec.compile()
    except ValueError as error:
        raise UserError(
            f"MuJoCo cannot compile the model: {' '.join(str(error).split())}"
        ) from error


def without_textures(spec: mujoco.MjSpec) -> mujoco.MjSpec:
    """Drop what only pictures need: most of a model's memory, which counts when every copy has its own model."""
    for geom in spec.geoms:
        geom.material = ""
    for site in spec.sites:
        site.material = ""
    for tendon in spec.tendons:
        tendon.material = ""
    for picture in [*spec.materials, *spec.textures]:
        spec.delete(picture)
    return spec


class Simulation:
    """The physics of N environments. `state` [N, S], `sensor` [N, M] and `warmstart` [N, V] are all there is to save.

    The three arrays are replaced, never written to, by `advance`, so views of the last step stay
    valid.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        num_envs: int,
        frame_skip: int,
        threads: int,
        vary: Callable[[mujoco.MjModel, int], None] | None = None,
        warm: bool = False,
    ) -> None:
        """`vary(own, i)` may change the numbers (not the sizes) of environment i's own copy of the model.

        `warm`: the solver begins each control step with the last acceleration. With the Euler integrator and no
        implicit damping that is exactly what MuJoCo does; it counts where the solver stops before it has converged.
        """
        self.model = model
        self.num_envs, self.frame_skip = num_envs, frame_skip
        self.nq, self.nv, self.nu = int(model.nq), int(model.nv), int(model.nu)
        self.timestep = float(model.opt.timestep)
        size = int(mujoco.mj_stateSize(model, FULL))
        # Activations, plugins and delays have states with dynamics of their own: those models step
        # as MuJoCo does.
        self._staged = bool(
            model.nsensordata > 0
            and model.opt.integrator == mujoco.mjtIntegrator.mjINT_RK4
            and size == 1 + self.nq + self.nv
        )
        self._warm = warm or self._staged
        bases = [model] * num_envs
        if vary is not None:
            bases = [copy.copy(model) for _ in range(num_envs)]
            for i, own in enumerate(bases):
                vary(own, i)
        self.models = bases
        self._evaluate = _each(bases, _for_evaluation)
        if self._staged:
            self._step = _each(bases, _without_sensors)
            self._stage = _each(self._evaluate, _without_sensors)
        else:
            self._step, self._stage = bases, self._evaluate

        self.threads = max(1, min(threads or usable_cores(), num_envs))
        pooled = self.threads if self.threads > 1 else 0  # no pool: on the calling thread
        self._pool = rollout.Rollout(nthread=pooled)
        self._data = [mujoco.MjData(model) for _ in range(self.threads)]
        # Newton's method converges, so a lost warm start is not seen in its results; the other
        # solvers stop earlier, and need every substep made here for their warm starts to be
        # MuJoCo's.
        newton = model.opt.solver == mujoco.mjtSolver.mjSOL_NEWTON
        self._by_stage = (1 if newton else frame_skip) if self._staged else 0
        self._substeps = frame_skip - self._by_stage
        self._control = np.zeros((num_envs, max(1, self._substeps), self.nu))
        self._held = np.zeros((num_envs, 1, self.nu))
        self._states = np.zeros((num_envs, self._substeps, size))
        self._sensors = np.zeros((num_envs, self._substeps, model.nsensordata))
        self._stage_state = np.zeros((num_envs, size))
        self._one_state = np.zeros((num_envs, 1, size))
        self._one_sensor = np.zeros((num_envs, 1, model.nsensordata))
        self._joints = Joints(model)

        self.state: Array = np.zeros((num_envs, size))
        self.sensor: Array = np.zeros((num_envs, model.nsensordata))
        self.warmstart: Array = np.zeros((num_envs, self.nv))

    def of(self, i: int) -> list[mujoco.MjModel]:
        """Every model that environment i is stepped with: what changes one of its numbers changes it in all."""
        lists = (self.models, self._evaluate, self._step, self._stage)
        return list({id(models[i]): models[i] for models in lists}.values())

    def advance(self, control: Array) -> None:
        """One control step: `frame_skip` substeps with `control` [N, U] held."""
        self._control[:] = control[:, None, :]
        self._held[:] = control[:, None, :]
        if self._substeps:
            warmstart = self.warmstart if self._warm else None
            self._run(self._step, self.state, self._control, warmstart, self._states, self._sensors)
            if self._warm:  # now the last acceleration; the mean one is all `rollout` tells
                earlier = self._states[:, -2] if self._substeps > 1 else self.state
                velocity = slice(1 + self.nq, 1 + self.nq + self.nv)
                gained = self._states[:, -1, velocity] - earlier[:, velocity]
                self.warmstart = gained / self.timestep
            self.state, self.sensor = self._states[:, -1].copy(), self._sensors[:, -1].copy()
        for left in reversed(range(self._by_stage)):
            self._runge_kutta(self._evaluate if left == 0 else self._stage)

    def restart(self, rows: NDArray[np.int64], qpos: Array, qvel: Array) -> None:
        """Set positions and velocities of environments `rows` and the rest of their state to zero; update sensors."""
        fresh = np.zeros((len(rows), self.state.shape[1]))
        fresh[:, 1 : 1 + self.nq] = qpos
        fresh[:, 1 + self.nq : 1 + self.nq + self.nv] = qvel
        self.state, self.warmstart = self.state.copy(), self.warmstart.copy()
        self.state[rows], self.warmstart[rows] = fresh, 0.0
        if self.sensor.shape[1]:
            out = np.zeros((len(rows), 1, fresh.shape[1]))
            sensor = np.zeros((len(rows), 1, self.sensor.shape[1]))
            models = [self._evaluate[i] for i in rows.tolist()]
            self._run(models, fresh, np.zeros((len(rows), 1, self.nu)), None, out, sensor)
            self.sensor = self.sensor.copy()
            self.sensor[rows] = sensor[:, 0]

    def qpos(self) -> Array:
        return self.state[:, 1 : 1 + self.nq]

    def qvel(self) -> Array:
        return self.state[:, 1 + self.nq : 1 + self.nq + self.nv]

    def close(self) -> None:
        if self._pool.rollout_ is not None:
            self._pool.close()

    def _runge_kutta(self, fourth: list[mujoco.MjModel]) -> None:
        """One substep as MuJoCo's RK4 makes it.

        `fourth` are the models of the fourth stage: with sensors or without.
        """
        h, q, v = self.timestep, self.qpos(), self.qvel()
        a1 = self._acceleration(self._stage, v, 0.0, v)
        v2 = v + 0.5 * h * a1
        a2 = self._acceleration(self._stage, v, 0.5 * h, v2)
        drift2 = self._joints.drift(v2, v, 0.5 * h)
        v3 = v + 0.5 * h * a2
        a3 = self._acceleration(self._stage, drift2, 0.5 * h, v3)
        drift3 = self._joints.drift(v3, drift2, 0.5 * h)
        v4 = v + h * a3
        a4 = self._acceleration(fourth, drift3, h, v4)
        drift4 = self._joints.drift(v4, drift3, h)
        end = np.empty_like(self.state)
        end[:, 0] = self.state[:, 0] + h
        mean = (v + 2 * (drift2 + drift3) + drift4) / 6
        self._joints.integrate(q, mean, h, end[:, 1 : 1 + self.nq])
        end[:, 1 + self.nq :] = v + h / 6 * (a1 + 2 * (a2 + a3) + a4)
        self.state, self.sensor, self.warmstart = end, self._one_sensor[:, 0].copy(), a4

    def _acceleration(
        self, models: list[mujoco.MjModel], drift: Array, seconds: float, qvel: Array
    ) -> Array:
        """The dynamics once, with velocity `qvel` and `seconds` of `drift` from the present pose.

        An Euler step without implicit damping adds exactly h * qacc to the velocity.
        """
        stage = self._stage_state
        stage[:, : 1 + self.nq] = self.state[:, : 1 + self.nq]
        if seconds > 0.0:
            self._joints.integrate(self.qpos(), drift, seconds, stage[:, 1 : 1 + self.nq])
        stage[:, 1 + self.nq :] = qvel
        self._run(models, stage, self._held, self.warmstart, self._one_state, self._one_sensor)
        acceleration: Array = self._one_state[:, 0, 1 + self.nq :] - qvel
        acceleration /= self.timestep
        return acceleration

    def _run(
        self,
        models: list[mujoco.MjModel],
        state: Array,
        control: Array,
        warmstart: Array | None,
        states: Array,
        sensors: Array,
    ) -> None:
        # Larger chunks than MuJoCo's default of a tenth: fewer hand-overs, still balanced.
        chunk = max(1, len(models) // (4 * self.threads))
        self._pool.rollout(
            models,
            self._data,
            state,
            control,
            skip_checks=True,
            nstep=states.shape[1],
            initial_warmstart=warmstart,
            state=states,
            sensordata=sensors,
            chunk_size=chunk,
        )


def _each(
    models: list[mujoco.MjModel], change: Callable[[mujoco.MjModel], None]
) -> list[mujoco.MjModel]:
    """Changed copies; environments that share a model go on sharing one."""
    made: dict[int, mujoco.MjModel] = {}
    for model in models:
        if id(model) not in made:
            made[id(model)] = copy.copy(model)
            change(made[id(model)])
    return [made[id(model)] for model in models]


def _without_sensors(model: mujoco.MjModel) -> None:
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_SENSOR.value


def _for_evaluation(model: mujoco.MjModel) -> None:
    model.opt.integrator = mujoco.mjtIntegrator.mjINT_EULER.value
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_EULERDAMP.value
