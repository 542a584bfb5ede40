"""The autoencoder: its statistics, its loss by hand, and that it learns a ball which a plain loss would not see."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fleetfoot.data import Obs
from fleetfoot.envs.tensor import Catch
from fleetfoot.errors import UserError
from fleetfoot.nn.autoencoder import Autoencoder, AutoencoderConfig, LatentEncoder
from fleetfoot.nn.cnn import NatureCNNConfig
from fleetfoot.optim import AdamConfig
from fleetfoot.rng import seeded_init

SMALL = NatureCNNConfig(channels=(8, 16), kernels=(4, 3), strides=(2, 1))


def catch_pictures() -> Tensor:
    """Every place of the ball above every place of the paddle."""
    ball, row, paddle = torch.meshgrid(*(torch.arange(10.0),) * 3, indexing="ij")
    state = torch.stack([ball.flatten(), row.flatten(), paddle.flatten()], 1)
    return Catch().observe(state)[0]


def build(cfg: AutoencoderConfig, shape: tuple[int, ...]) -> Autoencoder:
    with seeded_init(0):
        return cfg.build(shape)


@pytest.mark.parametrize(
    ("shape", "cnn"),
    [
        ((4, 84, 84), NatureCNNConfig()),
        ((1, 10, 10), SMALL),
        ((1, 11, 10), NatureCNNConfig(channels=(4, 4), kernels=(3, 2), strides=(1, 2))),
    ],
)
def test_what_comes_back_has_the_size_of_what_went_in(
    shape: tuple[int, ...], cnn: NatureCNNConfig
) -> None:
    model = build(AutoencoderConfig(size=5, cnn=cnn), shape)
    pictures = torch.randint(0, 256, (3, *shape), dtype=torch.uint8)
    latent = model.encode(pictures)
    assert latent.shape == (3, 5)
    torch.testing.assert_close(latent.mean(-1), torch.zeros(3), atol=1e-5, rtol=0)
    assert model.loss(pictures).loss.isfinite()  # it compares pictures of one size


def test_loss_by_hand() -> None:
    model, pictures = build(AutoencoderConfig(size=3, cnn=SMALL), (1, 10, 10)), catch_pictures()
    model.observe(pictures)
    before = model.encode(pictures)
    model.apply_statistics_()
    assert not torch.equal(before, model.encode(pictures))  # only from here on
    numbers = pictures.double() / 255
    std = numbers.std(0, correction=0) + 0.05
    pixels = ((numbers - numbers.mean(0)) / std).float()
    again = model.deconvolutions(
        model.from_latent(model.encode(pictures)).view(-1, *model.smallest)
    )
    wanted = (again - pixels).square().mean()
    torch.testing.assert_close(model.loss(pictures).loss, wanted)


def test_a_ball_of_one_pixel_is_learned() -> None:
    model, pictures = build(AutoencoderConfig(size=16, cnn=SMALL), (1, 10, 10)), catch_pictures()
    model.observe(pictures)
    model.apply_statistics_()
    step, generator = AdamConfig(lr=1e-2).build(model, 400), torch.Generator().manual_seed(0)
    for _ in range(400):
        rows = torch.randint(len(pictures), (64,), generator=generator)
        step(model.loss(pictures[rows]).loss)
    assert model.loss(pictures).metrics["latent/unexplained"] < 0.5


def test_policies_read_pictures_and_latent_vectors_without_a_gradient() -> None:
    model = build(AutoencoderConfig(size=4, cnn=SMALL), (1, 10, 10))
    encoder, pictures = LatentEncoder(model), catch_pictures()[:6]
    latent = encoder(Obs(pictures, pictures))
    assert not latent.requires_grad
    assert torch.equal(encoder(Obs(latent, latent)), latent)


def test_no_latent_numbers_are_refused() -> None:
    with pytest.raises(UserError, match=r"latent\.size"):
        AutoencoderConfig(size=0)
