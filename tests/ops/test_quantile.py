from __future__ import annotations

import numpy as np
import torch

from fleetfoot.ops.quantile import huber_loss, midpoints


def test_the_loss_is_the_sum_over_predicted_and_the_mean_over_targets() -> None:
    random = np.random.default_rng(0)
    predicted, target = random.normal(size=(2, 3, 4)) * 2, random.normal(size=(3, 5)) * 2
    wanted = np.zeros((2, 3))
    for head in range(2):
        for row in range(3):
            for i in range(4):
                for j in range(5):
                    u = target[row, j] - predicted[head, row, i]
                    huber = 0.5 * u**2 if abs(u) <= 1 else abs(u) - 0.5
                    wanted[head, row] += abs((i + 0.5) / 4 - (u < 0)) * huber / 5
    found = huber_loss(torch.tensor(predicted), torch.tensor(target), midpoints(4).double())
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6)


def test_quantiles_converge_to_those_of_the_data() -> None:
    """Of a uniform variable on [0, 100], where the rounded corner of the Huber loss does not matter."""
    predicted = torch.zeros(1, 5, requires_grad=True)
    target = torch.linspace(0, 100, 1001)[None]
    optimizer = torch.optim.Adam([predicted], lr=3.0)
    for step in range(600):
        optimizer.param_groups[0]["lr"] = 3.0 * 0.99**step
        loss = huber_loss(predicted, target, midpoints(5)).sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    wanted = torch.tensor([[10.0, 30.0, 50.0, 70.0, 90.0]])
    torch.testing.assert_close(predicted.detach(), wanted, atol=0.5, rtol=0)
