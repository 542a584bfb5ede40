"""An actor: V environments, a copy of the behaviour network and a local buffer, in a process of its own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from fleetfoot.data import EnvSpec, Transition
from fleetfoot.explore import check_behaviour, share_of
from fleetfoot.guard import build_env
from fleetfoot.log.timer import StepTimer
from fleetfoot.nn.linear import Linear
from fleetfoot.recipe import Seeds
from fleetfoot.rollout import rollout
from fleetfoot.topologies.apex.priorities import LocalBuffer, Recorder
from fleetfoot.topologies.apex.wire import Block
from fleetfoot.topologies.ray import transport
from fleetfoot.topologies.ray.workers import naming_seed

if TYPE_CHECKING:
    from fleetfoot.topologies.apex.loop import ActorLearnerConfig

CPU = torch.device("cpu")


class Actor:
    """Collects a block of transitions whenever the learner requests one."""

    def __init__(self, packed: transport.PackedRecipe, number: int, incarnation: int):
        self.packed, self.number, self.incarnation = packed, number, incarnation
        self.sequence, self.version = 0, -1

    def start(self, vec_steps_before: int = 0) -> EnvSpec:
        """Build everything. `vec_steps_before`: made by earlier incarnations; exploration continues from there."""
        recipe = transport.unpack_recipe(self.packed)
        cfg = cast("ActorLearnerConfig", recipe.topology)
        torch.set_num_threads(max(1, int(cfg.ray.worker_cpus)))
        # The first actor draws what `synchronous` would draw, until it is replaced.
        original = self.number == 0 and self.incarnation == 0
        worker_seeds = Seeds.of(recipe.seed, self.number, self.incarnation)
        self.seeds = recipe.seeds() if original else worker_seeds
        width = recipe.num_envs // cfg.actors
        with naming_seed(self.seeds.env):
            env = build_env(recipe.env, width, self.seeds.env, CPU, recipe.env_timeout)
            obs = env.reset()
        self.spec = env.spec
        self.agent = cast(Any, recipe.build_agent(env.spec, CPU, total_updates=1))
        explorer = share_of(recipe.explorer, self.number * width, recipe.num_envs)
        self.explorer = explorer.build(env.spec, seed=self.seeds.explorer, device=CPU)
        check_behaviour(self.agent.behaviour, self.explorer.takes_noise)
        self.explorer.skip(vec_steps_before)
        self.behaviour: nn.Module = self.agent.behaviour
        if cfg.acting == "bf16":
            self.behaviour = InBfloat16(self.behaviour)
        self.buffer: LocalBuffer | None = None
        if cfg.computes_priorities(recipe):
            self.behaviour = Recorder(self.behaviour)
            self.buffer = LocalBuffer(
                self.agent.initial_priority,
                self.behaviour,
                recipe.off_policy_replay(),
                recipe.gamma,
            )
        self.steps = rollout(env.step, self.behaviour, self.explorer, obs, StepTimer(CPU))
        return env.spec

    def collect(self, lines: int, version: int, weights: Any) -> Block:
        """So many vec steps with these weights (state dicts by module, as arrays)."""
        begin = time.perf_counter()
        if version != self.version:
            for module, state in transport.to_tensors(weights).items():
                getattr(self.agent, module).load_state_dict(state)
            self.version = version
        steps: list[Transition] = []
        td_errors: list[Tensor] = []
        with naming_seed(self.seeds.env):
            while len(steps) < lines:
                step = next(self.steps)
                if self.buffer is None:
                    steps.append(step)
                elif ready := self.buffer.add(step):
                    steps.append(ready[0])
                    td_errors.append(ready[1])
        td_error = torch.stack(td_errors) if td_errors else None
        self.sequence += 1
        return Block(
            actor=self.number,
            sequence=self.sequence - 1,
            version=version,
            seconds=time.perf_counter() - begin,
            lines=transport.pack_lines(steps, self.spec),
            td_error=transport.to_arrays(td_error, copy=False),
        )


class InBfloat16(nn.Module):
    """Runs the large matrix products of a network in bfloat16; statistics stay exact, and its output is float32."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network
        for layer in network.modules():
            # Without this, autocast would convert the weights at every step.
            if isinstance(layer, (Linear, nn.Linear, nn.Conv2d)):
                layer.to(torch.bfloat16)

    def forward(self, *inputs: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output: Tensor = self.network(*inputs)
        return output.float()
