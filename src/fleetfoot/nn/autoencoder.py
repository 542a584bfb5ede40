"""Pictures as short vectors: a convolutional autoencoder, and the encoder of a policy that reads them."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fleetfoot.config import at_least, part
from fleetfoot.data import Loss, Obs
from fleetfoot.nn.cnn import NatureCNNConfig
from fleetfoot.nn.encode import Encoder
from fleetfoot.nn.normalize import RunningNorm


@part
class AutoencoderConfig:
    """An autoencoder: convolutions, a short latent vector, and the mirrored convolutions."""

    size: int = 64
    """Size of the latent vector."""
    cnn: NatureCNNConfig = NatureCNNConfig()
    """The convolutions of the encoder; those of the decoder are their mirror image."""

    def __post_init__(self) -> None:
        at_least(self, "latent", size=1)

    def build(self, shape: tuple[int, ...]) -> Autoencoder:
        return Autoencoder(self, shape)


class Autoencoder(nn.Module):
    """Bytes [B, C, H, W] -> [B, size] and back.

    Pixels are standardised by running statistics of their own, and errors are measured in these units: a ball that is
    rarely anywhere outweighs a background that never changes, and which would otherwise be all that is learned.
    The latent vectors have mean 0 and variance 1 over their numbers.
    """

    def __init__(self, cfg: AutoencoderConfig, shape: tuple[int, ...]):
        super().__init__()
        self.size = cfg.size
        self.pixels = RunningNorm(shape[1:], eps=0.05)  # the same for all frames of a stack
        self.pending = RunningNorm(shape[1:], eps=0.05)
        torso = cfg.cnn.build(shape)
        convolutions = torso.get_submodule("convolutions")
        assert isinstance(convolutions, nn.Sequential)
        with torch.no_grad():
            sides = [torch.zeros(1, *shape)]
            for layer in convolutions:
                if isinstance(layer, nn.Conv2d):
                    sides.append(layer(sides[-1]))
        sizes = [
            (side.shape[1], *side.shape[2:]) for side in sides
        ]  # of the input and of each layer
        self.convolutions = convolutions
        self.to_latent = nn.Linear(torso.size, cfg.size)
        self.from_latent = nn.Linear(cfg.size, torso.size)
        self.smallest = tuple(sizes[-1])
        back: list[nn.Module] = []
        shapes = list(zip(cfg.cnn.kernels, cfg.cnn.strides, strict=True))
        for (large, small), (kernel, stride) in reversed(
            list(zip(pairwise(sizes), shapes, strict=True))
        ):
            missing = tuple(
                side - ((less - 1) * stride + kernel)
                for side, less in zip(large[1:], small[1:], strict=True)
            )
            back += [
                nn.ReLU(),
                nn.ConvTranspose2d(
                    small[0], large[0], kernel, stride, output_padding=(missing[0], missing[1])
                ),
            ]
        self.deconvolutions = nn.Sequential(*back)

    def observe(self, pictures: Tensor) -> None:
        """Take the newest frame of each stack into the statistics of pixels, each once. A policy that reads the latent
        vectors must not change while it collects: they count from `apply_statistics_` on."""
        self.pending.update(pictures[:, -1].float() / 255.0)

    @torch.no_grad()
    def apply_statistics_(self) -> None:
        for now, pending in zip(self.pixels.buffers(), self.pending.buffers(), strict=True):
            now.copy_(pending)

    def encode(self, pictures: Tensor) -> Tensor:
        return self._encode(self._standardised(pictures))

    def loss(self, pictures: Tensor) -> Loss:
        """The mean squared error of the pictures that the decoder makes, in standard deviations of each pixel."""
        pixels = self._standardised(pictures)
        latent = self._encode(pixels)
        again = self.deconvolutions(self.from_latent(latent).unflatten(1, self.smallest))
        loss = (again - pixels).square().mean()
        unexplained = loss / pixels.square().mean().clamp(min=1e-6)
        return Loss(
            loss,
            {"latent/loss": loss.detach(), "latent/unexplained": unexplained.detach()},
        )

    def _standardised(self, pictures: Tensor) -> Tensor:
        pixels: Tensor = self.pixels(pictures.float() / 255.0)
        return pixels

    def _encode(self, pixels: Tensor) -> Tensor:
        features: Tensor = self.to_latent(self.convolutions(pixels).flatten(1))
        return F.layer_norm(features.float(), (self.size,))


class LatentEncoder(Encoder):
    """Obs -> features [B, size]: pictures (bytes) become latent vectors, and latent vectors stay as they are.

    No gradient flows into the autoencoder: it learns from pictures, and not from rewards.
    """

    def __init__(self, autoencoder: Autoencoder):
        nn.Module.__init__(self)  # nothing to normalise, and no tasks
        self.autoencoder, self.size, self.embed = autoencoder, autoencoder.size, None

    def forward(self, obs: Obs) -> Tensor:
        if obs.actor.dtype == torch.uint8:
            return self.autoencoder.encode(obs.actor).detach()
        return obs.actor
