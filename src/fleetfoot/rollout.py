"""The only loop that steps the training environments."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor, nn

from fleetfoot.data import Obs, Step, Transition
from fleetfoot.explore import ClipsLate, Explorer
from fleetfoot.log.timer import StepTimer

StepEnv = Callable[[Tensor], Step]


def rollout(
    step_env: StepEnv, behaviour: nn.Module, explorer: Explorer, obs: Obs, timer: StepTimer
) -> Iterator[Transition]:
    """An endless sequence of vec steps that starts with `obs` (from `env.reset()` or `env.load_state_dict(...)`).

    `step_env` is `env.step`, or a function that does other work while the environments step.
    """
    clips_late = explorer if isinstance(explorer, ClipsLate) else None
    while True:
        with timer("act"):
            action = explorer.act(behaviour, obs)
        step = step_env(action if clips_late is None else clips_late.executed(action))
        explorer.restart(step.terminated | step.truncated)
        yield Transition(
            obs=obs,
            action=action,
            reward=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            next_obs=step.next_obs,
            info=step.info,
        )
        obs = step.obs
