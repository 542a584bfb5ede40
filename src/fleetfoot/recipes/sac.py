"""SAC recipes: sac/TASK, and each of its 64 combinations as sac/TASK/CRITIC+NETWORK+PLASTICITY.

sac/CRITIC+NETWORK+PLASTICITY is a combination on the pendulum. sac/TASK is plain SAC, cdql+none+none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from fleetfoot.agents.sac import ReDoConfig, ResetsConfig, SACConfig
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.envs.envpool import EnvPoolConfig
from fleetfoot.envs.envpool.tasks import dm_control_id
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.errors import UserError, nearest
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.explore import AsSampledConfig
from fleetfoot.log import LogConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.pessimism import (
    BanditBoundConfig,
    BoundConfig,
    FixedBoundConfig,
    LearnedBoundConfig,
)
from fleetfoot.optim import AdamConfig, AdamWConfig
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Recipe
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.topologies.apex.loop import ActorLearnerConfig
from fleetfoot.topologies.synchronous import SynchronousConfig

CRITIC: dict[str, BoundConfig] = {
    "none": FixedBoundConfig(beta=0.0),
    "cdql": FixedBoundConfig(beta=1.0),
    "gpl": LearnedBoundConfig(learns_from="batch", form="bias", beta=0.5, normalize=False),
    "top": BanditBoundConfig(),
}
NETWORK = ("none", "ln", "sn", "wd")
PLASTICITY = ("none", "resets", "redo", "crelu")
PLAIN = "cdql+none+none"
COMBINATIONS = ["+".join(names) for names in product(CRITIC, NETWORK, PLASTICITY)]

DM_CONTROL = ("walker-run", "dog-stand", "dog-run", "humanoid-run", "quadruped-run", "hopper-hop")
WEIGHT_DECAY = 1e-2  # the published value is unknown; 1e-4 to 1e-2 are common


def combined(base: SACConfig, combination: str, reset_every_updates: int) -> SACConfig:
    """`base` with the three regularisers that the combination names."""
    critic, network, plasticity = combination.split("+")
    net, optim = base.critic_net, base.critic_optim
    assert isinstance(net, MLPConfig)
    if network == "ln":
        net = replace(net, layer_norm=True)
    elif network == "sn":
        net = replace(net, spectral_norm=True)
    elif network == "wd":
        optim = AdamWConfig(lr=optim.lr, weight_decay=WEIGHT_DECAY)
    plasticity_cfg: ResetsConfig | ReDoConfig | None = None
    if plasticity == "crelu":
        net = replace(net, activation=("crelu",))
    elif plasticity == "resets":
        plasticity_cfg = ResetsConfig(every_updates=reset_every_updates)
    elif plasticity == "redo":
        plasticity_cfg = ReDoConfig()
    return replace(
        base,
        bound=CRITIC[critic],
        critic_net=net,
        critic_optim=optim,
        plasticity=plasticity_cfg,
    )


@dataclass(frozen=True)
class Task:
    """A task of the grid: its line in the list of recipes, and how its recipes are made."""

    line: str
    make: Callable[[str, str], Recipe]  # from the name of the recipe and the combination


def dm_control(
    name: str,
    combination: str,
    *,
    task: str,
    ratio: int = 2,
    action_repeat: int = 1,
    hidden: tuple[int, ...] = (256, 256),
    warmup: int = 10_000,
) -> Recipe:
    """One environment, `ratio` updates per step.

    Resets come every 160,000 steps, SR-SAC's 2.56 million updates at its replay ratio of 16, so that there are some at
    low ratios too.
    """
    base = SACConfig(
        policy_net=MLPConfig(hidden=hidden, start="orthogonal"),
        critic_net=MLPConfig(hidden=hidden, start="orthogonal"),
    )
    return Recipe(
        name=name,
        env=EnvPoolConfig(task=dm_control_id(task), action_repeat=action_repeat),
        agent=combined(base, combination, 160_000 * ratio),
        explorer=AsSampledConfig(random_vec_steps=warmup),
        replay=ReplayConfig(capacity=1_000_000),
        pace=PaceConfig(updates_per_vec_step=float(ratio), warmup_vec_steps=warmup),
        topology=SynchronousConfig(),
        evaluation=EvaluationConfig(every_vec_steps=20_000 // action_repeat, episodes=10),
        log=LogConfig(every_vec_steps=1_000),
        checkpoint=CheckpointConfig(every_vec_steps=50_000),
        precision="tf32",
        num_envs=1,
        batch_size=256,
        total_vec_steps=1_000_000 // action_repeat,
    )


def pendulum(name: str, combination: str) -> Recipe:
    """The tensor pendulum with small networks, ten environments and one reset during the run."""
    optim = AdamConfig(lr=3e-3)
    base = SACConfig(
        tau=0.05,
        policy_net=MLPConfig(hidden=(64, 64), start="orthogonal"),
        critic_net=MLPConfig(hidden=(64, 64), start="orthogonal"),
        policy_optim=optim,
        critic_optim=optim,
        alpha_optim=AdamConfig(lr=1e-2),
    )
    return Recipe(
        name=name,
        env=TensorConfig(task="pendulum"),
        agent=combined(base, combination, 2_000),
        explorer=AsSampledConfig(random_vec_steps=50),
        replay=ReplayConfig(capacity=100_000),
        pace=PaceConfig(updates_per_vec_step=4.0, warmup_vec_steps=50),
        topology=SynchronousConfig(),
        evaluation=EvaluationConfig(every_vec_steps=250, episodes=16),
        log=LogConfig(every_vec_steps=50),
        checkpoint=CheckpointConfig(every_vec_steps=500),
        num_envs=10,
        batch_size=256,
        total_vec_steps=1_000,
    )


def pendulum_actors(name: str, combination: str) -> Recipe:
    """The pendulum with two actors, as in Ape-X, and uniform sampling."""
    topology = ActorLearnerConfig(actors=2, block_vec_steps=10, publish_every_vec_steps=5)
    return replace(pendulum(name, combination), topology=topology)


# The published settings of DAC, for comparisons in which only the algorithm differs.
like_dac = partial(dm_control, ratio=3, action_repeat=2, hidden=(256, 256, 256), warmup=25_000)

TASKS: dict[str, Task] = {
    "pendulum": Task(
        "pendulum swing-up written in torch; sac/TASK/cdql+ln+resets etc.: 64 combinations",
        pendulum,
    ),
    "pendulum-actors": Task("the pendulum, collected by two actors (Ape-X)", pendulum_actors),
    **{task: Task(f"dm_control {task}", partial(dm_control, task=task)) for task in DM_CONTROL},
    **{
        f"{task}-rr3": Task(f"dm_control {task}, settings of DAC", partial(like_dac, task=task))
        for task in ("quadruped-run", "hopper-hop")
    },
}


def find(name: str) -> Recipe:
    """The recipe of a name that starts with sac/."""
    _, *words = name.split("/")
    if len(words) == 1 and "+" in words[0]:
        words = ["pendulum", words[0]]
    task, combination = words[0], words[1] if len(words) == 2 else PLAIN
    if task not in TASKS or len(words) > 2:
        known = [f"sac/{name}" for name in TASKS]
        raise UserError(
            f"there is no recipe named {name!r}.{nearest(f'sac/{task}', known)} Names are sac/TASK and "
            "sac/TASK/CRITIC+NETWORK+PLASTICITY; `fleetfoot list` shows the tasks."
        )
    if combination not in COMBINATIONS:
        close = nearest(combination, COMBINATIONS)
        raise UserError(
            f"there is no combination {combination!r}.{close} It is CRITIC+NETWORK+PLASTICITY, with one of "
            f"{', '.join(CRITIC)}, one of {', '.join(NETWORK)}, and one of {', '.join(PLASTICITY)}."
        )
    return TASKS[task].make(name, combination)


RECIPES: dict[str, tuple[str, Callable[[], Recipe]]] = {
    f"sac/{name}": (task.line, partial(find, f"sac/{name}")) for name, task in TASKS.items()
}
