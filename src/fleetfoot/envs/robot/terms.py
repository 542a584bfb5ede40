"""Terms of joystick rewards, and the tables of the robots in the package. Names and numbers are Playground's.

A term is a function of a `Step` that gives [N]; its weight, which carries the sign, is in the table. Where two robots
define a term differently, there are two functions. Above 300 lines: a list of terms and three tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fleetfoot.envs.robot.joystick import Commands, Gait, JoystickSpec, Step, Term, norm

SIGMA = 0.25  # m^2/s^2, and rad^2/s^2: how fast the reward for tracking falls


def tracking_lin_vel(step: Step) -> Tensor:
    error = step.command[:, :2] - step.sensor["linvel"][:, :2]
    return torch.exp(-error.square().sum(1) / SIGMA)


def tracking_ang_vel(step: Step) -> Tensor:
    error = step.command[:, 2] - step.sensor["gyro"][:, 2]
    return torch.exp(-error.square() / SIGMA)


def progress(step: Step) -> Tensor:
    """The speed along the commanded direction, up to the commanded speed. Not in Playground: weight 0.

    Unlike `tracking_lin_vel` it grows from a standstill on, however fast the command is.
    """
    wanted = step.command[:, :2]
    speed = norm(wanted)
    along = (wanted * step.sensor["linvel"][:, :2]).sum(1) / speed.clamp(min=0.1)
    return torch.minimum(along, speed)


def turn_error(step: Step) -> Tensor:
    """By how much it turns too fast or too slowly. Not in Playground.

    Unlike `tracking_ang_vel` it tells a robot that spins to spin less, however fast it does.
    """
    return (step.command[:, 2] - step.sensor["gyro"][:, 2]).abs()


def lin_vel_z(step: Step) -> Tensor:
    return step.sensor["global_linvel"][:, 2].square()


def ang_vel_xy(sensor: str) -> Term:
    return lambda step: step.sensor[sensor][:, :2].square().sum(1)


def orientation(step: Step) -> Tensor:
    return step.sensor["up"][:, :2].square().sum(1)


def torso_orientation(step: Step) -> Tensor:
    up = step.sensor["up_torso"]
    return (up[:, 0] - 0.073).square() + up[:, 1].square() + (up[:, 2] - 1.0).square()


def air_time_short(step: Step) -> Tensor:
    """Go1: seconds above 0.1 in the air, when a foot touches down, unless it is to stand."""
    return ((step.state["air"] - 0.1) * step.first_contact).sum(1) * (step.length > 0.01)


def air_time_long(step: Step) -> Tensor:
    """Humanoids: seconds above 0.2, at most 0.3 of them."""
    return ((step.state["air"] - 0.2) * step.first_contact).clamp(max=0.3).sum(1)


def air_time_long_moving(step: Step) -> Tensor:
    return air_time_long(step) * (step.length > 0.1)


def feet_slip(step: Step) -> Tensor:
    """Go1: the squared speed of each foot on the ground, unless it is to stand."""
    speed = step.foot_vel[..., :2].square().sum(-1)
    return (speed * step.contact).sum(1) * (step.length > 0.01)


def base_slip(step: Step) -> Tensor:
    """Humanoids: the speed of the base (not of the feet), times the number of feet on the ground."""
    speed = norm(step.sensor["global_linvel"][:, :2])
    return speed * step.contact.sum(1)


def feet_clearance(step: Step) -> Tensor:
    speed = norm(step.foot_vel[..., :2]).sqrt()
    return ((step.foot_pos[..., 2] - 0.1).abs() * speed).sum(1)


def feet_height(step: Step) -> Tensor:
    error = step.state["peak"] / 0.1 - 1.0
    return (error.square() * step.first_contact).sum(1) * (step.length > 0.01)


def feet_trot(step: Step) -> Tensor:
    """How well the feet keep to the rhythm of a gait, 0 to 1, while the robot is to move. Not in Playground.

    A foot whose phase has a sine s > 0 is to be s `height` high; any other is to be on the ground. Feet are weighted by
    |s|, so that it does not matter when exactly one is lifted or set down.
    """
    gait = step.task.spec.gait
    assert gait is not None
    wanted = step.state["phase"].sin()  # [N, F]
    height = step.foot_pos[..., 2] - gait.sole
    lifted = (height / (gait.height * wanted.clamp(min=0.05))).clamp(0.0, 1.0)
    share = torch.where(wanted > 0, lifted, step.contact.float())
    weight = wanted.abs() + 0.01  # all of them may be zero at once
    return (share * weight).sum(1) / weight.sum(1) * (step.length > 0.01)


def feet_phase(step: Step) -> Tensor:
    """The height of each foot against the one its phase asks for."""
    gait = step.task.spec.gait
    assert gait is not None
    x = (
        step.state["phase"] + math.pi
    ) / math.pi  # [N, 2] in [0, 2]: rises up to 1, falls from there
    rises = x <= 1.0
    u = torch.where(rises, x, x - 1.0)
    smooth = u * u * (3.0 - 2.0 * u)  # u^3 + 3 u^2 (1 - u)
    wanted = gait.height * torch.where(rises, smooth, 1.0 - smooth)
    error = (step.foot_pos[..., 2] - wanted).square().sum(1)
    return torch.exp(-error / 0.01)


def feet_phase_moving(step: Step) -> Tensor:
    """G1: only while it moves, or is to move."""
    speed = norm(step.sensor["global_linvel"][:, :2])
    turning = step.sensor["global_angvel"][:, 2].abs()
    return feet_phase(step) * ((speed > 0.1) | (turning > 0.1) | (step.length > 0.01))


def alive(step: Step) -> Tensor:
    return torch.ones_like(step.length)


def termination(step: Step) -> Tensor:
    return step.terminated


def stand_still(step: Step) -> Tensor:
    return step.off.sum(1) * (step.length < 0.01)


def feet_touch(step: Step) -> Tensor:
    return step.sensor["touch_feet"][:, 0] > 0


def hands_touch(step: Step) -> Tensor:
    return (step.sensor["touch_left_hand"][:, 0] > 0) | (step.sensor["touch_right_hand"][:, 0] > 0)


def contact_force(step: Step) -> Tensor:
    return (step.sensor["foot_force"][:, 2::3].abs() - 500.0).clamp(min=0.0).sum(1)


def feet_distance(step: Step) -> Tensor:
    """How much less than 0.2 m the feet are apart, across the direction it faces; at most 0.1."""
    forward = step.sensor["forward"][:, :2]
    cos, sin = (forward / norm(forward)[:, None]).unbind(1)
    gap = step.foot_pos[:, 0] - step.foot_pos[:, 1]  # [N, 3]
    return (0.2 - (cos * gap[:, 1] - sin * gap[:, 0]).abs()).clamp(0.0, 0.1)


def dof_pos_limits(step: Step) -> Tensor:
    """Radians beyond the soft limits, over all joints."""
    joint, task = step.now.joint_pos, step.task
    return (joint - joint.clamp(task.low, task.high)).abs().sum(1)


def torques(step: Step) -> Tensor:
    torque = step.sensor["torque"]
    return norm(torque) + torque.abs().sum(1)


def energy(step: Step) -> Tensor:
    return step.task.power(step.now)


def action_rate(step: Step) -> Tensor:
    return (step.now.action - step.now.last_action).square().sum(1)


class _OfJoints:
    """A term with a weight for each joint, kept on the device."""

    def __init__(self, weights: Mapping[str, float], default: float = 0.0) -> None:
        self.given, self.default = weights, default
        self.made: dict[torch.device, Tensor] = {}

    def weights(self, step: Step) -> Tensor:
        """[U]. By name: the first entry that the joint's name contains."""
        device = step.now.joint_pos.device
        if device not in self.made:
            self.made[device] = torch.tensor(self._of(step.task.robot.names), device=device)
        return self.made[device]

    def _of(self, names: Sequence[str]) -> list[float]:
        table = self.given
        return [
            next((w for part, w in table.items() if part in name), self.default) for name in names
        ]


class PoseCost(_OfJoints):
    """The weighted square of how far the joints are from the standing pose."""

    def __call__(self, step: Step) -> Tensor:
        return step.deviation.square() @ self.weights(step)


class PoseReward(PoseCost):
    """exp(-cost)."""

    def __call__(self, step: Step) -> Tensor:
        return torch.exp(-super().__call__(step))


class Deviation(_OfJoints):
    """The sum of how far some joints are from the standing pose."""

    def __call__(self, step: Step) -> Tensor:
        return step.off @ self.weights(step)


class HipDeviationSideways(Deviation):
    """T1: hip roll and yaw, and only where it is to go sideways."""

    def __call__(self, step: Step) -> Tensor:
        return super().__call__(step) * (step.command[:, 1].abs() > 0.1)


class HipDeviation(Deviation):
    """G1: hip roll and yaw, four times, or twice where it is to go to its left.

    Playground means to leave roll out there. Its weights [4] meet errors [4, 1]: all count with the sum of weights.
    """

    def __call__(self, step: Step) -> Tensor:
        return super().__call__(step) * torch.where(step.command[:, 1] > 0.1, 2.0, 4.0)


HUMANOID = ("linvel", "gyro", "gravity", "command", "joint_pos", "joint_vel", "last_action", "gait")
HUMANOID_CRITIC = (
    *("gyro", "accelerometer", "gravity", "linvel", "global_angvel", "joint_pos", "joint_vel"),
    *("height", "torque", "contact", "foot_vel", "air"),
)

T1 = JoystickSpec(
    terms={
        "tracking_lin_vel": (1.0, tracking_lin_vel),
        "tracking_ang_vel": (0.5, tracking_ang_vel),
        "progress": (0.0, progress),
        "ang_vel_xy": (-0.15, ang_vel_xy("gyro")),
        "orientation": (-1.0, orientation),
        "feet_air_time": (2.0, air_time_long_moving),
        "feet_slip": (-0.25, base_slip),
        "feet_phase": (1.0, feet_phase),
        "alive": (0.25, alive),
        "collision": (-1.0, feet_touch),
        "joint_deviation_hip": (-0.1, HipDeviationSideways({"Hip_Roll": 1.0, "Hip_Yaw": 1.0})),
        "joint_deviation_knee": (-0.1, Deviation({"Knee_Pitch": 1.0})),
        "dof_pos_limits": (-1.0, dof_pos_limits),
        "pose": (-1.0, PoseCost({"Shoulder_Pitch": 0.1, "Hip_Pitch": 0.01, "Knee": 0.01}, 1.0)),
        "feet_distance": (-1.0, feet_distance),
        # Weight 0 in Playground; FastTD3 uses them to make the policy smooth.
        "action_rate": (0.0, action_rate),
        "energy": (0.0, energy),
        "torques": (0.0, lambda step: step.sensor["torque"].abs().sum(1)),
    },
    commands=Commands(x=1.0, y=0.8, yaw=1.0),
    observed=HUMANOID,
    privileged=HUMANOID_CRITIC,
    gait=Gait(frequency=(1.25, 1.75), height=0.12, stands=True),
    joint_start=(0.5, 1.5),
)

G1 = JoystickSpec(
    terms={
        "tracking_lin_vel": (1.0, tracking_lin_vel),
        "tracking_ang_vel": (0.75, tracking_ang_vel),
        "progress": (0.0, progress),
        "ang_vel_xy": (-0.15, ang_vel_xy("global_angvel_torso")),
        "orientation": (-2.0, torso_orientation),
        "feet_air_time": (2.0, air_time_long),
        "feet_slip": (-0.25, base_slip),
        "feet_phase": (1.0, feet_phase_moving),
        "stand_still": (-1.0, stand_still),
        "termination": (-100.0, termination),
        "collision": (-0.1, hands_touch),
        "contact_force": (-0.01, contact_force),
        "joint_deviation_hip": (-0.25, HipDeviation({"hip_roll": 1.0, "hip_yaw": 1.0})),
        "joint_deviation_knee": (-0.1, Deviation({"knee": 1.0})),
        "dof_pos_limits": (-1.0, dof_pos_limits),
        "pose": (-0.1, PoseCost({}, 1.0)),
        "action_rate": (0.0, action_rate),
        "energy": (0.0, energy),
    },
    commands=Commands(x=1.0, y=0.5, yaw=1.0),
    observed=HUMANOID,
    privileged=HUMANOID_CRITIC,
    gait=Gait(frequency=(1.25, 1.5), height=0.15, stands=False),
    joint_start=(0.5, 1.5),
    lowest_reward=None,
    ends_if_feet_touch=True,
    up="up_torso",
)

GO1 = JoystickSpec(
    terms={
        "tracking_lin_vel": (1.0, tracking_lin_vel),
        "tracking_ang_vel": (0.5, tracking_ang_vel),
        "progress": (0.0, progress),
        "lin_vel_z": (-0.5, lin_vel_z),
        "ang_vel_xy": (-0.05, ang_vel_xy("global_angvel")),
        "orientation": (-5.0, orientation),
        "stand_still": (-1.0, stand_still),
        "termination": (-1.0, termination),
        "pose": (0.5, PoseReward({"calf": 0.1}, 1.0)),
        "torques": (-0.0002, torques),
        "action_rate": (-0.01, action_rate),
        "energy": (-0.001, energy),
        "feet_slip": (-0.1, feet_slip),
        "feet_clearance": (-2.0, feet_clearance),
        "feet_height": (-0.2, feet_height),
        "feet_air_time": (0.1, air_time_short),
        "dof_pos_limits": (-1.0, dof_pos_limits),
    },
    commands=Commands(x=1.5, y=0.8, yaw=1.2, change="each"),
    observed=("linvel", "gyro", "gravity", "joint_pos", "joint_vel", "last_action", "command"),
    privileged=(
        *("gyro", "accelerometer", "gravity", "linvel", "global_angvel", "joint_pos", "joint_vel"),
        *("torque", "last_contact", "foot_vel", "air", "push"),
    ),
    soft_limits="limit",
)

# A task of our own, in which Go1 learns to walk within few env steps: it sees the clock of a trot, and what it is paid
# for leads there from the first step on. In Playground's task a robot that stands is paid well and one that begins to
# walk is not: tracking pays only near the commanded velocity, and every movement costs. Here `progress` and
# `turn_error` count far from it too, `feet_trot` pays for lifting the feet, and movement costs little.
# Feet: front right, front left, rear right, rear left. Diagonal pairs are lifted together.
GO1_TROT = replace(
    GO1,
    terms={
        **GO1.terms,
        "tracking_lin_vel": (1.5, tracking_lin_vel),
        "tracking_ang_vel": (1.0, tracking_ang_vel),
        "progress": (5.0, progress),
        "turn_error": (-0.5, turn_error),
        "feet_trot": (1.5, feet_trot),
        "orientation": (-2.0, orientation),
        "termination": (-5.0, termination),
        "torques": (-0.0001, torques),
        "energy": (-0.0005, energy),
        "feet_slip": (-0.02, feet_slip),
        "feet_clearance": (0.0, feet_clearance),
        "feet_height": (0.0, feet_height),
        "feet_air_time": (0.0, air_time_short),
    },
    gait=Gait(
        frequency=(2.5, 2.5),
        height=0.08,
        stands=False,
        phases=(0.0, math.pi, math.pi, 0.0),
        sole=0.023,
    ),
    commands=Commands(x=1.0, y=0.5, yaw=1.0, change="each"),  # faster ones need a faster rhythm
    observed=(*GO1.observed, "gait"),
    lowest_reward=None,
)

SPECS = {"t1": T1, "g1": G1, "go1": GO1}
