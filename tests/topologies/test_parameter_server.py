"""Gorila without Ray: the server's shards and the bundles, in one process, against their definitions."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fleetfoot import checkpoint, recipes
from fleetfoot.api import train
from fleetfoot.checkpoint import pack, unpack
from fleetfoot.errors import UserError
from fleetfoot.explore import EpsilonAnnealConfig
from fleetfoot.nn.simba import SimbaV2Config
from fleetfoot.optim import AdaGradConfig, AdamConfig
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Recipe
from fleetfoot.replay.evict import FifoConfig
from fleetfoot.replay.samplers import ProportionalConfig, UniformConfig
from fleetfoot.topologies.gorila.bundle import (
    Bundle,
    build_agent,
    per_bundle,
    server_config,
    total_updates,
)
from fleetfoot.topologies.gorila.loop import ServerRun, gradient_metrics
from fleetfoot.topologies.gorila.ray_server import RayServer
from fleetfoot.topologies.gorila.replica import Outliers, ServerLost, flatten
from fleetfoot.topologies.gorila.server import (
    NO_VERSION,
    GradientStats,
    Server,
    ServerConfig,
    ServerShard,
    ShardSlice,
    Version,
    shard_slices,
)
from fleetfoot.topologies.synchronous import SynchronousConfig
from support.gorila import small

CPU = torch.device("cpu")
FOR_EVER = 10**9


def serve(
    recipe: Recipe, bundles: int = 1, shards: int = 1, max_age: int = FOR_EVER
) -> tuple[Server, Any]:
    """A server in this process, as the starting process of a run would make it, and the agent it was made from."""
    env = recipe.env.build(recipe.num_envs, 0, CPU)
    agent = build_agent(recipe, env.spec, bundles, CPU)
    cfg = server_config(agent, total_updates(recipe, bundles), max_age)
    weights = flatten(agent.step_critic.parameters)
    slices = shard_slices([p.numel() for p in agent.step_critic.parameters], shards)
    made = [ServerShard(weights[s.start : s.stop], s.pieces, cfg) for s in slices]
    return Server(made, slices), agent


def whole(server: Server, name: str = "weights") -> Tensor:
    return torch.cat([getattr(shard, name) for shard in server.shards])


class Delayed(Server):
    """Every gradient waits until so many others were sent after it: asynchrony that is the same every time."""

    def __init__(self, server: Server, updates: int):
        super().__init__(server.shards, server.slices)
        self.updates = updates
        self.waiting: list[tuple[Tensor, Version, int]] = []

    def push(self, gradient: Tensor, known: Version, bundle: int) -> bool:
        self.waiting.append((gradient, known, bundle))
        return len(self.waiting) > self.updates and super().push(*self.waiting.pop(0))


# Trimmed between two updates of a vec step, if it were done after each.
PRIORITISED = ProportionalConfig(eviction=FifoConfig(every_updates=3, slack=0.5))


@pytest.mark.parametrize(
    ("optim", "sampler"),
    [
        (AdaGradConfig(max_grad_norm=0.5), UniformConfig()),
        (AdamConfig(lr=1e-3), UniformConfig()),
        (AdamConfig(lr=1e-3), PRIORITISED),
    ],
)
def test_one_bundle_equals_the_serial_loop_bit_for_bit(
    optim: Any, sampler: Any, tmp_path: Path
) -> None:
    recipe = small()
    recipe = replace(recipe, replay=replace(recipe.replay, sampler=sampler))
    agent: Any = recipe.agent
    recipe = replace(recipe, agent=replace(agent, critic_optim=optim))
    train(replace(recipe, topology=SynchronousConfig()), tmp_path / "serial")
    serial = checkpoint.load(tmp_path / "serial").state["agent"]
    server, _ = serve(recipe)
    Bundle(recipe, server, bundles=1, lockstep=True).work(recipe.total_vec_steps)
    assert server.shards[0].updates == 200
    policy, target = serial["policy"].values(), serial["critic_target"].values()
    assert torch.equal(whole(server), flatten(list(policy)))
    assert torch.equal(whole(server, "target"), flatten(list(target)))
    assert not torch.equal(whole(server), whole(server, "target"))
    mine = server.shards[0].step.state_dict()["optimizer"]
    for key, saved in serial["step_critic"]["optimizer"].items():
        for name, value in saved.items():
            assert torch.equal(value.flatten(), mine[key][name].flatten()), name


def stream(size: int, count: int = 40) -> list[Tensor]:
    random = torch.Generator().manual_seed(3)
    scale = torch.logspace(-4, 1, size)
    return [torch.randn(size, generator=random) * scale for _ in range(count)]


@pytest.mark.parametrize("shards", [2, 3, 7, 50])
def test_any_number_of_shards_gives_the_same_weights(shards: int) -> None:
    sizes = [13, 64, 1, 30, 7]
    weights = torch.randn(sum(sizes), generator=torch.Generator().manual_seed(0))
    cfg = ServerConfig(AdaGradConfig(lr=0.03, lr_end=0.003), 40, target_every=6, tau=1.0, max_age=3)
    servers = []
    for count in (1, shards):
        slices = shard_slices(sizes, count)
        made = [ServerShard(weights[s.start : s.stop], s.pieces, cfg) for s in slices]
        servers.append(Server(made, slices))
    for i, gradient in enumerate(stream(sum(sizes))):
        known = Version(0, max(0, i - i % 5), 0)  # some are too old, for both
        assert len({server.push(gradient, known, 0) for server in servers}) == 1
    one, many = servers
    assert one.gradient_stats() == many.gradient_stats()
    assert one.gradient_stats().total("stale") > 0
    assert torch.equal(whole(one), whole(many))
    assert torch.equal(whole(one, "target"), whole(many, "target"))
    assert {shard.version() for shard in many.shards} == {one.shards[0].version()}


@pytest.mark.parametrize("shards", [2, 7])
def test_a_whole_run_does_not_depend_on_the_number_of_shards(shards: int) -> None:
    ends = []
    for count in (1, shards):
        server, _ = serve(small(), shards=count)
        Bundle(small(), server, bundles=1).work(60)
        ends.append(whole(server))
    assert torch.equal(*ends)


def test_shard_slices_cover_everything_once_and_never_join_two_parameters() -> None:
    sizes = [5, 1, 9, 2]
    for shards in range(1, 18):
        slices = shard_slices(sizes, shards)
        assert [c.start for c in slices] == [0, *(c.stop for c in slices[:-1])]
        assert slices[-1].stop == 17
        assert all(sum(c.pieces) == c.stop - c.start > 0 and min(c.pieces) > 0 for c in slices)
        ends = {c.start + sum(c.pieces[:i]) for c in slices for i in range(len(c.pieces))}
        assert {5, 6, 15} <= ends
        assert max(c.stop - c.start for c in slices) - min(c.stop - c.start for c in slices) <= 1
    for wrong in (0, 18):
        with pytest.raises(UserError, match="shards"):
            shard_slices(sizes, wrong)


def test_adagrad_and_target_by_hand() -> None:
    """Three updates of two numbers, computed again with numpy."""
    cfg = ServerConfig(
        AdaGradConfig(lr=0.1, eps=1e-10), 10, target_every=2, tau=1.0, max_age=FOR_EVER
    )
    shard = ServerShard(torch.tensor([1.0, -2.0]), [2], cfg)
    weights, squares = np.array([1.0, -2.0]), np.zeros(2)
    wanted_target = weights.copy()
    for i, gradient in enumerate(([0.5, -1.0], [0.25, 2.0], [-1.0, 0.0]), start=1):
        shard.push(torch.tensor(gradient), Version(0, i - 1, 0), 0)
        g = np.array(gradient)
        squares += g * g
        weights = weights - 0.1 * g / (np.sqrt(squares) + 1e-10)
        if i == 2:
            wanted_target = weights.copy()
    np.testing.assert_allclose(shard.weights.numpy(), weights, rtol=1e-6)
    np.testing.assert_allclose(shard.target.numpy(), wanted_target, rtol=1e-6)
    assert shard.version() == Version(0, 3, 1)


def test_a_gradient_that_is_too_old_changes_nothing() -> None:
    recipe = small()
    for delay, max_age in ((4, 3), (3, 3), (2, 3)):
        server, _ = serve(recipe, max_age=max_age)
        before = whole(server).clone()
        late = Delayed(server, 0)
        bundle = Bundle(recipe, late, bundles=1)
        bundle.work(30)  # 40 gradients, none late
        moved = whole(server).clone()
        assert not torch.equal(before, moved)
        # From now on all weights look so many updates old.
        bundle.replica.versions = [
            s._replace(updates=s.updates - delay) for s in bundle.replica.versions
        ]
        honest = late.pull

        def pull(known: Any, delay: int = delay, honest: Any = honest) -> Any:
            true = [s._replace(updates=s.updates + delay) for s in known]
            return [
                p._replace(version=p.version._replace(updates=p.version.updates - delay))
                for p in honest(true)
            ]

        late.pull = pull  # type: ignore[method-assign]
        bundle.work(10)
        stats = server.gradient_stats()
        if delay > max_age:
            assert torch.equal(whole(server), moved)
            assert (stats.total("accepted"), stats.total("stale")) == (40, 20)
        else:
            assert not torch.equal(whole(server), moved)
            assert (stats.total("accepted"), stats.total("stale")) == (60, 0)
        assert stats.lag_sum == 20 * delay
        assert stats.lags[{2: 2, 3: 3, 4: 3}[delay]] == 20  # bars end at 0, 1, 2, 4, ...


def test_delayed_gradients_are_as_old_as_they_were_made() -> None:
    """With a queue of d gradients, weights are d updates behind, unless nothing is ever applied."""
    recipe = small()
    for delay in (0, 1, 5):
        server, _ = serve(recipe, max_age=5)
        Bundle(recipe, Delayed(server, delay), bundles=1).work(60)
        stats = server.gradient_stats()
        assert stats.total("stale") == 0
        assert stats.total("accepted") == 100 - delay
        steady = sum(stats.lags) - delay
        assert stats.lag_sum >= steady * delay
    server, _ = serve(recipe, max_age=2)
    Bundle(recipe, Delayed(server, 5), bundles=1).work(60)
    assert server.gradient_stats().total("stale") > 0


def test_mean_and_deviation_of_losses_are_those_of_all_before() -> None:
    losses = np.random.default_rng(0).gamma(2.0, size=80)
    outliers = Outliers(None, memory=100)
    for loss in losses:
        assert outliers.accepts(float(loss))
    assert outliers.mean == pytest.approx(losses.mean())
    assert math.sqrt(outliers.var) == pytest.approx(losses.std())


def test_outliers_are_refused_and_still_move_the_bound() -> None:
    outliers = Outliers(3.0, memory=50)
    for i in range(200):
        assert outliers.accepts(1.0 + 0.1 * (-1) ** i)
    far = outliers.mean + 10 * math.sqrt(outliers.var)
    before = outliers.mean
    assert not outliers.accepts(far)
    assert outliers.mean > before
    taken = [outliers.accepts(far) for _ in range(20)]
    assert not taken[0] or taken[-1], "losses that stay large become usual"
    assert taken[-1]
    assert not outliers.accepts(float("nan"))
    assert not outliers.accepts(float("inf"))
    assert math.isfinite(outliers.mean)
    again = Outliers(3.0, memory=50)
    again.load_state_dict(outliers.state_dict())
    assert vars(again) == vars(outliers)


def test_an_outlying_gradient_never_reaches_the_server() -> None:
    recipe = small()
    agent: Any = recipe.agent
    recipe = replace(recipe, agent=replace(agent, loss="squared"))
    server, _ = serve(recipe)
    bundle = Bundle(recipe, server, bundles=1, outlier_stds=5.0, outlier_memory=100)
    bundle.work(40)
    outliers, before = bundle.outliers, server.gradient_stats()
    accepted, weights = before.total("accepted"), whole(server).clone()
    refused = before.total("outlying")
    wild = bundle.replay.sample(16)
    bound = outliers.mean + 10 * math.sqrt(outliers.var)
    wild = wild._replace(reward=torch.full((16,), 100.0 + math.sqrt(2 * bound)))
    bundle.replica.pull()
    learned = bundle.update(wild)
    assert float(learned.metrics["critic/loss"]) > bound
    stats = server.gradient_stats()
    assert (stats.total("accepted"), stats.total("outlying")) == (accepted, refused + 1)
    assert torch.equal(whole(server), weights)


def test_the_target_is_the_servers_and_counts_the_updates_of_all() -> None:
    recipe = small(pace=PaceConfig(updates_per_vec_step=1.0, warmup_vec_steps=10))
    server, _ = serve(recipe, bundles=2, shards=2)
    bundles = [Bundle(recipe, server, bundles=2, index=i) for i in range(2)]
    wanted = whole(server).clone()
    for _ in range(40):
        for bundle in bundles:
            bundle.work(1)  # one update at most
            if server.shards[0].updates % 7 == 0:
                wanted = whole(server).clone()
            assert torch.equal(whole(server, "target"), wanted)
            for replica in (b.replica for b in bundles):
                replica.pull()
                assert torch.equal(flatten(replica.target), wanted)
                assert torch.equal(flatten(replica.weights), whole(server))
    assert server.shards[0].updates == 60, "two bundles, one update each step after ten of warm-up"
    assert {shard.target_updates for shard in server.shards} == {60 // 7}


def test_a_replica_changes_by_pulls_alone() -> None:
    recipe = small()
    server, _ = serve(recipe)
    bundle = Bundle(recipe, server, bundles=1)
    bundle.work(20)
    bundle.replica.pull()
    before = flatten(bundle.replica.weights), flatten(bundle.replica.target)
    for _ in range(8):  # a target copy is due in between
        bundle.update(bundle.replay.sample(16))
    assert torch.equal(flatten(bundle.replica.weights), before[0])
    assert torch.equal(flatten(bundle.replica.target), before[1])
    assert not torch.equal(whole(server), before[0])


def test_every_gradient_is_counted_once() -> None:
    recipe = small()
    server, _ = serve(recipe, bundles=3, shards=2, max_age=1)
    strict = {"outlier_stds": 1.0, "outlier_memory": 50}
    bundles = [Bundle(recipe, server, bundles=3, index=i, **strict) for i in range(3)]  # type: ignore[arg-type]
    slow = Delayed(server, 3)
    bundles[2].replica.server = slow
    computed = [0, 0, 0]
    for _ in range(30):
        for i, bundle in enumerate(bundles):
            computed[i] += bundle.work(1).num_gradients
    stats = server.gradient_stats()
    for i in range(3):
        kinds = (stats.accepted, stats.stale, stats.outlying)
        arrived = sum(kind.get(i, 0) for kind in kinds)
        assert arrived == computed[i] - (len(slow.waiting) if i == 2 else 0)
    assert stats.stale[2] > 0
    assert stats.total("outlying") > 0
    assert stats.total("accepted") == server.shards[0].updates == server.shards[1].updates
    metrics = gradient_metrics(stats, GradientStats())
    assert sum(
        metrics[name] for name in metrics if name.startswith("lag/") and name != "lag/mean"
    ) == pytest.approx(1)
    assert metrics["gradients/accepted"] == stats.total("accepted")


def test_gradients_for_a_server_that_went_back_are_refused() -> None:
    server, _ = serve(small(), shards=2)
    bundle = Bundle(small(), server, bundles=1)
    bundle.work(20)
    saved = server.state_dict()
    weights = whole(server).clone()
    bundle.work(5)
    server.load_state_dict(saved, generation=1)
    assert torch.equal(whole(server), weights)
    assert {shard.version()[:2] for shard in server.shards} == {(1, 20)}
    before = server.gradient_stats().total("stale")
    bundle.update(bundle.replay.sample(16))  # on weights that are no more
    assert torch.equal(whole(server), weights)
    assert server.gradient_stats().total("stale") == before + 1
    number = Version(0, 99, 0)
    server.shards[1].apply(torch.ones_like(server.shards[1].weights), number)
    assert torch.equal(whole(server), weights)
    bundle.work(5)
    assert server.shards[0].updates == server.shards[1].updates == 30


def test_pulls_bring_only_what_is_new() -> None:
    server, _ = serve(small(), shards=2)
    (first, second) = server.pull([NO_VERSION, NO_VERSION])
    assert first.weights is not None
    assert first.target is not None
    again = server.pull([first.version, second.version])
    assert all(p.weights is None and p.target is None for p in again)
    server.push(torch.ones(whole(server).numel()), first.version, 0)
    later = server.pull([first.version, second.version])
    assert all(p.weights is not None and p.target is None for p in later)


def test_a_saved_server_and_bundle_go_on_bit_for_bit() -> None:
    """Through what a checkpoint makes of it."""
    recipe = small()
    server, _ = serve(recipe, shards=2)
    bundle = Bundle(recipe, server, bundles=1, lockstep=True, outlier_stds=3.0)
    bundle.work(40)
    state = {"server": server.state_dict(), "bundle": bundle.state_dict(with_replay=True)}
    saved = copy.deepcopy(unpack(*pack(state)))
    bundle.work(30)
    other, _ = serve(replace(recipe, seed=5), shards=2)
    other.load_state_dict(saved["server"], generation=3)
    successor = Bundle(replace(recipe, seed=5), other, bundles=1, lockstep=True, outlier_stds=3.0)
    successor.load_state_dict(saved["bundle"])
    successor.work(30)
    assert torch.equal(whole(server), whole(other))
    assert torch.equal(whole(server, "target"), whole(other, "target"))
    assert server.gradient_stats() == other.gradient_stats()


def test_a_successor_explores_where_the_lost_one_was_and_fills_its_replay_first() -> None:
    recipe = small()
    server, _ = serve(recipe, bundles=2)
    lost = Bundle(recipe, server, bundles=2, index=1)
    report = lost.work(30)
    new = Bundle(recipe, server, bundles=2, index=1, incarnation=1)
    new.take_over(report.carried_state)
    explorer: Any = new.explorer
    assert explorer.epsilon() == lost.explorer.epsilon()  # type: ignore[attr-defined]
    assert [new.work(1).num_gradients for _ in range(12)] == [0] * 10 + [2, 2]
    assert not torch.equal(new.replay.ring.reward[:8], torch.zeros(8))
    ours, theirs = (b.replay.sample(16).obs.actor for b in (new, lost))
    assert not torch.equal(ours, theirs)


def test_schedules_are_those_of_all_bundles_together() -> None:
    part = EpsilonAnnealConfig(over_vec_steps=101, random_vec_steps=6)
    assert per_bundle(part, 1) == part
    assert per_bundle(part, 4) == replace(part, over_vec_steps=26, random_vec_steps=2)
    recipe = small(pace=PaceConfig(updates_per_vec_step=2.0, warmup_vec_steps=10))
    assert total_updates(recipe, 1) == recipe.total_updates() == 200
    assert total_updates(replace(recipe, total_vec_steps=220), 2) == 400


def refusals() -> list[tuple[str, Any]]:
    agent: Any = small().agent
    return [
        ("statistics", small(agent=replace(agent, normalize_obs=True))),
        ("manifold", small(agent=replace(agent, head=SimbaV2Config(width=8, blocks=1)))),
        ("FastTD3 cannot be taught by a parameter server", recipes.get("fast_td3/pendulum")),
        ("DDPG", recipes.get("ddpg/pendulum")),
    ]


@pytest.mark.parametrize(("why", "recipe"), refusals())
def test_what_a_server_cannot_teach_is_refused_in_one_line(why: str, recipe: Recipe) -> None:
    env = recipe.env.build(2, 0, CPU)
    with pytest.raises(UserError, match=why) as caught:
        build_agent(recipe, env.spec, 1, CPU)
    assert "\n" not in str(caught.value)


def test_shard_slices_of_two_parameters() -> None:
    assert shard_slices([4, 2], 2) == [ShardSlice(0, 3, [3]), ShardSlice(3, 6, [1, 2])]


def test_a_shard_that_is_lost_while_its_state_is_loaded_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = RayServer.__new__(RayServer)
    loaded: list[int] = []

    def load(state: object, generation: int) -> None:
        loaded.append(generation)
        if len(loaded) == 1:
            raise ServerLost

    def restore() -> None:
        server.generation += 1

    monkeypatch.setattr(server, "load_state_dict", load)
    monkeypatch.setattr(server, "restore", restore)
    server.resume([{}], 3)
    assert loaded == [3, 4]


def test_an_evaluation_is_of_the_servers_weights() -> None:
    """Also where a run that goes on begins with it: its replica has not pulled yet."""
    policy = nn.Linear(1, 1)
    replica = SimpleNamespace(pull=lambda: nn.init.constant_(policy.weight, 3.0))
    fleet = SimpleNamespace(server=SimpleNamespace(retry=lambda call: call()))

    def evaluator(evaluated: nn.Linear) -> Any:
        return SimpleNamespace(metrics=lambda: {"eval/return": evaluated.weight.item()})

    parts: Any = (None, fleet, SimpleNamespace(policy=policy), replica, evaluator)
    assert ServerRun(*parts).evaluate(0) == {"eval/return": 3.0}
