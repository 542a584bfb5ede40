"""What makes a robot a task, and Gymnasium's MuJoCo v5 tasks written that way.

A `Task` is a model and a few functions over batched numpy arrays (row = environment). Your own
robot is another one: see docs/guides/own-robot.md. Observations, rewards, terminations and the
distribution of first states are Gymnasium's; Ant and Humanoid are the variants without contact
forces, inertias and actuator forces in the observation. Their contact costs are in the reward, with
Gymnasium's default weights. Above 300 lines: it is a list of tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

import mujoco
import numpy as np
from numpy.typing import NDArray

from fleetfoot.envs.draw import Draw
from fleetfoot.envs.render import View
from fleetfoot.errors import UserError, nearest

Array: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]
Terms: TypeAlias = Mapping[str, Array | Flags]  # of a reward; a flag counts as 1


@dataclass(frozen=True)
class Physics:
    """What the functions of a task see. Row i is environment i; never write to these arrays."""

    qpos: Array  # [N, nq]
    qvel: Array  # [N, nv]
    act: Array  # [N, na] actuator activations, for models that have them
    sensor: Mapping[str, Array]  # by name, [N, size], as they are after `mj_step`
    dt: float  # seconds of one control step


ENDLESS = View(endless=True)


def never(after: Physics) -> Flags:
    return np.zeros(len(after.qpos), dtype=np.bool_)


def no_noise(draw: Draw, qpos: Array, qvel: Array) -> tuple[Array, Array]:
    return qpos, qvel


def as_it_is(spec: mujoco.MjSpec) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Task:
    """A robot and what it is to do.

    The functions must treat rows independently and must not keep anything between calls.

    - `observe(now)` gives the observations, [N, D].
    - `reward(before, control, after)` gives [N], or its terms by name, [N] each, which are summed and are in the log
      as `env/reward_NAME`; `control` [N, nu] is in the actuators' own units.
    - `terminated(after)` gives [N]: the task itself has ended.
    - `start(draw, qpos, qvel)` turns k copies of the rest pose into k first states.
    - `edit(spec)` may change the model before it is compiled, to add sensors for instance.
    """

    name: str
    model: str  # path of an MJCF file, or MJCF text
    frame_skip: int  # physics timesteps per control step
    observe: Callable[[Physics], Array]
    reward: Callable[[Physics, Array, Physics], Array | Terms]
    terminated: Callable[[Physics], Flags] = never
    start: Callable[[Draw, Array, Array], tuple[Array, Array]] = no_noise
    edit: Callable[[mujoco.MjSpec], None] = as_it_is
    episode_length: int = 1000  # control steps until truncation
    view: View = field(default_factory=View)


def names() -> list[str]:
    """The tasks that come with the library."""
    return sorted(_TASKS)


def find(name: str) -> Task:
    if name not in _TASKS:
        raise UserError(
            f"there is no MuJoCo task {name!r}.{nearest(name, _TASKS)} Known: {', '.join(names())}."
        )
    return _TASKS[name]()


def _asset(file: str) -> str:
    """A model that ships with Gymnasium, found without importing Gymnasium's environments."""
    gymnasium = find_spec("gymnasium")
    if gymnasium is None or gymnasium.origin is None:
        raise UserError("the MuJoCo tasks use Gymnasium's model files: pip install gymnasium")
    return str(Path(gymnasium.origin).parent / "envs" / "mujoco" / "assets" / file)


def _all(skip: int) -> Callable[[Physics], Array]:
    """Positions (without the first `skip`, which say where in the world) and velocities."""
    return lambda now: np.concatenate([now.qpos[:, skip:], now.qvel], axis=1)


def _clipped(now: Physics) -> Array:
    return np.concatenate([now.qpos[:, 1:], np.clip(now.qvel, -10.0, 10.0)], axis=1)


def _speed(before: Physics, after: Physics) -> Array:
    """Along x, from the first joint."""
    return (after.qpos[:, 0] - before.qpos[:, 0]) / after.dt


def _square(values: Array) -> Array:
    total: Array = np.einsum("ij,ij->i", values, values)
    return total


def _uniform_start(scale: float) -> Callable[[Draw, Array, Array], tuple[Array, Array]]:
    def start(draw: Draw, qpos: Array, qvel: Array) -> tuple[Array, Array]:
        moved = qpos + draw.uniform(-scale, scale, qpos.shape[1])
        return moved, qvel + draw.uniform(-scale, scale, qvel.shape[1])

    return start


def _normal_start(draw: Draw, qpos: Array, qvel: Array) -> tuple[Array, Array]:
    return qpos + draw.uniform(-0.1, 0.1, qpos.shape[1]), qvel + 0.1 * draw.normal(qvel.shape[1])


def half_cheetah() -> Task:
    def reward(before: Physics, control: Array, after: Physics) -> Terms:
        return {"forward": _speed(before, after), "ctrl": -0.1 * _square(control)}

    return Task(
        name="HalfCheetah-v5",
        view=ENDLESS,
        model=_asset("half_cheetah.xml"),
        frame_skip=5,
        observe=_all(1),
        reward=reward,
        start=_normal_start,
    )


def hopper() -> Task:
    def healthy(now: Physics) -> Flags:
        z, angle = now.qpos[:, 1], now.qpos[:, 2]
        bounded = (np.abs(now.qpos[:, 2:]) < 100.0).all(1) & (np.abs(now.qvel) < 100.0).all(1)
        return (z > 0.7) & (z < np.inf) & (np.abs(angle) < 0.2) & bounded

    def reward(before: Physics, control: Array, after: Physics) -> Terms:
        forward, ctrl = _speed(before, after), -1e-3 * _square(control)
        return {"forward": forward, "survive": healthy(after), "ctrl": ctrl}

    return Task(
        name="Hopper-v5",
        view=ENDLESS,
        model=_asset("hopper.xml"),
        frame_skip=4,
        observe=_clipped,
        reward=reward,
        terminated=lambda after: ~healthy(after),
        start=_uniform_start(5e-3),
    )


def walker2d() -> Task:
    def healthy(now: Physics) -> Flags:
        z, angle = now.qpos[:, 1], now.qpos[:, 2]
        return (z > 0.8) & (z < 2.0) & (np.abs(angle) < 1.0)

    def reward(before: Physics, control: Array, after: Physics) -> Terms:
        forward, ctrl = _speed(before, after), -1e-3 * _square(control)
        return {"forward": forward, "survive": healthy(after), "ctrl": ctrl}

    return Task(
        name="Walker2d-v5",
        view=ENDLESS,
        model=_asset("walker2d_v5.xml"),
        frame_skip=4,
        observe=_clipped,
        reward=reward,
        terminated=lambda after: ~healthy(after),
        start=_uniform_start(5e-3),
    )


def _add_contact_sensors(spec: mujoco.MjSpec) -> None:
    """The centre of mass, the torso's position and each body's net contact wrench."""
    robot = list(spec.bodies)[1:]
    for i, body in enumerate(robot):
        body.name = body.name or f"unnamed{i}"
    root = robot[0].name
    com, position = mujoco.mjtSensor.mjSENS_SUBTREECOM, mujoco.mjtSensor.mjSENS_FRAMEPOS
    spec.add_sensor(name="com", type=com, objtype=mujoco.mjtObj.mjOBJ_BODY, objname=root)
    spec.add_sensor(name="torso", type=position, objtype=mujoco.mjtObj.mjOBJ_XBODY, objname=root)
    parts = mujoco.mjtConDataField
    wanted = (parts.mjCONDATA_FORCE, parts.mjCONDATA_TORQUE, parts.mjCONDATA_POS)
    fields = sum(1 << int(field) for field in wanted)
    net_force = 3  # MJCF: reduce="netforce"
    for i, body in enumerate(robot):
        spec.add_sensor(
            name=f"contact{i}",
            type=mujoco.mjtSensor.mjSENS_CONTACT,
            objtype=mujoco.mjtObj.mjOBJ_BODY,
            objname=body.name,
            intprm=[fields, net_force, 1],
        )


def _contact_wrenches(now: Physics) -> Array:
    """MuJoCo's `cfrc_ext` up to its sign, [N, bodies * 6]: torque about the robot's centre of mass, and force."""
    count = sum(name.startswith("contact") for name in now.sensor)
    wrenches = np.stack([now.sensor[f"contact{i}"] for i in range(count)], axis=1)  # [N, bodies, 9]
    force, torque = wrenches[..., 0:3], wrenches[..., 3:6]
    fx, fy, fz = np.moveaxis(force, -1, 0)
    x, y, z = np.moveaxis(wrenches[..., 6:9] - now.sensor["com"][:, None], -1, 0)
    lever = np.stack([y * fz - z * fy, z * fx - x * fz, x * fy - y * fx], axis=-1)
    # Without contact the sensor's position is zero as well as its force, so the lever term
    # vanishes.
    return np.concatenate([torque + lever, force], axis=-1).reshape(len(wrenches), -1)


def ant() -> Task:
    def healthy(now: Physics) -> Flags:
        finite = np.isfinite(now.qpos).all(1) & np.isfinite(now.qvel).all(1)
        return (now.qpos[:, 2] >= 0.2) & (now.qpos[:, 2] <= 1.0) & finite

    def reward(before: Physics, control: Array, after: Physics) -> Terms:
        speed = (after.sensor["torso"][:, 0] - before.sensor["torso"][:, 0]) / after.dt
        contact = _square(np.clip(_contact_wrenches(after), -1.0, 1.0))
        return {
            "forward": speed,
            "survive": healthy(after),
            "ctrl": -0.5 * _square(control),
            "contact": -5e-4 * contact,
        }

    return Task(
        name="Ant-v5",
        view=ENDLESS,
        model=_asset("ant.xml"),
        frame_skip=5,
        observe=_all(2),
        reward=reward,
        terminated=lambda after: ~healthy(after),
        start=_normal_start,
        edit=_add_contact_sensors,
    )


def humanoid() -> Task:
    def healthy(now: Physics) -> Flags:
        return (now.qpos[:, 2] > 1.0) & (now.qpos[:, 2] < 2.0)

    def reward(before: Physics, control: Array, after: Physics) -> Terms:
        speed = (after.sensor["com"][:, 0] - before.sensor["com"][:, 0]) / after.dt
        contact = np.minimum(5e-7 * _square(_contact_wrenches(after)), 10.0)
        return {
            "forward": 1.25 * speed,
            "survive": 5.0 * healthy(after),
            "ctrl": -0.1 * _square(control),
            "contact": -contact,
        }

    return Task(
        name="Humanoid-v5",
        view=ENDLESS,
        model=_asset("humanoid.xml"),
        frame_skip=5,
        observe=_all(2),
        reward=reward,
        terminated=lambda after: ~healthy(after),
        start=_uniform_start(1e-2),
        edit=_add_contact_sensors,
    )


def swimmer() -> Task:
    def reward(before: Physics, control: Array, after: Physics) -> Terms:
        return {"forward": _speed(before, after), "ctrl": -1e-4 * _square(control)}

    return Task(
        name="Swimmer-v5",
        view=ENDLESS,
        model=_asset("swimmer.xml"),
        frame_skip=4,
        observe=_all(2),
        reward=reward,
        start=_uniform_start(0.1),
    )


def reacher() -> Task:
    def edit(spec: mujoco.MjSpec) -> None:
        kind, frame = mujoco.mjtSensor.mjSENS_FRAMEPOS, mujoco.mjtObj.mjOBJ_XBODY
        spec.add_sensor(name="fingertip", type=kind, objtype=frame, objname="fingertip")
        spec.add_sensor(name="target", type=kind, objtype=frame, objname="target")

    def miss(now: Physics) -> Array:
        return now.sensor["fingertip"] - now.sensor["target"]

    def observe(now: Physics) -> Array:
        arm = now.qpos[:, :2]
        parts = [np.cos(arm), np.sin(arm), now.qpos[:, 2:], now.qvel[:, :2], miss(now)[:, :2]]
        return np.concatenate(parts, axis=1)

    def reward(before: Physics, control: Array, after: Physics) -> Terms:
        return {"dist": -np.sqrt(_square(miss(after))), "ctrl": -_square(control)}

    def start(draw: Draw, qpos: Array, qvel: Array) -> tuple[Array, Array]:
        qpos = qpos + draw.uniform(-0.1, 0.1, qpos.shape[1])
        qvel = qvel + draw.uniform(-0.005, 0.005, qvel.shape[1])
        # Uniform in a disc, which Gymnasium draws by rejection.
        radius = 0.2 * np.sqrt(draw.uniform(0.0, 1.0, 1))
        angle = draw.uniform(0.0, 2.0 * np.pi, 1)
        qpos[:, -2:] = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        qvel[:, -2:] = 0.0
        return qpos, qvel

    return Task(
        name="Reacher-v5",
        model=_asset("reacher.xml"),
        frame_skip=2,
        observe=observe,
        reward=reward,
        start=start,
        episode_length=50,
        edit=edit,
        view=View(body="world", distance=1.1, elevation=-60.0),
    )


def inverted_pendulum() -> Task:
    def terminated(after: Physics) -> Flags:
        finite = np.isfinite(after.qpos).all(1) & np.isfinite(after.qvel).all(1)
        return ~finite | (np.abs(after.qpos[:, 1]) > 0.2)

    def reward(before: Physics, control: Array, after: Physics) -> Terms:
        return {"survive": ~terminated(after)}

    return Task(
        name="InvertedPendulum-v5",
        model=_asset("inverted_pendulum.xml"),
        frame_skip=2,
        observe=_all(0),
        reward=reward,
        terminated=terminated,
        start=_uniform_start(0.01),
        view=View(body="world", distance=2.5),
    )


_TASKS: dict[str, Callable[[], Task]] = {
    "Ant-v5": ant,
    "HalfCheetah-v5": half_cheetah,
    "Hopper-v5": hopper,
    "Humanoid-v5": humanoid,
    "InvertedPendulum-v5": inverted_pendulum,
    "Reacher-v5": reacher,
    "Swimmer-v5": swimmer,
    "Walker2d-v5": walker2d,
}
