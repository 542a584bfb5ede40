"""Several sets of environments, stepped as one: the cost of a call is paid once for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fleetfoot.data import EnvSpec, Obs, Step
from fleetfoot.envs.vec_env import TwoHalves, VecEnv


class ConcatVecEnv:
    """The rows of all sets, one set after the other. What comes back is on `device`, wherever the sets are."""

    def __init__(self, sets: Sequence[VecEnv], device: torch.device):
        self.sets, self.device = list(sets), device
        specs = [env.spec for env in sets]
        self.sizes = [spec.num_envs for spec in specs]
        self.spec: EnvSpec = replace(
            specs[0],
            num_envs=sum(self.sizes),
            task_ids=sum((spec.task_ids for spec in specs), ()),
            device=device,
        )

    def reset(self) -> Obs:
        return self.join([env.reset() for env in self.sets])

    def step(self, action: Tensor) -> Step:
        shares = torch.split(action.to(self.sets[0].spec.device), self.sizes)
        for env, share in zip(self.sets, shares, strict=True):  # those that can, work at once
            if isinstance(env, TwoHalves):
                env.send(share)
        steps = [
            env.receive() if isinstance(env, TwoHalves) else env.step(share)
            for env, share in zip(self.sets, shares, strict=True)
        ]
        flags = torch.stack([_cat(steps, "terminated"), _cat(steps, "truncated")]).to(self.device)
        # Some sets may have reported a name that others have not reported yet.
        names = [name for name in steps[0].info if all(name in step.info for step in steps)]
        return Step(
            obs=self.join([step.obs for step in steps]),
            next_obs=self.join([step.next_obs for step in steps]),
            reward=_cat(steps, "reward").to(self.device),
            terminated=flags[0],
            truncated=flags[1],
            info={name: torch.cat([s.info[name] for s in steps]).to(self.device) for name in names},
        )

    def join(self, obs: Sequence[Obs]) -> Obs:
        """The observations of all sets, as one."""
        actor = torch.cat([one.actor for one in obs]).to(self.device)
        critic = actor
        if obs[0].critic is not obs[0].actor:
            critic = torch.cat([one.critic for one in obs]).to(self.device)
        tasks = [one.task for one in obs if one.task is not None]
        return Obs(actor, critic, torch.cat(tasks).to(self.device) if tasks else None)

    def close(self) -> None:
        for env in self.sets:
            env.close()


def _cat(steps: Sequence[Step], name: str) -> Tensor:
    return torch.cat([getattr(step, name) for step in steps])
