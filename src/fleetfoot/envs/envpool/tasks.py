"""What EnvPool does not tell about its tasks: which observations belong to one, their order, the length of a step."""

from __future__ import annotations

# EnvPool declares the observations of all tasks of a dm_control domain; those that a task does not have stay zero.
# Here are the tasks where that shows, with the observations dm_control has, in dm_control's order.
_DOG = (
    "joint_angles",
    "joint_velocites",  # dm_control's spelling
    "torso_pelvis_height",
    "z_projection",
    "torso_com_velocity",
    "inertial_sensors",
    "foot_forces",
    "touch_sensors",
    "actuator_state",
)
_HUMANOID = (
    "joint_angles",
    "head_height",
    "extremities",
    "torso_vertical",
    "com_velocity",
    "velocity",
)
_QUADRUPED = ("egocentric_state", "torso_velocity", "torso_upright", "imu", "force_torque")
DM_CONTROL_KEYS: dict[str, tuple[str, ...]] = {
    "DogStand-v1": _DOG,
    "DogWalk-v1": _DOG,
    "DogTrot-v1": _DOG,
    "DogRun-v1": _DOG,
    "FingerSpin-v1": ("position", "velocity", "touch"),
    "FishUpright-v1": ("joint_angles", "upright", "velocity"),
    "FishSwim-v1": ("joint_angles", "upright", "target", "velocity"),
    "HumanoidStand-v1": _HUMANOID,
    "HumanoidWalk-v1": _HUMANOID,
    "HumanoidRun-v1": _HUMANOID,
    "HumanoidRunPureState-v1": ("position", "velocity"),
    "QuadrupedWalk-v1": _QUADRUPED,
    "QuadrupedRun-v1": _QUADRUPED,
    "QuadrupedEscape-v1": (*_QUADRUPED, "origin", "rangefinder"),
    "QuadrupedFetch-v1": (*_QUADRUPED, "ball_state", "target_position"),
}

# Simulated seconds of one step, by the beginning of an id; EnvPool knows them but does not say. For pictures alone.
DM_CONTROL_SECONDS = {
    "Acrobot": 0.01,
    "BallInCup": 0.02,
    "Cartpole": 0.01,
    "Cheetah": 0.01,
    "Dog": 0.015,
    "Finger": 0.02,
    "Fish": 0.04,
    "Hopper": 0.02,
    "HumanoidCMU": 0.02,
    "Humanoid": 0.025,
    "Manipulator": 0.01,
    "Pendulum": 0.02,
    "PointMass": 0.02,
    "Quadruped": 0.02,
    "Reacher": 0.02,
    "Stacker": 0.01,
    "Swimmer": 0.03,
    "Walker": 0.025,
}
META_WORLD_SECONDS = 0.0125
UNKNOWN_SECONDS = 0.05

# The order of the tasks is the order of their ids (and of what an agent learns for each): it never changes.
MT10 = (
    "Reach PickPlace Push DoorOpen DrawerClose ButtonPressTopdown PegInsertSide WindowOpen WindowClose "
    "DrawerOpen"
)
MT50 = """
    Assembly Basketball BinPicking BoxClose ButtonPress ButtonPressTopdown
    ButtonPressTopdownWall ButtonPressWall CoffeeButton CoffeePull CoffeePush DialTurn
    Disassemble DoorClose DoorLock DoorOpen DoorUnlock DrawerClose DrawerOpen FaucetClose
    FaucetOpen Hammer HandInsert HandlePress HandlePressSide HandlePull HandlePullSide LeverPull
    PegInsertSide PegUnplugSide PickOutOfHole PickPlace PickPlaceWall PlateSlide PlateSlideBack
    PlateSlideBackSide PlateSlideSide Push PushBack PushWall Reach ReachWall ShelfPlace Soccer
    StickPull StickPush Sweep SweepInto WindowClose WindowOpen
"""
DOGS = ("DogStand-v1", "DogWalk-v1", "DogTrot-v1", "DogRun-v1")
HUMANOIDS = ("HumanoidStand-v1", "HumanoidWalk-v1", "HumanoidRun-v1")
SETS: dict[str, tuple[str, ...]] = {
    "mt10": tuple(f"MetaWorld/{name}-v3" for name in MT10.split()),
    "mt50": tuple(f"MetaWorld/{name}-v3" for name in MT50.split()),
    "dogs": DOGS,
    "humanoids": HUMANOIDS,
    "dogs_and_humanoids": DOGS + HUMANOIDS,
}


def keys_of(task: str, declared: list[str]) -> list[str]:
    """The observations of a task in the order in which they are laid out, from those EnvPool declares."""
    return list(DM_CONTROL_KEYS.get(task, declared))


def dm_control_id(task: str) -> str:
    """EnvPool's id of a dm_control task: walker-run is WalkerRun-v1."""
    return task.title().replace("-", "") + "-v1"


def seconds_of(task: str, family: str, config: dict[str, object]) -> float:
    """`family` is the module of EnvPool a task comes from, `config` its settings there."""
    if family == "dmc":
        # The longer name first: HumanoidCMU is no Humanoid.
        names = sorted(DM_CONTROL_SECONDS, key=len, reverse=True)
        domain = next((name for name in names if task.startswith(name)), None)
        return DM_CONTROL_SECONDS[domain] if domain else UNKNOWN_SECONDS
    if family == "metaworld":
        return META_WORLD_SECONDS
    ctrl_dt = config.get("ctrl_dt")  # MuJoCo Playground
    return ctrl_dt if isinstance(ctrl_dt, float) else UNKNOWN_SECONDS
