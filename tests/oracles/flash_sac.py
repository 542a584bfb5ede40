"""One update of FlashSAC out of torch's own layers: every critic a network by itself, modes set by `train` and `eval`,
one optimiser step after the other. Slow, and nothing is shared with the agent but its first weights."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oracles.categorical import project
from oracles.layers import Copies


class Trunk(nn.Module):
    """`source` is a FlashNet, `member` one of its ensemble_size (None: it has none)."""

    def __init__(self, source: Any, member: int | None):
        super().__init__()
        copies = Copies(member, eps=1e-5)
        linear, norm = copies.linear, copies.norm
        self.first = norm(source.norm)
        self.embed = linear(source.embed)
        self.blocks = nn.ModuleList(
            nn.ModuleList([linear(b.w1), norm(b.norm1), linear(b.w2), norm(b.norm2)])
            for b in source.blocks
        )
        self.scale = nn.Parameter(copies.own(source.end.weight))
        self.head = linear(source.head)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(self.first(x))
        blocks: Any = self.blocks
        for w1, norm1, w2, norm2 in blocks:
            x = x + F.relu(norm2(w2(F.relu(norm1(w1(x))))))
        x = self.scale * x / torch.sqrt((x**2).mean(1, keepdim=True) + 1e-6)
        out: Tensor = self.head(x)
        return out

    @torch.no_grad()
    def project(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                for row in module.weight:
                    row /= row.norm().clamp(min=1e-8)
            if isinstance(module, nn.BatchNorm1d):
                d = len(module.weight)
                size = (module.weight**2).sum() + (module.bias**2).sum()
                module.weight.mul_(math.sqrt(d) / torch.sqrt(size + 1e-8))
                module.bias.mul_(math.sqrt(d) / torch.sqrt(size + 1e-8))
        self.scale.mul_(math.sqrt(len(self.scale)) / torch.sqrt((self.scale**2).sum() + 1e-8))

    def tensors(self) -> list[Tensor]:
        """Weights (as the library stores them) and running statistics, in a fixed order."""
        found: list[Any] = []
        blocks: Any = self.blocks
        for layer in (self.first, self.embed, *(m for b in blocks for m in b), self.head):
            if isinstance(layer, nn.BatchNorm1d):
                found += [layer.weight, layer.bias, layer.running_mean, layer.running_var]
            else:
                found += [layer.weight.T] + ([] if layer.bias is None else [layer.bias])
        return [t.detach() for t in (*found, self.scale)]


def tensors_of(source: Any, member: int | None) -> list[Tensor]:
    """The same of a FlashNet."""
    layers = [source.norm, source.embed]
    layers += [m for b in source.blocks for m in (b.w1, b.norm1, b.w2, b.norm2)] + [source.head]
    found = []
    for layer in layers:
        found += [layer.weight] + ([] if layer.bias is None else [layer.bias])
        if hasattr(layer, "variance"):
            found += [layer.mean, layer.variance]
    found.append(source.end.weight)
    return [(t if member is None else t[member]).detach() for t in found]


class Oracle:
    """Starts as `agent` is now, with networks made by `trunk`. Its rewards are divided by `divisor`."""

    def __init__(self, agent: Any, divisor: float, total_updates: int, trunk: Any = Trunk):
        cfg = agent.cfg
        self.cfg, self.divisor, self.total = cfg, divisor, total_updates
        self.actor = trunk(agent.gaussian.net, None)
        self.critics = [trunk(agent.critic.net, e) for e in range(cfg.num_critics)]
        self.targets = [copy.deepcopy(critic) for critic in self.critics]
        self.log_alpha = nn.Parameter(agent.alpha.log_alpha.detach().clone())
        self.z = torch.linspace(-cfg.v_max, cfg.v_max, cfg.num_atoms)
        groups = [list(self.actor.parameters()), [self.log_alpha]]
        groups.append([p for critic in self.critics for p in critic.parameters()])
        adam = {"lr": cfg.critic_optim.lr, "eps": cfg.critic_optim.eps}
        self.optimizers = [torch.optim.Adam(group, **adam) for group in groups]
        self.steps = [0, 0, 0]
        self.updates = 0

    def policy(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions and log-probabilities of the first rows, as many as there is noise."""
        mean, raw = self.actor(obs)[: len(noise)].chunk(2, dim=1)
        std = torch.exp(-10 + 6 * (1 + torch.tanh(raw)))
        normal: Any = torch.distributions.Normal(mean, std)
        u = mean + std * noise
        slope = 2 * (math.log(2.0) - u - F.softplus(-2 * u))
        return torch.tanh(u), (normal.log_prob(u) - slope).sum(1)

    def step(self, which: int, loss: Tensor) -> None:
        optimizer, cfg = self.optimizers[which], self.cfg.critic_optim
        done = self.steps[which] / self.total
        rate = cfg.lr_end + 0.5 * (cfg.lr - cfg.lr_end) * (1 + math.cos(math.pi * done))
        for group in optimizer.param_groups:
            group["lr"] = rate
        grads = torch.autograd.grad(loss, optimizer.param_groups[0]["params"])
        for parameter, grad in zip(optimizer.param_groups[0]["params"], grads, strict=True):
            parameter.grad = grad
        optimizer.step()
        self.steps[which] += 1

    def update(self, batch: Any, policy_noise: Tensor | None, critic_noise: Tensor) -> None:
        rows = len(batch.reward)
        both = torch.cat([batch.obs.actor, batch.next_obs.actor])
        critic_both = torch.cat([batch.obs.critic, batch.next_obs.critic])
        alpha = self.log_alpha.exp().detach()
        if self.updates % self.cfg.policy_every == 0:
            assert policy_noise is not None
            self.actor.train()
            action, log_prob = self.policy(both, policy_noise)
            values = []
            for critic in self.critics:
                critic.eval()
                logits = critic(torch.cat([batch.obs.critic, action], 1))
                values.append((logits.softmax(1) * self.z).sum(1))
            self.step(0, (alpha * log_prob - torch.stack(values).min(0).values).mean())
            self.actor.project()
            size = action.shape[1]
            wanted = 0.5 * size * math.log(2 * math.pi * math.e * self.cfg.target_std**2)
            entropy = -log_prob.detach().mean()
            self.step(1, self.log_alpha.exp() * (entropy - wanted))
            alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            self.actor.eval()
            next_action, log_prob = self.policy(batch.next_obs.actor, critic_noise)
            inputs = torch.cat([critic_both, torch.cat([batch.action, next_action])], 1)
            heads = [target.train()(inputs)[rows:].softmax(1) for target in self.targets]
            wanted_rows = []
            for row in range(rows):
                soft = self.z - alpha * log_prob[row]
                y = batch.reward[row] / self.divisor + batch.discount[row] * soft
                y = y.clamp(-self.cfg.v_max, self.cfg.v_max)
                kept = min((float(head[row] @ y), i) for i, head in enumerate(heads))[1]
                wanted_rows.append(project(heads[kept][row].tolist(), y.tolist(), self.z.tolist()))
            target = torch.tensor(wanted_rows)
        losses = []
        for critic in self.critics:
            log_probs = critic.train()(inputs)[:rows].log_softmax(1)
            losses.append((batch.weight * -(target * log_probs).sum(1)).mean())
        self.step(2, torch.stack(losses).mean())
        for critic, slow in zip(self.critics, self.targets, strict=True):
            critic.project()
            with torch.no_grad():
                for mine, theirs in zip(slow.parameters(), critic.parameters(), strict=True):
                    mine.lerp_(theirs, self.cfg.tau)
        self.updates += 1
