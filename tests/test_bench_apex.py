"""`fleetfoot bench apex` measures what it says."""

from __future__ import annotations

import pytest

from fleetfoot.bench.apex import bench_apex
from fleetfoot.errors import UserError


def test_an_actor_is_measured_beside_the_bare_environment() -> None:
    found = bench_apex(num_envs=2, seconds=0.3, lines=4, rounds=1)
    speeds = found["frames_per_second_per_core"]
    assert set(speeds) == {"bare", "actor_float32", "actor_bf16"}
    for name, ratio in found["ratio_to_bare"].items():
        assert ratio == speeds[name] / speeds["bare"]
    # One new frame per row, and the first stacks of a block.
    frame = 84 * 84
    assert found["bytes_sent_per_row"]["float32"] >= frame * (4 + 4) / 4
    assert found["bytes_sent_per_row"]["float32"] < frame * 8
    assert found["passed"] == (max(found["ratio_to_bare"].values()) >= found["bar"])


def test_nonsense_is_refused() -> None:
    with pytest.raises(UserError, match="bench apex needs"):
        bench_apex(num_envs=0)
