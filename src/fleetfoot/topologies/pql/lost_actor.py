"""What stands for PQL's actor where its process is lost and the run is to be saved."""

from __future__ import annotations

from dataclasses import replace

from fleetfoot.agents.contract import ActorCritic
from fleetfoot.data import EnvSpec
from fleetfoot.log import EpisodeStats
from fleetfoot.recipe import Recipe
from fleetfoot.run.journal import State
from fleetfoot.topologies.pql.exchange import Report
from fleetfoot.topologies.pql.processes import CPU


class LostActor:
    """What is saved of an actor that is lost: that whoever goes on begins new episodes."""

    def __init__(self, recipe: Recipe, spec: EnvSpec, vec_steps: int, agent: ActorCritic):
        """`agent`: of the coordinator, which has what is saved."""
        self.agent = agent
        here = replace(spec, device=CPU)
        self.explorer = recipe.explorer.build(here, seed=recipe.seeds().explorer, device=CPU)
        self.explorer.skip(vec_steps)
        self.episodes = EpisodeStats(spec.num_envs, CPU)

    def report(self) -> Report:
        return Report({}, {}, 0.0)

    def state_dict(self, with_replay: bool) -> State:
        states = {"explorer": self.explorer.state_dict(), "episodes": self.episodes.state_dict()}
        return {**states, "env": None}

    def policy_state(self) -> State:
        state: State = self.agent.policy.state_dict()
        return state
