"""Heads for discrete actions: from features to one value, or one distribution, per action."""

from __future__ import annotations

from torch import Tensor

from fleetfoot.nn.network import Network, NetworkConfig


class ActionHead(Network):
    """[B, in] -> [B, num_actions, K]: one network for all of them."""

    def __init__(self, net: NetworkConfig, inputs: int, num_actions: int, outputs: int):
        super().__init__()
        self.shape = (num_actions, outputs)
        self.net = net.build(inputs, num_actions * outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).view(-1, *self.shape)

    def constrain_(self) -> None:
        self.net.constrain_()


class DuelingHead(Network):
    """[B, in] -> [B, num_actions, K]: the value of the state plus the advantage of each action (Wang et al. 2016).

    q = v + a - mean_a a. Without the mean, v and a are not determined: one could grow as the other shrinks. For
    distributions the same holds for the logits of each atom.
    """

    def __init__(self, net: NetworkConfig, inputs: int, num_actions: int, outputs: int):
        super().__init__()
        self.shape = (num_actions, outputs)
        self.value = net.build(inputs, outputs)
        self.advantage = net.build(inputs, num_actions * outputs)

    def forward(self, x: Tensor) -> Tensor:
        advantage = self.advantage(x).view(-1, *self.shape)  # [B, num_actions, K]
        centred = advantage - advantage.mean(1, keepdim=True)
        return self.value(x).unsqueeze(1) + centred

    def constrain_(self) -> None:
        self.value.constrain_()
        self.advantage.constrain_()
