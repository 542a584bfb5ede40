"""EnvPool: dm_control, Meta-World and many more, stepped by C++ threads."""

from fleetfoot.envs.envpool.env import SETS, EnvPoolConfig, EnvPoolEnv, EnvPoolTasksConfig, names

__all__ = ["SETS", "EnvPoolConfig", "EnvPoolEnv", "EnvPoolTasksConfig", "names"]
