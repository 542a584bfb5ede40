"""The configurations of a study: one recipe per task, times ratios, batch sizes, learning rates and widths."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

from fleetfoot.errors import UserError
from fleetfoot.recipe import Recipe
from fleetfoot.replay.rollouts import RolloutConfig

# The learning rates that move together: those of networks. Temperatures and other scalars keep theirs.
NETWORK_OPTIMS = ("critic_optim", "policy_optim", "optimist_optim", "optim")
CRITIC_OPTIMS = ("critic_optim", "optim")
BATCH_MULTIPLE = 16


@dataclass(frozen=True)
class Setting:
    """What one configuration changes in its recipe. None: the recipe's own."""

    utd: float | None = None  # updates per env step (sigma)
    batch: int | None = None
    lr: float | None = None  # of the critic; the policy's changes by the same factor
    width: float | None = None  # of the critic's layers, as a multiple of the recipe's


def product_of(
    utd: Sequence[float], batch: Sequence[int], lr: Sequence[float], width: Sequence[float]
) -> list[Setting]:
    """Every combination. An empty axis has the recipe's own value."""
    axes: list[Sequence[Any]] = [axis or [None] for axis in (utd, batch, lr, width)]
    return [Setting(*values) for values in product(*axes)]


def points(recipes: Sequence[Recipe], settings: Sequence[Setting]) -> dict[str, Recipe]:
    """A recipe for each configuration, by a name that tells the values."""
    check_recipes(recipes)
    made: dict[str, Recipe] = {}
    for recipe in recipes:
        for setting in settings:
            changed = apply(recipe, setting)
            made[_name(changed, setting.width)] = changed
    return made


def check_recipes(recipes: Sequence[Recipe]) -> None:
    """One algorithm, several tasks."""
    names = [recipe.name for recipe in recipes]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"{double} is named twice.")
    for one, other in pairwise(recipes):
        mine, its = type(one.agent).__name__, type(other.agent).__name__
        if mine != its:
            raise UserError(
                f"a study has one algorithm, not {mine} ({one.name}) and {its} ({other.name}); "
                "make one study of each."
            )
    for recipe in recipes:
        if isinstance(recipe.replay, RolloutConfig):
            raise UserError(
                f"{recipe.name} learns from rollouts, so it has no update-to-data ratio; scaling laws are for recipes "
                "with a replay."
            )
        if getattr(recipe.topology, "free", False):
            raise UserError(
                f"{recipe.name} learns as fast as it can, so its update-to-data ratio cannot be set; "
                "use --topology.no-free."
            )


def apply(recipe: Recipe, setting: Setting) -> Recipe:
    if setting.utd is not None:
        if not setting.utd > 0:
            raise UserError(f"--utd must be above 0, not {setting.utd}.")
        # Warm-up stays the same, whatever the ratio.
        per_vec_step = setting.utd * recipe.num_envs
        recipe = replace(recipe, pace=replace(recipe.pace, updates_per_vec_step=per_vec_step))
    if setting.batch is not None:
        if setting.batch < 1:
            raise UserError(f"--batch must be at least 1, not {setting.batch}.")
        recipe = replace(recipe, batch_size=setting.batch)
    if setting.lr is not None:
        recipe = replace(recipe, agent=with_lr(recipe, setting.lr))
    if setting.width is not None:
        recipe = replace(recipe, agent=with_width(recipe, setting.width))
    return recipe


def utd_of(recipe: Recipe) -> float:
    """Updates per env step."""
    return recipe.pace.updates_per_vec_step / recipe.num_envs


def lr_of(recipe: Recipe) -> float | None:
    """The learning rate of the critic; None where the agent does not name it as ours do."""
    for name in CRITIC_OPTIMS:
        lr = getattr(getattr(recipe.agent, name, None), "lr", None)
        if lr is not None:
            return float(lr)
    return None


def lr_options(recipe: Recipe, lr: float) -> Iterator[tuple[str, float]]:
    """Every learning rate of the recipe that changes with that of the critic: its path, and its new value."""
    own = lr_of(recipe)
    if own is None:
        raise UserError(
            f"{type(recipe.agent).__name__} has no critic_optim.lr that --lr could set."
        )
    if not lr > 0:
        raise UserError(f"--lr must be above 0, not {lr}.")
    for name in NETWORK_OPTIMS:
        optim = getattr(recipe.agent, name, None)
        for field in ("lr", "lr_end"):
            value = getattr(optim, field, None)
            if value is not None:
                yield f"agent.{name}.{field}", _rounded(value * lr / own)


def with_lr(recipe: Recipe, lr: float) -> Any:
    agent: Any = recipe.agent
    for path, value in lr_options(recipe, lr):
        _, name, field = path.split(".")
        agent = replace(agent, **{name: replace(getattr(agent, name), **{field: value})})
    return agent


def with_width(recipe: Recipe, factor: float) -> Any:
    if not factor > 0:
        raise UserError(f"--width must be above 0, not {factor}.")
    agent: Any = recipe.agent
    net: Any = getattr(agent, "critic_net", None)
    if hasattr(net, "hidden"):
        hidden = tuple(max(1, round(units * factor)) for units in net.hidden)
        return replace(agent, critic_net=replace(net, hidden=hidden))
    if hasattr(net, "width"):
        return replace(agent, critic_net=replace(net, width=max(1, round(net.width * factor))))
    raise UserError(f"{type(agent).__name__} has no critic_net whose --width could change.")


def rounded_batch(batch: float) -> int:
    """To a multiple of 16, and at least 16."""
    return max(BATCH_MULTIPLE, BATCH_MULTIPLE * round(batch / BATCH_MULTIPLE))


def can_diagnose(recipe: Recipe) -> bool:
    """As far as the types tell: does `build` of the agent's config return something with `diagnose`?"""
    if not getattr(recipe.topology, "diagnoses", False):
        return False
    try:
        made = typing.get_type_hints(type(recipe.agent).build).get("return")
    except NameError:  # an annotation that only a type checker can resolve
        return False
    return hasattr(made, "diagnose")


def prepared(recipe: Recipe, *, diagnose: bool, threads: int) -> Recipe:
    """A recipe as a study trains it: silent but for its log, and with diagnostics where it can."""
    if diagnose and can_diagnose(recipe):
        recipe = replace(recipe, evaluation=replace(recipe.evaluation, diagnose=True))
    if recipe.threads == 0 and threads:
        recipe = replace(recipe, threads=threads)
    return replace(recipe, log=replace(recipe.log, tensorboard=False))


def _name(recipe: Recipe, width: float | None) -> str:
    parts = [recipe.name.replace("/", "-").replace(":", "-"), f"utd-{utd_of(recipe):.6g}"]
    parts.append(f"batch-{recipe.batch_size}")
    if (lr := lr_of(recipe)) is not None:
        parts.append(f"lr-{lr:.4g}")
    if width is not None and width != 1:
        parts.append(f"width-{width:.4g}")
    return "_".join(parts)


def _rounded(value: float) -> float:
    """Without the digits that a product of decimal numbers adds."""
    return float(f"{value:.10g}")
