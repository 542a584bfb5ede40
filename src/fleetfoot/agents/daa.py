"""DAA, published as MBMA: PPO with many actions per state, the extra ones judged by a learned dynamics model.

Nauman and Cygan 2023, "On Many-Actions Policy Gradient", arXiv 2210.13011 (earlier: the dynamics-all-action module).
The variance of a policy gradient that comes from drawing actions falls with their number N per state. Extra actions
cannot be executed without rewinding the simulator, so a model imagines them, for H steps from each *real* state.
With A the real advantages of PPO, d the discount, V_old and pi_old the networks as they were while collecting:

    (1)  A_t and R_t by GAE(lambda) over the rollout, bootstrapping at time limits
    (2)  from `start_env_steps` on: `model_steps` Adam steps of the model on the newest `model_capacity` transitions,
         `first_model_steps` at the first time
    (3)  N_t = min(N, floor(k N / (ramp K)) + 1),  H_t = min(H, floor(k H / (ramp K)) + 2),  k updates since (2) began,
         K updates in all
    (4)  for each real s and n = 1..N_t: a_n ~ pi_old(s); the model goes H_t steps, actions from pi_old;
         A_n = its GAE(lambda) with imagined rewards, V_old at imagined states and after the last step
    (5)  gain(s) = 1 / (1 + N_t) sum over the executed action and a_1..a_N of min(rho A, clip(rho, 1 -+ clip) A)
    (6)  loss = -mean_s gain(s) + value_coef mean (V - R)^2 (clipped as in PPO) - entropy_coef mean H(pi(.|s))

The executed action keeps its real advantage, and V learns from real returns alone. Actions are averaged within a state
before states are, so real states weigh the same whatever N_t is. Log-probabilities are those of unclipped actions; the
model, like the simulator, gets them clipped.

Four estimators, for comparison (`estimator`):

    model_actions   (4): the method
    q_actions       QMA: A_n = Q(s, a_n) - V_old(s); Q learns r + d V_old(s') from the same data, in as many steps
    model_states    MB-PPO: one path of H = N_t + 2 steps from each state; its states 1..N_t are the extra samples
    none            N = 0: PPO

Deviations from the authors' code (naumix/CHANGES_ICML2023):

    [1] Time limits bootstrap; there they count as the end.
    [2] The model predicts the change of the state, from standardised inputs, and whether the task ends (`world_model`);
        there the next state itself, and no end. `WorldModelConfig(predict="absolute")` is theirs.
    [3] Its batches are drawn at random, not by a permutation of the whole memory for each epoch.
    [4] Q's target is our choice: the paper's is not in the code.
    [5] The learning rate falls from step to step; there, from update to update.
    [6] The critic's last layer starts with gain sqrt 2, like the others, there with gain 1. The model starts as torch
        starts a layer; there its weights are orthogonal with gain 1 and its biases zero.
    [7] The value loss has no factor 1/2 of its own, so that 0.5 of it is twice what it is there.

Before the model begins, an update is PPO's. N and H are numbers of the host and change during the run, so updates are
not captured as CUDA graphs, and on a GPU each new pair of them compiles once.

Above 300 lines, because the estimators stand beside each other.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fleetfoot.agents.checks import check_above_zero, check_proximal, flat_actions
from fleetfoot.agents.contract import Traits
from fleetfoot.agents.state import Stateful
from fleetfoot.config import at_least, part
from fleetfoot.data import EnvSpec, Loss, Obs, Rollout, Transition, UpdateResult
from fleetfoot.errors import UserError
from fleetfoot.nn.encode import ObsNorms, QNetwork
from fleetfoot.nn.imagine import imagine
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.network import NetworkConfig
from fleetfoot.nn.stochastic import ActorCriticNetworks, DrawnAction, GreedyAction
from fleetfoot.nn.world_model import Windows, WorldModel, WorldModelConfig
from fleetfoot.ops.gae import gae
from fleetfoot.ops.proximal import clipped_error, clipped_gain, outside
from fleetfoot.ops.rows import flat, rows_of
from fleetfoot.optim import AdamConfig, LocalStepper
from fleetfoot.replay.windows import StoredWindows
from fleetfoot.rng import random_streams, seeded_init


@part
class DAAConfig:
    """PPO with imagined actions. The defaults are the authors', for one environment and rollouts of 2,048 steps."""

    traits: ClassVar = Traits(on_policy=True)
    task_embedding: ClassVar[int] = 0  # there is one task

    estimator: Literal["model_actions", "q_actions", "model_states", "none"] = "model_actions"
    """Where the extra samples come from. none: no extra samples, which is PPO."""
    actions: int = 8
    """Final number of extra actions per real state (N)."""
    horizon: int = 8
    """Final number of steps of each imagined path (H); only for model_actions."""
    ramp: float = 0.15
    """Share of the run over which N and H grow."""
    start_env_steps: int = 40_000
    """Real steps before the model is used."""
    model_steps: int = 640
    """Gradient steps of the model (or of Q) per update."""
    first_model_steps: int = 5_120
    """The same for the first update with the model."""
    model_batch: int = 128
    """Batch size of each such step."""
    model_capacity: int = 200_000
    """The model learns from this many newest transitions, over all environments."""
    gae_lambda: float = 0.95
    """Decay of the advantages' trace (lambda)."""
    epochs: int = 10
    """Passes over each rollout."""
    minibatches: int = 32
    """Gradient steps per pass; each takes an equal share of the rows."""
    clip: float = 0.2
    """How far the probability ratio of an action may move from 1 before the action no longer counts."""
    value_clip: float | None = 0.2
    """How far a value may move before it no longer counts; None: no limit."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    normalize_advantage: bool = False
    """Shift and scale all advantages, so that the real ones of a rollout have mean 0 and standard deviation 1."""
    std: float = 1.0
    """Initial standard deviation of actions."""
    head_gain: float | None = 0.01
    """Gain of the orthogonal initialisation of the policy's output layer; None: the network's own
    initialisation."""
    tanh_mean: bool = True
    """Bound the mean of actions by tanh."""
    normalize_obs: bool = False
    """Running normalisation of observations."""
    clip_obs: float | None = 10.0
    """Bound of normalised observations; None: no bound."""
    policy_net: NetworkConfig = MLPConfig(
        hidden=(512, 512), activation=("leaky_relu",), start="orthogonal"
    )
    critic_net: NetworkConfig = MLPConfig(
        hidden=(512, 512), activation=("leaky_relu",), start="orthogonal"
    )
    policy_optim: AdamConfig = AdamConfig(
        lr=3e-4, lr_end=0.0, schedule="linear", eps=1e-5, max_grad_norm=0.5
    )
    model: WorldModelConfig = WorldModelConfig(
        net=MLPConfig(hidden=(1024, 1024), activation=("leaky_relu",))
    )
    model_optim: AdamConfig = AdamConfig(lr=3e-4)

    def build(
        self, spec: EnvSpec, *, gamma: float, total_updates: int, seed: int, device: torch.device
    ) -> DAA:
        flat_actions("DAA", spec)
        if spec.critic_shape is not None or spec.tasks:
            raise UserError(
                f"DAA imagines what the policy sees, for one task; in {spec.name} the critic sees more, or there are "
                "several tasks."
            )
        check_proximal(self)
        at_least(self, "agent", actions=1, horizon=1, start_env_steps=0)
        at_least(self, "agent", model_steps=1, first_model_steps=1, model_batch=1, model_capacity=1)
        check_above_zero(self, "ramp")
        return DAA(self, spec, gamma, total_updates, seed, device)


class Targets(NamedTuple):
    """What the old networks say of the rows of a rollout, all T N of them one after the other."""

    log_prob: Tensor  # [T N]
    value: Tensor  # [T N]
    advantage: Tensor  # [T N]
    returns: Tensor  # [T N]


Extra = dict[str, Tensor]
"""Imagined samples, N for each row: `action` [T N, N, A], `log_prob` and `advantage` [T N, N], and `obs` [T N, N, D]
where they are not in the real states."""


class DAA(Stateful):
    """The agent; the equations are at the top of this file."""

    compiled_methods: ClassVar[tuple[str, ...]] = ("prepare", "loss", "model_loss", "extra_samples")
    state_attrs = (
        *("policy", "networks", "pending_norms", "world_model", "q", "memory"),
        *("step", "step_model", "order_noise", "model_noise", "action_noise"),
    )

    def __init__(
        self,
        cfg: DAAConfig,
        spec: EnvSpec,
        gamma: float,
        total_updates: int,
        seed: int,
        device: torch.device,
    ):
        self.cfg, self.gamma, self.total_updates, self.updates = cfg, gamma, total_updates, 0
        self.action_size = flat_actions("DAA", spec)
        self.num_envs = spec.num_envs  # of all ranks together; a rollout has those of one
        streams = random_streams(seed, 3, device)
        self.order_noise, self.model_noise, self.action_noise = streams
        self.norms = ObsNorms(spec, cfg.normalize_obs).to(device)
        self.pending_norms = ObsNorms(spec, cfg.normalize_obs).to(device)
        self.world_model: WorldModel | None = None
        self.q: QNetwork | None = None
        with seeded_init(seed):
            self.networks = ActorCriticNetworks(cfg, spec, self.norms).to(device)
            if cfg.estimator == "q_actions":
                encoder = self.norms.encoder("critic", None, cfg.clip_obs)
                self.q = QNetwork(encoder, cfg.critic_net, self.action_size, 1, 1).to(device)
            elif cfg.estimator != "none":
                self.world_model = cfg.model.build(spec.obs_shape[0], self.action_size).to(device)
        self.actor, self.critic = self.networks.policy, self.networks.critic
        self.policy, self.behaviour = GreedyAction(self.actor), DrawnAction(self.actor)
        self.memory = StoredWindows(spec, cfg.model_capacity).to(device)
        steps = total_updates * cfg.epochs * cfg.minibatches
        self.step = cfg.policy_optim.build(self.networks, steps)
        learns = self.q if self.world_model is None else self.world_model
        self.step_model: LocalStepper | None = None
        if learns is not None:
            self.step_model = cfg.model_optim.build(learns, total_updates * cfg.model_steps)

    def observe(self, fresh: Transition) -> None:
        self.pending_norms.update(fresh.obs)
        self.memory.append(fresh)
        if self.world_model is not None:
            self.world_model.observe(
                fresh.obs.actor, fresh.reward, fresh.next_obs.actor, fresh.terminated
            )

    def mark_break(self) -> None:
        self.memory.mark_break()

    def update(self, rollout: Rollout) -> UpdateResult:
        cfg = self.cfg
        count = rollout.reward.shape[0] * rollout.reward.shape[-1]
        if count < cfg.minibatches:
            raise UserError(
                f"a rollout of {count} rows has no {cfg.minibatches} minibatches: raise --replay.length or lower "
                "--agent.minibatches."
            )
        targets, metrics = self.prepare(rollout)
        extra: Extra | None = None
        since = self.updates - cfg.start_env_steps // (len(rollout.reward) * self.num_envs)
        if self.step_model is not None and since >= 0:
            metrics |= self.train_model(
                self.step_model, cfg.model_steps if since else cfg.first_model_steps
            )
            extra, more = self.imagined(rollout, count, since)
            metrics |= more
        totals: dict[str, Tensor] = {}
        for _ in range(cfg.epochs):
            order = self.order_noise.uniform(count).argsort(dim=0)
            for index in order.tensor_split(cfg.minibatches):
                loss = self.loss(rollout, targets, extra, index)
                found = loss.metrics | {"policy/grad_norm": self.step(loss.loss)}
                totals = {name: value + totals.get(name, 0.0) for name, value in found.items()}
        self.norms.take_over(self.pending_norms)
        self.updates += 1
        steps = cfg.epochs * cfg.minibatches
        return UpdateResult(metrics | {name: value / steps for name, value in totals.items()})

    def train_model(self, step: LocalStepper, steps: int) -> dict[str, Tensor]:
        """(2). The metrics are those of the last step."""
        loss = Loss(torch.empty(()), {})
        for _ in range(steps):
            loss = self.model_loss(self.model_noise.uniform(self.cfg.model_batch))
            step(loss.loss)
        return loss.metrics

    def sizes(self, since: int) -> tuple[int, int]:
        """N and H, so many updates after the model has begun (3)."""
        cfg, ramp = self.cfg, self.cfg.ramp * self.total_updates
        actions = min(cfg.actions, int(since * cfg.actions // ramp) + 1)
        if cfg.estimator == "model_states":
            return actions, actions + 2
        return actions, min(cfg.horizon, int(since * cfg.horizon // ramp) + 2)

    def imagined(self, rollout: Rollout, count: int, since: int) -> tuple[Extra, dict[str, Tensor]]:
        actions, horizon = self.sizes(since)
        rows, steps = count * actions, horizon
        if self.cfg.estimator == "model_states":
            rows = count
        elif self.cfg.estimator == "q_actions":
            steps = 1
        extra = self.extra_samples(rollout, self.action_noise.normal(steps, rows, self.action_size))
        sizes = torch.tensor([actions, horizon], dtype=torch.float32, device=rollout.reward.device)
        return extra, {"imagined/actions": sizes[0], "imagined/horizon": sizes[1]}

    @torch.no_grad()
    def prepare(self, rollout: Rollout) -> tuple[Targets, dict[str, Tensor]]:
        obs, shape = flat(rollout.obs), rollout.reward.shape  # [T, N]
        value = self.critic(obs)
        next_value = self.critic(flat(rollout.next_obs)).view(shape)
        advantage = gae(  # (1)
            rollout.reward,
            rollout.discount,
            rollout.ended,
            value.view(shape),
            next_value,
            self.cfg.gae_lambda,
        ).flatten()
        log_prob = self.actor.log_prob(self.actor(obs), rollout.action.flatten(0, 1))
        returns = advantage + value
        unexplained = advantage.var(correction=0) / (returns.var(correction=0) + 1e-8)
        metrics = {"critic/value": value.mean(), "critic/explained_variance": 1.0 - unexplained}
        return Targets(log_prob, value, advantage, returns), metrics

    def model_loss(self, uniform: Tensor) -> Loss:
        """Of the model, or of Q, on transitions that the numbers [B] on [0, 1) choose."""
        rows = self.memory.draw(uniform, 1)
        action = rows.action.clamp(-1.0, 1.0)  # as executed
        if self.world_model is not None:
            obs, next_obs = rows.obs[0], rows.obs[1:]
            known = rows.counts, rows.known
            return self.world_model.loss(
                Windows(obs, action, next_obs, rows.reward, rows.terminated, *known)
            )
        assert self.q is not None
        obs, next_obs = rows.obs[0], rows.obs[1]
        with torch.no_grad():
            discount = torch.where(rows.terminated[0], 0.0, self.gamma)
            target = rows.reward[0] + discount * self.critic(Obs(next_obs, next_obs))
        weight = (rows.known[0] | rows.terminated[0]).float()
        error = self.q(Obs(obs, obs), action[0]).float()[0, :, 0] - target
        loss = (weight * error.square()).mean()
        return Loss(loss, {"model/q_loss": loss.detach()})

    @torch.no_grad()
    def extra_samples(self, rollout: Rollout, noise: Tensor) -> Extra:
        """(4), or its like for the other estimators, from noise [H, R, A]."""
        obs = rollout.obs.actor.flatten(0, 1)  # [M, D]
        rows, copies = len(obs), noise.shape[1] // len(obs)
        if self.cfg.estimator == "q_actions":
            return self._q_actions(obs, noise[0].view(rows, copies, -1))
        assert self.world_model is not None
        start = obs if copies == 1 else obs.repeat_interleave(copies, 0)
        path = imagine(
            self.world_model,
            self.actor,
            self.critic,
            start,
            noise,
            gamma=self.gamma,
            lam=self.cfg.gae_lambda,
        )
        if self.cfg.estimator == "model_states":
            last = len(noise) - 1  # states 1 .. N of H = N + 2 steps
            fields = path._asdict().items()
            return {name: field[1:last].transpose(0, 1) for name, field in fields}
        first = {
            "action": path.action[0],
            "log_prob": path.log_prob[0],
            "advantage": path.advantage[0],
        }
        return {name: x.view(rows, copies, *x.shape[1:]) for name, x in first.items()}

    def _q_actions(self, obs: Tensor, noise: Tensor) -> Extra:
        """QMA; noise [M, N, A]."""
        assert self.q is not None
        mean, log_std = (param.unsqueeze(1) for param in self.actor(Obs(obs, obs)))
        action = self.actor.sample((mean, log_std), noise)
        log_prob = self.actor.log_prob((mean, log_std), action)
        many = obs.repeat_interleave(noise.shape[1], 0)
        q = self.q(Obs(many, many), action.flatten(0, 1).clamp(-1.0, 1.0)).float()
        value = self.critic(Obs(obs, obs)).unsqueeze(1)
        advantage = q.view(log_prob.shape) - value
        return {"action": action, "log_prob": log_prob, "advantage": advantage}

    def loss(self, rollout: Rollout, targets: Targets, extra: Extra | None, index: Tensor) -> Loss:
        """The loss (6) of the rows `index`."""
        cfg, obs = self.cfg, rows_of(rollout.obs, index)
        params = self.actor(obs)
        everyone, advantage = targets.advantage, targets.advantage[index]
        shift, scale = torch.zeros_like(everyone[0]), torch.ones_like(everyone[0])
        if cfg.normalize_advantage:
            shift, scale = everyone.mean(), everyone.std(correction=0) + 1e-8
        log_prob = self.actor.log_prob(params, rollout.action.flatten(0, 1)[index])
        ratio = (log_prob - targets.log_prob[index]).exp()
        gain = clipped_gain(ratio, (advantage - shift) / scale, cfg.clip)
        if extra is not None:
            more = self._log_prob_of(extra, params, index) - extra["log_prob"][index]  # [B, N]
            imagined = (extra["advantage"][index] - shift) / scale
            gains = clipped_gain(more.exp(), imagined, cfg.clip)
            gain = (gain + gains.sum(1)) / (1 + gains.shape[1])  # (5)
        policy_loss, entropy = -gain.mean(), self.actor.entropy(params).mean()
        old_value, returns = targets.value[index], targets.returns[index]
        value_loss = clipped_error(self.critic(obs), old_value, returns, cfg.value_clip).mean()
        loss = policy_loss + cfg.value_coef * value_loss - cfg.entropy_coef * entropy  # (6)
        metrics = {
            "policy/loss": policy_loss,
            "policy/entropy": entropy,
            "policy/clipped": outside(ratio, cfg.clip),
            "critic/loss": value_loss,
        }
        return Loss(loss, {name: value.detach() for name, value in metrics.items()})

    def _log_prob_of(self, extra: Extra, params: tuple[Tensor, ...], index: Tensor) -> Tensor:
        """[B, N] of the extra samples by the policy as it is now; `params` are those of the real states."""
        if "obs" not in extra:
            shared = tuple(param.unsqueeze(1) for param in params)
            return self.actor.log_prob(shared, extra["action"][index])
        obs = extra["obs"][index]
        own = self.actor(Obs(obs.flatten(0, 1), obs.flatten(0, 1)))
        log_prob = self.actor.log_prob(own, extra["action"][index].flatten(0, 1))
        return log_prob.view(obs.shape[:2])
