"""Several sets of environments, stepped as one: what one costs per call is paid once for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fleetfoot.data import EnvSpec, Obs, Step
from fleetfoot.envs.vec_env import TwoHalves, VecEnv


class ConcatVecEnv:
    """The rows of all parts, one part after the other. What comes back is on `device`, wherever the parts are."""

    def __init__(self, parts: Sequence[VecEnv], device: torch.device):
        self.parts, self.device = list(parts), device
        first = parts[0].spec
        self.spec: EnvSpec = replace(
            first,
            num_envs=sum(part.spec.num_envs for part in parts),
            task_ids=sum((part.spec.task_ids for part in parts), ()),
            device=device,
        )

    def reset(self) -> Obs:
        return self.join([part.reset() for part in self.parts])

    def step(self, action: Tensor) -> Step:
        given = action.to(self.parts[0].spec.device)
        rows = [part.spec.num_envs for part in self.parts]
        owns = list(zip(self.parts, torch.split(given, rows), strict=True))
        for part, own in owns:  # those that can, work at the same time
            if isinstance(part, TwoHalves):
                part.send(own)
        steps = [
            part.receive() if isinstance(part, TwoHalves) else part.step(own) for part, own in owns
        ]
        # Some sets may have told a name that others have not told yet.
        names = [name for name in steps[0].info if all(name in step.info for step in steps)]
        flags = torch.stack([self._flat(steps, "terminated"), self._flat(steps, "truncated")])
        flags = flags.to(self.device)
        return Step(
            obs=self.join([step.obs for step in steps]),
            next_obs=self.join([step.next_obs for step in steps]),
            reward=self._flat(steps, "reward").to(self.device),
            terminated=flags[0],
            truncated=flags[1],
            info={name: torch.cat([s.info[name] for s in steps]).to(self.device) for name in names},
        )

    def _flat(self, steps: Sequence[Step], name: str) -> Tensor:
        return torch.cat([getattr(step, name) for step in steps])

    def join(self, obs: Sequence[Obs]) -> Obs:
        """The observations of all parts, as one."""
        actor = torch.cat([each.actor for each in obs]).to(self.device)
        critic = actor
        if obs[0].critic is not obs[0].actor:
            critic = torch.cat([each.critic for each in obs]).to(self.device)
        task = None
        if obs[0].task is not None:
            task = torch.cat([each.task for each in obs if each.task is not None]).to(self.device)
        return Obs(actor, critic, task)

    def close(self) -> None:
        for part in self.parts:
            part.close()
