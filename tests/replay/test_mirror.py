"""Half of a batch is mirrored: which half, what of it, and who may ask for it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fleetfoot import api
from fleetfoot.data import Continuous, EnvSpec, Obs, Reflection, Symmetry, Transition
from fleetfoot.envs.check.contract import ContractError, check_spec
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.errors import UserError
from fleetfoot.replay.held_out import HeldOutUniformConfig
from fleetfoot.replay.observations import Observations
from fleetfoot.replay.replay import Replay, ReplayConfig
from fleetfoot.replay.samplers import ProportionalConfig
from support.command import refusal
from support.runs import agent_state, assert_same, small

CPU = torch.device("cpu")
SYMMETRY = Symmetry(
    actor=Reflection((1, 0, 2), (1.0, 1.0, -1.0)),
    critic=Reflection((1, 0, 2, 3), (1.0, 1.0, -1.0, -1.0)),
    action=Reflection((1, 0), (-1.0, -1.0)),
)
SPEC = EnvSpec(
    name="made-up",
    num_envs=4,
    obs_shape=(3,),
    action=Continuous(2),
    device=CPU,
    critic_shape=(4,),
    critic_prefix=3,
    symmetry=SYMMETRY,
)


def filled(cfg: ReplayConfig, spec: EnvSpec = SPEC, steps: int = 20) -> Replay:
    replay = cfg.build(spec, gamma=0.9, seed=0, device=CPU)
    generator = torch.Generator().manual_seed(1)
    obs = torch.randn(steps + 1, 4, 4, generator=generator)
    for now, after in itertools.pairwise(obs):
        replay.append(
            Transition(
                obs=Obs(now[:, :3], now),
                action=torch.rand(4, 2, generator=generator),
                reward=torch.randn(4, generator=generator),
                terminated=torch.zeros(4, dtype=torch.bool),
                truncated=torch.zeros(4, dtype=torch.bool),
                next_obs=Obs(after[:, :3], after),
                info={},
            )
        )
    return replay


def image(reflection: Reflection, rows: torch.Tensor) -> torch.Tensor:
    return rows[:, list(reflection.index)] * torch.tensor(reflection.sign, dtype=rows.dtype)


@pytest.mark.parametrize("storage", ["float32", "bf16"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_half_of_the_rows(storage: Any, n_step: int) -> None:
    """Every second row of what is drawn without it: observations of both, actions; nothing else changes."""
    cfg = ReplayConfig(capacity=80, storage=storage, n_step=n_step)
    plain, mirrored = filled(cfg).sample(32), filled(replace(cfg, mirror=True)).sample(32)
    for name in ("reward", "discount", "weight", "row_id"):
        assert torch.equal(getattr(plain, name), getattr(mirrored, name))
    pairs = [
        (plain.obs.actor, mirrored.obs.actor, SYMMETRY.actor),
        (plain.obs.critic, mirrored.obs.critic, SYMMETRY.critic),
        (plain.action, mirrored.action, SYMMETRY.action),
        (plain.next_obs.actor, mirrored.next_obs.actor, SYMMETRY.actor),
        (plain.next_obs.critic, mirrored.next_obs.critic, SYMMETRY.critic),
    ]
    odd = torch.arange(32) % 2 == 1
    first = bool((mirrored.action[0] != plain.action[0]).any())
    chosen = odd ^ first
    for before, after, reflection in pairs:
        assert reflection is not None
        assert before.dtype == after.dtype
        assert torch.equal(after[~chosen], before[~chosen])
        assert torch.equal(after[chosen], image(reflection, before)[chosen])


def test_what_both_see_stays_one_tensor() -> None:
    spec = replace(
        SPEC, critic_shape=None, critic_prefix=0, symmetry=replace(SYMMETRY, critic=None)
    )
    batch = filled(ReplayConfig(capacity=80, mirror=True), spec).sample(8)
    assert batch.obs.critic is batch.obs.actor
    assert batch.next_obs.critic is batch.next_obs.actor


@pytest.mark.parametrize("rows", [16, 20])
@pytest.mark.parametrize("sampler", [None, ProportionalConfig(), HeldOutUniformConfig(rows=8)])
def test_no_row_is_always_on_the_same_side(sampler: Any, rows: int) -> None:
    """Also where row k of every batch comes from share k of the ring: 20 shares are one vec step each."""
    cfg = ReplayConfig(capacity=80, mirror=True)
    replay = filled(cfg if sampler is None else replace(cfg, sampler=sampler))
    plain = Replay(replay.cfg, replay.ring, replay.sampler, replay.gamma)
    sides: dict[int, set[bool]] = {}
    count = 0
    for _ in range(60):
        drawn = replay.draw(rows)
        batch, before = replay.gather(*drawn), plain.gather(*drawn)
        flipped = (batch.action != before.action).any(1)
        count += int(flipped.sum())
        for row, side in zip(batch.row_id.tolist(), flipped.tolist(), strict=True):
            sides.setdefault(row, set()).add(side)
        if batch.held_out is not None and before.held_out is not None:
            apart = (batch.held_out.action != before.held_out.action).any(1)
            assert int(apart.sum()) == 4
    assert count == 60 * rows // 2
    assert sum(len(seen) == 2 for seen in sides.values()) > 0.9 * len(sides)


def test_observations_alone_are_mirrored_like_the_replay() -> None:
    """With the same seed the policy learner of two sees the rows of the critic learner, mirrored alike."""
    cfg = ReplayConfig(capacity=80, mirror=True)
    replay, alone = filled(cfg), Observations(cfg, SPEC, seed=0, device=CPU)
    for line in range(20):
        at = slice(4 * line, 4 * line + 4)
        actor = replay.ring.obs.actor[at]
        critic = replay.ring.obs.privileged
        assert critic is not None
        alone.append(Obs(actor, torch.cat([actor, critic[at]], 1)))
    for _ in range(3):
        batch, obs = replay.sample(10), alone.sample(10)
        assert torch.equal(batch.obs.actor, obs.actor)
        assert torch.equal(batch.obs.critic, obs.critic)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"actor": Reflection((0, 1), (1.0, 1.0))}, "actor has 2 numbers and 2 signs, not 3"),
        ({"actor": Reflection((0, 0, 2), (1.0,) * 3)}, "actor is no permutation"),
        ({"action": Reflection((0, 1), (1.0, 0.5))}, "action has a sign that is neither"),
        ({"actor": Reflection((1, 2, 0), (1.0,) * 3)}, "actor does not come back to itself"),
        ({"action": Reflection((1, 0), (1.0, -1.0))}, "action does not come back to itself"),
        ({"critic": None}, "exactly where critic_shape is given"),
    ],
)
def test_what_is_no_symmetry(change: dict[str, Any], problem: str) -> None:
    spec = replace(SPEC, symmetry=replace(SYMMETRY, **change))
    with pytest.raises(UserError, match=problem):
        ReplayConfig(capacity=80, mirror=True).build(spec, gamma=0.9, seed=0, device=CPU)
    with pytest.raises(ContractError, match=f"clause 'spec' is broken .* symmetry: .*{problem}"):
        check_spec(spec, 4, CPU)


def test_an_environment_without_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said = refusal(
        capsys,
        *("train", "dqn/cartpole", "--replay.mirror", "--num-envs", "2", "--device", "cpu"),
        *("--folder", str(tmp_path / "run")),
    )
    assert "tensor/cartpole declares none" in said


@pytest.mark.parametrize("privileged", [False, True])
@pytest.mark.parametrize("task", ["pendulum", "point_mass"])
def test_tensor_tasks_look_the_same_in_a_mirror(task: str, privileged: bool) -> None:
    if task == "pendulum" and privileged:
        pytest.skip("it has no such form")
    env = TensorConfig(task=task, privileged=privileged).build(16, 0, CPU)
    other = TensorConfig(task=task, privileged=privileged).build(16, 0, CPU)
    obs, symmetry = env.reset(), env.spec.symmetry
    other.reset()
    assert symmetry is not None
    # pendulum: angle, speed; point_mass: two numbers each of position, velocity and goal
    signs = {"pendulum": [-1.0, -1.0], "point_mass": [1.0, -1.0] * 3}
    other.state = env.state * torch.tensor(signs[task])
    for _ in range(5):
        action = torch.rand(16, len(symmetry.action.index)) * 2 - 1
        step = env.step(action)
        theirs = other.step(image(symmetry.action, action))
        here = ~step.terminated  # the next episodes are no mirror images
        critic = symmetry.critic or symmetry.actor
        torch.testing.assert_close(
            image(symmetry.actor, step.next_obs.actor)[here], theirs.next_obs.actor[here]
        )
        torch.testing.assert_close(
            image(critic, step.next_obs.critic)[here], theirs.next_obs.critic[here]
        )
        torch.testing.assert_close(step.reward[here], theirs.reward[here])
        assert torch.equal(step.terminated, theirs.terminated)
        other.state = env.state * torch.tensor(signs[task])
    assert obs.actor.shape == (16, env.spec.obs_shape[0])


def test_same_seed_same_bits_and_others_than_without(tmp_path: Path) -> None:
    plain = small()
    recipe = replace(plain, replay=replace(plain.off_policy_replay(), mirror=True))
    for name, chosen in (("one", recipe), ("two", recipe), ("plain", plain)):
        api.train(chosen, tmp_path / name)
    one, two, other = (agent_state(tmp_path / name) for name in ("one", "two", "plain"))
    assert_same(one, two)
    assert any(not torch.equal(one[name], other[name]) for name in one)
