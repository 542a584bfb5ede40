"""WMPG, AC and MAC recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fleetfoot.agents.mac import MACConfig
from fleetfoot.agents.wmpg import WMPGConfig
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.envs.atari import AtariConfig
from fleetfoot.envs.gym import GymConfig
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.explore import FromPolicyConfig
from fleetfoot.log import LogConfig
from fleetfoot.nn.autoencoder import AutoencoderConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.world_model import WorldModelConfig
from fleetfoot.optim import AdamConfig
from fleetfoot.recipe import Recipe
from fleetfoot.replay.rollouts import RolloutConfig
from fleetfoot.topologies.synchronous import SynchronousConfig


def cartpole() -> Recipe:
    """The tensor cartpole with four environments: every episode counts.

    The gradient has so little variance that 32 rows are enough for a step; AC needs four times as many.
    """
    return Recipe(
        name="wmpg/cartpole",
        env=TensorConfig(task="cartpole"),
        agent=WMPGConfig(
            horizon=5,
            use_real_for_executed=False,
            entropy_coef=0.0,
            reward_scale=0.1,
            critic_steps=4,
            model_steps=4,
            model_batch=64,
            model_unroll=2,
        ),
        explorer=FromPolicyConfig(),
        replay=RolloutConfig(length=8),
        topology=SynchronousConfig(),
        evaluation=EvaluationConfig(every_vec_steps=400, episodes=20),
        log=LogConfig(every_vec_steps=64),
        checkpoint=CheckpointConfig(every_vec_steps=3_200),
        num_envs=4,
        total_vec_steps=8_000,
    )


def ac_cartpole() -> Recipe:
    """The same without a world model. With rollouts of 8 vec steps it does not get there at all."""
    agent = WMPGConfig(
        estimator="reinforce", baseline="value", entropy_coef=0.0, reward_scale=0.1, critic_steps=10
    )
    return replace(cartpole(), name="ac/cartpole", agent=agent, replay=RolloutConfig(length=32))


def mac_cartpole() -> Recipe:
    """The same with a learned value for each action."""
    agent = MACConfig(reward_scale=0.1)
    return replace(cartpole(), name="mac/cartpole", agent=agent, replay=RolloutConfig(length=32))


def lunarlander() -> Recipe:
    """Gymnasium's LunarLander-v3 (Box2D), for one core of many.

    The engines are noisy, and so are real returns; the model's part of the gradient is not, so it has more weight. The
    critic learns imagined returns at stored states: with one that learns from each rollout alone, most runs fell back.
    """
    net = MLPConfig(hidden=(128, 128), activation=("tanh",))
    return replace(
        cartpole(),
        name="wmpg/lunarlander",
        env=GymConfig(id="LunarLander-v3"),
        agent=WMPGConfig(
            estimator="control_variate",
            horizon=3,
            trajectories=4,
            real_weight=0.3,
            entropy_coef=0.001,
            reward_scale=0.02,
            critic_steps=8,
            critic_batch=128,
            model_steps=10,
            model_memory=50_000,
            policy_net=net,
            critic_net=net,
            world_model=WorldModelConfig(end_reward=True, linear_beyond=1.0),
            policy_optim=AdamConfig(lr=1.2e-3, max_grad_norm=0.5),
            critic_optim=AdamConfig(lr=3e-3, max_grad_norm=0.5),
        ),
        replay=RolloutConfig(length=16),
        evaluation=EvaluationConfig(every_vec_steps=8_000, episodes=10),
        log=LogConfig(every_vec_steps=200),
        checkpoint=CheckpointConfig(every_vec_steps=16_000),
        gamma=0.995,
        num_envs=8,
        total_vec_steps=32_000,
    )


def ac_lunarlander() -> Recipe:
    """With what suits it best of what we tried: rows from more environments, and a larger entropy bonus."""
    base = lunarlander()
    assert isinstance(base.agent, WMPGConfig)
    agent = replace(
        base.agent,
        estimator="reinforce",
        horizon=10,
        entropy_coef=0.01,
        critic_steps=10,
        critic_batch=0,
        policy_optim=AdamConfig(lr=1e-3, max_grad_norm=0.5),
    )
    return replace(
        base, name="ac/lunarlander", agent=agent, gamma=0.99, num_envs=16, total_vec_steps=25_000
    )


def mac_lunarlander() -> Recipe:
    """Memory, networks and rates of the authors' code."""
    agent = MACConfig(
        critic_memory=5_000,
        reward_scale=0.02,
        policy_optim=AdamConfig(lr=5e-4),
        critic_optim=AdamConfig(lr=5e-3),
    )
    return replace(
        lunarlander(),
        name="mac/lunarlander",
        agent=agent,
        replay=RolloutConfig(length=16),
        gamma=0.99,
        num_envs=16,
        total_vec_steps=60_000,
    )


def pong() -> Recipe:
    """Pong through the latent vectors of an autoencoder, on a GPU and the cores beside it."""
    net = MLPConfig(hidden=(256,))
    return replace(
        cartpole(),
        name="wmpg/pong",
        env=AtariConfig(game="Pong"),
        agent=WMPGConfig(
            k=3,
            horizon=5,
            use_real_for_executed=False,
            trust_below=0.5,
            model_steps=32,
            model_batch=256,
            model_unroll=3,
            model_memory=20_000,
            policy_net=net,
            critic_net=net,
            world_model=WorldModelConfig(
                reward_values=(-1.0, 0.0, 1.0), net=MLPConfig(hidden=(512, 512))
            ),
            latent=AutoencoderConfig(size=64),
            policy_optim=AdamConfig(lr=5e-4, max_grad_norm=0.5),
            critic_optim=AdamConfig(lr=1e-3, max_grad_norm=0.5),
            model_optim=AdamConfig(lr=5e-4),
        ),
        replay=RolloutConfig(length=32),
        evaluation=EvaluationConfig(every_vec_steps=4_000, episodes=8, max_vec_steps=27_000),
        log=LogConfig(every_vec_steps=320),
        checkpoint=CheckpointConfig(every_vec_steps=20_000),
        precision="tf32",
        num_envs=64,
        total_vec_steps=100_000,
    )


def ac_pong() -> Recipe:
    """AC on the same latent vectors."""
    base = pong()
    assert isinstance(base.agent, WMPGConfig)
    agent = replace(base.agent, estimator="reinforce", baseline="value")
    return replace(base, name="ac/pong", agent=agent)


RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    "wmpg/cartpole": ("the cartpole with a world model, few episodes", cartpole),
    "wmpg/lunarlander": ("LunarLander-v3 with a world model, on one core", lunarlander),
    "wmpg/pong": ("Pong through a learned latent vector, on a GPU", pong),
    "ac/cartpole": ("the cartpole without a world model: actor-critic", ac_cartpole),
    "ac/lunarlander": ("LunarLander-v3 without a world model: actor-critic", ac_lunarlander),
    "ac/pong": ("actor-critic on the same latent vector", ac_pong),
    "mac/cartpole": ("the cartpole with a value for each action: mean actor-critic", mac_cartpole),
    "mac/lunarlander": ("LunarLander-v3, mean actor-critic", mac_lunarlander),
}
