"""Seeds that cannot be batched: one after the other, in the same folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fleetfoot import api, checkpoint, recipes
from fleetfoot.agents.fast_td3 import FastTD3, FastTD3Config
from fleetfoot.agents.sac import ReDoConfig, SACConfig
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.cli.main import INTERRUPTED, dispatch
from fleetfoot.config import part
from fleetfoot.data import EnvSpec
from fleetfoot.errors import UserError
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.explore import NoiseLadder, NoiseLadderConfig
from fleetfoot.log import LogConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Recipe, Result
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.replay.samplers import ProportionalConfig
from fleetfoot.run.folder import seed_folders, write_recipe
from fleetfoot.run.interrupt import Interrupt
from fleetfoot.run.journal import Journal, Subject
from fleetfoot.topologies.multi_seed import seeds as multi_seed
from fleetfoot.topologies.pql.loop import SplitLearnersConfig

NETS: dict[str, Any] = {
    "policy_net": MLPConfig(hidden=(16,)),
    "critic_net": MLPConfig(hidden=(16,)),
}


@part
class OwnConfig:
    """An agent as a user might write it: it draws by itself, and keeps nothing of it to itself."""

    inner: FastTD3Config = FastTD3Config(**NETS)

    def build(
        self, spec: EnvSpec, *, gamma: float, total_updates: int, seed: int, device: torch.device
    ) -> FastTD3:
        agent = self.inner.build(
            spec, gamma=gamma, total_updates=total_updates, seed=seed, device=device
        )
        agent.generator = torch.Generator(device).manual_seed(seed)  # type: ignore[attr-defined]
        return agent


class OwnExplorer:
    """An explorer that only acts."""

    takes_noise = False

    def __init__(self, ladder: NoiseLadder):
        self.ladder = ladder

    def act(self, behaviour: nn.Module, obs: Any) -> torch.Tensor:
        return self.ladder.act(behaviour, obs)

    def restart(self, ended: torch.Tensor) -> None:
        self.ladder.restart(ended)

    def skip(self, vec_steps: int) -> None:
        self.ladder.skip(vec_steps)

    def state_dict(self) -> dict[str, Any]:
        return self.ladder.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ladder.load_state_dict(state)


@part
class OwnExplorerConfig:
    def build(self, spec: EnvSpec, *, seed: int, device: torch.device) -> OwnExplorer:
        return OwnExplorer(NoiseLadderConfig().build(spec, seed=seed, device=device))


def tiny(name: str = "fast_td3/pendulum", **changes: Any) -> Recipe:
    """Seven vec steps with two updates each."""
    recipe = recipes.get(name)
    if "agent" not in changes:
        agent: Any = recipe.agent
        changes["agent"] = replace(agent, **NETS)
    recipe = replace(
        recipe,
        pace=PaceConfig(updates_per_vec_step=2, warmup_vec_steps=5),
        evaluation=EvaluationConfig(every_vec_steps=0, episodes=2, max_vec_steps=5),
        checkpoint=CheckpointConfig(every_vec_steps=4),
        log=LogConfig(every_vec_steps=4, console=False, tensorboard=False),
        num_envs=4,
        threads=1,
        batch_size=16,
        total_vec_steps=12,
    )
    return replace(recipe, **changes)


def prioritised() -> Recipe:
    return tiny(replay=ReplayConfig(sampler=ProportionalConfig()))


def policies(results: list[Result]) -> list[dict[str, torch.Tensor]]:
    return [dict(result.policy.state_dict()) for result in results]


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    for name, weight in one.items():
        assert torch.equal(weight, other[name]), name


@pytest.mark.parametrize(
    ("recipe", "why"),
    [
        pytest.param(
            prioritised(), "ProportionalConfig does not sample uniformly", id="prioritised"
        ),
        pytest.param(
            tiny(topology=SplitLearnersConfig(lockstep=True)),
            "SplitLearnersConfig has no method train(journal, parts)",
            id="topology",
        ),
        pytest.param(
            tiny("sac/pendulum", agent=SACConfig(plasticity=ReDoConfig())),
            "units of one network",
            id="cannot_stack_reason",
        ),
        pytest.param(
            tiny(agent=OwnConfig()), "FastTD3 cannot be stacked: its generator", id="own agent"
        ),
        pytest.param(
            tiny(explorer=OwnExplorerConfig()),
            "OwnExplorer does not act in two halves",
            id="own explorer",
        ),
    ],
)
def test_what_cannot_be_batched_trains_in_turn_as_alone(
    tmp_path: Path, recipe: Recipe, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    results = api.train_seeds(recipe, 2, tmp_path / "two")
    spoken = capsys.readouterr().err
    assert why in spoken
    assert spoken.count("are trained one after the other") == 1
    assert [result.folder.name for result in results] == ["seed-0", "seed-1"]
    for seed, own in enumerate(policies(results)):
        alone = api.train(replace(recipe, seed=seed), tmp_path / f"alone-{seed}")
        assert_same(own, dict(alone.policy.state_dict()))


def interrupt_at(run: int, vec_steps: int) -> Any:
    """What `Interrupt.stops` answers if Ctrl-C comes in the run of this number, after so many vec steps."""
    runs: list[Interrupt] = []

    def stops(self: Interrupt, now: int) -> bool:
        if self not in runs:
            runs.append(self)
        self.agreed = len(runs) == run and now >= vec_steps
        return self.agreed

    return stops


def test_ctrl_c_saves_and_the_unfinished_seeds_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, folder = prioritised(), tmp_path / "three"
    whole = policies(api.train_seeds(recipe, 3, tmp_path / "whole"))
    with monkeypatch.context() as patched:
        patched.setattr(Interrupt, "stops", interrupt_at(run=2, vec_steps=7))
        results = api.train_seeds(recipe, 3, folder)
    assert [(r.folder.name, r.finished) for r in results] == [("seed-0", True), ("seed-1", False)]
    first, second, third = seed_folders(folder)
    assert [max(checkpoint.steps(own)) for own in (first, second)] == [12, 7]
    assert not (third / "checkpoints").exists()
    untouched = (first / "checkpoints" / "last.json").stat().st_mtime_ns
    with monkeypatch.context() as patched:
        patched.setattr(Interrupt, "stops", interrupt_at(run=2, vec_steps=4))
        assert dispatch(["resume", str(folder)]) == INTERRUPTED
    assert f"resume {folder}" in capsys.readouterr().out
    results = api.resume_seeds(folder)
    assert [result.folder for result in results] == [third]
    assert (first / "checkpoints" / "last.json").stat().st_mtime_ns == untouched
    for own, other in zip(seed_folders(folder), whole, strict=True):
        assert_same(dict(api.load_policy(own, "last").policy.network.state_dict()), other)
    with pytest.raises(UserError, match="three is finished after 12 vec steps"):
        api.resume_seeds(folder)


def test_killed_in_its_first_seed_a_run_goes_on_with_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Killed(BaseException):
        pass

    def kill(self: Journal, subject: Subject) -> None:
        save(self, subject)
        raise Killed

    recipe, folder, save = prioritised(), tmp_path / "two", Journal.save
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "save", kill)
        with pytest.raises(Killed):
            api.train_seeds(recipe, 2, folder)
    assert dispatch(["resume", str(folder)]) == 0
    assert "mean of 2 seeds" in capsys.readouterr().out
    for seed, own in enumerate(seed_folders(folder)):
        alone = api.train(replace(recipe, seed=seed), tmp_path / f"alone-{seed}")
        theirs = dict(alone.policy.state_dict())
        assert_same(dict(api.load_policy(own, "last").policy.network.state_dict()), theirs)


def test_killed_before_all_seeds_have_a_recipe_a_run_leaves_nothing_that_looks_like_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(folder: Path, recipe: Recipe) -> None:
        if recipe.seed == 1:
            raise Killed
        write_recipe(folder, recipe)

    place = tmp_path / "two"
    with monkeypatch.context() as patched:
        patched.setattr(multi_seed, "write_recipe", kill)
        with pytest.raises(Killed):
            api.train_seeds(tiny(), 2, place)
    assert not place.exists()
    results = api.train_seeds(tiny(), 2, place)  # what was left is no obstacle
    assert [result.folder for result in results] == seed_folders(place)
    assert list(tmp_path.iterdir()) == [place]


def test_seeds_that_are_apart_go_on_in_turn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They could be batched, but one went on alone."""
    recipe, folder = tiny(), tmp_path / "two"
    api.train_seeds(recipe, 2, folder)
    _, second = seed_folders(folder)
    api.resume(second, total_vec_steps=14)
    results = api.resume_seeds(folder, total_vec_steps=16)
    assert "no checkpoints of the same vec step" in capsys.readouterr().err
    assert [result.counters.vec_steps for result in results] == [16, 16]


def test_a_seed_that_is_further_than_all_are_to_go_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "two"
    api.train_seeds(tiny(total_vec_steps=4), 2, folder)
    first, second = seed_folders(folder)
    with pytest.raises(UserError, match=r"two is at vec step 4 already; .* 2 is behind it"):
        api.resume_seeds(folder, total_vec_steps=2)
    api.resume(first, total_vec_steps=10)
    recipe, log = (first / "recipe.json").read_text(), (first / "metrics.jsonl").read_text()
    results = api.resume_seeds(folder, total_vec_steps=8)
    assert [(r.folder, r.counters.vec_steps) for r in results] == [(second, 8)]
    assert (first / "recipe.json").read_text() == recipe
    assert (first / "metrics.jsonl").read_text() == log


def test_what_is_wrong_leaves_no_folder_and_no_torchrun_is_needed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for place, stays in ((tmp_path / "new", False), (tmp_path / "mine", True)):
        with pytest.raises(UserError, match="samples its own actions"):
            api.train_seeds(tiny("sac/pendulum", explorer=NoiseLadderConfig()), 2, place)
        assert place.exists() == stays
    assert list((tmp_path / "mine").iterdir()) == []


@pytest.mark.parametrize("recipe", [tiny(), prioritised()], ids=["batched", "in turn"])
def test_what_seeds_logged_before_their_first_checkpoint_stays(
    recipe: Recipe, tmp_path: Path
) -> None:
    agent: Any = recipe.agent
    wild = replace(agent.critic_optim, lr=1e30, lr_end=1e30)
    recipe = replace(recipe, agent=replace(agent, critic_optim=wild), checkpoint=CheckpointConfig())
    with pytest.raises(UserError, match="NaN or infinite"):
        api.train_seeds(recipe, 2, tmp_path / "seeds")
    assert (tmp_path / "seeds" / "seed-0" / "metrics.jsonl").stat().st_size > 0


def test_a_finished_seed_keeps_its_log_when_the_others_go_on(tmp_path: Path) -> None:
    """All seeds have a checkpoint of the same vec step, so they seem able to go on as one, and their agent is not."""
    recipe = tiny(agent=OwnConfig(), total_vec_steps=2)
    recipe = replace(
        recipe,
        checkpoint=CheckpointConfig(every_vec_steps=2, keep=3),
        log=replace(recipe.log, every_vec_steps=1),
    )
    api.train_seeds(recipe, 2, tmp_path / "run")
    first, second = seed_folders(tmp_path / "run")
    api.resume(first, total_vec_steps=6)
    before = (first / "metrics.jsonl").read_text()
    api.resume_seeds(tmp_path / "run", total_vec_steps=6)
    assert checkpoint.load(second).step == 6
    assert (first / "metrics.jsonl").read_text() == before
