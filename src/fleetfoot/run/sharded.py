"""One run over several ranks: what each gets of the recipe, and how their agents stay one agent.

Environments, replay and batch are split. The agent is the same everywhere: it begins with the same weights, sees the
fresh transitions of all ranks (so that running statistics are those of one process with all environments) and steps
down the mean gradient. It does not know of any of this.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fleetfoot.agents.contract import Agent
from fleetfoot.data import EnvSpec, Obs, Transition
from fleetfoot.errors import UserError
from fleetfoot.explore import share_of
from fleetfoot.optim import LocalStepper
from fleetfoot.recipe import Recipe
from fleetfoot.rng import RandomStream, generator_state, restore_generator
from fleetfoot.run.ranks import Ranks
from fleetfoot.system import usable_cores


def rank_recipe(recipe: Recipe, ranks: Ranks) -> Recipe:
    """The recipe of one rank: its part of the environments, the replay and the batch, on its own device."""
    world = ranks.world
    if world == 1:
        return recipe
    for name in ("num_envs", "batch_size"):
        if getattr(recipe, name) % world:
            option = name.replace("_", "-")
            raise UserError(
                f"{name} is {getattr(recipe, name):,}, which {world} processes cannot share evenly; "
                f"give --{option} a multiple of {world}."
            )
    gib = recipe.replay.capacity_gib
    memory = replace(
        recipe.replay,
        capacity=recipe.replay.capacity // world,
        capacity_gib=None if gib is None else gib / world,
    )
    num_envs = recipe.num_envs // world
    return replace(
        recipe,
        num_envs=num_envs,
        batch_size=recipe.batch_size // world,
        replay=memory,
        explorer=share_of(recipe.explorer, ranks.rank * num_envs, recipe.num_envs),
        device=_own_device(recipe, ranks),
        threads=recipe.threads or max(1, usable_cores() // ranks.local_world),
    )


def _own_device(recipe: Recipe, ranks: Ranks) -> str:
    device = recipe.torch_device()
    if device.type != "cuda":
        return recipe.device
    if device.index is not None:
        raise UserError(
            f"device is {recipe.device}, but {ranks.world} processes take a GPU each; use --device cuda."
        )
    if ranks.local_world > torch.cuda.device_count():
        raise UserError(
            f"{ranks.local_world} processes were started on a machine with {torch.cuda.device_count()} "
            "GPUs; start one per GPU (--nproc-per-node), or use --device cpu."
        )
    return f"cuda:{ranks.local_rank}"


def joint_spec(spec: EnvSpec, ranks: Ranks) -> EnvSpec:
    """The environments of all ranks together, as the agent sees them."""
    return replace(spec, num_envs=spec.num_envs * ranks.world, task_ids=spec.task_ids * ranks.world)


def bind(agent: Agent, ranks: Ranks, seed: int) -> None:
    """Make one agent of the agents of all ranks: mean gradients, joint statistics, noise of its own (from `seed`)."""
    if ranks.world == 1:
        return
    for stepper in steppers(agent):
        stepper.reduce = ranks.mean
    observe = agent.observe
    setattr(agent, "observe", lambda fresh: observe(joint(fresh, ranks)))  # noqa: B010
    if not ranks.first:
        reseed(agent, seed)


def steppers(agent: Agent) -> list[LocalStepper]:
    found = [value for value in vars(agent).values() if isinstance(value, LocalStepper)]
    if not found:
        raise UserError(
            f"{type(agent).__name__} has no stepper among its attributes, so its gradients cannot be "
            "averaged over several processes; build its optimisers with an OptimConfig."
        )
    return found


def joint(fresh: Transition, ranks: Ranks) -> Transition:
    """The transitions of all ranks as one, without `info`, which no algorithm reads."""
    obs, next_obs = fresh.obs, fresh.next_obs
    given: list[Tensor | None] = [*obs, *next_obs, fresh.action, fresh.reward]
    given += [fresh.terminated, fresh.truncated]
    # Critic and actor often see the very same tensor; it is sent once, and stays one tensor.
    once = {id(tensor): tensor for tensor in given if tensor is not None}
    whole = dict(zip(once, ranks.gather(list(once.values())), strict=True))

    def of(tensor: Tensor) -> Tensor:
        return whole[id(tensor)]

    def seen(obs: Obs) -> Obs:
        return Obs(of(obs.actor), of(obs.critic), None if obs.task is None else of(obs.task))

    return Transition(
        obs=seen(obs),
        action=of(fresh.action),
        reward=of(fresh.reward),
        terminated=of(fresh.terminated),
        truncated=of(fresh.truncated),
        next_obs=seen(next_obs),
        info={},
    )


def reseed(agent: Agent, seed: int) -> None:
    """Noise that no other rank draws."""
    found = _generators(agent)
    words = np.random.SeedSequence(seed).generate_state(max(1, len(found)), np.uint64)
    for generator, word in zip(found.values(), words, strict=False):
        generator.manual_seed(int(word >> 1))


def generator_states(agent: Agent) -> dict[str, Any]:
    return {name: generator_state(generator) for name, generator in _generators(agent).items()}


def restore_generators(agent: Agent, saved: dict[str, Any]) -> None:
    for name, generator in _generators(agent).items():
        restore_generator(generator, saved[name])


def _generators(agent: Agent) -> dict[str, torch.Generator]:
    found = {
        k: v.generator if isinstance(v, RandomStream) else v for k, v in sorted(vars(agent).items())
    }
    return {k: v for k, v in found.items() if isinstance(v, torch.Generator)}


def check_same(agent: Agent, ranks: Ranks) -> None:
    """All ranks must hold the same weights, bit for bit; an optimiser that `bind` did not find would part them."""
    if ranks.world == 1:
        return
    weights = [weight.detach() for stepper in steppers(agent) for weight in stepper.parameters]
    weights += [weight for weight in agent.policy.parameters() if not weight.requires_grad]
    sums = [w.contiguous().view(-1).view(torch.uint8).sum(dtype=torch.int64) for w in weights]
    everyone = ranks.gather_json(torch.stack(sums).tolist())
    with ranks.raise_together():
        if any(other != everyone[0] for other in everyone):
            raise UserError(
                "the processes no longer hold the same weights, so nothing was saved; does "
                f"{type(agent).__name__} change weights by other means than its steppers?"
            )


def carried_over(saved: Any, own: Any) -> Any:
    """A saved state for another number of environments: counters as saved; tensors of another size, and random
    states, as this process has them."""
    if isinstance(own, dict):
        if own.keys() == {"device", "state"}:
            return own
        return {key: carried_over(saved[key], own[key]) for key in own}
    if isinstance(own, Tensor):
        return saved if saved.shape == own.shape else own
    return saved
