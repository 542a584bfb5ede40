from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fleetfoot import api, recipes
from fleetfoot.agents.bro import BROConfig
from fleetfoot.agents.dac import DACConfig
from fleetfoot.agents.fast_sac import FastSACConfig
from fleetfoot.agents.sac import ReDoConfig, ResetsConfig, SACConfig
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.envs.envpool import EnvPoolConfig, EnvPoolTasksConfig
from fleetfoot.envs.humanoid_bench import HumanoidBenchConfig
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.explore import AsSampledConfig, NoiseLadderConfig
from fleetfoot.log import LogConfig
from fleetfoot.log.sinks import read_lines
from fleetfoot.nn.bronet import BroNetConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.optimist import DeltaConfig, IndependentConfig
from fleetfoot.optim import AdamWConfig
from fleetfoot.pace import PaceConfig
from fleetfoot.part import UserError
from fleetfoot.recipe import Recipe
from fleetfoot.replay.samplers import ProportionalConfig
from fleetfoot.topologies.seeds import SeedRun, train_seeds
from fleetfoot.topologies.synchronous import SynchronousConfig


def small() -> Recipe:
    clipped = AdamWConfig(max_grad_norm=0.5)
    agent = FastSACConfig(
        v_min=-20.0,
        v_max=20.0,
        atoms=21,
        policy_every=2,
        normalize_obs=True,
        policy_net=MLPConfig(hidden=(16,)),
        critic_net=MLPConfig(hidden=(32,)),
        critic_optim=clipped,
    )
    return replace(
        recipes.get("fast_sac/pendulum"),
        agent=agent,
        pace=PaceConfig(updates_per_vec_step=2, warmup_vec_steps=5),
        evaluation=EvaluationConfig(every_vec_steps=20, episodes=4, max_vec_steps=30),
        checkpoint=CheckpointConfig(every_vec_steps=20),
        log=LogConfig(every_vec_steps=10, console=False, tensorboard=False),
        num_envs=4,
        threads=1,
        batch_size=16,
        total_vec_steps=40,
    )


def tanh(**more: Any) -> MLPConfig:
    """No ReLU: one that rounding switches, of a unit that is hardly ever on, moves its weights by a whole Adam step."""
    return MLPConfig(hidden=(16,), activation=("tanh",), **more)


def with_resets(name: str) -> Recipe:
    """BRO, DAC or SAC, tiny; 15 of its 20 vec steps have two updates each, and all begins anew before the 11th."""
    recipe, bro = recipes.get(name), BroNetConfig(width=16, blocks=1)
    agent: Any = recipe.agent
    if isinstance(agent, BROConfig):
        delta = DeltaConfig(net=replace(bro, head_gain=0.01, head_bias=False))
        nets = {"policy_net": bro, "critic_net": bro, "optimist": delta}
        agent = replace(agent, resets=(41,), normalize_obs=True, **nets)
    elif isinstance(agent, DACConfig):
        nets = {"policy_net": tanh(), "optimist": IndependentConfig(net=tanh())}
        nets |= {"critic_net": tanh(layer_norm=True)}
        agent = replace(agent, renew_every=25, resets=(41,), **nets)  # renewed three times
    else:
        resets = ResetsConfig(every_updates=10)
        nets = {"policy_net": tanh(), "critic_net": tanh(spectral_norm=True)}
        agent = replace(agent, plasticity=resets, **nets)
    diagnose = isinstance(agent, SACConfig)
    evaluation = EvaluationConfig(every_vec_steps=0, episodes=2, max_vec_steps=5, diagnose=diagnose)
    return replace(
        recipe,
        agent=agent,
        explorer=AsSampledConfig(random_vec_steps=5),
        pace=PaceConfig(updates_per_vec_step=2, warmup_vec_steps=5),
        evaluation=evaluation,
        log=LogConfig(every_vec_steps=10, console=False, tensorboard=False),
        num_envs=4,
        threads=1,
        batch_size=16,
        total_vec_steps=20,
    )


@pytest.mark.parametrize(
    ("recipe", "seeds", "updates"),
    [
        pytest.param(small(), [3, 4, 7], 70, id="fast_sac"),
        pytest.param(with_resets("bro/pendulum"), [1, 2], 30, id="bro"),
        pytest.param(with_resets("dac/pendulum"), [1, 2], 30, id="dac"),
        pytest.param(with_resets("sac/pendulum/gpl+sn+resets"), [1, 2], 30, id="sac"),
    ],
)
def test_each_seed_learns_what_it_learns_alone(
    tmp_path: Path, recipe: Recipe, seeds: list[int], updates: int
) -> None:
    together = train_seeds(recipe, seeds, [tmp_path / f"seed-{seed}" for seed in seeds])
    for seed, result in zip(seeds, together, strict=True):
        own = replace(recipe, seed=seed)
        alone = own.topology.run(own, tmp_path / f"alone-{seed}", None)
        assert result.counters.updates == alone.counters.updates == updates
        theirs = alone.policy.state_dict()
        for name, weight in result.policy.state_dict().items():
            torch.testing.assert_close(weight, theirs[name], rtol=1e-4, atol=1e-5)
        lines = [read_lines(r.folder / "metrics.jsonl") for r in (result, alone)]
        assert [line["vec_steps"] for line in lines[0]] == [line["vec_steps"] for line in lines[1]]
        for one, other in zip(*lines, strict=True):
            assert {k for k in one if not k.startswith("time/")} == {
                k for k in other if not k.startswith("time/")
            }
            for name in one:
                if not name.startswith("time/") and "seconds" not in name:
                    assert one[name] == pytest.approx(other[name], rel=2e-3, abs=1e-4), name
    first, second = (result.policy.state_dict() for result in together[:2])
    assert any(not torch.equal(first[name], second[name]) for name in first)


def test_a_seed_of_several_goes_on_alone(tmp_path: Path) -> None:
    api.train_seeds(small(), 2, tmp_path / "two")
    folder = tmp_path / "two" / "seed-1"
    before = api.load_policy(folder, "last").policy.state_dict()
    result = api.resume(folder, total_vec_steps=60)
    assert result.counters.vec_steps == 60
    after = result.policy.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert api.evaluate_run(folder, episodes=2).returns.shape == (2,)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"replay": replace(small().replay, sampler=ProportionalConfig())}, "uniform sampling"),
        ({"topology": SynchronousConfig(overlap=True)}, "without overlap"),
        ({"explorer": NoiseLadderConfig()}, "samples by itself"),
        ({"agent": SACConfig(plasticity=ReDoConfig())}, "units of one network"),
    ],
)
def test_what_cannot_learn_as_one_is_refused(tmp_path: Path, change: Any, why: str) -> None:
    (tmp_path / "mine").mkdir()  # would stay, with all that was written into it
    with pytest.raises(UserError, match=why):
        api.train_seeds(replace(small(), **change), 2, tmp_path / "mine")
    assert list((tmp_path / "mine").iterdir()) == []


def test_an_agent_with_noise_of_its_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be trained as one"):
        api.train_seeds(recipes.get("fast_td3/pendulum"), 2, tmp_path / "no")
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("env", [EnvPoolConfig(), EnvPoolTasksConfig(), HumanoidBenchConfig()])
def test_what_is_simulated_on_the_cpu_travels_to_a_gpu_once_for_all_seeds(env: Any) -> None:
    recipe = replace(small(), env=env)
    assert SeedRun.env_device(recipe, torch.device("cuda")) == torch.device("cpu")
