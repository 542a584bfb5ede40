"""FlashSAC's network as one operation, against the modules it stands for. On a CPU it has the same parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from fleetfoot.data import Continuous, EnvSpec
from fleetfoot.nn import flash
from fleetfoot.nn.batch_norm import statistics
from fleetfoot.nn.encode import ObsNorms, QNetwork
from fleetfoot.nn.flash import FlashNet, FlashNetConfig
from fleetfoot.nn.xqc import XQCNetConfig
from fleetfoot.ops import flash_net as module

CONFIG = FlashNetConfig(width=64, blocks=2)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def network(ensemble_size: int | None, inputs: int = 13, outputs: int = 11, seed: int = 0) -> Any:
    """Weights and statistics away from where they start."""
    torch.manual_seed(seed)
    net: Any = CONFIG.build(inputs, outputs, ensemble_size)
    net.end.eps = 0.3  # large enough to be seen
    with torch.no_grad():
        for number, tensor in enumerate([*net.parameters(), *net.buffers()]):
            tensor.add_(0.3 * normal(*tensor.shape, seed=100 * seed + number).abs())
    return net


@pytest.fixture(autouse=True)
def _in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operation rounds as the modules do not; without rounding they must agree."""
    plain = module.flash_net
    monkeypatch.setattr(
        module, "flash_net", lambda *given, **more: plain(*given, **more, dtype=torch.float32)
    )


def results(
    call: Callable[[Any, Tensor, list[Tensor]], Tensor], net: Any, x: Tensor
) -> dict[str, Tensor]:
    """Output, new statistics, and the gradients of a loss that weighs every number of the output differently."""
    fresh: list[Tensor] = []
    out = call(net, x, fresh)
    gradients = torch.autograd.grad(
        (out * normal(*out.shape, seed=9)).sum(), list(net.parameters())
    )
    names = [name for name, _ in net.named_parameters()]
    return {
        "out": out.detach(),
        **{f"fresh {at}": value.detach() for at, value in enumerate(fresh)},
        **dict(zip(names, gradients, strict=True)),
    }


def as_one(net: FlashNet, x: Tensor, fresh: list[Tensor]) -> Tensor:
    return net._as_one(x, fresh)[0]


def as_modules(net: FlashNet, x: Tensor, fresh: list[Tensor]) -> Tensor:
    return net(x, fresh)


def naming(name: str) -> Callable[[str], str]:
    return lambda text: f"{name}: {text}"


def assert_near(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        atol = 2e-5 * float(value.abs().max())
        torch.testing.assert_close(found[name], value, atol=atol, rtol=1e-4, msg=naming(name))


@pytest.mark.parametrize("rows", [128, 1024])
@pytest.mark.parametrize("ensemble_size", [None, 1, 2])
def test_it_is_the_network_and_its_gradients(ensemble_size: int | None, rows: int) -> None:
    net, x = network(ensemble_size), 3 * normal(rows, 13) + 1
    assert_near(results(as_one, net, x), results(as_modules, net, x))


@pytest.mark.parametrize("ensemble_size", [None, 2])
def test_a_frozen_network_beside_it_is_that_network(ensemble_size: int | None) -> None:
    net, other = (network(ensemble_size, seed=seed) for seed in (0, 1))
    x = normal(256, 13)
    found = results(lambda net, x, fresh: net._as_one(x, fresh, other)[0], net, x)
    wanted = results(lambda net, x, fresh: net(x, fresh)[..., :128, :], net, x)
    assert_near(found, wanted)
    out, beside = net._as_one(x, [], other)
    near: dict[str, Any] = {"atol": 1e-4, "rtol": 1e-4}
    torch.testing.assert_close(beside, other(x, [])[..., 128:, :].detach(), **near)
    assert out.requires_grad
    assert not beside.requires_grad
    plain = net.with_frozen(other, x, [])  # what runs elsewhere
    torch.testing.assert_close(plain, (out, beside), **near)
    assert not plain[1].requires_grad


def test_it_can_be_traced() -> None:
    net, x = network(2), normal(256, 13)
    traced = torch.compile(as_one, backend="aot_eager", fullgraph=True, dynamic=False)
    assert_near(results(traced, net, x), results(as_one, net, x))


def test_several_seeds_can_be_traced() -> None:
    """As losses of stacked seeds are."""
    nets, x = [network(2, seed=seed) for seed in range(2)], normal(2, 256, 13)
    stacked = {
        name: torch.stack([dict(net.named_parameters())[name].detach() for net in nets])
        for name, _ in nets[0].named_parameters()
    }
    buffers = {
        name: torch.stack([dict(net.named_buffers())[name] for net in nets])
        for name, _ in nets[0].named_buffers()
    }

    class One(torch.nn.Module):
        def __init__(self, net: Any) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            return as_one(self.net, x, [])

    one = One(nets[0])
    given = {f"net.{name}": value for name, value in (stacked | buffers).items()}

    def outputs(given: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = torch.vmap(lambda given, x: functional_call(one, given, (x,)))(given, x)
        return out

    traced = torch.compile(outputs, backend="aot_eager", fullgraph=True, dynamic=False)
    wanted = torch.stack([net(x[seed], []) for seed, net in enumerate(nets)])
    torch.testing.assert_close(traced(given, x), wanted, atol=1e-4, rtol=1e-4)
    shared = torch.vmap(lambda x: as_one(nets[0], x, []))(x)  # one network, rows of two seeds
    wanted = torch.stack([nets[0](rows, []) for rows in x])
    torch.testing.assert_close(shared, wanted, atol=1e-4, rtol=1e-4)


def test_features_may_lie_in_memory_in_any_way() -> None:
    net, x = network(2), normal(13, 256).mT
    torch.testing.assert_close(as_one(net, x, []), net(x.contiguous(), []), atol=1e-4, rtol=1e-4)


class Tripled(FlashNet):
    """Somebody's own, which computes something else."""

    def forward(self, x: Tensor, fresh: list[Tensor] | None = None) -> Tensor:
        return 3 * super().forward(x, fresh)


def test_other_networks_are_never_taken_for_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(256, 13)
    torch.manual_seed(0)
    net, tripled = network(2), Tripled(CONFIG, 13, 11, 2)
    deeper = FlashNetConfig(width=64, blocks=3).build(13, 11, 2)
    other = XQCNetConfig(width=64).build(13, 11, 2)
    pairs = [(tripled, net), (net, tripled), (net, deeper), (net, other), (net, network(2, seed=1))]
    wanted = [one.with_frozen(frozen, x, []) for one, frozen in pairs]
    frozen_beside: list[bool] = []
    whole = module.flash_net

    def counted(x: Tensor, learning: Any, frozen: Any = None, **more: Any) -> Any:
        frozen_beside.append(frozen is not None)
        return whole(x, learning, frozen, **more)

    monkeypatch.setattr(module, "flash_net", counted)
    monkeypatch.setattr(flash, "is_fused", lambda x: True)
    found = [one.with_frozen(frozen, x, []) for one, frozen in pairs]
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)
    # The last pair alone is one operation; in the others, at most one network by itself.
    assert frozen_beside[-1]
    assert not any(frozen_beside[:-1])


def test_without_gradients_it_gives_the_same() -> None:
    net, x = network(2), normal(256, 13)
    wanted = results(as_modules, net, x)
    net.requires_grad_(False)
    fresh: list[Tensor] = []
    torch.testing.assert_close(as_one(net, x, fresh), wanted["out"], atol=1e-4, rtol=1e-4)
    assert len(fresh) == len(statistics(net))


@pytest.mark.parametrize("ensemble_size", [None, 2])
def test_several_seeds_are_networks_of_their_own(ensemble_size: int | None) -> None:
    nets = [network(ensemble_size, seed=seed) for seed in range(3)]
    others = [network(ensemble_size, seed=10 + seed) for seed in range(3)]
    x = normal(3, 256, 13)

    class Two(torch.nn.Module):
        def __init__(self, net: Any, other: Any) -> None:
            super().__init__()
            self.net, self.other = net, other

        def forward(self, x: Tensor) -> tuple[Any, ...]:
            fresh: list[Tensor] = []
            return *self.net._as_one(x, fresh, self.other), fresh

    pairs = [Two(*pair) for pair in zip(nets, others, strict=True)]
    weights, buffers = (
        {
            name: torch.stack([dict(getattr(pair, kind)())[name].detach() for pair in pairs])
            for name, _ in getattr(pairs[0], kind)()
        }
        for kind in ("named_parameters", "named_buffers")
    )
    names = [name for name, _ in nets[0].named_parameters()]
    learned = [weights[f"net.{name}"].requires_grad_() for name in names]
    out, beside, fresh = torch.vmap(lambda given, x: functional_call(pairs[0], given, (x,)))(
        weights | buffers, x
    )
    gradients = torch.autograd.grad((out * normal(*out.shape[1:], seed=9)).sum(), learned)
    for seed, net in enumerate(nets):
        found = {
            "out": out[seed].detach(),
            **{f"fresh {at}": value[seed].detach() for at, value in enumerate(fresh)},
            **{name: value[seed] for name, value in zip(names, gradients, strict=True)},
        }
        halved = results(lambda net, x, fresh: net(x, fresh)[..., :128, :], net, x[seed])
        assert_near(found, halved)
        wanted = others[seed](x[seed], [])[..., 128:, :].detach()
        torch.testing.assert_close(beside[seed], wanted, atol=1e-4, rtol=1e-4)


def test_which_sizes_fit() -> None:
    assert module.fits(torch.empty(256, 5), 128)
    assert not module.fits(torch.empty(250, 5), 128)
    assert not module.fits(torch.empty(256, 5), 96)
    assert not module.fits(torch.empty(2, 256, 5), 128)
    assert not module.fits(torch.empty(256, 5, requires_grad=True), 128)


def test_networks_behind_learned_vectors_of_tasks_run_as_modules() -> None:
    def critic(*tasks: str) -> QNetwork:
        cpu = torch.device("cpu")
        spec = EnvSpec("task", 2, (5,), Continuous(2), cpu, tasks=tasks)
        return QNetwork(ObsNorms(spec, enabled=False).encoder("critic", 4), CONFIG, 2, 3, 2)

    x = torch.empty(256, 11)
    assert isinstance(plain := critic().net, FlashNet)
    assert plain._fits(x)
    assert isinstance(with_tasks := critic("one", "two").net, FlashNet)
    assert not with_tasks._fits(x)


@pytest.mark.parametrize("ensemble_size", [None, 2])
def test_a_folded_block_is_the_block_in_evaluation_mode(ensemble_size: int | None) -> None:
    block = network(ensemble_size).blocks[0]
    x = normal(9, 64) if ensemble_size is None else normal(2, 9, 64)
    torch.testing.assert_close(block.folded(x), block(x, None), atol=1e-4, rtol=1e-4)


@pytest.mark.gpu
def test_compiled_code_in_bf16_takes_it_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # in bf16, as it is used
    net, other = (network(2, seed=seed).cuda() for seed in (0, 1))
    x = normal(512, 13).cuda()

    def outputs(x: Tensor) -> tuple[Tensor, ...]:
        fresh: list[Tensor] = []
        return *net.with_frozen(other, x, fresh), *fresh

    def results_of(call: Any) -> tuple[list[Tensor], list[Tensor]]:
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            out, *more = call(x)
            above = normal(*out.shape, seed=9).cuda()
            gradients = torch.autograd.grad((out.float() * above).sum(), list(net.parameters()))
        return [out.detach(), *more], list(gradients)

    compiled = torch.compile(outputs, dynamic=False)
    results_of(compiled)
    with torch.profiler.profile() as profile:
        found = results_of(compiled)
    names = {event.name for event in profile.events()}
    assert {"fleetfoot::flash_net", "fleetfoot::flash_net_backward"} <= names
    for one, two in zip(found, results_of(outputs), strict=True):
        for a, b in zip(one, two, strict=True):
            difference = (a.float() - b.float()).norm() / (b.float().norm() + 1e-6)
            assert float(difference) < 0.05
