"""The mirror image (`envs/mirror.py`) of mjlab's velocity tasks, from what mjlab tells about its observations: for each
term its function, the numbers of it, and the joints, feet or rays that they belong to.

All of it is known only for the tasks of SIDES, rewards and ends included: these look the same in a mirror. A term that
came by way of `env.changes`, or with a newer mjlab, and has no rule here is named, and there is no symmetry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import mujoco
import numpy as np
import torch

from fleetfoot.data import Reflection, Symmetry
from fleetfoot.envs.mirror import (
    AXIAL,
    CLOSE,
    POLAR,
    check_site,
    each_polar,
    joined,
    named,
    of_joints,
    signed,
)
from fleetfoot.errors import UserError

LEGS, HALVES = {"FR": "FL", "RR": "RL"}, {"left": "right"}
SIDES: Mapping[str, Mapping[str, str]] = {  # words that a mirror exchanges in names
    "Mjlab-Velocity-Flat-Unitree-Go1": LEGS,
    "Mjlab-Velocity-Rough-Unitree-Go1": LEGS,
    "Mjlab-Velocity-Flat-Unitree-G1": HALVES,
    "Mjlab-Velocity-Rough-Unitree-G1": HALVES,
}
TWIST = (1.0, -1.0, -1.0)  # a commanded velocity: ahead, to the left, turning
SENSORS = {
    mujoco.mjtSensor.mjSENS_VELOCIMETER: POLAR,
    mujoco.mjtSensor.mjSENS_ACCELEROMETER: POLAR,
    mujoco.mjtSensor.mjSENS_GYRO: AXIAL,
}


def symmetry(envs: Any, task: str, actor: str) -> Symmetry:
    """Of `envs`, mjlab's environments; `actor`: the policy's group. UserError says why there is none."""
    if task not in SIDES:
        raise UserError(f"mirror images of {task} are not known, only of {', '.join(SIDES)}.")
    known = Known(envs, SIDES[task])
    groups = envs.observation_manager.active_terms
    critic = known.group("critic") if "critic" in groups else None
    return Symmetry(known.group(actor), known.action(), critic)


class Known:
    """Reflections of what `envs` tells, by the function that mjlab computes it with."""

    def __init__(self, envs: Any, sides: Mapping[str, str]) -> None:
        self.envs, self.sides = envs, sides
        self.model: mujoco.MjModel = envs.sim.mj_model

    def action(self, name: str | None = None) -> Reflection:
        manager = self.envs.action_manager
        terms = manager.active_terms if name is None else [name]
        return joined(self._action(manager.get_term(name)) for name in terms)

    def group(self, group: str) -> Reflection:
        manager = self.envs.observation_manager
        terms = zip(manager.active_terms[group], manager.group_obs_term_dim[group], strict=True)
        return joined(self._term(group, name, int(np.prod(size))) for name, size in terms)

    def _term(self, group: str, name: str, size: int) -> Reflection:
        """A term, with its history: one frame after the other."""
        cfg = self.envs.observation_manager.get_term_cfg(group, name)
        function = getattr(cfg.func, "__name__", type(cfg.func).__name__)
        if function not in RULES:
            raise UserError(
                f"how to mirror its observation {name!r} ({group}, {function}) is not known."
            )
        one = RULES[function](self, cfg.params)
        frames = max(cfg.history_length, 1)
        if frames * len(one.index) != size:
            raise UserError(
                f"a mirror of its observation {name!r} ({group}) has {len(one.index)} numbers, and mjlab has "
                f"{size} in {frames} steps."
            )
        uneven = cfg.clip is not None and cfg.clip[0] != -cfg.clip[1] and -1.0 in one.sign
        if cfg.scale is not None:
            scale = torch.as_tensor(cfg.scale).cpu().expand(len(one.index))
            uneven = uneven or not torch.equal(scale[list(one.index)], scale)
        if uneven:
            raise UserError(f"its observation {name!r} ({group}) is scaled or clipped unevenly.")
        return joined([one] * frames)

    def _action(self, term: Any) -> Reflection:
        kind = type(term).__name__
        if kind != "JointPositionAction" or term.cfg.clip is not None:
            raise UserError(f"how to mirror its actions ({kind}) is not known.")
        entity, names = term.cfg.entity_name, list(term.target_names)
        return self._joints(entity, names, pose=_row(term.offset), scale=_row(term.scale))

    def _joints(self, entity: str, names: Sequence[str], pose: Any, scale: Any) -> Reflection:
        ids = {name: int(self.model.joint(f"{entity}/{name}").id) for name in names}
        base = self._base(next(iter(ids.values())))
        pose, scale = (np.broadcast_to(numbers, len(ids)) for numbers in (pose, scale))
        return of_joints(entity, self.model, base, ids, self.sides, pose=pose, scale=scale)

    def _base(self, joint: int) -> int:
        return int(self.model.body_rootid[self.model.jnt_bodyid[joint]])

    def joints(self, rest: str, asset_cfg: Any) -> Reflection:
        """The joints of an entity, or those chosen; they are counted from its `rest`."""
        entity = "robot" if asset_cfg is None else asset_cfg.name
        asset = self.envs.scene[entity]
        chosen = slice(None) if asset_cfg is None else asset_cfg.joint_ids
        names, pose = np.array(asset.joint_names), _row(getattr(asset.data, rest))
        return self._joints(entity, names[chosen].tolist(), pose=pose[chosen], scale=1.0)

    def sensor(self, sensor_name: str) -> Reflection:
        sensor = self.model.sensor(sensor_name)
        kind = mujoco.mjtSensor(int(sensor.type[0]))
        if kind not in SENSORS:
            raise UserError(f"how to mirror its sensor {sensor_name!r} is not known.")
        site = int(sensor.objid[0])
        base = int(self.model.body_rootid[self.model.site_bodyid[site]])
        check_site("the robot", self.model, base, self.model.site(site).name)
        return signed(SENSORS[kind])

    def command(self, command_name: str) -> Reflection:
        kind = type(self.envs.command_manager.get_term(command_name)).__name__
        if kind != "UniformVelocityCommand":
            raise UserError(f"how to mirror its command {command_name!r} ({kind}) is not known.")
        return signed(TWIST)

    def rays(self, sensor_name: str) -> Reflection:
        """A number for each ray of a sensor at one place."""
        sensor = self.envs.scene[sensor_name]
        if sensor.num_frames != 1:
            raise UserError(f"how to mirror the several places of {sensor_name!r} is not known.")
        starts, ways = sensor.cfg.pattern.generate_rays(self.model, "cpu")
        rays = np.concatenate([starts.numpy(), ways.numpy()], axis=1)  # [R, 6]
        apart = np.abs(rays[:, None] - rays * np.array(POLAR * 2)).max(2)  # [R, R]
        if (apart.min(1) > CLOSE).any():
            raise UserError(f"the rays of {sensor_name!r} are not mirror images of each other.")
        return Reflection(tuple(apart.argmin(1).tolist()), (1.0,) * len(rays))

    def heights(self, sensor_name: str) -> Reflection:
        """The height of each foot, from a few rays in a small ring around it."""
        cfg = self.envs.scene[sensor_name].cfg
        frames = cfg.frame if isinstance(cfg.frame, tuple) else (cfg.frame,)
        if cfg.reduction == "none":
            raise UserError(f"how to mirror all rays of {sensor_name!r} is not known.")
        return named("the robot", "foot", [frame.name for frame in frames], self.sides)

    def touching(self, sensor_name: str) -> Reflection:
        """A number for each foot that a sensor of contacts looks at."""
        sensor = self.envs.scene[sensor_name]
        if sensor.cfg.num_slots != 1:
            raise UserError(f"how to mirror several contacts of {sensor_name!r} is not known.")
        return named("the robot", "foot", sensor.primary_names, self.sides)

    def forces(self, sensor_name: str) -> Reflection:
        cfg = self.envs.scene[sensor_name].cfg
        if cfg.reduce != "netforce" and not cfg.global_frame:  # in the frame of each contact
            raise UserError(f"how to mirror the forces of {sensor_name!r} is not known.")
        return each_polar(self.touching(sensor_name))


def _row(values: Any) -> Any:
    """Of all environments the first, of a number itself."""
    return values if isinstance(values, float) else values[0].cpu().numpy()


Params: TypeAlias = Mapping[str, Any]
# By the function that computes a term, from its parameters.
RULES: Mapping[str, Callable[[Known, Params], Reflection]] = {
    "builtin_sensor": lambda known, p: known.sensor(p["sensor_name"]),
    "projected_gravity": lambda known, p: signed(POLAR),
    "joint_pos_rel": lambda known, p: known.joints("default_joint_pos", p.get("asset_cfg")),
    "joint_vel_rel": lambda known, p: known.joints("default_joint_vel", p.get("asset_cfg")),
    "last_action": lambda known, p: known.action(p.get("action_name")),
    "generated_commands": lambda known, p: known.command(p["command_name"]),
    "height_scan": lambda known, p: known.rays(p["sensor_name"]),
    "foot_height": lambda known, p: known.heights(p["sensor_name"]),
    "foot_air_time": lambda known, p: known.touching(p["sensor_name"]),
    "foot_contact": lambda known, p: known.touching(p["sensor_name"]),
    "foot_contact_forces": lambda known, p: known.forces(p["sensor_name"]),
}
