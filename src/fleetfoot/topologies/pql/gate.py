"""Which stage of a pipeline may begin its next round."""

from __future__ import annotations

from collections.abc import Sequence


class Gate:
    """Keeps the ratios between stages that run at the same time by counting the vec steps each has finished.

    A stage may begin a vec step when the stage before it has finished that vec step, and when fewer than `lead` of the
    vec steps that it has finished are still waiting for the stage after it. So no stage is ever more than `lead` vec
    steps ahead of the next one, and none waits for anything else.
    """

    def __init__(self, stages: Sequence[str], *, lead: int, free_after: int | None = None):
        """`free_after`: once a stage has finished more vec steps than this, the next one no longer waits for it, and
        the first stage never waits; None: always keep the ratios."""
        self.stages, self.lead, self.free_after = tuple(stages), lead, free_after
        self.finished = dict.fromkeys(stages, 0)  # vec steps

    def may_begin(self, stage: str, begun: int = 0) -> bool:
        """May the stage begin another round, with `begun` vec steps in rounds that it has not finished?"""
        position = self.stages.index(stage)
        own = self.finished[stage] + begun
        before = self.finished[self.stages[position - 1]] if position else own + 1
        if self.free_after is not None:
            return own < before or before > self.free_after
        last = position + 1 == len(self.stages)
        after = own if last else self.finished[self.stages[position + 1]]
        return own < before and own - after < self.lead

    def finish(self, stage: str, vec_steps: int = 1) -> None:
        self.finished[stage] += vec_steps
