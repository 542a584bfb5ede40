"""Return and length of the episodes that end while training goes on."""

from __future__ import annotations

import torch
from torch import Tensor

from fleetfoot.errors import UserError
from fleetfoot.log.meter import Mean


class EpisodeStats:
    """Running return and length of N environments, kept on their device; nothing here waits."""

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self.returns = torch.zeros(num_envs, device=device)  # [N] of the running episodes
        self.lengths = torch.zeros(num_envs, device=device)  # [N] in vec steps
        # Sums of return, length and 1 since last asked.
        self.ended = torch.zeros(3, device=device)

    def update(self, reward: Tensor, ended: Tensor) -> None:
        """Take in one vec step: `reward` [N], and `ended` [N] bool where an episode is over."""
        self.returns += reward
        self.lengths += 1
        rows = torch.stack([self.returns, self.lengths, torch.ones_like(self.returns)])  # [3, N]
        # Chosen, not multiplied: a NaN in an episode that goes on must not count as ended.
        self.ended += torch.where(ended, rows, 0.0).sum(-1)
        self.returns.masked_fill_(ended, 0.0)
        self.lengths.masked_fill_(ended, 0.0)

    def restart(self) -> None:
        """All environments begin anew; the running episodes count as if they had never been."""
        self.returns.zero_()
        self.lengths.zero_()

    def metrics(self) -> dict[str, Mean]:
        """Means over the episodes that ended since this was last called; none: `Log` skips them."""
        total_return, total_length, count = self.ended.clone()
        self.ended.zero_()
        return {
            "episode/return": Mean(total_return, count),
            "episode/length": Mean(total_length, count),
        }

    def state_dict(self) -> dict[str, Tensor]:
        return {name: getattr(self, name).clone() for name in ("returns", "lengths", "ended")}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name in ("returns", "lengths", "ended"):
            current = getattr(self, name)
            if state[name].shape != current.shape:  # `copy_` would spread one value over all
                raise UserError(
                    f"the episode statistics saved here have {name} of shape "
                    f"{tuple(state[name].shape)}, this run needs {tuple(current.shape)}"
                )
            current.copy_(state[name])
