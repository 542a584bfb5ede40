"""Several seeds of one recipe in one process, as one batched computation: the loop of `synchronous`, S times at once.

Every seed has its own environments, random numbers, log, evaluation and checkpoints, in a folder of its own, and learns
what it would learn alone; only the work is shared. Weights are [S, ...] (`vmap.py`), the replay is one ring whose
columns belong to one seed after the other (`replay.py`). The loop itself is that of one run: it is given a journal and
parts that stand for those of all seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import torch

from fleetfoot.agents.contract import traits, why_not_stacked
from fleetfoot.data import EnvSpec
from fleetfoot.envs.vec_env import VecEnv, simulated_on_cpu
from fleetfoot.execution import Compiled, resolved
from fleetfoot.explore import ActsInTwoHalves, Explorer
from fleetfoot.recipe import Recipe, Result
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.replay.rollouts import RolloutConfig
from fleetfoot.replay.samplers import UniformConfig
from fleetfoot.run.build import Parts, built_run
from fleetfoot.run.journal import Journal, State
from fleetfoot.topologies.multi_seed.env import ConcatVecEnv
from fleetfoot.topologies.multi_seed.explorer import MultiSeedExplorer
from fleetfoot.topologies.multi_seed.journal import MultiSeedJournal
from fleetfoot.topologies.multi_seed.meter import MultiSeedEpisodes
from fleetfoot.topologies.multi_seed.replay import MultiSeedReplay, SeedReplay, build_replay
from fleetfoot.topologies.multi_seed.rollouts import (
    MultiSeedRollouts,
    SeedRollouts,
    build_rollouts,
)
from fleetfoot.topologies.multi_seed.vmap import stack


@runtime_checkable
class TrainsParts(Protocol):
    """A topology whose loop takes any journal and any parts: it trains several seeds as it trains one."""

    def train(self, journal: Journal, parts: Parts) -> None: ...


class NotBatched(Exception):  # noqa: N818
    """Why these seeds cannot learn as one batched computation."""


def why_not_batched(recipe: Recipe) -> str | None:
    """As far as the recipe alone tells; None: they can be."""
    if not isinstance(recipe.topology, TrainsParts):
        return f"{type(recipe.topology).__name__} has no method train(journal, parts)"
    sampler = recipe.replay.sampler if isinstance(recipe.replay, ReplayConfig) else None
    if not isinstance(sampler, UniformConfig | None):
        return f"{type(sampler).__name__} does not sample uniformly"
    return traits(recipe.agent).cannot_stack_reason


def train_batched(
    recipe: Recipe,
    seeds: Sequence[int],
    folders: Sequence[Path],
    states: Iterable[State | None],
) -> list[Result]:
    """`states`: of all seeds after the same vec step, to continue from; None: from the start.

    Raises `NotBatched`, before any folder is changed, where the parts do not allow what `why_not_batched` does.
    """
    options: dict[str, Any] = {"make_replay": Shares(recipe, seeds), "check": check_parts}
    if simulated_on_cpu(recipe.env):  # what all seeds see then travels to the device at once
        options["env_device"] = torch.device("cpu")
    with ExitStack() as runs:
        built: list[tuple[Journal, Parts]] = []
        for seed, folder, state in zip(seeds, folders, states, strict=True):
            resumed = state is not None
            run = built_run(replace(recipe, seed=seed), folder, state, console=not built, **options)
            built.append(runs.enter_context(run))
        for journal, parts in built:  # only now: a seed that cannot go on costs the others nothing
            first = journal is built[0][0]
            journal.open(parts.env.spec, resumed=resumed, console=first)
            runs.callback(journal.close)
        journal, parts = as_one(recipe, built)
        cast(TrainsParts, recipe.topology).train(journal, parts)
        return journal.results()


def check_parts(parts: Parts) -> None:
    name = type(parts.agent).__name__
    if why := why_not_stacked(parts.agent):
        raise NotBatched(f"{name} cannot be stacked: {why}")
    if not isinstance(parts.explorer, ActsInTwoHalves):
        raise NotBatched(f"{type(parts.explorer).__name__} does not act in two halves")


class Shares:
    """Makes the replay of one seed after the other: shares of one, which is built with the first."""

    def __init__(self, recipe: Recipe, seeds: Sequence[int]):
        self.recipe, self.seeds, self.made = recipe, seeds, 0
        self.whole: MultiSeedReplay | MultiSeedRollouts | None = None

    def __call__(self, spec: EnvSpec) -> SeedReplay | SeedRollouts:
        self.made += 1
        if isinstance(self.recipe.replay, RolloutConfig):
            self.whole = self.whole or build_rollouts(self.recipe, len(self.seeds), spec)
            assert isinstance(self.whole, MultiSeedRollouts)
            return SeedRollouts(self.whole, spec, self.made - 1)
        self.whole = self.whole or build_replay(self.recipe, self.seeds, spec)
        assert isinstance(self.whole, MultiSeedReplay)
        return SeedReplay(self.whole, self.made - 1)


def as_one(
    recipe: Recipe, seeds: Sequence[tuple[Journal, Parts]]
) -> tuple[MultiSeedJournal, Parts]:
    """A journal and parts that do for all seeds what those of one run do for one."""
    everyone = [parts for _, parts in seeds]
    first, device = everyone[0], everyone[0].device
    agent = recipe.build_agent(first.env.spec, device)
    modules = stack(agent, [parts.agent for parts in everyone])
    agent.updates = first.agent.updates
    env = ConcatVecEnv([parts.env for parts in everyone], device)
    obs = env.join([parts.obs for parts in everyone])
    behaviour = modules.vmapped(agent.behaviour.forward, seeds_at=0)
    compiles = resolved(recipe.execution, device) != "eager"
    if compiles:  # `vmap` alone costs more than so small a network
        behaviour = Compiled(behaviour, "acting")
    explorer = MultiSeedExplorer([parts.explorer for parts in everyone], behaviour)
    for parts in everyone:
        parts.pace = first.pace  # all count the same vec steps
    # Of env and explorer the loop needs no state: that of each seed is saved with the seed.
    whole = replace(
        first,
        env=cast(VecEnv, env),
        obs=obs,
        agent=agent,
        explorer=cast(Explorer, explorer),
        replay=cast(SeedReplay | SeedRollouts, first.replay).whole,
        episodes=MultiSeedEpisodes([parts.episodes for parts in everyone]),
        evaluator=None,
        owed=everyone[-1].owed,  # once the last is loaded, the replay can be read
    )
    folder = seeds[0][0].folder.parent
    journal = MultiSeedJournal(recipe=recipe, folder=folder, device=device, seeds=seeds)
    with journal.compiling(compiles):
        if compiles:
            explorer.warm_up(obs, env.spec)
    return journal, whole
