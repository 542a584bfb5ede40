"""The adapter for Isaac Lab's API, on a small simulator that keeps to it as Isaac Lab's sources do."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from fleetfoot.config import from_json, to_json
from fleetfoot.data import Continuous, Transition
from fleetfoot.envs.check import check_env
from fleetfoot.envs.lab.isaac_lab import IsaacLabConfig, IsaacLabEnv, OwnRandom, Simulation
from fleetfoot.errors import UserError
from fleetfoot.replay.replay import ReplayConfig

CPU = torch.device("cpu")
LENGTH = 7


class Drift:
    """A point that is pushed about. Like ManagerBasedRLEnv it restarts inside `step`, shows the restarted state, draws
    from torch's global generator, and writes to the same reward and flags each time."""

    def __init__(self, cfg: Any) -> None:
        self.cfg, self.num_envs, self.step_dt = cfg, cfg.num_envs, 0.02
        torch.manual_seed(cfg.seed)
        np.random.seed(cfg.seed)
        box = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
        groups: dict[str, Any] = dict.fromkeys(cfg.groups, box)
        self.single_observation_space = gymnasium.spaces.Dict(groups)
        self.single_action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
        self.max_episode_length = LENGTH
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long)
        self.at = torch.zeros(self.num_envs, 2)
        self.reward_buf = torch.zeros(self.num_envs)
        self.terminated = torch.zeros(self.num_envs, dtype=torch.bool)
        self.time_outs = torch.zeros(self.num_envs, dtype=torch.bool)
        self.reward_manager = SimpleNamespace(
            active_terms=["near", "effort"], _step_reward=torch.zeros(self.num_envs, 2)
        )
        self.given = torch.zeros(0)
        self.lasts: Tensor = self.at
        self.closed = 0

    def observe(self) -> dict[str, Tensor]:
        return {name: self.at * (1 + i) for i, name in enumerate(self.cfg.groups)}

    def reset(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        self._reset_idx(torch.arange(self.num_envs))
        return self.observe(), {"log": {}}

    def _reset_idx(self, rows: Tensor) -> None:
        self.at[rows] = 0.9 * torch.rand(len(rows), 2)
        self.episode_length_buf[rows] = 0

    def step(self, action: Tensor) -> Any:
        self.given = action.clone()
        self.at = self.at + 0.1 * action
        self.episode_length_buf += 1
        self.time_outs[:] = self.episode_length_buf >= LENGTH
        self.terminated[:] = self.at.norm(dim=1) > 1.3
        terms = torch.stack([-self.at.norm(dim=1), -action.square().sum(1)], 1)
        self.reward_manager._step_reward[:] = terms
        self.reward_buf[:] = terms.sum(1) * self.step_dt
        self.lasts = self.at.clone()
        rows = (self.terminated | self.time_outs).nonzero().squeeze(-1)
        if len(rows):
            self._reset_idx(rows)
        return self.observe(), self.reward_buf, self.terminated, self.time_outs, {"log": {}}

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Isaac Lab's modules as far as the adapter uses them; its fields are what the next simulation is built with."""
    settings = SimpleNamespace(groups=("policy", "critic"), finite=False, launched=[])

    def parse(name: str, device: str, num_envs: int) -> SimpleNamespace:
        return SimpleNamespace(
            num_envs=num_envs, groups=settings.groups, is_finite_horizon=settings.finite, seed=None
        )

    def launch(**options: Any) -> object:
        settings.launched.append(options)
        return object()

    def make(name: str, cfg: Any) -> SimpleNamespace:
        settings.sim = Drift(cfg)
        return SimpleNamespace(unwrapped=settings.sim)

    modules: dict[str, dict[str, Any]] = {
        "isaaclab.app": {"AppLauncher": launch},
        "isaaclab_tasks": {},
        "isaaclab_tasks.utils.parse_cfg": {"parse_env_cfg": parse},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    known = SimpleNamespace(kwargs={"env_cfg_entry_point": "x:Cfg"})
    monkeypatch.setattr(gymnasium, "registry", {"Isaac-Drift-v0": known})
    monkeypatch.setattr(gymnasium, "make", make)
    monkeypatch.setattr(Simulation, "running", None)
    monkeypatch.setattr(Simulation, "app", None)
    return settings


def config(**options: Any) -> IsaacLabConfig:
    return IsaacLabConfig(id="Isaac-Drift-v0", **{"spread_ends": False} | options)


def fresh(num_envs: int, seed: int = 0, **options: Any) -> IsaacLabEnv:
    """An environment with a simulation of its own, which one process of Isaac Lab cannot have twice."""
    Simulation.running = None
    return config(**options).build(num_envs, seed, CPU)


def script(length: int, num_envs: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(length, num_envs, 2, generator=generator) * 2 - 1


@pytest.mark.parametrize(
    "groups", [("policy",), ("policy", "critic"), ("actor", "critic")], ids=str
)
def test_contract(lab: SimpleNamespace, groups: tuple[str, ...]) -> None:
    lab.groups = groups
    report = check_env(lambda n, seed: fresh(n, seed, action_scale=2.0), independent_seeds=False)
    assert report.terminations
    assert report.truncations
    assert not report.renders
    assert not report.saves_state
    assert not report.spec.exact_final_obs
    assert report.spec.critic_shape == (None if groups == ("policy",) else (2,))
    assert report.spec.action == Continuous(2)
    assert report.spec.step_seconds == 0.02


def test_what_is_executed_is_the_action_times_its_scale(lab: SimpleNamespace) -> None:
    env = fresh(3, action_scale=3.0)
    env.reset()
    action = script(1, 3)[0]
    step = env.step(action)
    assert torch.equal(lab.sim.given, 3 * action)
    env.step(torch.full((3, 2), 5.0))
    assert torch.equal(lab.sim.given, torch.full((3, 2), 3.0))
    assert torch.equal(step.info["env/reward_effort"], -(3 * action).square().sum(1))
    wanted = (step.info["env/reward_near"] + step.info["env/reward_effort"]) * 0.02
    assert torch.equal(step.reward, wanted)


def test_both_ends_at_once_are_a_termination(lab: SimpleNamespace) -> None:
    env = fresh(2)
    env.reset()
    lab.sim.at[:] = torch.tensor([[1.3, 1.3], [0.0, 0.0]])
    lab.sim.episode_length_buf[:] = LENGTH - 1
    step = env.step(torch.zeros(2, 2))
    assert step.terminated.tolist() == [True, False]
    assert step.truncated.tolist() == [False, True]


def test_the_end_of_a_finite_task_is_a_termination(lab: SimpleNamespace) -> None:
    lab.finite = True
    env = fresh(2)
    env.reset()
    steps = [env.step(torch.zeros(2, 2)) for _ in range(LENGTH)]
    assert steps[-1].terminated.all()
    assert not torch.stack([step.truncated for step in steps]).any()


def test_first_episodes_end_anywhere_when_asked(lab: SimpleNamespace) -> None:
    env = fresh(64, spread_ends=True)
    assert env.spec.episode_length is None
    env.reset()
    firsts = torch.stack([env.step(torch.zeros(64, 2)).truncated for _ in range(LENGTH)])
    assert firsts.sum(0).tolist() == [1] * 64  # each once, as every clock begins below the limit
    assert firsts.any(1).all()


def test_replay_takes_no_target_from_a_truncated_row(lab: SimpleNamespace) -> None:
    env = fresh(4)
    replay = ReplayConfig(capacity=400).build(env.spec, gamma=0.9, seed=0, device=CPU)
    obs = env.reset()
    rewards: list[tuple[float, int]] = []  # reward and end of each row
    for action in script(20, 4) * 0.5:
        step = env.step(action)
        replay.append(
            Transition(
                obs, action, step.reward, step.terminated, step.truncated, step.next_obs, step.info
            )
        )
        ends = step.terminated * 1 + step.truncated * 2
        rewards += zip(step.reward.tolist(), ends.tolist(), strict=True)
        obs = step.obs
    batch = replay.sample(500)
    kinds = dict(rewards)
    seen = [kinds[reward] for reward in batch.reward.tolist()]
    assert 2 in seen
    for kind, weight, discount in zip(seen, batch.weight, batch.discount, strict=True):
        assert weight == (0 if kind == 2 else 1)
        assert kind != 1 or discount == 0


def test_evaluation_borrows_the_simulation_and_training_goes_on_after_a_cut(
    lab: SimpleNamespace,
) -> None:
    train = config().build(4, 0, CPU)
    evaluation = config().for_evaluation().build(2, 9, CPU)
    assert len(lab.launched) == 1
    assert evaluation.envs is train.envs
    train.reset()
    assert not train.step(torch.zeros(4, 2)).truncated.any()

    obs = evaluation.reset()
    assert obs.actor.shape == (2, 2)
    step = evaluation.step(torch.ones(2, 2))
    assert step.reward.shape == step.terminated.shape == step.info["env/reward_near"].shape == (2,)
    assert torch.equal(lab.sim.given, torch.tensor([[1.0, 1.0]] * 2 + [[0.0, 0.0]] * 2))

    cut = train.step(torch.ones(4, 2))
    assert cut.truncated.all()
    assert not cut.terminated.any()
    assert torch.equal(cut.reward, torch.zeros(4))
    assert torch.equal(cut.obs.actor, lab.sim.at)
    assert (lab.sim.episode_length_buf == 0).all()
    after = train.step(torch.ones(4, 2))
    assert torch.equal(after.next_obs.actor[~after.terminated], lab.sim.lasts[~after.terminated])
    assert not after.truncated.any()

    train.close()
    train.close()
    assert lab.sim.closed == 0
    evaluation.close()
    assert lab.sim.closed == 1
    assert Simulation.running is None


def test_a_second_simulation_is_refused(lab: SimpleNamespace) -> None:
    config().build(4, 0, CPU)
    with pytest.raises(UserError, match="one simulation per process"):
        config().build(5, 0, CPU)


def test_global_generators_are_left_alone(lab: SimpleNamespace) -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    wanted = torch.rand(3), np.random.rand()
    torch.manual_seed(5)
    np.random.seed(5)
    env = fresh(2)
    env.reset()
    env.step(torch.zeros(2, 2))
    assert torch.equal(torch.rand(3), wanted[0])
    assert np.random.rand() == wanted[1]


def test_two_streams_do_not_mix() -> None:
    def draws(streams: list[OwnRandom]) -> list[Tensor]:
        found = []
        for stream in streams:
            with stream:
                found.append(torch.rand(4))
        return found

    one, two = OwnRandom(1, CPU), OwnRandom(2, CPU)
    mixed = draws([one, two, one, two])
    one, two = OwnRandom(1, CPU), OwnRandom(2, CPU)
    apart = draws([one, one, two, two])
    assert torch.equal(torch.stack(mixed), torch.stack(apart)[[0, 2, 1, 3]])
    assert torch.equal(mixed[0], torch.rand(4, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize(
    ("groups", "message"),
    [(("policy", "camera"), "not camera"), (("policy", "critic", "goal"), "not goal")],
    ids=str,
)
def test_groups_that_would_be_dropped_are_refused(
    lab: SimpleNamespace, groups: tuple[str, ...], message: str
) -> None:
    lab.groups = groups
    with pytest.raises(UserError, match=message) as caught:
        fresh(1)
    assert "\n" not in str(caught.value)


def test_mistakes_get_one_line(lab: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="Did you mean Isaac-Drift-v0"):
        IsaacLabConfig(id="Isaac-Drfit-v0").build(1, 0, CPU)
    with pytest.raises(UserError, match=r"env\.action_scale"):
        IsaacLabConfig(action_scale=0.0)
    with pytest.raises(UserError, match="num_envs"):
        config().build(0, 0, CPU)
    with pytest.raises(UserError, match="cannot be restored"):
        fresh(1).load_state_dict({})
    monkeypatch.setitem(sys.modules, "isaaclab.app", None)
    monkeypatch.setattr(Simulation, "app", None)
    with pytest.raises(UserError, match="need Isaac Sim") as caught:
        fresh(1)
    assert "\n" not in str(caught.value)
    assert from_json(to_json(config(action_scale=3.0))) == config(action_scale=3.0)
