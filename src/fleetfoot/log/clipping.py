"""Says that a value range is too narrow: nothing else would, since training goes on and only the return stays low."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from fleetfoot.errors import Notice
from fleetfoot.log.meter import Counters

ALLOWED = 0.01  # share of the target distributions outside of the range
PATIENCE = 5  # readings in a row; targets of an untrained critic lie anywhere


class ClippingNotice:
    """A sink that prints one line, once, where `critic/clipped` stays above 1 %."""

    def __init__(self, v_min: float, v_max: float):
        self.v_min, self.v_max, self.readings = v_min, v_max, 0

    def write(self, counters: Counters, metrics: Mapping[str, float]) -> None:
        if "critic/clipped" not in metrics or self.readings == PATIENCE:
            return
        share = metrics["critic/clipped"]
        self.readings = self.readings + 1 if share > ALLOWED else 0
        if self.readings == PATIENCE:
            message = (
                f"{share:.1%} of the value targets lie outside the range from {self.v_min:g} to {self.v_max:g} and "
                "are clipped: widen --agent.v-min and --agent.v-max, or give auto for both."
            )
            warnings.warn(message, Notice, stacklevel=2)

    def close(self) -> None:
        pass
