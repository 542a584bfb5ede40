"""Whatever fails while a run is built, the environments that exist by then are closed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fleetfoot import api
from fleetfoot.config import part
from fleetfoot.envs.tensor import TensorConfig, TensorEnv
from fleetfoot.errors import UserError
from fleetfoot.explore import EpsilonAnnealConfig
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.topologies.pql.loop import SplitLearnersConfig
from fleetfoot.topologies.synchronous import SynchronousConfig
from support.runs import small

open_envs: list[TensorEnv] = []


@part
class WatchedConfig:
    """The pendulum, which is on a list until it is closed."""

    fails: bool = False

    def build(self, num_envs: int, seed: int, device: torch.device) -> TensorEnv:
        env = TensorConfig().build(num_envs, seed, device)
        open_envs.append(env)
        env.close = lambda: open_envs.remove(env)  # type: ignore[method-assign]
        if self.fails:
            env.reset = lambda: _fail()  # type: ignore[method-assign]
        return env

    def for_evaluation(self) -> WatchedConfig:
        return self


@part
class BadInEvaluationConfig(WatchedConfig):
    """Those that evaluate cannot be reset."""

    def for_evaluation(self) -> WatchedConfig:
        return WatchedConfig(fails=True)


def _fail() -> Any:
    raise UserError("this simulator does not start.")


FAULTS: dict[str, dict[str, Any]] = {
    "no reset": {"env": WatchedConfig(fails=True)},
    "no evaluation": {"env": BadInEvaluationConfig()},
    "explorer": {"explorer": EpsilonAnnealConfig(), "env": WatchedConfig()},
    "replay": {"replay": ReplayConfig(capacity=10**15), "env": WatchedConfig()},
}


@pytest.mark.parametrize("topology", [SynchronousConfig(), SplitLearnersConfig()])
@pytest.mark.parametrize("fault", FAULTS)
def test_environments_are_closed_where_building_fails(
    topology: Any, fault: str, tmp_path: Path
) -> None:
    open_envs.clear()
    with pytest.raises(UserError):
        api.train(small(topology=topology, **FAULTS[fault]), tmp_path / "run")
    assert not open_envs
