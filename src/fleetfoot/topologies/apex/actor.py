"""An actor: V environments, a copy of the behaviour network, and a local buffer. Lives in a process of its own."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from fleetfoot.data import EnvSpec, Transition
from fleetfoot.errors import UserError
from fleetfoot.explore import check_behaviour, share_of
from fleetfoot.log.timer import StepTimer
from fleetfoot.nn.linear import Linear
from fleetfoot.recipe import Seeds
from fleetfoot.rollout import rollout
from fleetfoot.topologies.apex.priorities import LocalBuffer, Remembering
from fleetfoot.topologies.ray.cluster import (
    PackedRecipe,
    one_line,
    to_arrays,
    to_tensors,
    unpack_recipe,
)
from fleetfoot.topologies.ray.transport import Block, pack_lines

CPU = torch.device("cpu")


class ActorFailed(Exception):  # noqa: N818
    """Something in an actor raised, most likely its environments; the message names their seed."""


class Actor:
    """Collects when asked to. All work happens in methods: what a Ray actor's constructor raises is lost."""

    def __init__(self, packed: PackedRecipe, number: int, actors: int, incarnation: int):
        self.packed, self.number, self.actors = packed, number, actors
        self.incarnation, self.sequence, self.version = incarnation, 0, -1

    def start(self, threads: int, priorities: bool, bf16: bool = False, past: int = 0) -> EnvSpec:
        """Build everything; tells what the environments are. `past`: vec steps that earlier incarnations sent."""
        torch.set_num_threads(threads)
        recipe = unpack_recipe(self.packed)
        # The first actor, as long as it lives, draws what `synchronous` would.
        original = self.number == 0 and self.incarnation == 0
        own = recipe.seeds() if original else Seeds.of(recipe.seed, self.number, self.incarnation)
        self.seeds, width = own, recipe.num_envs // self.actors
        with self._reported():
            env = recipe.env.build(width, own.env, CPU)
            obs = env.reset()
        self.spec = env.spec
        agent: Any = recipe.build_agent(env.spec, CPU, total_updates=1)
        config = share_of(recipe.explorer, self.number * width, recipe.num_envs)
        explorer = config.build(env.spec, seed=own.explorer, device=CPU)
        check_behaviour(agent.behaviour, explorer.takes_noise)
        explorer.skip(past)
        self.explorer = explorer
        network: nn.Module = InBfloat16(agent.behaviour) if bf16 else agent.behaviour
        self.agent, self.behaviour = agent, Remembering(network)
        self.buffer: LocalBuffer | None = None
        if priorities:
            self.buffer = LocalBuffer(
                agent.initial_priority,
                network,
                n_step=recipe.replay.n_step,
                gamma=recipe.gamma,
                bootstrap_truncated=recipe.replay.bootstrap_truncated,
            )
        acting = self.behaviour if priorities else network
        self.steps = rollout(env.step, acting, explorer, obs, StepTimer(env.spec.device))
        return env.spec

    def collect(self, lines: int, version: int, weights: Any) -> Block:
        """So many vec steps with these weights (arrays by module; ignored where they are here already)."""
        begin = time.perf_counter()
        if version != self.version:
            for name, state in to_tensors(weights).items():
                getattr(self.agent, name).load_state_dict(state)
            self.version = version
        steps: list[Transition] = []
        errors: list[Tensor] = []
        with self._reported():
            while len(steps) < lines:
                step = next(self.steps)
                if self.buffer is None:
                    steps.append(step)
                elif ready := self.buffer.add(step, self.behaviour.take(step.obs)):
                    steps.append(ready.step)
                    errors.append(ready.td_error)
        block = Block(
            actor=self.number,
            incarnation=self.incarnation,
            sequence=self.sequence,
            version=version,
            seconds=time.perf_counter() - begin,
            lines=pack_lines(steps, self.spec),
            td_error=to_arrays(torch.stack(errors), copy=False) if errors else None,
        )
        self.sequence += 1
        return block

    def _reported(self) -> Reported:
        return Reported(f"environment seed {self.seeds.env}")


class InBfloat16(nn.Module):
    """A network whose large products are made in bfloat16, and nothing else: statistics stay exact, and what it says
    is float32."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network
        for layer in network.modules():
            if isinstance(layer, (Linear, nn.Linear, nn.Conv2d)):
                layer.to(torch.bfloat16)  # else every step would cast the weights again

    def forward(self, *inputs: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            said: Tensor = self.network(*inputs)
        return said.float()


class Reported:
    """Makes what is raised inside an `ActorFailed` that names the seed. Mistakes of the user stay what they are."""

    def __init__(self, what: str):
        self.what = what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, UserError):
            raise ActorFailed(f"{self.what}: {one_line(error)}") from error
