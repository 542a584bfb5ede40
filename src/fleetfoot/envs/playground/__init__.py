"""MuJoCo Playground: robots in thousands on a GPU."""

from fleetfoot.envs.playground.env import PlaygroundConfig, PlaygroundEnv, names

__all__ = ["PlaygroundConfig", "PlaygroundEnv", "names"]
