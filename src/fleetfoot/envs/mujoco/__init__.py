"""MuJoCo on CPU cores."""

from fleetfoot.envs.mujoco.env import Draw, MuJoCoConfig, MuJoCoEnv, Physics, Task, names

__all__ = ["Draw", "MuJoCoConfig", "MuJoCoEnv", "Physics", "Task", "names"]
