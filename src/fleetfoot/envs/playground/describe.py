"""What a Playground task tells whoever runs a policy elsewhere: its joints, and what actions mean to them.

Every task hands `mjx_env.step` what its actuators are told. That one function is replaced while `step` of the task is
traced, so its program shows how an action becomes a target, whatever the task calls its fields, and no physics is
compiled. A task whose targets depend on its state (on the last target, say) has no offset that could be told.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fleetfoot.envs.robot.describe import describe_joints
from fleetfoot.envs.robot.joints import joints_of, servos
from fleetfoot.errors import UserError

if TYPE_CHECKING:
    from fleetfoot.envs.playground.task import Task

Array = NDArray[np.float64]


def describe(task: Task) -> dict[str, Any]:
    """Control rate and, where they can be told, joints in the order of the actions."""
    rate = {"control_hz": 1.0 / task.step_seconds}
    model = task.env.mj_model
    try:
        joints, map_of_actions = joints_of(model), targets(task.env, task.start)
    except UserError:  # tendons, or joints without names
        return rate
    if map_of_actions is None:
        return rate
    offset, scale = map_of_actions
    start = np.asarray(getattr(task.env, "_init_q", model.qpos0), np.float64)
    # A servo stands where an action of 0 sends it.
    pose = np.where(servos(model), offset, start[joints.q])
    return rate | describe_joints(model, joints, pose, offset, scale)


def targets(env: Any, start: Any) -> tuple[Array, Array] | None:
    """Offset and scale of what the actuators are told, None where that is not offset + scale * action.

    `start`: shapes of a state of the task. Clipping at limits is left to those limits.
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

    zero = np.zeros(env.action_size, np.float32)
    step_before, place.step = place.step, tell
    try:
        # JAX keeps the program of a jitted function: with the replaced step in it, the task would never move again.
        with jax.disable_jit():
            whole = jax.make_jaxpr(target_of)(start, zero)
    except Exception:  # a task in another style: it trains all the same
        return None
    finally:
        place.step = step_before
    part, used = trace.dce_jaxpr(whole.jaxpr, [True])
    if any(used[:-1]) or not used[-1]:  # the last input is the action, the others are the state
        return None

    def alone(action: Any) -> Any:
        return jax.core.eval_jaxpr(part, whole.consts, action)[0]

    offset, slopes = np.asarray(alone(zero)), np.asarray(jax.jacfwd(alone)(zero))
    if offset.shape != zero.shape or np.any(slopes != np.diag(np.diag(slopes))):
        return None
    return offset.astype(np.float64), np.diag(slopes).astype(np.float64)
