"""The named recipes."""

from __future__ import annotations

from collections.abc import Callable

from fleetfoot.errors import UserError, nearest
from fleetfoot.recipe import Recipe
from fleetfoot.recipes import (
    apex_dpg,
    apex_dqn,
    brc,
    bro,
    daa,
    dac,
    ddpg,
    dqn,
    fast_sac,
    fast_td3,
    flash_sac,
    gorila_dqn,
    humanoid_bench,
    ppo,
    pql,
    robot,
    sac,
    vpl,
    wmpg,
)

DEFAULT = "fast_td3/halfcheetah"
MOST_LISTED = 10  # recipes in a message

_RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    **fast_td3.RECIPES,
    **fast_sac.RECIPES,
    **flash_sac.RECIPES,
    **robot.RECIPES,
    **humanoid_bench.RECIPES,
    **dqn.RECIPES,
    **apex_dqn.RECIPES,
    **ddpg.RECIPES,
    **apex_dpg.RECIPES,
    **gorila_dqn.RECIPES,
    **pql.RECIPES,
    **bro.RECIPES,
    **dac.RECIPES,
    **brc.RECIPES,
    **sac.RECIPES,
    **vpl.RECIPES,
    **wmpg.RECIPES,
    **ppo.RECIPES,
    **daa.RECIPES,
}


def names() -> list[str]:
    return list(_RECIPES)


def get(name: str) -> Recipe:
    """The recipe of this name; change it with `dataclasses.replace`."""
    if name.startswith("sac/"):  # a family too large to list
        return sac.find(name)
    if name.startswith(humanoid_bench.PREFIXES):
        return humanoid_bench.find(name)
    if name not in _RECIPES:
        family = [known for known in _RECIPES if known.startswith(f"{name}/")]
        more = ", ..." if len(family) > MOST_LISTED else "."
        listed = f" There are {', '.join(family[:MOST_LISTED])}{more}"
        close = listed if family else nearest(name, _RECIPES)
        raise UserError(
            f"there is no recipe named {name!r}.{close} `fleetfoot list` shows them all."
        )
    return _RECIPES[name][1]()


def describe(name: str) -> str:
    """One line about a recipe."""
    return _RECIPES[name][0]
