"""How smoothly a policy acts: what a motor has to follow."""

from __future__ import annotations

import torch
from torch import Tensor

HIGH_HZ = 10.0  # a robot's body does not move faster; what is above shakes its gears
WATCHED = 32  # environments whose actions are kept for their spectrum
WINDOW = 64  # vec steps of one spectrum


class SmoothnessMeter:
    """Collects the actions of the first episode of each environment.

    `action_change`  mean |a_t - a_(t-1)|: how far an action component moves from one step to the next
    `action_jerk`    mean |a_t - 3 a_(t-1) + 3 a_(t-2) - a_(t-3)|: the third difference
    `action_above_10hz`  share of the actions' power, without their mean, above 10 Hz; left out where the control rate
        is too low to have any (20 Hz and below), or all episodes are shorter than 64 steps
    """

    def __init__(self, step_seconds: float):
        self.step_seconds = step_seconds
        self.recent: list[
            Tensor
        ] = []  # up to three actions [N, A] before the current one, the newest last
        # Sums over environments, and how many there were, of each vec step.
        self.sums: dict[str, list[tuple[Tensor, Tensor]]] = {"action_change": [], "action_jerk": []}
        self.watched: list[
            tuple[Tensor, Tensor]
        ] = []  # actions and running, of the first environments

    def update(self, action: Tensor, running: Tensor) -> None:
        """Add one vec step. `running` [N]: where the first episode has not ended."""
        action = action.float()
        if self.recent:
            self._add("action_change", action - self.recent[-1], running)
        if len(self.recent) == 3:
            third = action - 3 * self.recent[2] + 3 * self.recent[1] - self.recent[0]
            self._add("action_jerk", third, running)
        self.recent = [*self.recent, action][-3:]
        # Copies: a view would hold the actions of thousands of environments.
        self.watched.append((action[:WATCHED].clone(), running[:WATCHED].clone()))

    def _add(self, name: str, difference: Tensor, running: Tensor) -> None:
        size = difference.abs().mean(1)
        self.sums[name].append((torch.where(running, size, 0.0).sum(), running.sum()))

    def metrics(self) -> dict[str, float]:
        """Waits for the device."""
        found = {}
        for name, pairs in self.sums.items():
            if pairs:
                totals, counts = (
                    torch.stack(column).double().sum() for column in zip(*pairs, strict=True)
                )
                if counts > 0:
                    found[name] = float(totals / counts)
        share = self._high_share()
        return found if share is None else found | {"action_above_10hz": share}

    def _high_share(self) -> float | None:
        if self.step_seconds * 2 * HIGH_HZ >= 1.0 or len(self.watched) < WINDOW:
            return None
        actions, running = (torch.stack(column) for column in zip(*self.watched, strict=True))
        windows = actions.unfold(0, WINDOW, WINDOW)  # [windows, envs, A, WINDOW]
        whole = running.unfold(0, WINDOW, WINDOW).all(-1)  # [windows, envs]
        if not bool(whole.any()):
            return None
        rows = windows[whole]  # [rows, A, WINDOW]
        taper = torch.hann_window(WINDOW, periodic=False, device=rows.device)
        spectrum = torch.fft.rfft((rows - rows.mean(-1, keepdim=True)) * taper).abs().square()
        frequency = torch.fft.rfftfreq(WINDOW, self.step_seconds, device=rows.device)
        power = spectrum.double().sum((0, 1))
        power[-1] /= 2  # all others stand for two, a positive frequency and its negative
        total = power[1:].sum()  # without the mean, of which the taper lets a little back in
        return float(power[frequency > HIGH_HZ].sum() / total) if total > 0 else 0.0
