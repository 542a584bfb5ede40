"""The networks of FlashSAC (Kim et al. 2026): unit weights, batch-normalised features, a residual stream.

    embedder   x <- W BN(x)
    block      x <- x + relu(BN2(W2 relu(BN1(W1 x)))),   W1: h -> 4h,  W2: 4h -> h
    end        x <- RMSNorm(x)
    head       W_out x + b

Every output unit's weights have length 1, also those of the head; the scale and shift of a BatchNorm and the scale of
the RMSNorm have, as vectors of width d, length root(d). `constrain_` restores all of it after an optimiser step. No
layer but the head has a bias. The ReLU comes before the addition, so the stream only grows, and the RMSNorm bounds it.
The embedder's BatchNorm takes the place of an observation normaliser.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fleetfoot.config import at_least, part
from fleetfoot.nn.batch_norm import BatchNorm, statistics
from fleetfoot.nn.linear import Linear, orthogonal_
from fleetfoot.nn.network import Network
from fleetfoot.ops import flash_net
from fleetfoot.ops.affine import affine, is_fused
from fleetfoot.ops.project import root_length_, unit_columns_

EXPANSION = 4


@part
class FlashNetConfig:
    """FlashSAC's network: inverted residual blocks with BatchNorm, and weights of unit length."""

    width: int = 256
    """Features of each layer."""
    blocks: int = 2
    """Residual blocks."""

    def __post_init__(self) -> None:
        at_least(self, "net", width=1, blocks=1)

    def build(self, inputs: int, outputs: int, ensemble_size: int | None = None) -> Network:
        return FlashNet(self, inputs, outputs, ensemble_size)


class UnitLinear(Linear):
    """Orthogonal weights at first. The bias is free."""

    def __init__(self, inputs: int, outputs: int, ensemble_size: int | None, bias: bool = False):
        super().__init__(inputs, outputs, ensemble_size, bias=bias)
        orthogonal_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class RMSNorm(nn.Module):
    """x / root(mean(x^2) + eps) * weight over the last axis, in float32, with a weight per member."""

    def __init__(self, width: int, ensemble_size: int | None, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(
            torch.ones((width,) if ensemble_size is None else (ensemble_size, width))
        )

    def forward(self, x: Tensor) -> Tensor:
        features = x.float()
        scale = (features.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        return (features * scale * self.weight.unsqueeze(-2)).to(x.dtype)


class Block(nn.Module):
    """An inverted bottleneck with BatchNorm, added to what enters it."""

    def __init__(self, width: int, ensemble_size: int | None):
        super().__init__()
        self.w1 = UnitLinear(width, EXPANSION * width, ensemble_size)
        self.norm1 = BatchNorm(EXPANSION * width, ensemble_size, relu=True)
        self.w2 = UnitLinear(EXPANSION * width, width, ensemble_size)
        self.norm2 = BatchNorm(width, ensemble_size, relu=True)

    def forward(self, x: Tensor, fresh: list[Tensor] | None) -> Tensor:
        if fresh is None and is_fused(x):
            return self.folded(x)
        inner = self.w2(self.norm1(self.w1(x), fresh))
        # Compiled, the sum is part of a kernel. Elsewhere whoever looks at units finds them after their ReLU.
        fused = torch.compiler.is_compiling()
        out: Tensor = self.norm2(inner, fresh, plus=x if fused else None)
        return out if fused else x + out

    def folded(self, x: Tensor) -> Tensor:
        """The same in evaluation mode: a BatchNorm is part of the product before it, and needs no pass of its own."""
        inner = affine(x, *self.norm1.folded(self.w1.weight), relu=True)
        return x + affine(inner, *self.norm2.folded(self.w2.weight), relu=True)


class FlashNet(Network):
    """The network of `FlashNetConfig`."""

    batch_statistics = True

    def __init__(self, cfg: FlashNetConfig, inputs: int, outputs: int, ensemble_size: int | None):
        super().__init__()
        self.norm = BatchNorm(inputs, ensemble_size)
        self.embed = UnitLinear(inputs, cfg.width, ensemble_size)
        self.blocks = nn.ModuleList(Block(cfg.width, ensemble_size) for _ in range(cfg.blocks))
        self.end = RMSNorm(cfg.width, ensemble_size)
        self.head = UnitLinear(cfg.width, outputs, ensemble_size, bias=True)
        self.constrain_()

    def forward(self, x: Tensor, fresh: list[Tensor] | None = None) -> Tensor:
        if fresh is not None and is_fused(x) and self._fits(x):
            return self._as_one(x, fresh)[0]
        x = self.embed(self.norm(x, fresh))
        for block in self.blocks:
            x = block(x, fresh)
        out: Tensor = self.head(self.end(x))
        return out

    def with_frozen(self, frozen: Network, x: Tensor, fresh: list[Tensor]) -> tuple[Tensor, Tensor]:
        sizes = [[weight.shape for weight in net.parameters()] for net in (self, frozen)]
        alike = type(frozen) is FlashNet and sizes[0] == sizes[1]
        if alike and is_fused(x) and self._fits(x):
            return self._as_one(x, fresh, frozen)
        return super().with_frozen(frozen, x, fresh)

    def _fits(self, x: Tensor) -> bool:
        """Can the operation stand for this network? Not for a subclass, which may compute something else."""
        own = type(self) is FlashNet and not self.learned_inputs
        return own and flash_net.fits(x, self.end.weight.shape[-1])

    def _as_one(
        self, x: Tensor, fresh: list[Tensor], frozen: Network | None = None
    ) -> tuple[Tensor, Tensor]:
        """In training mode as one operation; with a frozen network as in `with_frozen`."""
        norm = self.norm
        out, of_frozen, new = flash_net.flash_net(
            x,
            _parameters(self),
            None if frozen is None else _parameters(frozen),
            momentum=norm.momentum,
            eps=norm.eps,
            rms_eps=self.end.eps,
        )
        fresh.extend(statistic.unsqueeze(0) for statistic in new)
        return out, of_frozen

    def constrain_(self) -> None:
        for module in self.modules():
            if isinstance(module, UnitLinear):
                unit_columns_(module.weight)
            elif isinstance(module, BatchNorm):
                root_length_(module.weight, module.bias)
            elif isinstance(module, RMSNorm):
                root_length_(module.weight)


def _parameters(network: nn.Module) -> flash_net.Parameters:
    layers = [module for module in network.modules() if isinstance(module, UnitLinear)]
    norms = [module for module in network.modules() if isinstance(module, BatchNorm)]
    (end,) = (module.weight for module in network.modules() if isinstance(module, RMSNorm))
    bias = layers[-1].bias
    assert bias is not None
    return flash_net.Parameters(
        [layer.weight for layer in layers],
        [norm.weight for norm in norms],
        [norm.bias for norm in norms],
        end,
        bias,
        statistics(network),
    )
