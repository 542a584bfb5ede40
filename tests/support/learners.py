"""Small agents, and replays to update them from, for the tests of learners."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fleetfoot.agents.ddpg import DDPGConfig
from fleetfoot.agents.dqn import DQNConfig
from fleetfoot.agents.fast_sac import FastSACConfig
from fleetfoot.agents.fast_td3 import FastTD3Config
from fleetfoot.agents.flash_sac import FlashSACConfig
from fleetfoot.data import Continuous, Discrete, EnvSpec, Obs, Transition
from fleetfoot.nn.flash import FlashNetConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.torso import MLPTorsoConfig
from fleetfoot.optim import AdamConfig, AdamWConfig
from fleetfoot.replay.replay import Replay, ReplayConfig
from fleetfoot.replay.samplers import UniformConfig

CPU = torch.device("cpu")
NET = MLPConfig(hidden=(16,))
FLASH = FlashNetConfig(width=8, blocks=1)
WIDE = FlashNetConfig(width=64, blocks=1)  # with 64 rows: one operation on a GPU


def agent_configs() -> dict[str, Any]:
    moving = AdamWConfig(lr=1e-3, lr_end=1e-4)  # a schedule, so that recorded steps must advance it
    flash_moving = AdamConfig(lr=3e-3, lr_end=1e-3)
    flash: dict[str, Any] = {"num_atoms": 11}
    flash |= dict.fromkeys(("policy_optim", "critic_optim", "alpha_optim"), flash_moving)
    values: dict[str, Any] = {"v_min": -5.0, "v_max": 5.0, "num_atoms": 11}
    nets: dict[str, Any] = {"policy_net": NET, "critic_net": NET}
    return {
        "fast_td3": FastTD3Config(**values, **nets, policy_optim=moving, critic_optim=moving),
        "fast_sac": FastSACConfig(**values, **nets, policy_every=2),
        "flash_sac": FlashSACConfig(**flash, policy_net=FLASH, critic_net=FLASH),
        "flash_sac wide": FlashSACConfig(**flash, policy_net=WIDE, critic_net=WIDE),
        "ddpg": DDPGConfig(
            **values,
            **nets,
            num_critics=2,
            target_every=3,
            policy_every=2,
            policy_noise=0.1,
            policy_optim=AdamConfig(lr=1e-2),
            critic_optim=AdamConfig(lr=1e-2),
        ),
        "dqn": DQNConfig(
            **values,
            target_every=3,
            torso=MLPTorsoConfig(hidden=(16,)),
            head=NET,
            critic_optim=AdamConfig(lr=1e-2),
        ),
    }


NAMES = ("fast_td3", "fast_sac", "flash_sac", "ddpg", "dqn")


def parts(
    name: str, device: torch.device = CPU, sampler: Any = None, rows: int = 40
) -> tuple[Any, Replay]:
    """An agent, and a replay with n-step windows, both kinds of ends, and privileged observations."""
    cfg = agent_configs()[name]
    discrete = isinstance(cfg, DQNConfig)
    spec = EnvSpec(
        "made-up",
        4,
        (3,),
        Discrete(4) if discrete else Continuous(2),
        device,
        critic_shape=None if discrete else (5,),
        critic_prefix=0 if discrete else 3,
        episode_length=7,
    )
    agent = cfg.build(spec, gamma=0.9, total_updates=40, seed=0, device=device)
    made = ReplayConfig(capacity=4 * 30, n_step=3, sampler=sampler or UniformConfig())
    replay = made.build(spec, gamma=0.9, seed=1, device=device)
    for transition in noise(spec, rows):
        agent.observe(transition)
        replay.append(transition)
    return agent, replay


def noise(spec: EnvSpec, rows: int) -> list[Transition]:
    random = torch.Generator().manual_seed(2)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random).to(spec.device)

    def obs() -> Obs:
        actor = normal(spec.num_envs, *spec.obs_shape)
        critic = actor if spec.critic_shape is None else torch.cat([actor, normal(4, 2)], 1)
        return Obs(actor, critic)

    out, seen = [], obs()
    for row in range(rows):
        ended, last = torch.rand(4, generator=random), obs()
        terminated = (ended < 0.1).to(spec.device)
        truncated = ((ended > 0.9) | torch.tensor(row % 7 == 6)).to(spec.device) & ~terminated
        action = torch.zeros(4, dtype=torch.int64, device=spec.device) + row % 4
        if isinstance(spec.action, Continuous):
            action = normal(4, spec.action.size).clamp(-1, 1)
        out.append(Transition(seen, action, normal(4), terminated, truncated, last, {}))
        over = (terminated | truncated).unsqueeze(1)
        start = obs()
        seen = Obs(
            torch.where(over, start.actor, last.actor), torch.where(over, start.critic, last.critic)
        )
    return out
