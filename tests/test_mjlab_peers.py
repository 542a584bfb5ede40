"""The comparison with rsl_rl on mjlab's velocity tasks; what needs the two is skipped where they are not installed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.studies import mjlab_peers
from benchmarks.studies.mjlab_peers import (
    Judge,
    JudgedEnv,
    RslRlPolicy,
    Scaled,
    Snapshots,
    TimeIsUp,
    check_trained_on,
    rsl_rl_policy,
    train_rsl_rl,
)
from fleetfoot import checkpoint, recipes, train
from fleetfoot.data import Obs
from fleetfoot.envs.lab.isaac_lab import OwnRandom
from fleetfoot.envs.lab.mjlab import MjlabConfig
from fleetfoot.errors import UserError
from fleetfoot.evaluate import first_episodes
from fleetfoot.run.clock import Clock
from fleetfoot.run.folder import write_recipe
from support.trust_recipes import tiny

CPU = torch.device("cpu")
GO1 = "Mjlab-Velocity-Flat-Unitree-Go1"
SHORT = MjlabConfig(task=GO1, changes={"episode_length_s": 0.4})  # 20 steps


class Wild(nn.Module):
    """Actions that leave [-1, 1]."""

    def forward(self, obs: Obs) -> Tensor:
        return 3.0 * obs.actor[:, :12]


def test_policies_are_kept_after_the_first_iteration_past_each_mark(tmp_path: Path) -> None:
    runner = SimpleNamespace(
        cfg={"num_steps_per_env": 24},
        env=SimpleNamespace(num_envs=10),
        alg=SimpleNamespace(get_policy=lambda: nn.Linear(1, 1)),
    )
    now = iter([0.0, 4.0, 11.0, 11.0, 12.0, 35.0, 35.0, 35.0]).__next__
    snapshots = Snapshots(runner, [10.0, 20.0, 30.0], tmp_path)
    snapshots.clock = Clock(now)
    snapshots.after_iteration()
    assert not list(tmp_path.iterdir())
    snapshots.after_iteration()
    with pytest.raises(TimeIsUp):
        snapshots.after_iteration()
    about = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*.json"))]
    assert about == [
        {"mark": 10.0, "train_seconds": 11.0, "env_steps": 480},
        {"mark": 30.0, "train_seconds": 34.0, "env_steps": 720},
    ]
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


def test_of_each_mark_the_newest_checkpoint_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {Path("a"): 5.0, Path("b"): 9.0, Path("c"): 31.0, Path("d"): 45.0}
    monkeypatch.setattr(checkpoint, "steps", lambda run: dict(enumerate(seconds)))
    monkeypatch.setattr(mjlab_peers, "seconds_of", seconds.__getitem__)
    chosen = mjlab_peers.at_marks(Path(), [2.0, 10.0, 20.0, 40.0])
    assert chosen == [(10.0, Path("b")), (40.0, Path("c"))]


def test_a_checkpoint_tells_its_seconds_of_training(tmp_path: Path) -> None:
    train(tiny(), tmp_path / "run")
    (folder,) = checkpoint.steps(tmp_path / "run").values()
    assert mjlab_peers.seconds_of(folder) > 0.0


def test_runs_of_other_tasks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run folder"):
        check_trained_on(tmp_path, GO1)
    write_recipe(tmp_path, recipes.get("flash_sac/mjlab-g1-velocity-flat"))
    with pytest.raises(UserError, match="was not trained on"):
        check_trained_on(tmp_path, GO1)
    check_trained_on(tmp_path, "Mjlab-Velocity-Flat-Unitree-G1")


def test_actions_of_rsl_rl_are_clipped_only_where_mjlab_clips() -> None:
    obs = torch.full((1, 2), 3.0)

    class First(nn.Module):
        def forward(self, groups: dict[str, Tensor]) -> Tensor:
            return groups["actor"]

    assert RslRlPolicy(First(), None)(Obs(obs, obs)).tolist() == [[3.0, 3.0]]
    assert RslRlPolicy(First(), 2.0)(Obs(obs, obs)).tolist() == [[2.0, 2.0]]


@pytest.fixture(scope="module")
def judge() -> Any:
    pytest.importorskip("mjlab")
    judge = Judge(SHORT, episodes=3, device=CPU)
    yield judge
    judge.env.close()


@pytest.mark.slow
def test_our_policies_are_judged_as_by_their_own_environments(judge: Judge) -> None:
    config = MjlabConfig(task=GO1, changes=SHORT.changes, action_scale=0.5)
    env = config.for_evaluation().build(3, judge.seed, CPU)
    env.stream = OwnRandom(judge.seed, CPU)
    expected = first_episodes(Wild(), env, env.reset(), 100)
    env.close()
    found = judge(Scaled(Wild(), 0.5))
    assert found["return"] == expected.mean_return
    assert found == judge(Scaled(Wild(), 0.5))
    assert found != judge(Wild())


@pytest.mark.slow
def test_actions_reach_mjlab_as_they_are_and_errors_are_those_of_mjlab(judge: Judge) -> None:
    env: JudgedEnv = judge.env
    env.reset()
    term = env.velocity
    before = term.metrics["error_vel_xy"].clone(), term.metrics["error_vel_yaw"].clone()
    for _ in range(4):
        step = env.step(torch.full((3, 12), 1.5))
        assert not (step.terminated | step.truncated).any()
    assert torch.equal(env.envs.action_manager.action, torch.full((3, 12), 1.5))
    # mjlab divides by the number of steps between two commands, which is no matter here.
    most = term.cfg.resampling_time_range[1] / env.envs.step_dt
    for name, start in zip(("error_vel_xy", "error_vel_yaw"), before, strict=True):
        mean = (term.metrics[name] - start).mean() * most / 4
        assert env.tracking()[name] == pytest.approx(float(mean), rel=1e-4)


@pytest.mark.slow
def test_rsl_rl_trains_and_is_judged(judge: Judge, tmp_path: Path) -> None:
    train_rsl_rl(SHORT, 2, [1e-6], 0, CPU, tmp_path)
    (snapshot,) = tmp_path.glob("*.safetensors")
    about = json.loads(snapshot.with_suffix(".json").read_text())
    assert about["env_steps"] == 48
    assert json.loads((tmp_path / "about.json").read_text())["settings"]["num_steps_per_env"] == 24
    first, again = (judge(rsl_rl_policy(judge.env, GO1, snapshot)) for _ in range(2))
    # Some terms of mjlab's rewards remember the episode before; the motion is the same to the last bit.
    assert first.pop("return") == pytest.approx(again.pop("return"), rel=0.01)
    assert first.pop("return_std") == pytest.approx(again.pop("return_std"), rel=0.01)
    assert first == again
