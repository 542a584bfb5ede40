"""What all explorers here share: random numbers of their own, and a uniformly random start."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from fleetfoot.data import Continuous, Discrete, EnvSpec, Obs
from fleetfoot.errors import UserError
from fleetfoot.rng import generator_state, restore_generator


def check_rungs(first: int, total: int | None, spec: EnvSpec) -> int:
    """The number of rungs of a ladder; UserError where the environments do not all find one."""
    total = spec.num_envs if total is None else total
    if first < 0 or first + spec.num_envs > total:
        raise UserError(
            f"a ladder of {total} rungs has no room for {spec.num_envs} environments from rung {first} on: "
            "raise explorer.total or lower explorer.first."
        )
    return total


class Random:
    """A generator of its own, and a count of the uniformly random steps at the start."""

    def __init__(self, spec: EnvSpec, random_vec_steps: int, seed: int, device: torch.device):
        self.num_envs = spec.num_envs
        self.device = device
        self.random_left = random_vec_steps
        self.generator = torch.Generator(device).manual_seed(seed)

    def uniform(self) -> Tensor:
        """A random action for each environment, all equally likely."""
        raise NotImplementedError

    def share(self) -> Tensor:
        """Uniform on [0, 1), one number per environment."""
        return torch.rand(self.num_envs, generator=self.generator, device=self.device)

    def at_start(self) -> bool:
        """Is this vec step still one of the uniformly random ones? Call once per vec step."""
        if self.random_left == 0:
            return False
        self.random_left -= 1
        return True

    def skip(self, vec_steps: int) -> int:
        """Count `vec_steps` as made; returns how many of them come after the random start."""
        skipped = min(self.random_left, vec_steps)
        self.random_left -= skipped
        return vec_steps - skipped

    def state_dict(self) -> dict[str, Any]:
        return {
            "generator": generator_state(self.generator),
            "random_left": self.random_left,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        restore_generator(self.generator, state["generator"])
        self.random_left = state["random_left"]


class RandomVector(Random):
    """Random continuous actions."""

    def __init__(self, spec: EnvSpec, random_vec_steps: int, seed: int, device: torch.device):
        if not isinstance(spec.action, Continuous):
            raise UserError(
                f"{spec.name} has discrete actions, which this explorer cannot produce; choose an agent and an "
                "explorer for discrete actions, say DQNConfig and EpsilonLadderConfig."
            )
        super().__init__(spec, random_vec_steps, seed, device)
        self.shape = (spec.num_envs, spec.action.size)

    def uniform(self) -> Tensor:
        return torch.rand(self.shape, generator=self.generator, device=self.device) * 2 - 1

    def normal(self) -> Tensor:
        return torch.randn(self.shape, generator=self.generator, device=self.device)


class RandomChoice(Random):
    """Random discrete actions."""

    def __init__(self, spec: EnvSpec, random_vec_steps: int, seed: int, device: torch.device):
        if not isinstance(spec.action, Discrete):
            raise UserError(
                f"{spec.name} has continuous actions, but this explorer chooses among q-values; choose an "
                "explorer for continuous actions: NoiseLadderConfig, or AsSampledConfig where the policy samples."
            )
        super().__init__(spec, random_vec_steps, seed, device)
        self.count = spec.action.count

    def uniform(self) -> Tensor:
        shape = (self.num_envs,)
        return torch.randint(self.count, shape, generator=self.generator, device=self.device)

    def greedy_but(self, q: Tensor, epsilon: Tensor | float) -> Tensor:
        """The action of the largest q-value in q [N, actions]; with probability epsilon ([N], or one for all) any."""
        # Drawn for all and used where needed: the stream does not depend on data, nothing waits for the device.
        any_action, share = self.uniform(), self.share()
        return torch.where(share < epsilon, any_action, q.argmax(1))


R = TypeVar("R", bound=Random)


class Drawing(Generic[R]):
    """An explorer whose random numbers are all its state. Those with more add theirs."""

    takes_noise: bool = False
    random: R

    @torch.no_grad()
    def act(self, behaviour: nn.Module, obs: Obs) -> Tensor:
        inputs = self.ask()
        return self.choose(None if inputs is None else behaviour(obs, *inputs))

    def ask(self) -> tuple[Tensor, ...] | None:
        return None if self.random.at_start() else self.noise()

    def choose(self, output: Tensor | None) -> Tensor:
        return self.random.uniform() if output is None else self.explore(output)

    def noise(self) -> tuple[Tensor, ...]:
        """What the behaviour network takes beside the observations."""
        return ()

    def explore(self, output: Tensor) -> Tensor:
        """The action to execute after the random start, from what the behaviour network returned."""
        raise NotImplementedError

    def restart(self, ended: Tensor) -> None: ...

    def skip(self, vec_steps: int) -> None:
        self.random.skip(vec_steps)

    def state_dict(self) -> dict[str, Any]:
        return {"random": self.random.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.random.load_state_dict(state["random"])
