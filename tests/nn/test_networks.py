from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fleetfoot.nn.embed import TaskEmbedding
from fleetfoot.nn.freeze import frozen
from fleetfoot.nn.linear import LayerNorm
from fleetfoot.nn.mlp import MLPConfig, SimNormMLPConfig
from fleetfoot.nn.simba import Block, Dense, Scaler, SimbaV2, SimbaV2Config
from fleetfoot.optim import AdamWConfig

CONFIGS: list[Any] = [
    MLPConfig(hidden=(16, 8)),
    MLPConfig(hidden=(16, 8), layer_norm=True),
    SimNormMLPConfig(hidden=(16,), groups=3, group_size=4),
    SimbaV2Config(width=8, blocks=2),
    SimbaV2Config(width=8, blocks=1, variant="port"),
]


@pytest.mark.parametrize("cfg", CONFIGS)
def test_an_ensemble_is_its_members_side_by_side(cfg: Any) -> None:
    torch.manual_seed(0)
    both = cfg.build(5, 3, ensemble_size=2)
    x = torch.randn(7, 5)
    out = both(x)
    assert out.shape == (2, 7, 3)
    assert not torch.allclose(out[0], out[1])
    for member in range(2):
        single = cfg.build(5, 3)
        with torch.no_grad():
            for mine, theirs in zip(single.parameters(), both.parameters(), strict=True):
                mine.copy_(theirs[member].reshape(mine.shape))
        torch.testing.assert_close(single(x), out[member], atol=1e-5, rtol=1e-5)


def test_default_initialisation_is_that_of_torch() -> None:
    torch.manual_seed(0)
    weight = MLPConfig(hidden=(64,)).build(100, 3).body[0].weight  # type: ignore[index,union-attr]
    assert weight.abs().max().item() == pytest.approx(0.1, abs=1e-3)  # U(+-1/sqrt(100))
    assert weight.std().item() == pytest.approx(0.1 / math.sqrt(3), rel=0.05)


def test_the_policy_head_starts_small() -> None:
    torch.manual_seed(0)
    head: Any = MLPConfig(hidden=(256,), head_std=0.01).build(4, 50).head
    assert head.weight.std().item() == pytest.approx(0.01, rel=0.05)
    assert head.bias is not None
    assert bool((head.bias == 0).all())


def test_layer_norm_equals_torch_per_member() -> None:
    norm, x = LayerNorm(6, ensemble_size=2), torch.randn(2, 9, 6)
    torch.testing.assert_close(norm(x), torch.nn.functional.layer_norm(x, (6,), eps=1e-6))


def test_simnorm_codes_are_distributions() -> None:
    torch.manual_seed(0)
    cfg = SimNormMLPConfig(hidden=(16,), groups=3, group_size=4)
    net: Any = cfg.build(5, 2)
    seen: list[torch.Tensor] = []
    net.head.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    net(torch.randn(7, 5))
    codes = seen[0].view(7, 3, 4)
    torch.testing.assert_close(codes.sum(-1), torch.ones(7, 3))
    assert bool((codes >= 0).all())


def effective(scaler: Scaler) -> float:
    return float((scaler.parameter * scaler.ratio).detach().flatten()[0])


@pytest.mark.parametrize(("variant", "power"), [("faithful", 1), ("port", 2)])
def test_simba_scalers_start_where_their_source_says(variant: Any, power: int) -> None:
    critic = SimbaV2(SimbaV2Config(width=32, blocks=2, variant=variant), 5, 3, None)
    block = critic.blocks[0]
    assert isinstance(block, Block)
    assert effective(block.alpha) == pytest.approx((1 / 3) ** power)
    assert effective(block.scaler) == pytest.approx((math.sqrt(2 / 32) / 2) ** power)
    assert effective(critic.embed_scaler) == pytest.approx(math.sqrt(2 / 32) ** power)


def test_simba_equals_its_definition() -> None:
    torch.manual_seed(1)
    net = SimbaV2(SimbaV2Config(width=6, blocks=1), 4, 2, None)
    x = torch.randn(3, 4)

    def unit(v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.normalize(v, dim=-1, eps=0.0)

    h = unit(torch.cat([x, torch.full((3, 1), 3.0)], 1)) @ net.embed.weight
    h = unit(h * effective(net.embed_scaler))
    block = net.blocks[0]
    assert isinstance(block, Block)
    m = torch.relu(h @ block.w1.weight * effective(block.scaler))
    h = unit(h + effective(block.alpha) * (unit(m @ block.w2.weight) - h))
    wanted = h @ net.pre_head.weight @ net.head.weight
    torch.testing.assert_close(net(x), wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("variant", "stays"), [("faithful", True), ("port", False)])
def test_simba_weights_stay_on_the_sphere(variant: Any, stays: bool) -> None:
    torch.manual_seed(0)
    net = SimbaV2(SimbaV2Config(width=8, blocks=1, variant=variant), 4, 2, 2)
    step = AdamWConfig(lr=0.05, weight_decay=0.0).build(net, 10)
    for _ in range(3):
        step(net(torch.randn(6, 4)).square().sum())
    lengths = torch.cat(
        [m.weight.norm(dim=-2).flatten() for m in net.modules() if isinstance(m, Dense)]
    )
    assert torch.allclose(lengths, torch.ones_like(lengths), atol=1e-4) is stays


def test_embeddings_are_at_most_unit_length() -> None:
    embed = TaskEmbedding(4, 8)
    with torch.no_grad():
        embed.weight[1] = 3.0
        embed.weight[2] = 0.01
    embed.constrain_()
    assert embed.weight[1].norm().item() == pytest.approx(1.0, abs=1e-5)
    assert torch.equal(embed(torch.tensor([2]))[0], torch.full((8,), 0.01))


def test_frozen_passes_gradients_through_but_not_in() -> None:
    net, x = MLPConfig(hidden=(4,)).build(3, 1), torch.randn(2, 3, requires_grad=True)
    with frozen(net):
        net(x).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert all(p.grad is None and p.requires_grad for p in net.parameters())
