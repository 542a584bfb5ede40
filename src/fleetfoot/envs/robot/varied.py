"""Robots that differ from one episode to the next: friction, gains and strength, drawn anew at each restart.

Nothing follows from these numbers. Everything else stays with its robot (`randomise.py`), since what follows from a
mass costs too much to compute for each restart.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fleetfoot.envs.counter import Draw
from fleetfoot.envs.robot.randomise import Randomiser
from fleetfoot.envs.robot.robot import Array


class Varied:
    """Fields of the model as they are in one episode: from what was drawn, [N, ...] by name. torch only.

    Each entry is a column of a field: (field, column, values). A field has the shape [N, things, columns], or
    [N, things] where the column is None.
    """

    def __init__(self, randomiser: Randomiser, device: torch.device) -> None:
        robot, model = randomiser.robot, randomiser.robot.model
        self.ranges = randomiser.cfg.by_episode
        self.sizes = {name: 1 if name == "friction" else robot.num_joints for name in self.ranges}

        def base(values: Array) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)

        joints = [model.joint(name).id for name in robot.names]
        dofs, nv, njnt = robot.v, int(model.nv), int(model.njnt)
        # Matrices that put numbers of joints [N, U] in their places, since an index may not depend on values.
        to_dof, to_joint = np.zeros((len(dofs), nv)), np.zeros((len(joints), njnt))
        to_dof[np.arange(len(dofs)), dofs] = 1.0
        to_joint[np.arange(len(joints)), joints] = 1.0
        self.to_dof, self.to_joint = base(to_dof), base(to_joint)
        self.kp, self.kp_bias = (
            base(model.actuator_gainprm[:, 0]),
            base(model.actuator_biasprm[:, 1]),
        )
        self.kd, self.kd_bias = base(model.dof_damping), base(model.actuator_biasprm[:, 2])
        self.force, self.joint_force = base(model.actuator_forcerange), base(model.jnt_actfrcrange)
        self.stiff, self.damps = (  # None: all
            None if mask.all() else torch.tensor(mask, device=device)
            for mask in (robot.servo, randomiser.damps)
        )
        geoms, pairs = randomiser.floor_contacts()
        self.geoms, self.pairs = (torch.tensor(mask, device=device) for mask in (geoms, pairs))
        self.geom_friction = base(model.geom_friction[:, 0])
        self.pair_friction = base(model.pair_friction[:, :2])

    def begin(self, draw: Draw) -> dict[str, Tensor]:
        """What is drawn for an episode, as state."""
        return {
            f"drawn_{name}": draw.uniform(self.sizes[name], *bounds)
            for name, bounds in self.ranges.items()
        }

    def columns(self, state: dict[str, Tensor]) -> list[tuple[str, int | None, Tensor]]:
        found: list[tuple[str, int | None, Tensor]] = []
        if "drawn_friction" in state:
            drawn = state["drawn_friction"]  # [N, 1]
            value = torch.where(self.geoms, drawn, self.geom_friction)
            found.append(("geom_friction", 0, value))
            if len(self.pairs):
                found += [
                    ("pair_friction", k, torch.where(self.pairs, drawn, self.pair_friction[:, k]))
                    for k in (0, 1)
                ]
        if "drawn_kp" in state:
            drawn = _where(self.stiff, state["drawn_kp"])
            found.append(("actuator_gainprm", 0, self.kp * drawn))
            found.append(("actuator_biasprm", 1, self.kp_bias * drawn))
        if "drawn_kd" in state:
            drawn = state["drawn_kd"]
            change = 1.0 + (drawn - 1.0) @ self.to_dof  # 1 where there is no actuator
            found.append(("dof_damping", None, self.kd * change))
            found.append(("actuator_biasprm", 2, self.kd_bias * _where(self.damps, drawn)))
        if "drawn_strength" in state:
            drawn = state["drawn_strength"]
            change = 1.0 + (drawn - 1.0) @ self.to_joint
            for k in (0, 1):
                found.append(("actuator_forcerange", k, self.force[:, k] * drawn))
                found.append(("jnt_actfrcrange", k, self.joint_force[:, k] * change))
        return found

    def fields(self) -> set[str]:
        """Names of the fields that change."""
        one = {f"drawn_{name}": torch.ones(1, size) for name, size in self.sizes.items()}
        one = {name: value.to(self.kp.device) for name, value in one.items()}
        return {field for field, _, _ in self.columns(one)}


def _where(mask: Tensor | None, factor: Tensor) -> Tensor:
    """The factor of these actuators, 1 of the others."""
    return factor if mask is None else torch.where(mask, factor, 1.0)
