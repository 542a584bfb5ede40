"""WMPG: a policy gradient from real and imagined actions, and the actor-critic that it is without imagination.

Nauman and den Hengst, "Low-Variance Policy Gradient Estimation with World Models", 2020, arXiv 2010.15622: discrete
actions, a world model that is learned online, and two uses for imagined trajectories: as the other actions of a
without-replacement estimator, and as an informed baseline. The estimator is that of Kool et al. (ICLR 2020). We know
the abstract of the paper; how the parts below go together is our reconstruction.

For each state s of a rollout, with a_1 the action that was executed, H the horizon, g gamma, V the critic and m the
world model (`nn/world_model.py`):

    (1)  S = {a_1, ..., a_k}: a_1 and k - 1 further actions, drawn without replacement from pi(.|s)
    (2)  f(a_1) = sum_{j<H} g^j r_j + g^H V(s_H), the real return of H steps
    (3)  f(a) = the same in m, for each other a in S: a, then H - 1 steps of pi, the mean over M trajectories; every
         reward counts with the probability that the task still goes on
    (4)  b(s) = 0 ("none"), V(s) ("value"), or the imagined return of pi from s, as (3) but with a ~ pi ("informed")
    (5)  gradient = mean_s sum_{a in S} c(a) grad log pi(a|s) + entropy_coef grad H(pi), one step per rollout, with
         c(a) = p_a R(S, a) (f(a) - b)   ("set"),  the same with its own baseline ("set_with_baseline"),
         c(a) = pi(a) (f(a) - b)   ("all_actions"),  c(a_1) = f(a_1) - b   ("reinforce"): `ops/without_replacement.py`
    (6)  V is regressed on TD(lambda) returns of real rewards alone, m on windows of stored transitions
    (7)  imagination counts where the share of changes that m did not predict in the fresh rollout, H steps ahead and
         before it learns from it, is below `trust_below`; where it is not, c(a_1) = f(a_1) - V(s): actor-critic

AC, the paper's first baseline, is "reinforce" with "value": it has no world model. Its second one is in `mac.py`.

What we decided, beyond the abstract:

    [1] Updates after every rollout of T vec steps, not after every episode. (2) stops at the end of the rollout; (3)
        then takes its value after as many steps as (2), so both have the same horizon and the same critic.
    [2] All k actions of a state follow pi with the same random numbers, which changes no mean and lowers the variance
        of their differences.
    [3] A time limit is no end of the task: (2) bootstraps there, and m never hears of it.
    [4] Nothing is differentiated through m or f.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fleetfoot.agents.checks import check_above_zero
from fleetfoot.agents.contract import Traits
from fleetfoot.agents.state import Stateful
from fleetfoot.config import at_least, part
from fleetfoot.data import Discrete, EnvSpec, Loss, Obs, Rollout, Transition, UpdateResult
from fleetfoot.errors import UserError
from fleetfoot.nn.encode import ObsNorms
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.network import NetworkConfig
from fleetfoot.nn.stochastic import CategoricalPolicy, DrawnAction, GreedyAction, ValueNetwork
from fleetfoot.nn.world_model import Prediction, Windows, WorldModelConfig, imagined_returns
from fleetfoot.ops.gae import gae
from fleetfoot.ops.horizon import horizon_returns
from fleetfoot.ops.without_replacement import gumbel_top_k, set_coefficients
from fleetfoot.optim import AdamConfig
from fleetfoot.replay.windows import StoredWindows
from fleetfoot.rng import RandomStream, seeded_init


@part
class WMPGConfig:
    """WMPG, and AC with estimator="reinforce" and baseline="value"."""

    traits: ClassVar = Traits(on_policy=True, follows_episodes=True)

    estimator: Literal["reinforce", "set", "set_with_baseline", "all_actions"] = "set_with_baseline"
    """Which actions of a state count, and how much (5)."""
    baseline: Literal["none", "value", "informed"] = "value"
    """What is subtracted from the return of every action (4)."""
    k: int = 2
    """Actions of a state, with the executed one; for the two set estimators."""
    horizon: int = 10
    """Steps of real and imagined returns until the critic takes over (H)."""
    trajectories: int = 1
    """Imagined trajectories per action (M)."""
    use_real_for_executed: bool = True
    """The return of the executed action is the real one; False: imagined like the others."""
    trust_below: float = 0.1
    """Imagination counts while the share of changes that the model does not predict is below this (7)."""
    td_lambda: float = 0.95
    """Of the returns that the critic learns (6)."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this: returns should be of the order of 1 to 10."""
    normalize_obs: bool = True
    """Running normalisation of observations."""
    critic_steps: int = 10
    """Steps of the critic per rollout, on all of it."""
    model_steps: int = 50
    """Steps of the world model per rollout."""
    model_batch: int = 128
    """Windows in each of them."""
    model_unroll: int = 4
    """Transitions of a window: the model learns from predictions made from its own predictions."""
    model_memory: int = 20_000
    """Transitions that the world model learns from, over all environments together."""
    policy_net: NetworkConfig = MLPConfig(hidden=(64, 64), activation=("tanh",))
    """Network of the policy."""
    critic_net: NetworkConfig = MLPConfig(hidden=(64, 64), activation=("tanh",))
    """Network of the critic."""
    world_model: WorldModelConfig = WorldModelConfig()
    """The world model; what is imagined is imagined by it."""
    policy_optim: AdamConfig = AdamConfig(lr=5e-3, max_grad_norm=0.5)
    critic_optim: AdamConfig = AdamConfig(lr=1e-2, max_grad_norm=0.5)
    model_optim: AdamConfig = AdamConfig(lr=1e-3)

    def imagines(self) -> bool:
        """Is there anything to imagine?"""
        return self.estimator != "reinforce" or self.baseline == "informed"

    def build(
        self, spec: EnvSpec, *, gamma: float, total_updates: int, seed: int, device: torch.device
    ) -> WMPG:
        if not isinstance(spec.action, Discrete) or len(spec.obs_shape) != 1 or spec.tasks:
            raise UserError(
                f"WMPG needs discrete actions, flat observations and one task; {spec.name} has {spec.action}, "
                f"observations of shape {spec.obs_shape} and {max(1, len(spec.tasks))} tasks."
            )
        least = {"horizon": 1, "trajectories": 1, "critic_steps": 1, "model_steps": 1}
        at_least(self, "agent", **least, model_batch=1, model_unroll=1, model_memory=1, k=1)
        check_above_zero(self, "trust_below", "reward_scale")
        if self.k > spec.action.count:
            raise UserError(
                f"agent.k is {self.k}, but {spec.name} has {spec.action.count} actions."
            )
        if not 0.0 <= self.td_lambda <= 1.0:
            raise UserError(f"agent.td_lambda must lie between 0 and 1, not {self.td_lambda}.")
        if self.model_memory < (self.model_unroll + 1) * spec.num_envs:
            raise UserError(
                f"agent.model_memory of {self.model_memory:,} holds no windows of {self.model_unroll} steps of "
                f"{spec.num_envs:,} environments."
            )
        return WMPG(self, spec, gamma, total_updates, seed, device)


class Targets(NamedTuple):
    """What one rollout says to policy and critic, row by row; R = T N."""

    obs: Tensor  # [R, D]
    actions: Tensor  # [R, k] the executed one first
    coefficient: Tensor  # [R, k] of the gradient of each log-probability (5)
    returns: Tensor  # [R] for the critic (6)


class WMPG(Stateful):
    """The agent; the equations are at the top of this file."""

    compiled_methods: ClassVar[tuple[str, ...]] = (
        "targets",
        "policy_loss",
        "critic_loss",
        "model_loss",
    )
    state_attrs = (
        "policy",
        "critic",
        "model",
        "memory",
        "pending_norms",
        "step_policy",
        "step_critic",
        "step_model",
        "noise",
    )

    def __init__(
        self,
        cfg: WMPGConfig,
        spec: EnvSpec,
        gamma: float,
        total_updates: int,
        seed: int,
        device: torch.device,
    ):
        assert isinstance(spec.action, Discrete)
        self.cfg, self.gamma, self.num_actions = cfg, gamma, spec.action.count
        self.k = {"reinforce": 1, "all_actions": self.num_actions}.get(cfg.estimator, cfg.k)
        self.updates, self.periods = 0, ()  # all updates are alike
        self.noise = RandomStream(seed, device)
        self.norms = ObsNorms(spec, cfg.normalize_obs).to(device)
        self.pending_norms = ObsNorms(spec, cfg.normalize_obs).to(device)
        (size,) = spec.obs_shape
        with seeded_init(seed):
            encoder = self.norms.encoder("actor", None, clamp=10.0)
            self.actor = CategoricalPolicy(
                encoder, cfg.policy_net, self.num_actions, head_gain=0.01
            ).to(device)
            self.critic = ValueNetwork(encoder, cfg.critic_net).to(device)
            model = cfg.world_model.build(size, self.num_actions).to(device)
        self.policy, self.behaviour = GreedyAction(self.actor), DrawnAction(self.actor)
        self.model = model if cfg.imagines() else None
        self.memory = StoredWindows(spec, cfg.model_memory).to(device) if self.model else None
        self.step_policy = cfg.policy_optim.build(self.actor, total_updates)
        self.step_critic = cfg.critic_optim.build(self.critic, total_updates * cfg.critic_steps)
        self.step_model = cfg.model_optim.build(model, total_updates * cfg.model_steps)

    def observe(self, fresh: Transition) -> None:
        self.pending_norms.update(fresh.obs)  # the policy must not change while it collects
        if self.model is not None and self.memory is not None:
            self.memory.append(fresh)
            self.model.observe(fresh.obs.actor, fresh.reward, fresh.next_obs.actor)

    def update(self, rollout: Rollout) -> UpdateResult:
        cfg, shape = self.cfg, (rollout.reward.shape[0], rollout.reward.shape[-1])
        set_noise = self.noise.uniform(*shape, self.num_actions)
        path_noise = self.noise.uniform(*shape, cfg.trajectories, cfg.horizon, self.num_actions)
        targets, metrics = self.targets(rollout, set_noise, path_noise)
        loss = self.policy_loss(targets)
        metrics |= loss.metrics | {"policy/grad_norm": self.step_policy(loss.loss)}
        for _ in range(cfg.critic_steps):
            loss = self.critic_loss(targets.obs, targets.returns)
            metrics |= loss.metrics | {"critic/grad_norm": self.step_critic(loss.loss)}
        for _ in range(cfg.model_steps if cfg.imagines() else 0):
            loss = self.model_loss(self.noise.uniform(cfg.model_batch))
            metrics |= loss.metrics | {"model/grad_norm": self.step_model(loss.loss)}
        with torch.no_grad():
            pairs = zip(self.norms.buffers(), self.pending_norms.buffers(), strict=True)
            for norm, pending in pairs:
                norm.copy_(pending)
        self.updates += 1
        return UpdateResult(metrics)

    @torch.no_grad()
    def targets(
        self, rollout: Rollout, set_noise: Tensor, path_noise: Tensor
    ) -> tuple[Targets, dict[str, Tensor]]:
        """Sets of actions, their coefficients (5), and the returns of the critic. Noise: uniform, [T, N, actions] and
        [T, N, M, H, actions]."""
        cfg, shape = self.cfg, rollout.reward.shape
        obs, executed = rollout.obs.actor.flatten(0, 1), rollout.action.flatten()
        value, next_value = self.value(obs), self.value(rollout.next_obs.actor.flatten(0, 1))
        reward = cfg.reward_scale * rollout.reward
        flow = reward, rollout.discount, rollout.ended
        real, steps = horizon_returns(*flow, next_value.view(shape), cfg.horizon)  # (2)
        advantage = gae(*flow, value.view(shape), next_value.view(shape), cfg.td_lambda)
        log_probs = self.log_probs(obs)
        actions = gumbel_top_k(log_probs, set_noise.flatten(0, 1), self.k, first=executed)  # (1)
        real, steps = real.flatten(), steps.flatten()
        f, baseline = self.imagine(obs, actions, real, value, steps, path_noise)
        own = cfg.estimator == "set_with_baseline"
        f = f - baseline.unsqueeze(-1)
        coefficient = set_coefficients(log_probs, actions, f, own_baseline=own)  # (5)
        metrics = {"critic/value": value.mean()}
        if cfg.imagines():
            trusted, more = self.trust(rollout)
            without = torch.zeros_like(coefficient)
            without[:, 0] = real - value
            coefficient = torch.where(trusted, coefficient, without)  # (7)
            metrics |= more
        returns = advantage.flatten() + value
        return Targets(obs, actions, coefficient, returns), metrics

    def imagine(
        self,
        obs: Tensor,
        actions: Tensor,
        real: Tensor,
        value: Tensor,
        steps: Tensor,
        noise: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """f of each action of the sets, [R, k], and b, [R]. Every return takes its value after so many `steps` [R]."""
        noise = noise.flatten(0, 1)  # [R, M, H, actions]
        informed = self.cfg.baseline == "informed"
        use_real = self.cfg.use_real_for_executed or not self.cfg.imagines()
        first = actions[:, 1:] if use_real else actions  # [R, C]
        first = first.unsqueeze(1).expand(-1, noise.shape[1], -1)  # [R, M, C]
        if informed:
            log_probs = self.log_probs(obs).unsqueeze(1).expand(-1, noise.shape[1], -1)
            drawn = self.actor.sample((log_probs,), noise[:, :, 0])  # [R, M]
            first = torch.cat([drawn.unsqueeze(-1), first], -1)
        baseline = value if self.cfg.baseline == "value" else torch.zeros_like(value)
        if first.shape[-1] == 0:
            return real.unsqueeze(-1), baseline
        f = self.returns_in_model(obs, first, steps, noise)  # [R, C]
        if informed:
            baseline, f = f[:, 0], f[:, 1:]  # (4)
        return torch.cat([real.unsqueeze(-1), f], -1) if use_real else f, baseline

    def returns_in_model(self, obs: Tensor, first: Tensor, steps: Tensor, noise: Tensor) -> Tensor:
        """(3), [R, C], of the actions `first` [R, M, C]."""
        rows, paths, choices = first.shape

        def each(x: Tensor) -> Tensor:
            """[R, M, ...] -> [R M C, ...]: the actions of a state share what is random (decision 2)."""
            return x.unsqueeze(2).expand(-1, -1, choices, *x.shape[2:]).flatten(0, 2)

        def choose(obs: Tensor, step: int) -> Tensor:
            return self.one_hot(self.actor.sample((self.log_probs(obs),), each(noise[:, :, step])))

        start = each(obs.unsqueeze(1).expand(-1, paths, -1))
        found = imagined_returns(
            self.predict,
            start,
            self.one_hot(first.flatten()),
            choose,
            self.value,
            horizon=self.cfg.horizon,
            gamma=self.gamma,
        ).unflatten(1, (rows, paths, choices))  # [H, R, M, C]
        after = (steps - 1).view(1, rows, 1, 1).expand(1, rows, paths, choices)
        return found.gather(0, after).squeeze(0).mean(1)

    def trust(self, rollout: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        """(7), on stretches of the rollout, which the model has not seen yet."""
        assert self.model is not None
        length = min(self.cfg.horizon, len(rollout.reward))
        starts = len(rollout.reward) // length

        def cut(x: Tensor) -> Tensor:
            """[T, N, ...] -> [L, starts N, ...]"""
            return x[: starts * length].unflatten(0, (starts, length)).transpose(0, 1).flatten(1, 2)

        ended = cut(rollout.ended)
        over = torch.cat([torch.zeros_like(ended[:1]), ended[:-1]]).cumsum(0) > 0
        windows = Windows(
            cut(rollout.obs.actor)[0],
            self.one_hot(cut(rollout.action)),
            cut(rollout.next_obs.actor),
            cut(rollout.reward),
            cut(rollout.discount) == 0.0,
            ~over,
            ~over,
        )
        errors = self.model.open_loop(windows)
        trusted = errors.unexplained < self.cfg.trust_below
        metrics = {
            "model/error_1": errors.error[0],
            "model/error_h": errors.error[-1],
            "model/unexplained": errors.unexplained,
            "model/trusted": trusted.float(),
        }
        return trusted, metrics

    def policy_loss(self, targets: Targets) -> Loss:
        """Its gradient is minus (5)."""
        log_probs = self.log_probs(targets.obs)
        gain = (targets.coefficient * log_probs.gather(-1, targets.actions)).sum(-1).mean()
        entropy = self.actor.entropy((log_probs,)).mean()
        loss = -gain - self.cfg.entropy_coef * entropy
        return Loss(loss, {"policy/loss": -gain.detach(), "policy/entropy": entropy.detach()})

    def critic_loss(self, obs: Tensor, returns: Tensor) -> Loss:
        loss = (self.value(obs) - returns).square().mean()  # (6)
        return Loss(loss, {"critic/loss": loss.detach()})

    def model_loss(self, uniform: Tensor) -> Loss:
        """Of windows that the numbers [B] choose."""
        assert self.model is not None
        assert self.memory is not None
        rows = self.memory.draw(uniform, self.cfg.model_unroll)
        windows = Windows(
            rows.obs[0],
            self.one_hot(rows.action),
            rows.obs[1:],
            rows.reward,
            rows.terminated,
            rows.counts,
            rows.known,
        )
        return self.model.loss(windows)

    def predict(self, obs: Tensor, action: Tensor) -> Prediction:
        """One step in the world model, with rewards as the critic knows them."""
        assert self.model is not None
        step = self.model(obs, action)
        return Prediction(step.next_obs, self.cfg.reward_scale * step.reward, step.continues)

    def log_probs(self, obs: Tensor) -> Tensor:
        return self.actor(Obs(obs, obs))[0]

    def value(self, obs: Tensor) -> Tensor:
        value: Tensor = self.critic(Obs(obs, obs))
        return value

    def one_hot(self, action: Tensor) -> Tensor:
        return (
            action.unsqueeze(-1) == torch.arange(self.num_actions, device=action.device)
        ).float()
