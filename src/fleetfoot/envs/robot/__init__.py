"""Robots and what they are to do, written once for CPU cores and for thousands of copies on a GPU."""

from fleetfoot.envs.counter import Draw
from fleetfoot.envs.robot.conditions import ConditionsConfig
from fleetfoot.envs.robot.config import RobotConfig, names
from fleetfoot.envs.robot.env import RobotEnv
from fleetfoot.envs.robot.heights import Heights
from fleetfoot.envs.robot.joystick import Commands, Gait, Joystick, JoystickSpec
from fleetfoot.envs.robot.physics import PhysicsConfig
from fleetfoot.envs.robot.randomise import RandomiseConfig
from fleetfoot.envs.robot.robot import Built, Robot
from fleetfoot.envs.robot.task import Now, State, Task

__all__ = [
    "Built",
    "Commands",
    "ConditionsConfig",
    "Draw",
    "Gait",
    "Heights",
    "Joystick",
    "JoystickSpec",
    "Now",
    "PhysicsConfig",
    "RandomiseConfig",
    "Robot",
    "RobotConfig",
    "RobotEnv",
    "State",
    "Task",
    "names",
]
