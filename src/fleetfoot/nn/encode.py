"""From observations to features: normalise, and add the vector of the task where there are tasks."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from fleetfoot.data import EnvSpec, Obs
from fleetfoot.nn.embed import Embedding, TaskEmbedding
from fleetfoot.nn.network import Network, NetworkConfig
from fleetfoot.nn.normalize import Clamped, Identity, RunningNorm

View = Literal["actor", "critic"]


class Encoder(nn.Module):
    """Obs -> features [B, size], as the actor or the critic sees them.

    `embedding`: the size of the learned vectors of the tasks, where there are tasks, or a module that gives them.
    """

    def __init__(
        self,
        spec: EnvSpec,
        view: View,
        norm: nn.Module,
        embedding: int | Embedding | None,
    ):
        super().__init__()
        shape = (spec.critic_shape or spec.obs_shape) if view == "critic" else spec.obs_shape
        if isinstance(embedding, int):
            embedding = TaskEmbedding(len(spec.tasks), embedding) if spec.tasks else None
        self.view = view
        self.norm = norm
        self.embed = embedding
        self.size = shape[0] + (embedding.size if embedding is not None else 0)

    def forward(self, obs: Obs) -> Tensor:
        x: Tensor = self.norm(obs.actor if self.view == "actor" else obs.critic)
        if self.embed is not None:
            task = obs.task
            if task is None:  # a single task, which has a vector all the same
                task = torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)
            x = torch.cat([x, self.embed(task)], dim=-1)
        return x

    def constrain_(self) -> None:
        if self.embed is not None:
            self.embed.constrain_()


class QNetwork(nn.Module):
    """(Obs, action) -> [E, B, outputs]: an ensemble of critics as one batched network."""

    def __init__(
        self,
        encoder: Encoder,
        net: NetworkConfig,
        action_size: int,
        outputs: int,
        ensemble_size: int,
    ):
        super().__init__()
        self.encoder = encoder
        self.net: Network = net.build(
            encoder.size + action_size, outputs, ensemble_size=ensemble_size
        )
        self.net.learned_inputs = encoder.embed is not None

    def forward(self, obs: Obs, action: Tensor, fresh: list[Tensor] | None = None) -> Tensor:
        return self.net(torch.cat([self.encoder(obs), action], dim=-1), fresh)

    def with_frozen(
        self, frozen: QNetwork, obs: Obs, action: Tensor, fresh: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """As `Network.with_frozen`."""
        if self.encoder.embed is not None:  # the frozen one has vectors of its own
            half = len(action) // 2
            with torch.no_grad():
                of_frozen = frozen(obs, action, [])
            return self(obs, action, fresh)[:, :half], of_frozen[:, half:]
        return self.net.with_frozen(
            frozen.net, torch.cat([self.encoder(obs), action], dim=-1), fresh
        )

    def constrain_(self) -> None:
        self.encoder.constrain_()
        self.net.constrain_()


class TanhPolicy(nn.Module):
    """Obs -> action in [-1, 1]."""

    def __init__(self, encoder: Encoder, net: NetworkConfig, action_size: int):
        super().__init__()
        self.encoder = encoder
        self.net = net.build(encoder.size, action_size)

    def forward(self, obs: Obs) -> Tensor:
        return torch.tanh(self.net(self.encoder(obs)).float())

    def constrain_(self) -> None:
        self.encoder.constrain_()
        self.net.constrain_()


class ObsNorms(nn.Module):
    """The running statistics of what actor and critic see; one and the same where both see the same."""

    def __init__(self, spec: EnvSpec, enabled: bool):
        super().__init__()

        def make(shape: tuple[int, ...]) -> RunningNorm | Identity:
            return RunningNorm(shape) if enabled else Identity()

        self.spec = spec
        self.actor = make(spec.obs_shape)
        self.critic = self.actor if spec.critic_shape is None else make(spec.critic_shape)

    def encoder(
        self, view: View, embedding: int | Embedding | None, clamp: float | None = None
    ) -> Encoder:
        """A new encoder of one view; `clamp`: the bound of normalised observations, if they have one."""
        norm: nn.Module = self.actor if view == "actor" else self.critic
        return Encoder(self.spec, view, norm if clamp is None else Clamped(norm, clamp), embedding)

    def update(self, obs: Obs) -> None:
        self.actor.update(obs.actor)
        if self.critic is not self.actor:
            self.critic.update(obs.critic)

    @torch.no_grad()
    def take_over(self, other: ObsNorms) -> None:
        """Become what `other` is now."""
        for mine, theirs in zip(self.buffers(), other.buffers(), strict=True):
            mine.copy_(theirs)
