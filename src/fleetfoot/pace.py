"""The ratio of learning to collecting, and how several threads keep it."""

from __future__ import annotations

from typing import Any

from fleetfoot.config import at_least, part


@part
class PaceConfig:
    """How many updates are made for each vec step."""

    updates_per_vec_step: float = 2.0
    """Updates after each vec step; 0.25 means one update every four steps."""
    warmup_vec_steps: int = 10
    """Vec steps collected before the first update."""

    def __post_init__(self) -> None:
        at_least(self, "pace", updates_per_vec_step=0, warmup_vec_steps=0)

    def build(self) -> Pace:
        return Pace(self)

    def updates_after(self, vec_steps: int) -> int:
        """Updates that a run of `vec_steps` makes."""
        # 49 * (1 / 49) is a little less than 1, but calls for one update.
        return int(max(0, vec_steps - self.warmup_vec_steps) * self.updates_per_vec_step + 1e-6)


class Pace:
    """Says how many updates are due. Over any stretch the count is exact to one update."""

    def __init__(self, cfg: PaceConfig):
        self.cfg = cfg
        self.vec_steps = 0
        self.held_vec_steps = 0

    def hold(self, vec_steps: int) -> None:
        """Owe nothing for `vec_steps`, for example because the replay has to fill again; they are not made up for."""
        self.held_vec_steps = vec_steps

    def owed(self) -> int:
        """Call once per vec step; returns the updates due after it."""
        before = self.cfg.updates_after(self.vec_steps)
        self.vec_steps += 1
        if self.held_vec_steps > 0:
            self.held_vec_steps -= 1
            return 0
        return self.cfg.updates_after(self.vec_steps) - before

    def state_dict(self) -> dict[str, Any]:
        return {"vec_steps": self.vec_steps, "held_vec_steps": self.held_vec_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.vec_steps = state["vec_steps"]
        self.held_vec_steps = state["held_vec_steps"]
