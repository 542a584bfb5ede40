"""One memory of rollouts for several seeds: each has columns of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from fleetfoot.data import EnvSpec, Rollout
from fleetfoot.recipe import Recipe
from fleetfoot.replay.rollouts import RolloutConfig, Rollouts
from fleetfoot.topologies.multi_seed.rows import map_obs


class MultiSeedRollouts(Rollouts):
    """What all seeds write to and learn from. Rollouts are [T, S, N, ...]."""

    seeds: int

    def gather(self) -> Rollout:
        def by_seed(x: Tensor) -> Tensor:
            return x.view(len(x), self.seeds, -1, *x.shape[2:])

        flat = super().gather()
        return Rollout(
            obs=map_obs(flat.obs, by_seed),
            action=by_seed(flat.action),
            reward=by_seed(flat.reward),
            discount=by_seed(flat.discount),
            ended=by_seed(flat.ended),
            next_obs=map_obs(flat.next_obs, by_seed),
        )


class SeedRollouts(Rollouts):
    """The share of one seed: views of its columns. It saves and loads what the memory of a run alone does."""

    def __init__(self, whole: MultiSeedRollouts, spec: EnvSpec, number: int):
        self.cfg, self.spec, self.whole, self.sampler = whole.cfg, spec, whole, whole.sampler
        self.gamma, self.device = whole.gamma, whole.device
        first, last = number * spec.num_envs, (number + 1) * spec.num_envs
        self.tensors = {name: tensor[:, first:last] for name, tensor in whole.tensors.items()}
        self.task = None if whole.task is None else whole.task[first:last]

    @property
    def filled(self) -> int:
        return self.whole.filled

    @filled.setter
    def filled(self, vec_steps: int) -> None:
        self.whole.filled = vec_steps

    def state_dict(self) -> dict[str, Any]:
        tensors = {name: tensor.contiguous() for name, tensor in self.tensors.items()}
        return {"filled": self.filled, "tensors": tensors}


def build_rollouts(recipe: Recipe, seeds: int, spec: EnvSpec) -> MultiSeedRollouts:
    """The columns of all seeds; `spec`: of the environments of one."""
    assert isinstance(recipe.replay, RolloutConfig)
    device = recipe.torch_device()
    wide = replace(
        spec, num_envs=seeds * spec.num_envs, task_ids=spec.task_ids * seeds, device=device
    )
    recipe.replay.check_fit(wide, device)
    whole = MultiSeedRollouts(recipe.replay, wide, recipe.gamma, device)
    whole.seeds = seeds
    return whole
