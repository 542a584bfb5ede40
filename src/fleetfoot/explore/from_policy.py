"""The explorer of on-policy agents: what the policy draws is stored as drawn, and clipped only for execution."""

from __future__ import annotations

import torch
from torch import Tensor

from fleetfoot.config import part
from fleetfoot.data import Discrete, EnvSpec
from fleetfoot.explore.drawing import Drawing, Random, RandomChoice, RandomVector


@part
class FromPolicyConfig:
    """The policy's own samples, from the first step on, stored as the policy drew them (on-policy agents)."""

    def build(self, spec: EnvSpec, *, seed: int, device: torch.device) -> FromPolicy:
        if isinstance(spec.action, Discrete):
            return FromPolicy(RandomChoice(spec, 0, seed, device))
        return FromPolicy(RandomVector(spec, 0, seed, device))


class FromPolicy(Drawing[Random]):
    """Calls `behaviour(obs, noise)`: the network owns no randomness. The noise is standard normal [N, A] for continuous
    actions and uniform on [0, 1) [N, count] for discrete ones."""

    takes_noise = True

    def __init__(self, random: RandomVector | RandomChoice):
        self.random = random
        self.clips = isinstance(random, RandomVector)

    def noise(self) -> tuple[Tensor, ...]:
        random = self.random
        if isinstance(random, RandomVector):
            return (random.normal(),)
        assert isinstance(random, RandomChoice)
        shape = random.num_envs, random.count
        return (torch.rand(shape, generator=random.generator, device=random.device),)

    def explore(self, output: Tensor) -> Tensor:
        return output.float() if self.clips else output

    def executed(self, action: Tensor) -> Tensor:
        return action.clamp(-1.0, 1.0) if self.clips else action
