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
         c(a) = pi(a) (f(a) - b)   ("all_actions"),  c(a_1) = f(a_1) - b   ("reinforce"): `ops/without_replacement.py`;
         or (8)
    (6)  V is regressed on TD(lambda) returns of real rewards alone, m on windows of stored transitions
    (7)  imagination counts where the share of changes that m did not predict in the fresh rollout, H steps ahead and
         before it learns from it, is below `trust_below`; where it is not, c(a_1) = f(a_1) - V(s): actor-critic
    (8)  "control_variate": f^(a) = (3) for every action, the executed one as well, m = sum_a pi(a) f^(a), and
         c(a) = beta pi(a) (f^(a) - m) + [a = a_1] kappa (f(a_1) - V - alpha (m - V) - beta (f^(a_1) - m)),
         where alpha and beta are least squares on earlier rollouts: `ops/control_variate.py`. With kappa = 1 the mean
         is that of actor-critic with the same V, whatever the world model predicts [7], and (7) is not used
    (9)  with `critic_batch`, V also learns at stored states: the imagined TD(lambda) return of pi from there, over
         `critic_horizon` steps, with the value of a copy of V that follows slowly

AC, the paper's first baseline, is "reinforce" with "value": it has no world model. Its second one is in `mac.py`.

What we decided, beyond the abstract:

    [1] Updates after every rollout of T vec steps, not after every episode. (2) stops at the end of the rollout; (3)
        then takes its value after as many steps as (2), so both have the same horizon and the same critic.
    [2] All k actions of a state follow pi with the same random numbers, which changes no mean and lowers the variance
        of their differences.
    [3] A time limit is no end of the task: (2) bootstraps there, and m never hears of it.
    [4] Nothing is differentiated through m or f.
    [5] In (8) the model decides after a_1 with the random numbers of the real trajectory, which are drawn given the
        executed actions: its decisions are then those of the real trajectory as far as its states are, and its returns
        explain more of the real ones. Its horizon is always H; the mean of (8) does not ask for equal horizons.
    [6] Pictures become the latent vectors of a convolutional autoencoder (`latent`), which learns from the stored
        pictures alone. Policy, critic and m read these vectors and send no gradient into it; s is such a vector then.
    [7] That is exact for a model that knows nothing of the rollout. m has not learned from it, but its running
        statistics (mean and scale of what enters and leaves it) already include it.
    [8] (9) does not ask (7) either: what an untrained m says of stored states is learned too, for as long as m is so.

Above 300 lines: AC and every estimator are one algorithm with different settings, and a third is words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fleetfoot.agents.checks import check_above_zero
from fleetfoot.agents.contract import Traits
from fleetfoot.agents.state import Stateful
from fleetfoot.config import at_least, part
from fleetfoot.data import Discrete, EnvSpec, Loss, Obs, Rollout, Transition, UpdateResult
from fleetfoot.errors import UserError
from fleetfoot.nn.autoencoder import AutoencoderConfig, LatentEncoder
from fleetfoot.nn.encode import ObsNorms
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.network import NetworkConfig
from fleetfoot.nn.stochastic import (
    CategoricalPolicy,
    DrawnAction,
    GreedyAction,
    ValueNetwork,
    gumbel_numbers,
)
from fleetfoot.nn.world_model import (
    Prediction,
    Windows,
    WorldModelConfig,
    imagined_returns,
    windows_of,
)
from fleetfoot.ops.control_variate import Regression, coefficients, explained, gumbels_given
from fleetfoot.ops.gae import gae
from fleetfoot.ops.horizon import horizon_returns, lambda_means
from fleetfoot.ops.polyak import polyak_, target_copy
from fleetfoot.ops.without_replacement import gumbel_top_k, set_coefficients
from fleetfoot.optim import AdamConfig, OptimConfig
from fleetfoot.replay.windows import StoredWindows
from fleetfoot.rng import RandomStream, seeded_init


@part
class WMPGConfig:
    """WMPG, and AC with estimator="reinforce" and baseline="value"."""

    traits: ClassVar = Traits(on_policy=True, follows_episodes=True)

    estimator: Literal[
        "reinforce", "set", "set_with_baseline", "all_actions", "control_variate"
    ] = "set_with_baseline"
    """Which actions of a state count, and how much (5)."""
    baseline: Literal["none", "value", "informed"] = "value"
    """What is subtracted from the return of every action (4)."""
    k: int = 2
    """Actions per state, including the executed one; for the two set estimators."""
    horizon: int = 10
    """Steps of real and imagined returns until the critic takes over (H)."""
    return_lambda: float = 1.0
    """Lambda of the returns within the horizon, real and imagined; 1: the return of H steps alone."""
    trajectories: int = 1
    """Imagined trajectories per action (M)."""
    use_real_for_executed: bool = True
    """The return of the executed action is the real one; False: imagined like the others."""
    real_weight: float = 1.0
    """kappa of (8): weight of the part of the real return that the model does not explain. Below 1 the gradient has
    less noise, and more of the model's errors."""
    trust_below: float = 0.1
    """Imagined actions are used while the share of changes that the model does not predict is below this (7)."""
    td_lambda: float = 0.95
    """Lambda of the returns that the critic learns (6)."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this; returns should be of order 1 to 10."""
    normalize_obs: bool = True
    """Running normalisation of observations."""
    critic_steps: int = 10
    """Gradient steps of the critic per rollout, each on the whole rollout."""
    critic_batch: int = 0
    """Stored states that the critic learns from in each of its steps, beside the rollout; what it learns there is
    imagined. 0: none."""
    critic_horizon: int = 5
    """Steps of these imagined returns."""
    critic_tau: float = 0.02
    """How far the critic at the end of these returns follows the learned one in each step."""
    model_steps: int = 50
    """Gradient steps of the world model per rollout."""
    model_batch: int = 128
    """Windows per gradient step."""
    model_unroll: int = 4
    """Transitions per window; the model is trained on its own predictions."""
    model_memory: int = 20_000
    """Transitions that the world model learns from, over all environments together."""
    policy_net: NetworkConfig = MLPConfig(hidden=(64, 64), activation=("tanh",))
    """Network of the policy."""
    critic_net: NetworkConfig = MLPConfig(hidden=(64, 64), activation=("tanh",))
    """Network of the critic."""
    world_model: WorldModelConfig = WorldModelConfig()
    """The world model."""
    latent: AutoencoderConfig | None = None
    """For images: the autoencoder whose latent vectors everything else reads. None: observations are vectors."""
    policy_optim: OptimConfig = AdamConfig(lr=5e-3, max_grad_norm=0.5)
    critic_optim: OptimConfig = AdamConfig(lr=1e-2, max_grad_norm=0.5)
    model_optim: OptimConfig = AdamConfig(lr=1e-3)

    def imagines(self) -> bool:
        """Is there anything to imagine?"""
        return self.estimator != "reinforce" or self.baseline == "informed"

    def build(
        self, spec: EnvSpec, *, gamma: float, total_updates: int, seed: int, device: torch.device
    ) -> WMPG:
        if not isinstance(spec.action, Discrete) or spec.tasks:
            raise UserError(
                f"WMPG needs discrete actions and one task; {spec.name} has {spec.action} and "
                f"{max(1, len(spec.tasks))} tasks."
            )
        if (len(spec.obs_shape) == 1) == (self.latent is not None):
            raise UserError(
                "agent.latent is for pictures, and pictures need it: --agent.latent AutoencoderConfig; "
                f"{spec.name} has observations of shape {spec.obs_shape}."
            )
        least = {"horizon": 1, "trajectories": 1, "critic_steps": 1, "critic_horizon": 1}
        at_least(self, "agent", **least, critic_batch=0, k=1)
        at_least(self, "agent", model_steps=1, model_batch=1, model_unroll=1, model_memory=1)
        check_above_zero(self, "trust_below", "reward_scale")
        if self.k > spec.action.count:
            raise UserError(
                f"agent.k is {self.k}, but {spec.name} has {spec.action.count} actions."
            )
        for name in ("td_lambda", "return_lambda", "real_weight", "critic_tau"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                value = getattr(self, name)
                raise UserError(f"agent.{name} must lie between 0 and 1, not {value}.")
        if self.estimator == "control_variate" and self.baseline != "value":
            raise UserError(
                f'agent.baseline is "{self.baseline}", but the control variate brings its own: leave it at "value".'
            )
        if self.critic_batch and not self.imagines():
            raise UserError(
                "agent.critic_batch is for states from which the critic learns what a world model says; with estimator "
                "reinforce and no informed baseline there is none."
            )
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
    products: Tensor  # [4] means, for the regression of (8)


class WMPG(Stateful):
    """The agent; the equations are at the top of this file."""

    compiled_methods: ClassVar[tuple[str, ...]] = (
        "targets",
        "policy_loss",
        "critic_loss",
        "imagined_values",
        "model_loss",
    )
    state_attrs = (
        "policy",
        "critic",
        "critic_target",
        "learned",
        "memory",
        "regression",
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
        sizes = {
            "reinforce": 1,
            "all_actions": self.num_actions,
            "control_variate": self.num_actions,
        }
        self.k = sizes.get(cfg.estimator, cfg.k)
        self.updates: int = 0
        self.periods: tuple[int, ...] = ()  # all updates are alike
        self.noise = RandomStream(seed, device)
        normalize = cfg.normalize_obs and cfg.latent is None
        self.norms = ObsNorms(spec, normalize).to(device)
        self.pending_norms = ObsNorms(spec, normalize).to(device)
        with seeded_init(seed):
            self.autoencoder = cfg.latent.build(spec.obs_shape).to(device) if cfg.latent else None
            encoder = self.norms.encoder("actor", None, clamp=10.0)
            if self.autoencoder is not None:
                encoder = LatentEncoder(self.autoencoder)
            self.actor = CategoricalPolicy(
                encoder, cfg.policy_net, self.num_actions, head_gain=0.01
            ).to(device)
            self.critic = ValueNetwork(encoder, cfg.critic_net).to(device)
            model = cfg.world_model.build(encoder.size, self.num_actions).to(device)
        # Of the network alone: what the encoder learns, if anything, is not the critic's.
        self.critic_target = target_copy(self.critic.net) if cfg.critic_batch else None
        self.policy, self.behaviour = GreedyAction(self.actor), DrawnAction(self.actor)
        self.model = model if cfg.imagines() else None
        self.regression = Regression().to(device) if cfg.estimator == "control_variate" else None
        self.learned = nn.ModuleList(m for m in (self.model, self.autoencoder) if m is not None)
        self.memory = StoredWindows(spec, cfg.model_memory).to(device) if self.learned else None
        self.step_policy = cfg.policy_optim.build(self.actor.net, total_updates)
        self.step_critic = cfg.critic_optim.build(self.critic.net, total_updates * cfg.critic_steps)
        steps = total_updates * cfg.model_steps
        self.step_model = cfg.model_optim.build(self.learned, steps) if self.learned else None

    def observe(self, fresh: Transition) -> None:
        self.pending_norms.update(fresh.obs)  # the policy must not change while it collects
        if self.memory is not None:
            self.memory.append(fresh)
        if self.autoencoder is not None:
            self.autoencoder.observe(fresh.obs.actor)
        if self.model is not None:
            obs, next_obs = self.vectors(fresh.obs.actor), self.vectors(fresh.next_obs.actor)
            self.model.observe(obs, fresh.reward, next_obs, fresh.terminated)

    def mark_break(self) -> None:
        if self.memory is not None:
            self.memory.mark_break()

    def update(self, rollout: Rollout) -> UpdateResult:
        cfg, shape = self.cfg, (rollout.reward.shape[0], rollout.reward.shape[-1])
        set_noise = self.noise.uniform(*shape, self.num_actions)
        path_noise = self.noise.uniform(*shape, cfg.trajectories, cfg.horizon, self.num_actions)
        targets, metrics = self.targets(rollout, set_noise, path_noise)
        if self.regression is not None:
            self.regression.update(targets.products)
        loss = self.policy_loss(targets)
        metrics |= loss.metrics | {"policy/grad_norm": self.step_policy(loss.loss)}
        for _ in range(cfg.critic_steps):
            obs, returns = targets.obs, targets.returns
            if self.critic_target is not None:
                uniform = self.noise.uniform(cfg.critic_batch)
                path_noise = self.noise.uniform(
                    cfg.critic_batch, cfg.critic_horizon, self.num_actions
                )
                stored, wanted = self.imagined_values(uniform, path_noise)
                obs, returns = torch.cat([obs, stored]), torch.cat([returns, wanted])
            loss = self.critic_loss(obs, returns)
            metrics |= loss.metrics | {"critic/grad_norm": self.step_critic(loss.loss)}
            if self.critic_target is not None:
                polyak_(self.critic_target, self.critic.net, cfg.critic_tau)
        for _ in range(cfg.model_steps if self.step_model is not None else 0):
            assert self.step_model is not None
            loss = self.model_loss(self.noise.uniform(cfg.model_batch))
            metrics |= loss.metrics | {"model/grad_norm": self.step_model(loss.loss)}
        self.norms.take_over(self.pending_norms)
        if self.autoencoder is not None:
            self.autoencoder.apply_statistics_()
        self.updates += 1
        return UpdateResult(metrics)

    @torch.no_grad()
    def targets(
        self, rollout: Rollout, set_noise: Tensor, path_noise: Tensor
    ) -> tuple[Targets, dict[str, Tensor]]:
        """Sets of actions, their coefficients (5), and the returns of the critic. Noise: uniform, [T, N, actions] and
        [T, N, M, H, actions]."""
        cfg, shape = self.cfg, rollout.reward.shape
        obs = self.vectors(rollout.obs.actor.flatten(0, 1))
        next_obs = self.vectors(rollout.next_obs.actor.flatten(0, 1))
        value, next_value = self.value(obs), self.value(next_obs)
        flow = cfg.reward_scale * rollout.reward, rollout.discount, rollout.ended
        real, steps = horizon_returns(
            *flow, next_value.view(shape), cfg.horizon, cfg.return_lambda
        )  # (2)
        advantage = gae(*flow, value.view(shape), next_value.view(shape), cfg.td_lambda)
        log_probs, executed = self.log_probs(obs), rollout.action.flatten()
        actions = gumbel_top_k(log_probs, set_noise.flatten(0, 1), self.k, first=executed)  # (1)
        real, steps = real.flatten(), steps.flatten()
        gumbel = gumbel_numbers(path_noise)
        metrics = {"critic/value": value.mean()}
        products = torch.zeros(4, device=obs.device)
        if self.regression is not None:
            error, alike = real - value, self.numbers_of(rollout, log_probs, gumbel)
            every = actions.unsqueeze(1).expand(-1, cfg.trajectories, -1)
            f = self.returns_in_model(
                obs, every, torch.full_like(steps, cfg.horizon), alike.flatten(0, 1)
            )
            f = f - value.unsqueeze(-1)
            alpha, beta = self.regression()
            given = log_probs, actions, error, f, alpha, beta
            coefficient, each = coefficients(*given, real_weight=cfg.real_weight)  # (8)
            products = each.mean(0)
            metrics |= self.trust(rollout, obs, next_obs)[1]
            metrics |= {"model/alpha": alpha, "model/beta": beta}
            metrics["model/return_explained"] = explained(products, error)
        else:
            f, baseline = self.imagine(obs, actions, real, value, steps, gumbel)
            own = cfg.estimator == "set_with_baseline"
            f = f - baseline.unsqueeze(-1)
            coefficient = set_coefficients(log_probs, actions, f, own_baseline=own)  # (5)
            if cfg.imagines():
                trusted, more = self.trust(rollout, obs, next_obs)
                without = torch.zeros_like(coefficient)
                without[:, 0] = real - value
                coefficient = torch.where(trusted, coefficient, without)  # (7)
                metrics |= more | {"model/trusted": trusted.float()}
        returns = advantage.flatten() + value
        return Targets(obs, actions, coefficient, returns, products), metrics

    def numbers_of(self, rollout: Rollout, log_probs: Tensor, gumbel: Tensor) -> Tensor:
        """Gumbel numbers [T, N, M, H, actions] with which the model decides after each row as was decided there. Past
        the end of the rollout they are those of `gumbel`."""
        own = gumbel[:, :, :, 0]  # each row's, used by the rows before it alone
        action = rollout.action.unsqueeze(-1).expand(own.shape[:-1])
        probs = log_probs.view(*rollout.reward.shape, 1, -1)
        executed = gumbels_given(probs, action, own)  # [T, N, M, actions]
        later = [
            torch.cat([executed[step:], gumbel[max(0, len(gumbel) - step) :, :, :, step]])
            for step in range(self.cfg.horizon)
        ]
        return torch.stack(later, 3)

    def imagine(
        self,
        obs: Tensor,
        actions: Tensor,
        real: Tensor,
        value: Tensor,
        steps: Tensor,
        noise: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """f of each action of the sets, [R, k], and b, [R]. `real`, which is f of the executed ones, takes the value of
        what follows after so many `steps` [R]."""
        noise = noise.flatten(0, 1)  # [R, M, H, actions] Gumbel
        informed = self.cfg.baseline == "informed"
        use_real = self.cfg.use_real_for_executed or not self.cfg.imagines()
        first = actions[:, 1:] if use_real else actions  # [R, C]
        first = first.unsqueeze(1).expand(-1, noise.shape[1], -1)  # [R, M, C]
        if informed:
            log_probs = self.log_probs(obs).unsqueeze(1).expand(-1, noise.shape[1], -1)
            drawn = (log_probs + noise[:, :, 0]).argmax(-1)  # [R, M]
            first = torch.cat([drawn.unsqueeze(-1), first], -1)
        baseline = value if self.cfg.baseline == "value" else torch.zeros_like(value)
        if first.shape[-1] == 0:
            return real.unsqueeze(-1), baseline
        # Beside real returns the imagined ones end where those do (decision 1).
        after = steps if use_real else torch.full_like(steps, self.cfg.horizon)
        f = self.returns_in_model(obs, first, after, noise)  # [R, C]
        if informed:
            baseline, f = f[:, 0], f[:, 1:]  # (4)
        return torch.cat([real.unsqueeze(-1), f], -1) if use_real else f, baseline

    def returns_in_model(self, obs: Tensor, first: Tensor, steps: Tensor, noise: Tensor) -> Tensor:
        """(3), [R, C], of the actions `first` [R, M, C], each over so many `steps` [R]."""
        rows, paths, choices = first.shape

        def each(x: Tensor) -> Tensor:
            """[R, M, ...] -> [R M C, ...]: the actions of a state share what is random (decision 2)."""
            return x.unsqueeze(2).expand(-1, -1, choices, *x.shape[2:]).flatten(0, 2)

        start = each(obs.unsqueeze(1).expand(-1, paths, -1))
        found = self.follow(start, first.flatten(), each(noise), self.value)
        found = found.view(-1, rows, paths, choices)  # [H, R, M, C]
        if self.cfg.return_lambda != 1.0:
            found = lambda_means(found, self.cfg.return_lambda)
        after = (steps - 1).view(1, rows, 1, 1).expand(1, rows, paths, choices)
        return found.gather(0, after).squeeze(0).mean(1)

    @torch.no_grad()
    def imagined_values(self, uniform: Tensor, path_noise: Tensor) -> tuple[Tensor, Tensor]:
        """Stored states [B, D] that the numbers [B] choose, and what pi gets from there in the model, [B].

        Noise: uniform, [B, critic_horizon, actions].
        """
        assert self.memory is not None
        cfg, target = self.cfg, self.critic_target
        assert target is not None
        obs = self.vectors(self.memory.draw(uniform, 1).obs[0])
        gumbel = gumbel_numbers(path_noise)

        def value(obs: Tensor) -> Tensor:
            out: Tensor = target(self.critic.encoder(Obs(obs, obs)))
            return out.squeeze(-1).float()

        first = (self.log_probs(obs) + gumbel[:, 0]).argmax(-1)
        found = self.follow(obs, first, gumbel, value)
        return obs, lambda_means(found, cfg.td_lambda)[-1]

    def follow(
        self, obs: Tensor, first: Tensor, gumbel: Tensor, value: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Imagined returns over 1, 2, ..., H steps, [H, P]: `first` [P], then pi with the numbers of `gumbel`
        [P, H, actions] for each step after it."""

        def choose(obs: Tensor, step: int) -> Tensor:
            return self.one_hot((self.log_probs(obs) + gumbel[:, step]).argmax(-1))

        first, horizon = self.one_hot(first), gumbel.shape[1]
        return imagined_returns(
            self.predict, obs, first, choose, value, horizon=horizon, gamma=self.gamma
        )

    def trust(
        self, rollout: Rollout, obs: Tensor, next_obs: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """(7), on stretches of the rollout, which the model has not seen yet; obs and next_obs: its vectors [R, D]."""
        assert self.model is not None
        shape = rollout.reward.shape
        windows = windows_of(
            obs.view(*shape, -1),
            self.one_hot(rollout.action),
            next_obs.view(*shape, -1),
            rollout.reward,
            rollout.discount == 0.0,
            rollout.ended,
            length=min(self.cfg.horizon, shape[0]),
        )
        errors = self.model.open_loop(windows)
        trusted = errors.unexplained < self.cfg.trust_below
        metrics = {
            "model/error_1": errors.error[0],
            "model/error_h": errors.error[-1],
            "model/unexplained": errors.unexplained,
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
        assert self.memory is not None
        rows = self.memory.draw(uniform, self.cfg.model_unroll)
        losses: list[Loss] = []
        if self.autoencoder is not None:
            losses.append(self.autoencoder.loss(rows.obs[0]))
        if self.model is not None:
            obs = self.vectors(rows.obs.flatten(0, 1)).view(*rows.obs.shape[:2], -1)
            action = self.one_hot(rows.action)
            rest = rows.reward, rows.terminated, rows.counts, rows.known
            losses.append(self.model.loss(Windows(obs[0], action, obs[1:], *rest)))
        metrics = {name: value for loss in losses for name, value in loss.metrics.items()}
        return Loss(torch.stack([loss.loss for loss in losses]).sum(), metrics)

    def predict(self, obs: Tensor, action: Tensor) -> Prediction:
        """One step in the world model, with rewards as the critic knows them."""
        assert self.model is not None
        step = self.model(obs, action)
        return Prediction(step.next_obs, self.cfg.reward_scale * step.reward, step.continues)

    @torch.no_grad()
    def vectors(self, obs: Tensor) -> Tensor:
        """Observations [R, ...] as the vectors [R, D] that everything reads."""
        return obs if self.autoencoder is None else self.autoencoder.encode(obs)

    def log_probs(self, obs: Tensor) -> Tensor:
        return self.actor(Obs(obs, obs))[0]

    def value(self, obs: Tensor) -> Tensor:
        value: Tensor = self.critic(Obs(obs, obs))
        return value

    def one_hot(self, action: Tensor) -> Tensor:
        return (
            action.unsqueeze(-1) == torch.arange(self.num_actions, device=action.device)
        ).float()
