"""What each of two processes does for `test_ranks.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fleetfoot import checkpoint
from fleetfoot.agents.ddpg import DDPGConfig
from fleetfoot.agents.dqn import DQNConfig
from fleetfoot.agents.fast_sac import FastSACConfig
from fleetfoot.agents.fast_td3 import FastTD3Config
from fleetfoot.api import resume, train
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.data import Batch, Continuous, Discrete, EnvSpec, Obs, Transition
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.errors import UserError
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.torso import MLPTorsoConfig
from fleetfoot.optim import AdamWConfig
from fleetfoot.recipe import Recipe
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.rng import RandomStream
from fleetfoot.run.ranks import Ranks, ReportedElsewhere, error_line, process_group
from fleetfoot.run.sharded import check_same_weights, global_spec, synchronize_agent
from fleetfoot.topologies import synchronous as synchronous_module
from support.runs import SpoiledConfig, interrupted_at, small

CPU = torch.device("cpu")
NET = MLPConfig(hidden=(16,))
# A large eps: otherwise Adam turns the rounding of a gradient of nearly zero into a whole step. Clipping: the norm must
# be that of the mean gradient.
OPTIM = AdamWConfig(lr=1e-2, lr_end=1e-3, eps=1e-2, max_grad_norm=0.5)
ALL: dict[str, Any] = {"policy_net": NET, "critic_net": NET}
ALL |= {"policy_optim": OPTIM, "critic_optim": OPTIM}
VALUES: dict[str, Any] = {"v_min": -5.0, "v_max": 5.0, "num_atoms": 11}
CONFIGS: dict[str, Any] = {
    "fast_td3": FastTD3Config(**ALL, **VALUES, normalize_reward=True, policy_noise=0.0),
    "fast_sac": FastSACConfig(**ALL, **VALUES, normalize_reward=True, alpha_optim=OPTIM),
    "ddpg": DDPGConfig(**ALL, num_critics=2, target_every=2, normalize_obs=True),
    "dqn": DQNConfig(
        torso=MLPTorsoConfig(hidden=(16,)), head=NET, normalize_obs=True, critic_optim=OPTIM
    ),
}
ENVS, ROWS, STEPS, UPDATES = 8, 16, 7, 6
TASKS = ("walk", "run")
TOTAL = 110  # vec steps of a whole run


def spec_of(name: str, num_envs: int) -> EnvSpec:
    return EnvSpec(
        name="made-up",
        num_envs=num_envs,
        obs_shape=(3,),
        critic_shape=None if name == "dqn" else (5,),
        action=Discrete(4) if name == "dqn" else Continuous(2),
        device=CPU,
        tasks=TASKS,
        task_ids=tuple(i % 2 for i in range(num_envs)),
    )


def trained(name: str, ranks: Ranks) -> dict[str, Any]:
    """The state of an agent after fixed transitions and batches, of which each rank gets its rows."""
    spec = spec_of(name, ENVS // ranks.world)
    agent: Any = CONFIGS[name].build(
        global_spec(spec, ranks), gamma=0.9, total_updates=50, seed=0, device=CPU
    )
    synchronize_agent(agent, ranks, seed=100 + ranks.rank)
    random = torch.Generator().manual_seed(1)

    def share(rows: Tensor) -> Tensor:
        return rows.chunk(ranks.world)[ranks.rank]

    def draw(*shape: int) -> Tensor:
        return share(torch.randn(*shape, generator=random))

    def obs(rows: int) -> Obs:
        task = share(torch.arange(rows) % len(TASKS))
        actor = draw(rows, 3) * 3 + 1
        return Obs(actor, actor if name == "dqn" else draw(rows, 5), task)

    def action(rows: int) -> Tensor:
        if name == "dqn":
            return share(torch.randint(4, (rows,), generator=random))
        return draw(rows, 2).tanh()

    # FastSAC's noise: each rank takes its rows of one common draw. (In a run each rank draws its own.)
    streams: list[Any] = [v for v in vars(agent).values() if isinstance(v, RandomStream)]
    for stream in streams:
        stream.normal = lambda rows, actions: draw(ROWS, actions)
    for _ in range(STEPS):
        terminated, truncated = draw(ENVS) > 1, draw(ENVS) > 2
        agent.observe(
            Transition(obs(ENVS), action(ENVS), draw(ENVS), terminated, truncated, obs(ENVS), {})
        )
    for _ in range(UPDATES):
        rest = (action(ROWS), draw(ROWS), draw(ROWS).sigmoid())
        batch = Batch(obs(ROWS), *rest, obs(ROWS), draw(ROWS).sigmoid(), torch.arange(ROWS))
        agent.update(batch)
    check_same_weights(agent, ranks)
    state: dict[str, Any] = agent.state_dict()
    return state


def recipe(name: str = "fast_td3/pendulum") -> Recipe:
    base = small(
        name,
        env=TensorConfig(task="point_mass", privileged=True, num_tasks=2),
        replay=ReplayConfig(capacity=8 * 50, n_step=3),
        evaluation=EvaluationConfig(every_vec_steps=50, episodes=2, max_vec_steps=30),
        checkpoint=CheckpointConfig(every_vec_steps=35),
        total_vec_steps=TOTAL,
    )
    agent: Any = base.agent
    return replace(base, agent=replace(agent, v_max=10.0, normalize_reward=True))


def check_communication(ranks: Ranks) -> None:
    """Each way of communication, against its expected result."""
    mean = ranks.mean([torch.full((2, 3), float(ranks.rank)), torch.tensor(ranks.rank * 4.0)])
    assert [m.tolist() for m in mean] == [[[0.5] * 3] * 2, 2.0]
    rows = [torch.arange(4).view(2, 2) + 10 * ranks.rank, torch.tensor([True, False])]
    numbers, flags = ranks.gather(rows)
    assert numbers.tolist() == [[0, 1], [2, 3], [10, 11], [12, 13]]
    assert flags.tolist() == [True, False] * 2
    assert ranks.gather_json("a" * (1 + 99 * ranks.rank)) == ["a", "a" * 100]
    assert ranks.any(ranks.rank == 1)
    assert not ranks.any(False)
    assert ranks.broadcast_from_first(lambda: {"rank": ranks.rank}) == {"rank": 0}
    with fails(ranks, "no room"), ranks.raise_together():
        if ranks.rank == 1:
            raise UserError("no room")
    tree: dict[str, Any] = {
        "t": torch.arange(5, dtype=torch.int16),
        "nested": [{"x": torch.ones(2, 0)}, 0.5, None],
    }
    received: list[Any] = []
    ranks.write_on_first(tree, received.extend)
    if ranks.first:
        [other] = received
        assert torch.equal(other["t"], tree["t"])
        assert other["nested"][0]["x"].shape == (2, 0)
        assert other["nested"][1:] == [0.5, None]

    def refuse(parts: Any) -> None:
        raise UserError("the disk is full")

    with fails(ranks, "the disk is full"):
        ranks.write_on_first(tree, refuse)


@contextmanager
def fails(ranks: Ranks, line: str) -> Iterator[None]:
    """All ranks fail for the same reason, and the first one reports it."""
    with pytest.raises(UserError, match=line) as caught:
        yield
    assert isinstance(caught.value, ReportedElsewhere) != ranks.first


def main(folder: Path) -> None:
    module: Any = synchronous_module
    with process_group() as ranks:
        check_communication(ranks)
        states = {name: trained(name, ranks) for name in CONFIGS}
        torch.save(states, folder / f"agents-{ranks.rank}.pt")

    for name in ("fast_td3/pendulum", "fast_sac/pendulum"):
        tag = name.partition("/")[0]
        whole = train(recipe(name), folder / f"{tag}-whole")
        torch.save(whole.policy.state_dict(), folder / f"{tag}-policy-{ranks.rank}.pt")
        if ranks.rank == 1:  # one rank alone is asked to stop
            true = module.rollout
            module.rollout = interrupted_at(61)
        assert not train(recipe(name), folder / f"{tag}-parts").finished
        if ranks.rank == 1:
            module.rollout = true
        # Where ranks next exchange interrupts.
        assert checkpoint.load(folder / f"{tag}-parts").step == 64
        assert resume(folder / f"{tag}-parts").finished
    with fails(ranks, "num_envs is 9, which 2 processes cannot share evenly"):
        train(replace(recipe(), num_envs=9), folder / "odd")
    # Each rank names its own environment, before anything is exchanged.
    with pytest.raises(UserError, match="reward that is NaN or infinite"):
        train(small(env=SpoiledConfig(at=30, what="reward")), folder / "spoiled")
    # One rank has something to say, and the other waits for it: one line.
    at = 30 if ranks.rank == 1 else 0
    with pytest.raises(UserError) as caught:
        train(small(env=SpoiledConfig(at=at, what="reward")), folder / "spoiled-on-one")
    (folder / f"said-{ranks.rank}.txt").write_text(error_line(caught.value) or "")
