from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fleetfoot import api, checkpoint, recipes
from fleetfoot.agents.bro import BROConfig
from fleetfoot.agents.dac import DACConfig
from fleetfoot.agents.fast_sac import FastSACConfig
from fleetfoot.agents.ppo import PPOConfig
from fleetfoot.agents.sac import ResetsConfig, SACConfig
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.cli.main import dispatch
from fleetfoot.envs.envpool import EnvPoolConfig, EnvPoolTasksConfig
from fleetfoot.envs.humanoid_bench import HumanoidBenchConfig
from fleetfoot.envs.tensor import Pendulum, Pendulums, TensorConfig
from fleetfoot.envs.vec_env import simulated_on_cpu
from fleetfoot.errors import Notice, UserError
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.execution.compile import Compiled, compile_steps
from fleetfoot.explore import AsSampledConfig, EpsilonLadderConfig
from fleetfoot.log import LogConfig
from fleetfoot.log.sinks import read_lines
from fleetfoot.nn.bronet import BroNetConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.nn.optimist import DeltaConfig, IndependentConfig
from fleetfoot.nn.pessimism import BanditBoundConfig
from fleetfoot.optim import AdamConfig, AdamWConfig, LocalStepper
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Recipe
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.replay.rollouts import RolloutConfig
from fleetfoot.run import folder as folders
from fleetfoot.run.interrupt import Interrupt
from fleetfoot.run.journal import Journal, Subject
from fleetfoot.topologies.multi_seed.loop import train_batched
from fleetfoot.topologies.multi_seed.vmap import stack
from fleetfoot.topologies.synchronous import SynchronousConfig
from support.learners import parts


def small() -> Recipe:
    clipped = AdamWConfig(max_grad_norm=0.5)
    agent = FastSACConfig(
        v_min=-20.0,
        v_max=20.0,
        num_atoms=21,
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


def any_agent(recipe: Recipe) -> Any:
    """The agent's config, whichever class it has."""
    return recipe.agent


def tanh(**more: Any) -> MLPConfig:
    """No ReLU: one that rounding switches, of a unit that is hardly ever on, moves its weights by a whole Adam step."""
    return MLPConfig(hidden=(16,), activation=("tanh",), **more)


def with_resets(name: str) -> Recipe:
    """BRO, DAC or SAC, tiny; 15 of its 20 vec steps have two updates each, and all begins anew before the 11th."""
    recipe, bro = recipes.get(name), BroNetConfig(width=16, blocks=1)
    agent: Any = recipe.agent
    if isinstance(agent, BROConfig):
        delta = DeltaConfig(net=replace(bro, head_gain=0.01, head_bias=False))
        nets: dict[str, Any] = {"policy_net": bro, "critic_net": bro, "optimist": delta}
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


def short(name: str, **changes: Any) -> Recipe:
    """Two updates after each of the last 9 of 14 vec steps, the first 3 of which are random."""
    recipe = recipes.get(name)
    changes = {"topology": SynchronousConfig()} | changes
    return replace(
        recipe,
        explorer=replace(changes.pop("explorer", recipe.explorer), random_vec_steps=3),
        agent=replace(any_agent(recipe), **changes.pop("agent", {})),
        pace=PaceConfig(updates_per_vec_step=2, warmup_vec_steps=5),
        evaluation=EvaluationConfig(every_vec_steps=0, episodes=2, max_vec_steps=5),
        log=LogConfig(every_vec_steps=5, console=False, tensorboard=False),
        num_envs=4,
        threads=1,
        batch_size=16,
        total_vec_steps=14,
        **changes,
    )


TD3_NETS = {"policy_net": tanh(), "critic_net": tanh()}


def mirrored() -> Recipe:
    """An odd number of rows: which of them are mirrored must be counted for each seed by itself."""
    recipe = short("fast_td3/pendulum", agent=TD3_NETS)
    return replace(recipe, batch_size=15, replay=replace(recipe.off_policy_replay(), mirror=True))


@pytest.mark.parametrize(
    ("recipe", "seeds", "updates"),
    [
        pytest.param(small(), [3, 4, 7], 70, id="fast_sac"),
        pytest.param(short("fast_td3/pendulum", agent=TD3_NETS), [1, 2], 18, id="fast_td3"),
        pytest.param(
            short("fast_td3/pendulum", agent=TD3_NETS, topology=SynchronousConfig(overlap=True)),
            [1, 2],
            18,
            id="overlap",
        ),
        pytest.param(short("flash_sac/pendulum"), [1, 2], 18, id="flash_sac"),
        pytest.param(mirrored(), [1, 2], 18, id="mirrored"),
        pytest.param(short("ddpg/pendulum", agent=TD3_NETS), [1, 2], 18, id="ddpg"),
        pytest.param(short("pql_d/pendulum", agent=TD3_NETS), [1, 2], 18, id="pql_d"),
        pytest.param(short("dqn/cartpole", agent={"target_every": 6}), [1, 2], 18, id="dqn"),
        pytest.param(
            short("dqn/cartpole", agent={"num_atoms": 11}, explorer=EpsilonLadderConfig()),
            [1, 2],
            18,
            id="dqn categorical",
        ),
        pytest.param(short("dqn/catch", agent={"target_every": 6}), [1, 2], 18, id="dqn images"),
        pytest.param(with_resets("bro/pendulum"), [1, 2], 30, id="bro"),
        pytest.param(with_resets("dac/pendulum"), [1, 2], 30, id="dac"),
        pytest.param(with_resets("sac/pendulum/gpl+sn+resets"), [1, 2], 30, id="sac"),
    ],
)
def test_each_seed_learns_what_it_learns_alone(
    tmp_path: Path, recipe: Recipe, seeds: list[int], updates: int
) -> None:
    folders = [tmp_path / f"seed-{seed}" for seed in seeds]
    together = train_batched(recipe, seeds, folders, [None] * len(seeds))
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


def test_a_seed_of_several_goes_on_alone_with_its_replay(tmp_path: Path) -> None:
    recipe = replace(small(), total_vec_steps=30)
    api.train_seeds(recipe, 2, tmp_path / "two")
    folder, alone = tmp_path / "two" / f"seed-{recipe.seed + 1}", tmp_path / "alone"
    result = api.resume(folder, total_vec_steps=40)
    whole = api.train(replace(recipe, seed=recipe.seed + 1, total_vec_steps=40), alone)
    assert result.counters.updates == whole.counters.updates == 70  # it did not have to wait
    theirs = whole.policy.state_dict()
    for name, weight in result.policy.state_dict().items():
        torch.testing.assert_close(weight, theirs[name], rtol=1e-4, atol=1e-5)
    assert api.evaluate_run(folder, episodes=2).returns.shape == (2,)


def leaves(tree: Any, path: str = "") -> dict[str, Any]:
    """Everything in a state, by its place."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    found: dict[str, Any] = {}
    for key, value in items:
        inside = isinstance(value, (dict, list, tuple))
        found |= leaves(value, f"{path}/{key}") if inside else {f"{path}/{key}": value}
    return found


def states(folder: Path) -> list[dict[str, Any]]:
    """Of each seed, without the clock."""
    whole = [leaves(checkpoint.load(own).state) for own in folders.seed_folders(folder)]
    return [{k: v for k, v in state.items() if k != "/train_seconds"} for state in whole]


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    assert len(one) > 50
    for name, value in one.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, other[name]), name
        else:
            assert value == other[name] or value != value, name


def resumed() -> list[Any]:
    fast_sac, bro = small(), with_resets("bro/pendulum")
    fast_sac = replace(
        fast_sac,
        checkpoint=CheckpointConfig(every_vec_steps=10, keep=3),
        replay=ReplayConfig(capacity=80, storage="bf16"),
    )
    sac = with_resets("sac/pendulum/gpl+sn+resets")
    top = replace(
        sac,
        agent=replace(any_agent(sac), bound=BanditBoundConfig()),
        replay=ReplayConfig(capacity=40, n_step=3),
    )
    nets = {"policy_net": BroNetConfig(width=16, blocks=1), "critic_net": BroNetConfig(width=16)}
    # Learning rates that do not depend on the length of the run, which is not the same for both halves.
    constant = {"policy_optim": AdamWConfig(), "critic_optim": AdamWConfig()}
    fast_td3 = short("fast_td3/pendulum", agent=TD3_NETS | constant)
    brc = recipes.get("brc/pendulums")
    brc = replace(bro, env=brc.env, agent=replace(any_agent(brc), normalize_obs=True, **nets))
    return [
        pytest.param(fast_sac, id="fast_sac"),
        pytest.param(bro, id="bro"),
        pytest.param(with_resets("dac/pendulum"), id="dac"),
        pytest.param(top, id="sac"),
        pytest.param(brc, id="brc"),
        pytest.param(fast_td3, id="fast_td3"),
        pytest.param(short("dqn/catch", agent={"critic_optim": AdamConfig()}), id="dqn images"),
    ]


@pytest.mark.parametrize("recipe", resumed())
def test_seeds_that_go_on_as_one_end_with_the_same_bits(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    for task in (Pendulum, Pendulums):
        monkeypatch.setattr(task, "episode_length", 7)
    whole, halves, total = tmp_path / "whole", tmp_path / "halves", recipe.total_vec_steps
    api.train_seeds(recipe, 2, whole)
    api.train_seeds(replace(recipe, total_vec_steps=total // 2 + 1), 2, halves)
    results = api.resume_seeds(halves, total_vec_steps=total)
    assert [r.counters.vec_steps for r in results] == [total] * 2
    for one, other in zip(states(whole), states(halves), strict=True):
        # The first half has an evaluation more, at its end. Where the halves meet, the side table with last
        # observations is written anew, in another order.
        apart = ("_return", "final", "entry")
        assert_equal(
            *({k: v for k, v in x.items() if not any(a in k for a in apart)} for x in (one, other))
        )
    for own in folders.seed_folders(halves):
        counts = [line["vec_steps"] for line in read_lines(own / "metrics.jsonl")]
        assert counts == sorted(set(counts))
        assert counts[-1] == total
        assert len(checkpoint.steps(own)) == recipe.checkpoint.keep


@pytest.mark.parametrize("overlap", [False, True])
def test_after_ctrl_c_seeds_go_on_as_one_to_the_same_bits(
    tmp_path: Path, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With overlap, updates are still owed when the run stops."""
    topology = SynchronousConfig(overlap=overlap)
    recipe = short("fast_td3/pendulum", agent=TD3_NETS, topology=topology)
    api.train_seeds(recipe, 2, tmp_path / "whole")

    def stops(self: Interrupt, vec_steps: int) -> bool:
        self.agreed = vec_steps == 8
        return self.agreed

    with monkeypatch.context() as patched:
        patched.setattr(Interrupt, "stops", stops)
        stopped = api.train_seeds(recipe, 2, tmp_path / "halves")
    assert [(r.finished, r.counters.vec_steps) for r in stopped] == [(False, 8)] * 2
    assert all(result.finished for result in api.resume_seeds(tmp_path / "halves"))
    for one, other in zip(states(tmp_path / "whole"), states(tmp_path / "halves"), strict=True):
        apart = ("final", "entry")  # see above
        assert_equal(
            *({k: v for k, v in x.items() if not any(a in k for a in apart)} for x in (one, other))
        )


def test_without_their_replay_seeds_that_go_on_fill_a_new_one_first(tmp_path: Path) -> None:
    lean = CheckpointConfig(every_vec_steps=20, replay=False)
    api.train_seeds(replace(small(), checkpoint=lean, total_vec_steps=20), 2, tmp_path / "two")
    for result in api.resume_seeds(tmp_path / "two", total_vec_steps=30):
        assert result.counters.updates == 2 * (20 - 5) + 2 * (10 - 5)


def go_back(run: Path) -> None:
    """To the best checkpoint, which has no replay."""
    best = next((run / "checkpoints").glob("best-*"))
    CheckpointConfig().build(best.parent, back_to=best.name)


@pytest.mark.parametrize("index", [0, 1])
def test_a_seed_that_went_back_to_its_best_loses_no_other_seeds_replay(
    tmp_path: Path, index: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the same vec step they have not made as many updates, and later their replays are not equally full."""
    folder = tmp_path / "two"
    recipe = replace(small(), total_vec_steps=20)
    recipe = replace(recipe, evaluation=replace(recipe.evaluation, every_vec_steps=20))
    api.train_seeds(recipe, 2, folder)
    went_back, stayed = [folders.seed_folders(folder)[i] for i in (index, 1 - index)]
    go_back(went_back)
    with pytest.warns(Notice, match="it fills again"):
        api.resume_seeds(folder, total_vec_steps=30)
    results = api.resume_seeds(folder, total_vec_steps=40)
    assert capsys.readouterr().err.count("other: they have not made as many updates") == 2
    updates = {result.folder: result.counters.updates for result in results}
    assert updates == {went_back: 2 * (20 - 5) + 2 * (20 - 5), stayed: 2 * (40 - 5)}


@pytest.mark.parametrize("index", [0, 1])
def test_rollouts_that_are_not_equally_long_are_not_filled_together(
    tmp_path: Path, index: int
) -> None:
    base = recipes.get("ppo/pendulum")
    assert isinstance(base.agent, PPOConfig)
    recipe = replace(
        base,
        agent=replace(base.agent, epochs=2, minibatches=4, policy_optim=AdamConfig(lr=1e-3)),
        replay=RolloutConfig(length=8),
        pace=PaceConfig(updates_per_vec_step=1 / 8, warmup_vec_steps=0),
        batch_size=32,
        evaluation=EvaluationConfig(every_vec_steps=20, episodes=2, max_vec_steps=10),
        checkpoint=CheckpointConfig(every_vec_steps=20),
        log=LogConfig(console=False, tensorboard=False),
        num_envs=4,
        threads=1,
        total_vec_steps=20,
    )
    api.train_seeds(recipe, 2, tmp_path / "two")
    went_back, stayed = [folders.seed_folders(tmp_path / "two")[i] for i in (index, 1 - index)]
    go_back(went_back)
    api.resume_seeds(tmp_path / "two", total_vec_steps=30)
    api.resume_seeds(tmp_path / "two", total_vec_steps=40)
    seed = 1 - index
    api.train(replace(recipe, seed=seed, total_vec_steps=40), tmp_path / "alone")
    for name, value in checkpoint.load(tmp_path / "alone").state["agent"]["policy"].items():
        other = checkpoint.load(stayed).state["agent"]["policy"][name]
        torch.testing.assert_close(other, value, rtol=1e-4, atol=1e-5)


def test_a_seed_that_cannot_be_loaded_costs_the_others_nothing(tmp_path: Path) -> None:
    """The first one is ahead of it, by what was saved before a kill."""
    folder = tmp_path / "two"
    recipe = replace(small(), checkpoint=CheckpointConfig(every_vec_steps=10, keep=5))
    api.train_seeds(replace(recipe, total_vec_steps=20), 2, folder)
    ahead, damaged = folders.seed_folders(folder)
    CheckpointConfig(keep=5).build(damaged / "checkpoints", back_to="000000010")
    path = damaged / "checkpoints" / "000000010" / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    kept, log = checkpoint.steps(ahead), (ahead / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match="it is truncated"):
        api.resume_seeds(folder, total_vec_steps=30)
    assert checkpoint.steps(ahead) == kept
    assert all(path.is_dir() for path in kept.values())
    assert (ahead / "metrics.jsonl").read_bytes() == log


def test_a_seed_that_was_continued_alone_keeps_what_it_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Although it still has a checkpoint of the vec step where the others are."""
    folder = tmp_path / "two"
    recipe = replace(small(), checkpoint=CheckpointConfig(every_vec_steps=10, keep=5))
    api.train_seeds(replace(recipe, total_vec_steps=10), 2, folder)
    first, second = folders.seed_folders(folder)
    api.resume(first, total_vec_steps=40)
    for total in (20, 40):  # further than the others are to go, and finished
        results = api.resume_seeds(folder, total_vec_steps=total)
        assert [(r.folder, r.counters.vec_steps) for r in results] == [(second, total)]
        told = "seed-0 is at vec step 40 already, and stays as it is" in capsys.readouterr().err
        assert told == (total == 20)
    assert checkpoint.load(first).step == 40


@pytest.mark.parametrize("every", [10, 0])  # two saves further, and one
def test_seeds_of_which_one_is_further_go_on_one_after_the_other(
    every: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "two"
    recipe = replace(small(), checkpoint=CheckpointConfig(every_vec_steps=every, keep=5))
    api.train_seeds(replace(recipe, total_vec_steps=10), 2, folder)
    first, _ = folders.seed_folders(folder)
    api.resume(first, total_vec_steps=30)
    capsys.readouterr()
    assert len(api.resume_seeds(folder, total_vec_steps=40)) == 2
    assert "other: some of them are further than others" in capsys.readouterr().err
    assert {10, 30, 40} <= set(checkpoint.steps(first))


def test_a_seed_that_went_one_save_further_alone_keeps_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its recipe is that of the others, as after a kill of all of them."""
    folder = tmp_path / "two"
    recipe = replace(small(), checkpoint=CheckpointConfig(every_vec_steps=10, keep=5))
    save, last = Journal.save, 20

    class Killed(BaseException):
        pass

    def killed_save(self: Journal, subject: Subject) -> None:
        if self.vec_steps == last:
            raise Killed
        save(self, subject)

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "save", killed_save)
        with pytest.raises(Killed):
            api.train_seeds(replace(recipe, total_vec_steps=40), 2, folder)
        last, (first, _) = 30, folders.seed_folders(folder)
        with pytest.raises(Killed):
            api.resume(first)
    assert [list(checkpoint.steps(one)) for one in folders.seed_folders(folder)] == [[10, 20], [10]]
    capsys.readouterr()
    assert len(api.resume_seeds(folder)) == 2
    assert "other: some of them are further than others" in capsys.readouterr().err
    assert {10, 20, 30, 40} <= set(checkpoint.steps(first))


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("name", ["flash_sac", pytest.param("fast_sac", marks=pytest.mark.slow)])
def test_compiled_steps_of_several_seeds_are_the_same(name: str) -> None:
    """As they are on a GPU: with clipping, projections, one number per seed, and a learning rate for each."""
    random = torch.Generator().manual_seed(5)
    one, other = (stacked(name) for _ in range(2))
    compile_steps(one)
    steppers = [at for at, value in vars(one).items() if isinstance(value, LocalStepper)]
    assert len(steppers) == 3
    for lr in (None, torch.tensor([1e-3, 4e-4])):
        for at in steppers:
            mine, theirs = getattr(one, at), getattr(other, at)
            assert isinstance(mine.apply, Compiled)
            gradients = [torch.randn(p.shape, generator=random) for p in mine.parameters]
            if lr is not None:
                mine.set_lr(lr)
                theirs.set_lr(lr)
            found, wanted = (s.apply([g.clone() for g in gradients]) for s in (mine, theirs))
            assert wanted.shape == (2,)
            torch.testing.assert_close(found, wanted)
            torch.testing.assert_close(mine.parameters, theirs.parameters, atol=1e-6, rtol=1e-5)
            assert mine.steps == theirs.steps
            assert not isinstance(mine.apply.function, partial)  # nothing fell back


def stacked(name: str) -> Any:
    whole, *agents = (parts(name)[0] for _ in range(3))
    for agent in (whole, *agents):
        agent.step_critic.cfg = replace(agent.step_critic.cfg, max_grad_norm=0.5)
    with torch.no_grad():
        for parameter in agents[1].critic.parameters():
            parameter.mul_(0.9)
    stack(whole, agents)
    return whole


@pytest.mark.usefixtures("compiler")
def test_compiled_seeds_learn_the_same(tmp_path: Path) -> None:
    recipe = replace(
        with_resets("sac/pendulum"),
        agent=SACConfig(policy_net=tanh(), critic_net=tanh()),
        pace=PaceConfig(updates_per_vec_step=1, warmup_vec_steps=5),
        evaluation=EvaluationConfig(every_vec_steps=0, episodes=2, max_vec_steps=5),
        total_vec_steps=9,
    )
    eager = api.train_seeds(recipe, 2, tmp_path / "eager")
    compiled = api.train_seeds(replace(recipe, execution="compiled"), 2, tmp_path / "compiled")
    for one, other in zip(eager, compiled, strict=True):
        theirs = other.policy.state_dict()
        for name, weight in one.policy.state_dict().items():
            torch.testing.assert_close(weight, theirs[name], rtol=1e-4, atol=1e-5)


def test_killed_between_two_seeds_checkpoints_all_go_on_from_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = replace(any_agent(small()), critic_optim=AdamWConfig(max_grad_norm=0.5, lr_end=1e-6))
    every = CheckpointConfig(every_vec_steps=10)
    recipe = replace(small(), agent=agent, checkpoint=every, total_vec_steps=30)
    saved: list[int] = []

    class Killed(BaseException):
        pass

    save = Journal.save

    def killed_save(self: Journal, subject: Subject) -> None:
        if self.vec_steps == 20 and self.folder.name == "seed-2":
            raise Killed
        save(self, subject)
        saved.append(self.vec_steps)

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "save", killed_save)
        with pytest.raises(Killed):
            api.train_seeds(recipe, 3, tmp_path / "runs")
    assert saved == [10, 10, 10, 20, 20]
    assert [sorted(checkpoint.steps(own)) for own in folders.seed_folders(tmp_path / "runs")] == [
        [10, 20],
        [10, 20],
        [10],
    ]
    with monkeypatch.context() as patched:  # in the same way once more
        patched.setattr(Journal, "save", killed_save)
        with pytest.raises(Killed):
            api.resume_seeds(tmp_path / "runs")
    results = api.resume_seeds(tmp_path / "runs")
    api.train_seeds(recipe, 3, tmp_path / "undisturbed")
    for result, other in zip(results, folders.seed_folders(tmp_path / "undisturbed"), strict=True):
        theirs = api.load_policy(other, "last").policy.network.state_dict()
        for name, weight in result.policy.state_dict().items():
            assert torch.equal(weight, theirs[name])
        assert sorted(checkpoint.steps(result.folder)) == [30]
        counts = [line["vec_steps"] for line in read_lines(result.folder / "metrics.jsonl")]
        assert counts == [10, 20, 30]


def test_what_cannot_go_on_is_refused(tmp_path: Path) -> None:
    folder, recipe = tmp_path / "two", short("fast_td3/pendulum", agent=TD3_NETS)
    api.train_seeds(recipe, 2, folder)
    with pytest.raises(UserError, match="two is finished after 14 vec steps"):
        api.resume_seeds(folder)
    with pytest.raises(UserError, match="gamma cannot change"):
        api.resume_seeds(folder, gamma=0.5)
    with pytest.raises(UserError, match=r"is not a run folder.*it holds the runs of several seeds"):
        api.resume(folder)
    first, second = folders.seed_folders(folder)
    folders.write_recipe(second, replace(recipe, seed=1, gamma=0.5))
    with pytest.raises(UserError, match="seed-1 has another gamma than"):
        api.resume_seeds(folder, total_vec_steps=20)
    folders.write_recipe(second, replace(recipe, seed=1))
    with pytest.raises(UserError, match="holds no seeds"):
        api.resume_seeds(first)
    for own in (first, second):
        (own / "checkpoints" / "last.json").unlink()
    with pytest.raises(UserError, match="000000014 is complete"):
        api.resume_seeds(folder, restart=True)
    for own in (first, second):
        shutil.rmtree(own / "checkpoints")
    with pytest.raises(UserError, match="add --restart"):
        api.resume_seeds(folder)
    assert [r.finished for r in api.resume_seeds(folder, restart=True)] == [True, True]


def test_the_command_line_goes_on_with_all_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "two"
    api.train_seeds(small(), 2, folder)
    assert dispatch(["resume", str(folder), "--total-vec-steps", "60"]) == 0
    assert "mean of 2 seeds" in capsys.readouterr().out
    assert [max(checkpoint.steps(own)) for own in folders.seed_folders(folder)] == [60, 60]


@pytest.mark.parametrize("env", [EnvPoolConfig(), EnvPoolTasksConfig(), HumanoidBenchConfig()])
def test_what_is_simulated_on_the_cpu_says_so(env: Any) -> None:
    assert simulated_on_cpu(env)
    assert not simulated_on_cpu(TensorConfig())


def test_the_log_of_every_seed_says_how_long_compilation_took(tmp_path: Path) -> None:
    results = api.train_seeds(small(), 2, tmp_path / "run")
    for result in results:
        lines = (result.folder / "metrics.jsonl").read_text().splitlines()
        assert json.loads(lines[-1])["time/compile_s"] > 0
