"""FastSAC recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from fleetfoot.agents.fast_sac import FastSACConfig
from fleetfoot.explore import AsSampledConfig
from fleetfoot.optim import AdamWConfig
from fleetfoot.recipe import Recipe
from fleetfoot.recipes import fast_td3


def from_td3(base: Recipe, name: str, **changes: Any) -> Recipe:
    """A FastTD3 recipe with FastSAC: the same value range and networks, exploration by sampling."""
    td3: Any = base.agent
    shared = {f.name for f in fields(FastSACConfig)} & {f.name for f in fields(td3)}
    agent = FastSACConfig(
        **{name: getattr(td3, name) for name in shared},
        alpha_optim=AdamWConfig(lr=1e-3, lr_end=3e-4, weight_decay=0.0),
    )
    return replace(base, name=name, agent=agent, explorer=AsSampledConfig(), **changes)


RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    "fast_sac/halfcheetah": (
        "HalfCheetah-v5 on CPU cores",
        lambda: from_td3(fast_td3.halfcheetah(), "fast_sac/halfcheetah"),
    ),
    "fast_sac/pendulum": (
        "pendulum swing-up written in torch",
        lambda: from_td3(fast_td3.pendulum(), "fast_sac/pendulum"),
    ),
}
