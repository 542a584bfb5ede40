"""Starting a Ray for a run."""

from __future__ import annotations

import pytest

from fleetfoot.errors import UserError
from fleetfoot.topologies.ray.cluster import RayConfig, cluster


def test_a_server_that_dies_while_ray_starts_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")

    def init(*args: object, **options: object) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    expected = "cannot start Ray: .*The current node timed out"
    with (
        pytest.raises(UserError, match=expected),
        cluster(RayConfig(), cpus=1, gpus=0),
    ):
        pass
