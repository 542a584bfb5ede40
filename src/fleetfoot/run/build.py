"""A whole run in one process, built from its recipe."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

import torch

from fleetfoot.agents.contract import CanDiagnose
from fleetfoot.data import Batch, EnvSpec, Obs, Transition
from fleetfoot.envs.vec_env import VecEnv
from fleetfoot.errors import UserError
from fleetfoot.evaluate import Belief, Evaluator
from fleetfoot.explore import Explorer, check_behaviour
from fleetfoot.log import EpisodeStats, Log, added
from fleetfoot.log.split import TimeSplit
from fleetfoot.recipe import Recipe
from fleetfoot.replay.replay import Replay
from fleetfoot.run.clock import Clock
from fleetfoot.run.folder import write_spec
from fleetfoot.run.journal import Learning
from fleetfoot.run.ranks import Ranks, here
from fleetfoot.run.sharded import (
    bind,
    carried_over,
    generator_states,
    joint_spec,
    rank_recipe,
    reseed,
    restore_generators,
)
from fleetfoot.system import usable_cores


@dataclass(kw_only=True)
class Run(Learning):
    """A whole run in one process, or one rank of it."""

    share: Recipe  # of this process; the same where there is only one
    env: VecEnv
    obs: Obs  # what to act on first
    explorer: Explorer
    evaluator: Evaluator | None  # the first rank's business
    episodes: EpisodeStats

    @classmethod
    def build(
        cls,
        recipe: Recipe,
        folder: Path,
        state: dict[str, Any] | None,
        make_replay: Callable[[EnvSpec], Replay] | None = None,
    ) -> Self:
        """Build everything from the recipe; then, if there is a state, put every part into it. `make_replay`: where
        the replay is not this run's own."""
        ranks = here()
        with ranks.raise_together():
            return cls._build(recipe, folder, state, ranks, make_replay)

    @classmethod
    def env_device(cls, recipe: Recipe, device: torch.device) -> torch.device:
        """Where the environments hand out what they see."""
        return device

    @classmethod
    def _build(
        cls,
        recipe: Recipe,
        folder: Path,
        state: dict[str, Any] | None,
        ranks: Ranks,
        make_replay: Callable[[EnvSpec], Replay] | None,
    ) -> Self:
        share, seeds = rank_recipe(recipe, ranks), recipe.seeds(ranks.rank)
        device = share.torch_device()
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # whose streams everything else means
        torch.set_num_threads(share.threads or usable_cores())
        env = recipe.env.build(share.num_envs, seeds.env, cls.env_device(recipe, device))
        make = make_replay or partial(
            share.replay.build,
            gamma=recipe.gamma,
            seed=seeds.replay,
            device=device,
            beside=cls.bytes_beside(share, env.spec),
        )
        agent = recipe.build_agent(joint_spec(env.spec, ranks), device)
        bind(agent, ranks, seeds.agent)
        run = cls(
            recipe=recipe,
            share=share,
            ranks=ranks,
            folder=folder,
            device=device,
            env=env,
            obs=env.reset(),
            agent=agent,
            explorer=share.explorer.build(env.spec, seed=seeds.explorer, device=device),
            replay=make(env.spec),
            pace=recipe.pace.build(),
            evaluator=None,
            checkpoint=None,
            log=Log([], every_vec_steps=recipe.log.every_vec_steps),
            episodes=EpisodeStats(share.num_envs, device),
            clock=Clock(),
            split=TimeSplit(device),
        )
        check_behaviour(agent.behaviour, run.explorer.takes_noise)
        if recipe.evaluation.diagnose:
            run.diagnosed()  # refuse before anything is learned
        if state is not None:
            run.load_state_dict(state)
        if ranks.first:
            run.evaluator = Evaluator(recipe.env, recipe.evaluation, seeds.evaluation, device)
            run.checkpoint = recipe.checkpoint.build(folder / "checkpoints")
            run.log = run.open_log(resumed=state is not None)
            write_spec(folder, env.spec)
        run.clock.restart(run.clock.before)  # the time it took to build all this is not training
        if ranks.world > 1:
            run.log.merge = lambda totals: added(ranks.gather_json(totals))
        return run

    @classmethod
    def bytes_beside(cls, share: Recipe, spec: EnvSpec) -> int:
        """Of other memories, of as many rows as the replay, that come on its device."""
        return 0

    def collected(self, fresh: Transition) -> None:
        """Note one vec step for the log."""
        self.vec_steps += 1
        self.episodes.update(fresh.reward, fresh.terminated | fresh.truncated)
        seen = {"env/obs_magnitude": fresh.next_obs.actor.float().abs().mean()}
        self.log.add(seen | {"env/reward": fresh.reward, **fresh.info})

    def flush_counters(self) -> None:
        self.log.add(self.episodes.metrics())

    def evaluate(self) -> dict[str, float]:
        assert self.evaluator is not None
        begun = time.perf_counter()
        if not self.recipe.evaluation.diagnose:
            metrics = self.evaluator(self.agent.policy).metrics()
        else:
            belief = Belief(self.diagnosed().q, self.recipe.gamma)
            metrics = self.evaluator(self.agent.policy, belief).metrics() | self.diagnose()
        return metrics | {"time/evaluate_s": time.perf_counter() - begun}

    def rows_apart(self) -> Batch:
        """Rows to examine; no draw of the replay is used up."""
        sampler = self.replay.sampler.apart(self.vec_steps)
        return self.replay.gather(*sampler.draw(self.share.batch_size, self.replay.ring))

    def diagnose(self) -> dict[str, float]:
        """What the agent says of itself."""
        rows = self.rows_apart()
        held_out = rows.held_out
        if held_out is not None and not held_out.weight.any():  # none so far
            held_out = None
        found = self.diagnosed().diagnose(rows._replace(held_out=None), held_out)
        return {f"diagnose/{name}": float(value) for name, value in found.items()}

    def diagnosed(self) -> CanDiagnose:
        if not (hasattr(self.agent, "diagnose") and hasattr(self.agent, "q")):
            raise UserError(
                f"{type(self.agent).__name__} cannot be diagnosed; use --evaluation.no-diagnose."
            )
        return cast(CanDiagnose, self.agent)

    def state_dict(self) -> dict[str, Any]:
        whole = super().state_dict() | {
            "explorer": self.explorer.state_dict(),
            "env": self.env.state_dict(),
            "episodes": self.episodes.state_dict(),
        }
        return whole if self.ranks.world == 1 else whole | {"world": self.ranks.world}

    def rank_state(self, *, with_replay: bool) -> dict[str, Any]:
        own = {
            "generators": generator_states(self.agent),
            "explorer": self.explorer.state_dict(),
            "env": self.env.state_dict(),
            "episodes": self.episodes.state_dict(),
        }
        return own | {"replay": self.replay.state_dict()} if with_replay else own

    def _load(self, state: dict[str, Any]) -> None:
        """Go on exactly; with another number of ranks, go on with what does not depend on it: the agent, the counters,
        and new episodes."""
        if state.get("world", 1) != self.ranks.world:
            for name in ("replay", "generators"):
                state.pop(name, None)
            explorer = carried_over(state["explorer"], self.explorer.state_dict())
            state = state | {"explorer": explorer, "env": None}
            state["episodes"] = self.episodes.state_dict()
        super()._load(state)
        if "generators" in state:
            restore_generators(self.agent, state["generators"])
        elif not self.ranks.first:
            reseed(self.agent, self.recipe.seeds(self.ranks.rank).agent)
        for name in ("explorer", "episodes"):
            getattr(self, name).load_state_dict(state[name])
        if state["env"] is not None:
            self.obs = self.env.load_state_dict(state["env"])
        else:  # the simulator began anew: what follows does not continue
            self.replay.mark_break()
            self.episodes.restart()
            everywhere = torch.ones(self.share.num_envs, dtype=torch.bool, device=self.device)
            self.explorer.restart(everywhere)

    def close(self) -> None:
        with ExitStack() as stack:  # each is closed, also when another fails to
            for part in (self.env, self.evaluator, self.log):
                if part is not None:
                    stack.callback(part.close)
