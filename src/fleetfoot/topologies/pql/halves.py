"""An agent that two learners share: what each of them learns, and which weights travel between them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fleetfoot.agents.contract import ActorCritic
from fleetfoot.execution import EagerLearner, Half, make_learner
from fleetfoot.log.timer import StepTimer
from fleetfoot.optim import LocalStepper
from fleetfoot.recipe import Recipe
from fleetfoot.replay.observations import Observations
from fleetfoot.replay.replay import Replay


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def policy_weights(agent: ActorCritic) -> list[Tensor]:
    """What `update_policy` changes and others read."""
    found = [getattr(agent, name) for name in agent.policy_state]
    steppers = [stepper for stepper in found if isinstance(stepper, LocalStepper)]
    return [w for stepper in steppers for w in stepper.parameters] + _beside(agent.policy, agent)


def critic_weights(agent: ActorCritic) -> list[Tensor]:
    return [*agent.critic.parameters(), *_beside(agent.critic, agent)]


def _beside(network: nn.Module, agent: ActorCritic) -> list[Tensor]:
    """What goes with the weights of a network (singular vectors), without the statistics of observations."""
    apart = {id(buffer) for buffer in agent.norms.buffers()}
    return [buffer for buffer in network.buffers() if id(buffer) not in apart]


def statistics(agent: ActorCritic) -> list[Tensor]:
    return list(agent.norms.buffers())


def half_learner(
    half: Half,
    recipe: Recipe,
    agent: ActorCritic,
    memory: Replay | Observations,
    device: torch.device,
    split: StepTimer,
) -> EagerLearner:
    return make_learner(
        agent,
        memory,
        recipe.batch_size,
        half=half,
        precision=recipe.precision,
        mode=recipe.execution,
        device=device,
        timer=split,
    )
