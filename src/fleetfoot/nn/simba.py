"""Hyperspherical networks (SimbaV2, Lee et al. 2025): features and weights live on unit spheres.

l2norm(x) = x / (|x| + 1e-8). Dense layers have no bias and orthogonal weights.

    embedder   x <- l2norm(s * W l2norm([x, 3]))
    block      m <- l2norm(W2 (relu(s' * W1 x) + 1e-8)),   x <- l2norm(x + alpha * (m - x))
    head       W_out (s_out * W_h x) + b

s, s', alpha are learned vectors ("scalers") stored divided by a fixed scale, so that the optimiser moves them at the
pace of the other weights: effective value = parameter * (init / scale), the parameter starting at `scale`.

The port that FastTD3 ships differs in two ways, kept here under `variant="port"`: (a) its scaler parameters start at
init * scale, so the effective start is init^2, and (b) it never brings the weights back to the sphere. The original
brings back those of the networks that learn, and leaves averages of them (a target network) a little inside; here both
are brought back.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fleetfoot.config import part
from fleetfoot.nn.linear import Linear, orthogonal_
from fleetfoot.nn.network import Network

Variant = Literal["faithful", "port"]
EXPANSION = 4
SHIFT = 3.0


@part
class SimbaV2Config:
    """SimbaV2: features and weights on the unit sphere."""

    width: int = 512
    """Features of each layer."""
    blocks: int = 2
    """Residual blocks."""
    variant: Variant = "faithful"
    """faithful: as in SimbaV2; port: as in the code of FastTD3 (see the top of this file)."""

    def build(self, inputs: int, outputs: int, ensemble_size: int | None = None) -> Network:
        return SimbaV2(self, inputs, outputs, ensemble_size)


def l2norm(x: Tensor) -> Tensor:
    unit: Tensor = x / (torch.linalg.vector_norm(x, dim=-1, keepdim=True) + 1e-8)
    return unit


class Scaler(nn.Module):
    """A learned vector that multiplies features."""

    def __init__(
        self, width: int, init: float, scale: float, variant: Variant, ensemble_size: int | None
    ):
        super().__init__()
        start = scale if variant == "faithful" else init * scale
        lead = () if ensemble_size is None else (ensemble_size, 1)
        self.ratio = init / scale
        self.parameter = nn.Parameter(torch.full((*lead, width), start))

    def forward(self, x: Tensor) -> Tensor:
        return self.parameter * self.ratio * x


class Dense(Linear):
    """A biasless layer with orthogonal weights; `constrain_` makes every output unit's weights unit length."""

    def __init__(self, inputs: int, outputs: int, ensemble_size: int | None):
        super().__init__(inputs, outputs, ensemble_size, bias=False)
        orthogonal_(self.weight)

    @torch.no_grad()
    def constrain_(self) -> None:
        self.weight.div_(torch.linalg.vector_norm(self.weight, dim=-2, keepdim=True) + 1e-8)


class Block(nn.Module):
    """An inverted bottleneck, interpolated with what enters it, on the sphere."""

    def __init__(self, cfg: SimbaV2Config, ensemble_size: int | None):
        super().__init__()
        h = cfg.width
        gain = math.sqrt(2.0 / h) / math.sqrt(EXPANSION)
        self.w1 = Dense(h, EXPANSION * h, ensemble_size)
        self.scaler = Scaler(EXPANSION * h, gain, gain, cfg.variant, ensemble_size)
        self.w2 = Dense(EXPANSION * h, h, ensemble_size)
        alpha = 1.0 / (cfg.blocks + 1)
        self.alpha = Scaler(h, alpha, 1.0 / math.sqrt(h), cfg.variant, ensemble_size)

    def forward(self, x: Tensor) -> Tensor:
        m = l2norm(self.w2(F.relu(self.scaler(self.w1(x))) + 1e-8))
        return l2norm(x + self.alpha(m - x))


class SimbaV2(Network):
    """The network of `SimbaV2Config`."""

    def __init__(self, cfg: SimbaV2Config, inputs: int, outputs: int, ensemble_size: int | None):
        super().__init__()
        h = cfg.width
        gain = math.sqrt(2.0 / h)
        self.cfg = cfg
        self.embed = Dense(inputs + 1, h, ensemble_size)
        self.embed_scaler = Scaler(h, gain, gain, cfg.variant, ensemble_size)
        self.blocks = nn.Sequential(*(Block(cfg, ensemble_size) for _ in range(cfg.blocks)))
        self.pre_head = Dense(h, h, ensemble_size)
        self.head_scaler = Scaler(h, 1.0, 1.0, cfg.variant, ensemble_size)
        self.head = Dense(h, outputs, ensemble_size)
        lead = () if ensemble_size is None else (ensemble_size, 1)
        self.head_bias = nn.Parameter(torch.zeros(*lead, outputs))
        self.constrain_()

    def forward(self, x: Tensor) -> Tensor:
        shift = torch.full_like(x[..., :1], SHIFT)
        x = l2norm(torch.cat([x, shift], dim=-1))
        x = l2norm(self.embed_scaler(self.embed(x)))
        x = self.blocks(x)
        out: Tensor = self.head(self.head_scaler(self.pre_head(x))) + self.head_bias
        return out

    def constrain_(self) -> None:
        if self.cfg.variant == "port":
            return
        for module in self.modules():
            if isinstance(module, Dense):
                module.constrain_()
