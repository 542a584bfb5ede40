"""One run on several ranks: the share of each in the recipe, and what keeps their agents identical.

Environments, replay and batch are split. The agents are replicas: they start with the same weights, observe the new
transitions of all ranks (so that running statistics are those of one process with all environments) and apply the mean
gradient. An agent needs no code for this.
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
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.rng import RandomStream, generator_state, restore_generator
from fleetfoot.run.ranks import Ranks
from fleetfoot.system import usable_cores


def rank_recipe(recipe: Recipe, ranks: Ranks) -> Recipe:
    """The recipe of one rank: its share of the environments, the replay and the batch, on its own device."""
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
    replay = recipe.replay
    if isinstance(replay, ReplayConfig):
        gib = replay.capacity_gib
        capacity_gib = None if gib is None else gib / world
        replay = replace(replay, capacity=replay.capacity // world, capacity_gib=capacity_gib)
    num_envs = recipe.num_envs // world
    return replace(
        recipe,
        num_envs=num_envs,
        batch_size=recipe.batch_size // world,
        replay=replay,
        explorer=share_of(recipe.explorer, ranks.rank * num_envs, recipe.num_envs),
        device=_rank_device(recipe, ranks),
        threads=recipe.threads or max(1, usable_cores() // ranks.local_world),
    )


def _rank_device(recipe: Recipe, ranks: Ranks) -> str:
    device = recipe.torch_device()
    if device.type != "cuda":
        return recipe.device
    if device.index is not None:
        raise UserError(
            f"device is {recipe.device}, but each of the {ranks.world} processes needs its own GPU; "
            "use --device cuda."
        )
    if ranks.local_world > torch.cuda.device_count():
        raise UserError(
            f"{ranks.local_world} processes were started on a machine with {torch.cuda.device_count()} "
            "GPUs; start one per GPU (--nproc-per-node), or use --device cpu."
        )
    return f"cuda:{ranks.local_rank}"


def global_spec(spec: EnvSpec, ranks: Ranks) -> EnvSpec:
    """The environments of all ranks together, which the agent is built for."""
    return replace(spec, num_envs=spec.num_envs * ranks.world, task_ids=spec.task_ids * ranks.world)


def synchronize_agent(agent: Agent, ranks: Ranks, seed: int) -> None:
    """Make the agents of all ranks replicas: mean gradients and common statistics. Only their noise differs, which
    comes from `seed`."""
    if ranks.world == 1:
        return
    for stepper in steppers(agent):
        stepper.reduce = ranks.mean
    observe = agent.observe
    setattr(agent, "observe", lambda fresh: observe(gather_transition(fresh, ranks)))  # noqa: B010
    if not ranks.first:
        reseed_agent(agent, seed)


def steppers(agent: Agent) -> list[LocalStepper]:
    """All steppers among the attributes of an agent."""
    attributes = [value for value in vars(agent).values() if isinstance(value, LocalStepper)]
    if not attributes:
        raise UserError(
            f"{type(agent).__name__} has no stepper among its attributes, so its gradients cannot be "
            "averaged over several processes; build its optimisers with an OptimConfig."
        )
    return attributes


def gather_transition(fresh: Transition, ranks: Ranks) -> Transition:
    """The transitions of all ranks, without `info`, which no algorithm reads."""
    fields = (fresh.action, fresh.reward, fresh.terminated, fresh.truncated)
    tensors = [t for t in (*fresh.obs, *fresh.next_obs, *fields) if t is not None]
    # Actor and critic often observe the very same tensor. It is sent once, and remains one tensor.
    unique = {id(tensor): tensor for tensor in tensors}
    gathered = dict(zip(unique, ranks.gather(list(unique.values())), strict=True))

    def gathered_obs(obs: Obs) -> Obs:
        return Obs(*(None if tensor is None else gathered[id(tensor)] for tensor in obs))  # type: ignore[arg-type]

    return Transition(
        obs=gathered_obs(fresh.obs),
        action=gathered[id(fresh.action)],
        reward=gathered[id(fresh.reward)],
        terminated=gathered[id(fresh.terminated)],
        truncated=gathered[id(fresh.truncated)],
        next_obs=gathered_obs(fresh.next_obs),
        info={},
    )


def reseed_agent(agent: Agent, seed: int) -> None:
    """Give an agent its own random numbers."""
    generators = _generators(agent)
    words = np.random.SeedSequence(seed).generate_state(max(1, len(generators)), np.uint64)
    for generator, word in zip(generators.values(), words, strict=False):
        generator.manual_seed(int(word >> 1))


def generator_states(agent: Agent) -> dict[str, Any]:
    return {name: generator_state(generator) for name, generator in _generators(agent).items()}


def restore_generators(agent: Agent, saved: dict[str, Any]) -> None:
    for name, generator in _generators(agent).items():
        restore_generator(generator, saved[name])


def _generators(agent: Agent) -> dict[str, torch.Generator]:
    values = {
        k: v.generator if isinstance(v, RandomStream) else v for k, v in sorted(vars(agent).items())
    }
    return {k: v for k, v in values.items() if isinstance(v, torch.Generator)}


def check_same_weights(agent: Agent, ranks: Ranks) -> None:
    """UserError unless all ranks hold the same weights, bit for bit. They diverge where `synchronize_agent` did not
    find an optimiser."""
    if ranks.world == 1:
        return
    weights = [weight.detach() for stepper in steppers(agent) for weight in stepper.parameters]
    weights += [weight for weight in agent.policy.parameters() if not weight.requires_grad]
    sums = [w.contiguous().view(-1).view(torch.uint8).sum(dtype=torch.int64) for w in weights]
    sums_by_rank = ranks.gather_json(torch.stack(sums).tolist())
    with ranks.raise_together():
        if any(other != sums_by_rank[0] for other in sums_by_rank):
            raise UserError(
                "the processes no longer hold the same weights, so nothing was saved; does "
                f"{type(agent).__name__} change weights without its steppers?"
            )


def adapt_state(saved: Any, initial: Any) -> Any:
    """A saved state, adapted to another number of environments: random states, and tensors whose size has changed, are
    those of the `initial` state."""
    if isinstance(initial, dict):
        if initial.keys() == {"device", "state"}:
            return initial
        return {key: adapt_state(saved[key], initial[key]) for key in initial}
    if isinstance(initial, Tensor):
        return saved if saved.shape == initial.shape else initial
    return saved
