"""The only loop that touches an environment while it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor, nn

from fleetfoot.data import Obs, Step, Transition
from fleetfoot.explore import Explorer
from fleetfoot.log.timer import StepTimer

Stepper = Callable[[Tensor], Step]


def rollout(
    step_env: Stepper, behaviour: nn.Module, explorer: Explorer, obs: Obs, split: StepTimer
) -> Iterator[Transition]:
    """Vec steps without end, beginning with `obs` (from `env.reset()` or `env.load_state_dict(...)`).

    `step_env` is `env.step`, or something that does other work while the environment is stepped.
    """
    while True:
        with split("act"):
            action = explorer.act(behaviour, obs)
        step = step_env(action)
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
