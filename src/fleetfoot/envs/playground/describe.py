"""What a Playground task tells whoever runs a policy elsewhere: its joints, and what actions mean to them.

Every task hands `mjx_env.step` what its actuators are told. That one function is replaced while `step` of the task is
traced, so its program shows how an action becomes a target, whatever the task calls its fields, and no physics is
compiled. A task whose targets depend on its state (on the last target, say) has no offset that could be told.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fleetfoot.envs.robot.describe import describe_joints
from fleetfoot.envs.robot.joints import joints_of, servos

if TYPE_CHECKING:
    from fleetfoot.envs.playground.task import Task

Array = NDArray[np.float64]


# Actions at which the targets are looked at: small ones too, since what saturates is straight there alone.
SIZES = np.geomspace(0.01, 1.0, 8)


def describe(task: Task) -> dict[str, Any]:
    """Control rate and, where they can be told, joints in the order of the actions."""
    rate = {"control_hz": 1.0 / task.step_seconds}
    # A task in another style, a JAX with other internals, tendons, joints without names: it trains all the same.
    with contextlib.suppress(Exception):
        return rate | _joints(task)
    return rate


def _joints(task: Task) -> dict[str, Any]:
    model = task.env.mj_model
    joints, map_of_actions = joints_of(model), targets(task.env, task.start)
    if map_of_actions is None:
        return {}
    offset, scale = map_of_actions
    start = np.asarray(getattr(task.env, "_init_q", model.qpos0), np.float64)
    # A servo stands where an action of 0 sends it.
    pose = np.where(servos(model), offset, start[joints.q])
    return describe_joints(model, joints, pose, offset, scale)


def targets(env: Any, start: Any) -> tuple[Array, Array] | None:
    """Offset and scale of what the actuators are told, None where that is not offset + scale * action.

    `start`: shapes of a state of the task. Clipping at limits is left to those limits. Raises what the task raises.
    """
    jax = importlib.import_module("jax")
    trace = importlib.import_module("jax.interpreters.partial_eval")
    place: Any = importlib.import_module("mujoco_playground._src.mjx_env")
    told: list[Any] = []

    def tell(model: Any, data: Any, target: Any, *_: Any, **__: Any) -> Any:
        told.append(target)
        return data

    def target_of(state: Any, action: Any) -> Any:
        env.step(state, action)
        return told[0]

    size = env.action_size
    step_before, place.step = place.step, tell
    try:
        # JAX keeps the program of a jitted function: with the replaced step in it, the task would never move again.
        with jax.disable_jit():
            whole = jax.make_jaxpr(target_of)(start, np.zeros(size, np.float32))
    finally:
        place.step = step_before
    part, used = trace.dce_jaxpr(whole.jaxpr, [True])
    if any(used[:-1]) or not used[-1]:  # the last input is the action, the others are the state
        return None

    def alone(action: Any) -> Any:
        return jax.core.eval_jaxpr(part, whole.consts, action)[0]

    actions = _actions(size)
    values = np.asarray(jax.vmap(alone)(actions), np.float64)
    slopes = np.asarray(jax.vmap(jax.jacfwd(alone))(actions), np.float64)
    if values.shape != actions.shape or np.any(slopes[:, ~np.eye(size, dtype=bool)]):
        return None
    return _line(actions.astype(np.float64), values, np.diagonal(slopes, axis1=1, axis2=2))


def _actions(size: int) -> NDArray[np.float32]:
    """[K, A] Zeros, then all sizes with both signs, in another order for each component."""
    column = np.concatenate([SIZES, -SIZES]).astype(np.float32)
    rows = np.random.default_rng(0).permuted(np.tile(column, (size, 1)), axis=1).T
    return np.concatenate([np.zeros((1, size), np.float32), rows])


def _line(actions: Array, values: Array, slopes: Array) -> tuple[Array, Array] | None:
    """[K, A] each, the first action is 0. None unless all values lie on one line per component or at a limit of it."""
    offset = values[0]
    # At a limit the slope is 0, exactly there half of the true one: the steepest is that of the line.
    scale = np.take_along_axis(slopes, np.abs(slopes).argmax(0)[None], 0)[0]
    line = offset + scale * actions
    near = 1e-5 * (np.abs(offset) + np.abs(scale))  # float32
    on_line = np.abs(values - line) <= near
    clipped = np.clip(line, values.min(0), values.max(0))
    at_limit = (np.abs(values - clipped) <= near) & (slopes == 0)
    return (offset, scale) if np.all(on_line | at_limit) else None
