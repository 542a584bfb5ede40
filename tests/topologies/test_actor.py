"""What an actor does, without Ray: blocks, the local buffer, first priorities."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fleetfoot import recipes
from fleetfoot.data import Obs, Transition
from fleetfoot.envs.tensor import TensorConfig
from fleetfoot.errors import Program, UserError
from fleetfoot.explore import (
    EpsilonAnnealConfig,
    EpsilonLadderConfig,
    NoiseLadderConfig,
    ladder,
    share_of,
)
from fleetfoot.nn.normalize import RunningNorm
from fleetfoot.recipe import Recipe
from fleetfoot.replay.replay import Replay, ReplayConfig
from fleetfoot.topologies.apex.actor import Actor
from fleetfoot.topologies.apex.fleet import ActorFleet
from fleetfoot.topologies.apex.loop import ActorLearnerConfig
from fleetfoot.topologies.apex.priorities import LocalBuffer, Recorder
from fleetfoot.topologies.apex.wire import Block
from fleetfoot.topologies.ray.cluster import RayConfig
from fleetfoot.topologies.ray.transport import (
    pack_lines,
    pack_recipe,
    to_arrays,
    to_tensors,
    unpack_lines,
)
from fleetfoot.topologies.ray.workers import ActorFailed, Restarts
from support.streams import Film, Stream, frame_spec, make_spec

CPU = torch.device("cpu")


@settings(max_examples=30, deadline=None)
@given(
    lines=st.integers(1, 12),
    width=st.integers(1, 4),
    seed=st.integers(0, 1000),
    end_share=st.sampled_from([0.0, 0.3, 1.0]),
    kind=st.sampled_from(["vector", "frames", "privileged"]),
)
def test_a_block_arrives_as_it_was_sent(
    lines: int, width: int, seed: int, end_share: float, kind: str
) -> None:
    private = {"critic_shape": (7,), "critic_prefix": 4} if kind == "privileged" else {}
    spec = frame_spec(width) if kind == "frames" else make_spec(width, **private)
    stream: Any = (Film if kind == "frames" else Stream)(spec, seed, end_share)
    sent = [stream.step() for _ in range(lines)]
    came = list(unpack_lines(pack_lines(sent, spec), spec, CPU))
    assert len(came) == lines
    for one, other in zip(sent, came, strict=True):
        for name in ("action", "reward", "terminated", "truncated"):
            assert torch.equal(getattr(one, name), getattr(other, name))
        for name in ("obs", "next_obs"):
            assert torch.equal(getattr(one, name).actor, getattr(other, name).actor)
            assert torch.equal(getattr(one, name).critic, getattr(other, name).critic)


def test_frames_travel_once() -> None:
    """A block of L lines has L + 3 frames per environment and the stacks that began inside, not 8 L."""
    spec = frame_spec(2)
    film = Film(spec, 0, 0.0)
    packed = pack_lines([film.step() for _ in range(50)], spec)
    frame = 2 * 3
    sent = sum(
        a.nbytes for a in (packed["first"]["actor"], packed["newest"], packed["starts"]["actor"])
    )
    assert sent == 2 * (4 + 50) * frame


class Zero:
    """Thinks that nothing is worth anything, so that the error of a row is the return of its window."""

    reward_scale = 1.0

    def __call__(self, obs: Obs, action: Tensor, behaviour_output: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros(1, 1), obs.actor[:, 0]  # a value that the observation itself tells


class ActorView(nn.Module):
    def forward(self, obs: Obs) -> Tensor:
        return obs.actor


def test_the_windows_of_a_hand_made_episode() -> None:
    """Rewards 1 to 7, then the end; n = 3, gamma = 0.9. Values are 100 beside a window that is cut by nothing."""
    acting = Recorder(ActorView())
    buffer = LocalBuffer(Zero(), acting, ReplayConfig(n_step=3), gamma=0.9)
    errors = []
    for t in range(12):
        obs = Obs(torch.full((1, 1), 100.0), torch.zeros(1, 1))
        step = Transition(
            obs=obs,
            action=torch.zeros(1, dtype=torch.int64),
            reward=torch.tensor([float(t + 1)]),
            terminated=torch.tensor([t == 6]),
            truncated=torch.tensor([False]),
            next_obs=obs,
            info={},
        )
        ready = buffer.add(step)
        assert (ready is not None) == (t >= 3)
        if ready is not None:
            oldest, td_error = ready
            assert float(oldest.reward) == t - 2  # three steps late, in order
            errors.append(float(td_error))
    whole = [t + 0.9 * (t + 1) + 0.81 * (t + 2) + 0.729 * 100 for t in (1, 2, 3, 4)]
    assert errors[:7] == pytest.approx([*whole, 5 + 0.9 * 6 + 0.81 * 7, 6 + 0.9 * 7, 7.0], rel=1e-6)


@pytest.fixture(autouse=True)
def _not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an actor starts in is its own process; here it is the one of the tests."""
    monkeypatch.setattr(Program, "is_ours", False)


def few(name: str, **changes: Any) -> Recipe:
    """Of one actor with four environments, unless `changes` say otherwise."""
    recipe = replace(recipes.get(name), num_envs=4, device="cpu", threads=1, **changes)
    return in_topology(recipe, actors=1)


def in_topology(recipe: Recipe, **changes: Any) -> Recipe:
    assert isinstance(recipe.topology, ActorLearnerConfig)
    return replace(recipe, topology=replace(recipe.topology, **changes))


def started(recipe: Recipe, number: int = 0, incarnation: int = 0, **start: int) -> Actor:
    actor = Actor(pack_recipe(recipe), number, incarnation)
    actor.start(**start)
    return actor


def quick(**changes: Any) -> Recipe:
    """Without first priorities, so that the first vec step leaves the actor at once."""
    return in_topology(few("apex_dqn/cartpole", **changes), initial_priorities=False)


def collected(recipe: Recipe, lines: int) -> tuple[Any, Replay, int]:
    """An agent, a replay with what an actor with its weights has collected, and the environments' number."""
    actor = started(recipe)
    spec = actor.spec
    seed = recipe.seeds().agent + 1  # not the actor's own: its weights must be those it is given
    agent: Any = recipe.agent.build(
        spec, gamma=recipe.gamma, total_updates=1, seed=seed, device=CPU
    )
    weights = {
        name: getattr(agent, name).state_dict() for name in ("behaviour", "initial_priority")
    }
    block = actor.collect(lines, 1, to_arrays(weights))
    replay = recipe.off_policy_replay().build(spec, gamma=recipe.gamma, seed=0, device=CPU)
    errors = to_tensors(block.td_error)
    for step, td_error in zip(unpack_lines(block.lines, spec, CPU), errors, strict=True):
        replay.append(step, td_error)
    return agent, replay, spec.num_envs


@pytest.mark.parametrize("name", ["apex_dqn/cartpole", "apex_dpg/pendulum"])
@pytest.mark.parametrize("bootstrap", [True, False])
def test_first_priorities_are_the_learners_own_errors(name: str, bootstrap: bool) -> None:
    """Same weights, targets equal to networks: what the actor states is what an update would find."""
    recipe = few(name)
    sampler: Any = replace(recipe.off_policy_replay().sampler, alpha=1.0)  # type: ignore[type-var]
    env = TensorConfig(task="cartpole" if "cartpole" in name else "pendulum")
    n_step = 3
    cfg = ReplayConfig(
        capacity=4_000, n_step=n_step, bootstrap_truncated=bootstrap, sampler=sampler
    )
    lines = 250  # beyond the time limit of 200 of the pendulum
    agent, replay, width = collected(replace(recipe, env=env, replay=cfg), lines)
    leaves = replay.sampler.tree.levels[0].view(-1)  # type: ignore[attr-defined]
    batch = replay.sample(4_096)
    whole = batch.row_id // width < lines - n_step  # windows that do not reach the write head
    noise = torch.zeros(len(batch.reward), getattr(agent, "action_size", 1))
    inputs = (batch,) if "dqn" in name else (batch, noise)
    td_error = agent.critic_loss(*inputs).td_error
    stated = leaves[replay.ring.find(batch.row_id)[0]] - 1e-6
    assert int(whole.sum()) > 3_000
    torch.testing.assert_close(
        stated[whole].float(), td_error[whole], rtol=1e-4, atol=1e-5 * float(td_error.max())
    )


def test_actors_share_one_ladder() -> None:
    total, width = 8, 2
    rungs = []
    for actor in range(4):
        cfg = share_of(EpsilonLadderConfig(), actor * width, total)
        explorer: Any = cfg.build(
            make_spec(width, action=frame_spec(1).action), seed=actor, device=CPU
        )
        rungs.append(explorer.epsilon)
    assert torch.allclose(torch.cat(rungs).double(), ladder(0.4, 7.0, 8), atol=1e-6)
    stated = EpsilonLadderConfig(first=2, total=100)
    assert share_of(stated, 4, 8) == replace(stated, first=6)
    noisy = NoiseLadderConfig(std_min=0.1, std_max=0.8, redraw="never")
    stds = [
        share_of(noisy, actor * width, total).build(make_spec(width), seed=0, device=CPU)
        for actor in range(4)
    ]
    whole = noisy.build(make_spec(total), seed=0, device=CPU)
    assert torch.equal(torch.cat([one.std for one in stds]), whole.std)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["apex_dqn/cartpole", "apex_dpg/pendulum"])
def test_acting_in_bfloat16_leaves_statistics_and_environments_alone(name: str) -> None:
    """Observations about 1002, which bfloat16 takes for 1000 or 1004, with a spread of 1."""
    recipe = few(name)
    recipe = replace(recipe, agent=replace(recipe.agent, normalize_obs=True))  # type: ignore[type-var]
    exact, rough = started(recipe), started(in_topology(recipe, acting="bf16"))
    spec = exact.spec
    agent: Any = recipe.agent.build(spec, gamma=0.99, total_updates=1, seed=5, device=CPU)
    seen = 1002 + torch.randn(4_096, *spec.obs_shape, generator=torch.Generator().manual_seed(0))
    for module in agent.behaviour.modules():
        if isinstance(module, RunningNorm):
            module.update(seen)
    weights = {
        part: getattr(agent, part).state_dict() for part in ("behaviour", "initial_priority")
    }
    for actor in (exact, rough):
        block = actor.collect(3, 1, to_arrays(weights))
        assert block.lines["reward"].dtype == np.float32
    obs = Obs(seen[:64], seen[:64])
    with torch.no_grad():
        outputs = [actor.behaviour(obs) for actor in (exact, rough)]
    assert outputs[1].dtype == torch.float32
    torch.testing.assert_close(outputs[1], outputs[0], rtol=0.05, atol=0.02)
    assert not torch.equal(outputs[1], outputs[0]), "it is in bfloat16"


def test_a_successor_goes_on_with_the_schedule_of_exploration() -> None:
    anneal = EpsilonAnnealConfig(over_vec_steps=100, random_vec_steps=10)
    recipe = quick(explorer=anneal)
    explorer: Any = started(recipe, incarnation=1, vec_steps_before=60).explorer
    assert explorer.epsilon() == pytest.approx(1.0 - 0.9 * 50 / 100)
    assert explorer.random.random_left == 0
    explorer = started(recipe, incarnation=1, vec_steps_before=4).explorer
    assert (explorer.random.random_left, explorer.epsilon()) == (6, 1.0)


def test_a_replacement_is_told_how_far_its_predecessor_came() -> None:
    """The first incarnation of one actor sends two blocks and then fails."""

    class Ref:
        def __init__(self, value: Any = None):
            self.value = value

    class FakeRay:
        def __init__(self) -> None:
            self.launched: list[tuple[int, int]] = []  # incarnation and vec steps before

        def kill(self, _: Any) -> None: ...

        def put(self, value: Any) -> Ref:
            return Ref(value)

        def wait(self, refs: list[Any], **_: Any) -> Any:
            return refs, []

        def get(self, ref: Ref) -> Any:
            if isinstance(ref.value, Exception):
                raise ref.value
            return ref.value

        def remote(self, _: type) -> Any:
            return self

        def options(self, **_: Any) -> Any:
            return SimpleNamespace(remote=self.make)

        def make(self, packed: Any, number: int, incarnation: int) -> Any:
            answers: list[Any] = [Block(0, i, 1, 0.0, {}, None) for i in range(2)]
            answers.append(ZeroDivisionError())
            refs = iter([Ref(answer) for answer in answers] + [Ref()] * 9)

            def start(vec_steps_before: int) -> Ref:
                self.launched.append((incarnation, vec_steps_before))
                return Ref(few("apex_dqn/cartpole"))

            collect = SimpleNamespace(remote=lambda *_: next(refs))
            return SimpleNamespace(start=SimpleNamespace(remote=start), collect=collect)

    fake = FakeRay()
    fleet = ActorFleet(
        fake,
        pack_recipe(few("apex_dqn/cartpole")),
        ActorLearnerConfig(actors=1, block_vec_steps=5),
        Restarts(10, list[str]().append),
        {"incarnations": [6], "lines": [100]},
    )
    fleet.workers.launch_all()
    fleet.request_blocks()
    sequences = []
    for block in fleet.blocks(0.0):
        sequences.append(block.sequence)
        fleet.received[0] += fleet.lines
    assert sequences == [0, 1]
    assert fleet.next_block(0.0) is None, "it has failed"
    assert fake.launched == [(7, 100), (8, 110)]
    fleet.request_blocks()
    first = fleet.next_block(0.0)
    assert first is not None
    assert first.sequence == 0
    assert fleet.state_dict() == {"incarnations": [8], "lines": [110]}


def test_seeds_differ_between_actors_and_incarnations_and_begin_as_synchronous() -> None:
    recipe = in_topology(quick(), actors=2)
    seeds = [started(recipe, *which).seeds for which in ((0, 0), (0, 1), (1, 0), (1, 1))]
    assert seeds[0] == few("apex_dqn/cartpole").seeds()
    assert len({s.env for s in seeds}) == len({s.explorer for s in seeds}) == 4


def test_what_an_environment_raises_names_its_seed() -> None:
    actor = started(in_topology(quick(), actors=2), number=1, incarnation=3)

    def crash() -> Any:
        raise ZeroDivisionError("the robot has left the world")
        yield

    actor.steps = crash()
    weights = to_arrays({"behaviour": actor.agent.behaviour.state_dict()})
    with pytest.raises(ActorFailed, match=rf"seed {actor.seeds.env}: ZeroDivisionError: the robot"):
        actor.collect(1, 1, weights)


def test_under_ray_nobody_chooses_a_gpu_by_number() -> None:
    cfg = RayConfig()
    assert cfg.gpus_of(torch.device("cuda")) == cfg.gpus_of(torch.device("cuda:0")) == 1.0
    assert cfg.gpus_of(CPU) == 0.0
    with pytest.raises(
        UserError, match=r"cannot choose cuda:1: use --device cuda.*VISIBLE_DEVICES=1"
    ):
        cfg.gpus_of(torch.device("cuda:1"))
