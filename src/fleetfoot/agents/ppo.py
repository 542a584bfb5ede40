"""PPO: proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347), as massively parallel robots use it.

An update takes a rollout of T vec steps, which the policy has just collected, and makes `epochs` passes over its rows,
each in `minibatches` random parts. With d the discount (zero after a termination), pi_old and V_old the networks as
they were while collecting:

    once per rollout:
    (1)  delta_t = r_t + d_t V_old(s'_t) - V_old(s_t)
    (2)  A_t = delta_t + lambda d_t A_{t+1}, where row t + 1 follows from row t;  R_t = A_t + V_old(s_t)
    (3)  A <- (A - mean A) / (std A + 1e-8), over the rollout or over each minibatch
    for each minibatch:
    (4)  rho = pi(a|s) / pi_old(a|s)
    (5)  policy loss = -mean min(rho A, clip(rho, 1 - clip, 1 + clip) A)
    (6)  value loss = mean max((V - R)^2, (V_old + clip(V - V_old, -value_clip, value_clip) - R)^2)
    (7)  loss = (5) + value_coef (6) - entropy_coef mean H(pi(.|s))
    (8)  lr <- lr / 1.5 where mean KL(pi_old || pi) > 2 target_kl, lr * 1.5 where it is < target_kl / 2 (`target_kl`)
    (9)  one Adam step for both networks, the gradient clipped to `policy_optim.max_grad_norm`

s'_t is what followed the action, also at the end of an episode: a time limit bootstraps, and no return crosses it.

Continuous actions come from a Gaussian whose deviation is learned and does not depend on s. They are stored as drawn,
and clipped only where they are executed (`explore.FromPolicyConfig`), so (4) is the ratio of true densities. The policy
does not change while it collects: statistics of observations are gathered by `observe` and take effect after the
update. pi_old and V_old can therefore be computed from the rollout in one pass, before its first step.

Deviations from rsl_rl (and what else is usual):

    [1] At a time limit (1) bootstraps from the true last observation, where rsl_rl adds d V(s_t) to the reward.
    [2] Statistics of observations change once per rollout, not at each step, for the reason above.
    [3] Random parts are drawn anew in each epoch (rsl_rl: once for all epochs).
    [4] No early stop by KL: it would make the host wait for the device. The adaptive rate (8) takes its place.
    [5] On several GPUs, each rank normalises advantages over its own rows.
    [6] The policy's last layer starts with gain 0.01, normalised observations are clipped at 10, and what is learned is
        the log of the standard deviation (rsl_rl: like any layer, not clipped, and by default the deviation itself).
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fleetfoot.agents.checks import check_above_zero, check_proximal
from fleetfoot.agents.contract import Traits
from fleetfoot.agents.state import Stateful
from fleetfoot.config import part
from fleetfoot.data import EnvSpec, Loss, Rollout, Transition, UpdateResult
from fleetfoot.errors import UserError
from fleetfoot.nn.adaptive_rate import AdaptiveRate
from fleetfoot.nn.encode import ObsNorms
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.network import NetworkConfig
from fleetfoot.nn.stochastic import ActorCriticNetworks, DrawnAction, GreedyAction, Params
from fleetfoot.ops.gae import gae
from fleetfoot.ops.proximal import clipped_error, clipped_gain, outside, standardized
from fleetfoot.ops.rows import flat, rows_of
from fleetfoot.optim import AdamConfig
from fleetfoot.rng import RandomStream, seeded_init


@part
class PPOConfig:
    """PPO. The defaults are those of rsl_rl for legged robots."""

    traits: ClassVar = Traits(on_policy=True)

    gae_lambda: float = 0.95
    """Decay of the advantages' trace (lambda)."""
    epochs: int = 5
    """Passes over each rollout."""
    minibatches: int = 4
    """Gradient steps per pass; each takes an equal share of the rows, drawn from all vec steps and environments."""
    clip: float = 0.2
    """How far the probability ratio of an action may move from 1 before the action no longer counts."""
    value_clip: float | None = 0.2
    """How far a value may move before it no longer counts; None: no limit."""
    value_coef: float = 1.0
    """Weight of the value loss."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""
    normalize_advantage: Literal["rollout", "minibatch", "none"] = "rollout"
    """Over which rows advantages get mean 0 and standard deviation 1."""
    target_kl: float | None = 0.01
    """The learning rate adapts so that each update changes the policy by about this KL divergence; None: it
    follows only `policy_optim`."""
    std: float = 1.0
    """Initial standard deviation of continuous actions."""
    head_gain: float | None = 0.01
    """Gain of the orthogonal initialisation of the policy's output layer; None: the network's own
    initialisation."""
    tanh_mean: bool = False
    """Bound the mean of continuous actions by tanh."""
    normalize_obs: bool = True
    """Running normalisation of observations."""
    clip_obs: float | None = 10.0
    """Bound of normalised observations; None: no bound."""
    task_embedding: int = 32
    """Size of the learned embedding of each task, in multi-task sets."""
    policy_net: NetworkConfig = MLPConfig(hidden=(512, 256, 128), activation=("elu",))
    critic_net: NetworkConfig = MLPConfig(hidden=(512, 256, 128), activation=("elu",))
    policy_optim: AdamConfig = AdamConfig(lr=1e-3, max_grad_norm=1.0)
    """Optimiser of both networks together; its schedule is counted in gradient steps over the whole run."""

    def build(
        self, spec: EnvSpec, *, gamma: float, total_updates: int, seed: int, device: torch.device
    ) -> PPO:
        if len(spec.obs_shape) != 1:
            raise UserError(
                f"PPO needs flat observations; {spec.name} has observations of shape {spec.obs_shape}."
            )
        check_proximal(self)
        if self.target_kl is not None:
            check_above_zero(self, "target_kl")
        if self.target_kl is not None and self.policy_optim.lr_end is not None:
            raise UserError(
                "the learning rate either follows agent.target_kl or goes to agent.policy_optim.lr_end: set one of "
                "them to None."
            )
        return PPO(self, spec, total_updates, seed, device)


class Targets(NamedTuple):
    """What the old networks said of the rows of a rollout, all T N of them one after the other."""

    log_prob: Tensor  # [T N] of pi_old
    params: Params  # [T N, ...] of pi_old
    value: Tensor  # [T N] of V_old
    advantage: Tensor  # [T N]
    returns: Tensor  # [T N]


class PPO(Stateful):
    """The agent; the equations are at the top of this file."""

    compiled_methods: ClassVar[tuple[str, ...]] = ("prepare", "loss")
    state_attrs = ("policy", "networks", "pending_norms", "rate", "step", "noise")

    def __init__(
        self, cfg: PPOConfig, spec: EnvSpec, total_updates: int, seed: int, device: torch.device
    ):
        self.cfg, self.updates = cfg, 0
        self.periods: tuple[int, ...] = ()  # all updates are alike
        self.noise = RandomStream(seed, device)
        self.norms = ObsNorms(spec, cfg.normalize_obs).to(device)
        self.pending_norms = ObsNorms(spec, cfg.normalize_obs).to(device)
        with seeded_init(seed):
            self.networks = ActorCriticNetworks(cfg, spec, self.norms).to(device)
        self.actor, self.critic = self.networks.policy, self.networks.critic
        self.policy, self.behaviour = GreedyAction(self.actor), DrawnAction(self.actor)
        self.rate: AdaptiveRate | None = None
        if cfg.target_kl is not None:
            self.rate = AdaptiveRate(cfg.policy_optim.lr, cfg.target_kl).to(device)
        steps = total_updates * cfg.epochs * cfg.minibatches
        self.step = cfg.policy_optim.build(self.networks, steps)

    def observe(self, fresh: Transition) -> None:
        self.pending_norms.update(fresh.obs)  # the policy must not change while it collects

    def update(self, rollout: Rollout) -> UpdateResult:
        targets, metrics = self.prepare(rollout)
        count = rollout.reward.shape[0] * rollout.reward.shape[-1]
        if count < self.cfg.minibatches:
            raise UserError(
                f"a rollout of {count} rows has no {self.cfg.minibatches} minibatches: raise --replay.length or lower "
                "--agent.minibatches."
            )
        totals: dict[str, Tensor] = {}
        for _ in range(self.cfg.epochs):
            order = self.noise.uniform(count).argsort(dim=0)
            for index in order.tensor_split(self.cfg.minibatches):
                for name, value in self.take_step(self.loss(rollout, targets, index)).items():
                    totals[name] = totals[name] + value if name in totals else value
        self.norms.take_over(self.pending_norms)
        self.updates += 1
        steps = self.cfg.epochs * self.cfg.minibatches
        return UpdateResult(metrics | {name: value / steps for name, value in totals.items()})

    def take_step(self, loss: Loss) -> dict[str, Tensor]:
        metrics = dict(loss.metrics)
        if self.rate is not None:
            (kl,) = self.step.reduce([loss.metrics["policy/kl"].clone()])  # the same on all ranks
            metrics["policy/lr"] = self.rate.update(kl).clone()  # (8)
            self.step.set_lr(self.rate.lr)
        metrics["policy/grad_norm"] = self.step(loss.loss)  # (9)
        return metrics

    @torch.no_grad()
    def prepare(self, rollout: Rollout) -> tuple[Targets, dict[str, Tensor]]:
        """All that is computed once per rollout: (1), (2), and (3) where it is over the rollout."""
        obs, action = flat(rollout.obs), rollout.action.flatten(0, 1)
        params = self.actor(obs)
        shape = rollout.reward.shape  # [T, N]
        value = self.critic(obs)
        next_value = self.critic(flat(rollout.next_obs)).view(shape)
        reward, discount, ended = rollout.reward, rollout.discount, rollout.ended
        lam = self.cfg.gae_lambda
        advantage = gae(reward, discount, ended, value.view(shape), next_value, lam).flatten()
        returns = advantage + value  # (2)
        unexplained = (returns - value).var(correction=0) / (returns.var(correction=0) + 1e-8)
        metrics = {"critic/value": value.mean(), "critic/explained_variance": 1.0 - unexplained}
        if self.cfg.normalize_advantage == "rollout":
            advantage = standardized(advantage)  # (3)
        log_prob = self.actor.log_prob(params, action)
        return Targets(log_prob, params, value, advantage, returns), metrics

    def loss(self, rollout: Rollout, targets: Targets, index: Tensor) -> Loss:
        """The loss (7) of the rows `index`."""
        cfg, obs = self.cfg, rows_of(rollout.obs, index)
        action = rollout.action.flatten(0, 1)[index]
        old_log_prob, old_value = targets.log_prob[index], targets.value[index]
        advantage, returns = targets.advantage[index], targets.returns[index]
        if cfg.normalize_advantage == "minibatch":
            advantage = standardized(advantage)  # (3)
        old_params = tuple(param[index] for param in targets.params)
        params = self.actor(obs)
        ratio = (self.actor.log_prob(params, action) - old_log_prob).exp()  # (4)
        policy_loss = -clipped_gain(ratio, advantage, cfg.clip).mean()  # (5)
        value = self.critic(obs)
        value_loss = clipped_error(value, old_value, returns, cfg.value_clip).mean()  # (6)
        entropy = self.actor.entropy(params).mean()
        loss = policy_loss + cfg.value_coef * value_loss - cfg.entropy_coef * entropy  # (7)
        metrics = {
            "policy/loss": policy_loss,
            "policy/entropy": entropy,
            "policy/kl": self.actor.kl(old_params, params).mean(),
            "policy/clipped": outside(ratio, cfg.clip),
            "critic/loss": value_loss,
        }
        return Loss(loss, {name: metric.detach() for name, metric in metrics.items()})
