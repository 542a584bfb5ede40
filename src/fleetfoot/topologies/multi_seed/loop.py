"""Several seeds of one recipe in one process, as one batched computation: `synchronous`, S times at once.

Every seed has its own environments, random numbers, log, evaluation and checkpoints, in a folder of its own, and learns
what it would learn alone; only the work is shared. Weights are [S, ...] (see `vmap.py`), the replay is one ring
whose columns belong to one seed after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from fleetfoot.agents.contract import traits
from fleetfoot.data import Batch, EnvSpec, Obs, Transition
from fleetfoot.envs.vec_env import OnHost
from fleetfoot.errors import UserError
from fleetfoot.execution import Compiled, make_learner, resolved
from fleetfoot.explore import AsSampled, AsSampledConfig
from fleetfoot.log import EpisodeStats
from fleetfoot.recipe import Recipe, Result
from fleetfoot.replay.replay import Replay
from fleetfoot.replay.ring import final_entries
from fleetfoot.replay.samplers import Uniform, UniformConfig
from fleetfoot.run.interrupt import Interrupt
from fleetfoot.topologies.multi_seed.env import ConcatVecEnv
from fleetfoot.topologies.multi_seed.meter import MultiSeedMeter
from fleetfoot.topologies.multi_seed.replay import MultiSeedReplay, MultiSeedUniform, of_seed
from fleetfoot.topologies.multi_seed.vmap import stack
from fleetfoot.topologies.old_run import Run
from fleetfoot.topologies.synchronous import SynchronousConfig


@dataclass(kw_only=True)
class SeedRun(Run):
    """One of the seeds. The replay is all seeds' own; what is saved of it is this one's share."""

    number: int = 0  # among the seeds

    @classmethod
    def env_device(cls, recipe: Recipe, device: torch.device) -> torch.device:
        # What comes from the CPU travels to the device for all seeds at once.
        on_host = isinstance(recipe.env, OnHost) and recipe.env.on_host
        return torch.device("cpu") if on_host else device

    def flush_counters(self) -> None:
        """Its counts come from the meter of all seeds."""

    def rows_apart(self) -> Batch:
        return of_seed(super().rows_apart(), self.number)

    def state_dict(self) -> dict[str, Any]:
        own = cast(MultiSeedReplay, self.replay).state_of(self.number)
        return super().state_dict() | {"replay": own}

    def state_without_replay(self) -> dict[str, Any]:
        state = super().state_dict()
        del state["replay"]  # its share would have to be cut out
        return state


def train_seeds(
    recipe: Recipe,
    seeds: Sequence[int],
    folders: Sequence[Path],
    states: Iterable[dict[str, Any] | None] | None = None,
) -> list[Result]:
    """`states`: of all seeds after the same vec step, to go on from."""
    check(recipe)
    with ExitStack() as stack_of_runs:
        shared: list[Replay] = []
        runs: list[SeedRun] = []

        def make_replay(spec: EnvSpec) -> Replay:
            if not shared:
                shared.append(joint_replay(recipe, spec, seeds))
            return shared[0]

        before = states or [None] * len(seeds)
        for number, (seed, folder, state) in enumerate(zip(seeds, folders, before, strict=True)):
            log = recipe.log if not runs else replace(recipe.log, console=False)  # one is watched
            own = replace(recipe, seed=seed, log=log)
            runs.append(SeedRun.build(own, folder, state, make_replay))
            runs[-1].number = number
            stack_of_runs.callback(runs[-1].close)
        for run in runs:
            if run.checkpoint is not None:
                run.checkpoint.keep += 1  # until all seeds have saved: see `saved`
                if states is not None:
                    run.checkpoint.back_to(run.vec_steps)
        return MultiSeedLoop(runs).train()


def check(recipe: Recipe) -> None:
    """UserError where the seeds of this recipe cannot learn as one."""

    def refuse(why: str) -> UserError:
        return UserError(
            f"the seeds of {recipe.name} cannot be trained as one: {why}. Train them one after the other, with --seed."
        )

    if not isinstance(recipe.topology, SynchronousConfig) or recipe.topology.overlap:
        raise refuse("that needs SynchronousConfig without overlap")
    if not isinstance(recipe.replay.sampler, UniformConfig):
        raise refuse("that needs uniform sampling")
    if not isinstance(recipe.explorer, AsSampledConfig):
        raise refuse("that needs a policy that samples by itself (AsSampledConfig)")
    if why := traits(recipe.agent).cannot_stack_reason:
        raise refuse(why)


def joint_replay(recipe: Recipe, spec: EnvSpec, seeds: Sequence[int]) -> Replay:
    """A ring with the columns of all seeds, each as long as it would be alone."""
    count, device = len(seeds), recipe.torch_device()
    wide = replace(
        spec, num_envs=count * spec.num_envs, task_ids=spec.task_ids * count, device=device
    )
    cfg = replace(
        recipe.replay, capacity=recipe.replay.rows(spec) * wide.num_envs, capacity_gib=None
    )
    # A checkpoint of one seed has a copy of its share on the way.
    beside = cfg.bytes(wide) // count if recipe.checkpoint.replay else 0
    whole = cfg.build(wide, gamma=recipe.gamma, seed=0, device=device, beside=beside)
    own = [Uniform(replace(recipe, seed=seed).seeds().replay, device) for seed in seeds]
    finals = final_entries(spec, whole.ring.rows, cfg.final_share)
    return MultiSeedReplay(
        cfg, whole.ring, MultiSeedUniform(own, spec.num_envs), recipe.gamma, finals
    )


class MultiSeedLoop:
    def __init__(self, runs: list[SeedRun]):
        self.runs, self.first = runs, runs[0]
        self.recipe, self.replay = self.first.recipe, self.first.replay
        self.device, self.columns = self.first.device, self.first.recipe.num_envs
        self.env = ConcatVecEnv([run.env for run in runs], self.device)
        self.meter = MultiSeedMeter()
        self.episodes = EpisodeStats(self.columns, self.device, seeds=len(runs))
        for at, run in enumerate(runs):
            run.clock = self.first.clock
            before, own = run.episodes.state_dict(), run.episodes
            own.returns, own.lengths = self.episodes.returns[at], self.episodes.lengths[at]
            own.ended = self.episodes.ended[:, at]
            own.load_state_dict(before)
        self.explorers = [cast(AsSampled, run.explorer) for run in runs]  # `check` has seen to it
        whole = self.recipe.build_agent(self.first.env.spec, self.device)
        self.agent = stack(whole, [run.agent for run in runs])
        self.agent.updates = self.first.agent.updates
        self.behaviour: Callable[[Obs, Tensor], Tensor] = self.agent.behaviour
        if resolved(self.recipe.execution, self.device) != "eager":
            # `vmap` alone costs more than so small a network.
            self.behaviour = Compiled(self.agent.behaviour, "acting")

    def train(self) -> list[Result]:
        total = self.recipe.total_vec_steps
        learn = make_learner(
            self.agent,
            self.replay,
            self.recipe.batch_size,
            precision=self.recipe.precision,
            mode=self.recipe.execution,
            device=self.device,
            timer=self.first.split,
        )
        obs = self.env.join([run.obs for run in self.runs])
        self.compile(obs)
        with Interrupt() as interrupt:
            while self.first.vec_steps < total and not interrupt.stops(self.first.vec_steps):
                obs = self.collect(obs)
                owed, *_ = [run.pace.owed() for run in self.runs]
                with nullcontext() if learn.ready(owed) else self.first.compiling():
                    learn.start(owed)
                self.meter.add({k: v.expand(len(self.runs)) for k, v in learn.join().items()})
                self.bookkeep(owed, last=self.first.vec_steps == total)
            if interrupt.agreed:
                self.meter.hand_out([run.log for run in self.runs])
                for run in self.runs:
                    run.interrupted()
                self.saved()
        return [run.result(finished=self.first.vec_steps >= total) for run in self.runs]

    @torch.no_grad()
    def compile(self, obs: Obs) -> None:
        if isinstance(self.behaviour, Compiled):
            with self.first.compiling():
                shape = len(self.runs), *self.explorers[0].random.shape
                self.behaviour(self.apart(obs), torch.zeros(shape, device=self.device))

    def collect(self, obs: Obs) -> Obs:
        """One vec step of all seeds; returns what to act on next."""
        split = self.first.split
        with split("act"):
            action = self.act(obs)
        with split("simulate"):
            step = self.env.step(action)
        fresh = Transition(
            obs, action, step.reward, step.terminated, step.truncated, step.next_obs, step.info
        )
        with split("append"):
            for at, run in enumerate(self.runs):
                run.agent.observe(self.of(fresh, at))
            self.replay.append(fresh)
        self.note(fresh)
        return step.obs

    @torch.no_grad()
    def act(self, obs: Obs) -> Tensor:
        random = [explorer.random for explorer in self.explorers]
        at_start = [each.at_start() for each in random]  # each must be asked: they count
        if at_start[0]:
            return torch.cat([each.uniform() for each in random])
        noise = torch.stack([each.normal() for each in random])
        action = self.behaviour(self.apart(obs), noise)
        return action.float().clamp_(-1.0, 1.0).flatten(0, 1)

    def apart(self, obs: Obs) -> Obs:
        """[S N, ...] -> [S, N, ...]."""

        split = self.split
        actor = split(obs.actor)
        critic = actor if obs.critic is obs.actor else split(obs.critic)
        return Obs(actor, critic, None if obs.task is None else split(obs.task))

    def split(self, x: Tensor) -> Tensor:
        return x.view(len(self.runs), self.columns, *x.shape[1:])

    def of(self, fresh: Transition, seed: int) -> Transition:
        """The rows of one seed."""
        rows = slice(seed * self.columns, (seed + 1) * self.columns)

        def seen(obs: Obs) -> Obs:
            actor = obs.actor[rows]
            critic = actor if obs.critic is obs.actor else obs.critic[rows]
            return Obs(actor, critic, None if obs.task is None else obs.task[rows])

        return Transition(
            seen(fresh.obs),
            fresh.action[rows],
            fresh.reward[rows],
            fresh.terminated[rows],
            fresh.truncated[rows],
            seen(fresh.next_obs),
            {},
        )

    def note(self, fresh: Transition) -> None:
        split, ended = self.split, fresh.terminated | fresh.truncated
        self.episodes.update(split(fresh.reward), split(ended))
        magnitude = split(fresh.next_obs.actor.float().abs().flatten(1).mean(1)).mean(1)
        found = {"env/obs_magnitude": magnitude, "env/reward": split(fresh.reward).mean(1)}
        told = {name: split(value.float()).mean(1) for name, value in fresh.info.items()}
        self.meter.add(found | told)
        for run in self.runs:
            run.vec_steps += 1

    def bookkeep(self, owed: int, *, last: bool) -> None:
        for run in self.runs:
            run.updates += owed
            run.agent.updates = self.agent.updates
        if not self.first.due(last=last):
            self.first.split.next_vec_step()
            return
        self.meter.add(self.episodes.metrics())
        self.meter.hand_out([run.log for run in self.runs])
        for run in self.runs:
            run.bookkeep(last=last)
        self.saved()

    def saved(self) -> None:
        """Only when every seed has a newer checkpoint does the one before it go: there is always one of all seeds after
        the same vec step."""
        if all(run.saved_at == (run.vec_steps, run.updates) for run in self.runs):
            for run in self.runs:
                if run.checkpoint is not None:
                    run.checkpoint.keep_only(self.recipe.checkpoint.keep)
