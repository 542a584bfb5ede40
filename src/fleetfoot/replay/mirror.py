"""Mirror images of transitions, for environments that look the same in a mirror (`EnvSpec.symmetry`).

Half of the rows of every batch are replaced by their images: observations and actions are reflected, while reward,
discount and weight stay. It costs no more updates, and what was learned of one side holds for the other.

No random numbers are needed. Rows are drawn at random, so every second one is a random half. Where each row comes from
a share of its own (stratified draws), a row would be mirrored always or never, so a coin decides which half it is: the
parity of the sum of all places (age and column) in the batch, which is as random as the draw.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fleetfoot.data import Batch, Continuous, EnvSpec, Obs, Reflection, Symmetry
from fleetfoot.errors import UserError


def make_mirror(spec: EnvSpec, device: torch.device) -> Mirror:
    """UserError where the environment declares no symmetry, or one that cannot be."""
    if spec.symmetry is None:
        why, or_set = "", ", or set EnvSpec.symmetry"
        if spec.no_symmetry:
            why, or_set = f" ({spec.no_symmetry.removesuffix('.')})", ""
        raise UserError(
            f"replay.mirror needs an environment that declares a symmetry, and {spec.name} declares none{why}: use "
            f"--replay.no-mirror{or_set}."
        )
    if (problem := problem_of(spec.symmetry, spec)) is not None:
        raise UserError(f"the symmetry of {spec.name} is invalid: {problem}.")
    return Mirror(spec.symmetry, device)


def problem_of(symmetry: Symmetry, spec: EnvSpec) -> str | None:
    """What stands against it, as far as the numbers alone tell."""
    flat = len(spec.obs_shape) == 1 and len(spec.critic_shape or (0,)) == 1
    if not flat or not isinstance(spec.action, Continuous):
        return "only flat observations and continuous actions can be mirrored"
    if (symmetry.critic is None) != (spec.critic_shape is None):
        return "it mirrors the critic's observations exactly where critic_shape is given"
    sizes = {"actor": spec.obs_shape[0], "action": spec.action.size}
    if spec.critic_shape is not None:
        sizes["critic"] = spec.critic_shape[0]
    for name, size in sizes.items():
        problem = _problem_of(getattr(symmetry, name), size)
        if problem is not None:
            return f"{name} {problem}"
    return None


def _problem_of(reflection: Reflection, size: int) -> str | None:
    index, sign = reflection.index, reflection.sign
    if len(index) != size or len(sign) != size:
        return f"has {len(index)} numbers and {len(sign)} signs, not {size}"
    if sorted(index) != list(range(size)):
        return f"is no permutation of 0 to {size - 1}"
    if any(abs(s) != 1 for s in sign):
        return "has a sign that is neither 1 nor -1"
    for i, j in enumerate(index):
        if index[j] != i or sign[j] != sign[i]:
            return f"does not come back to itself when it is mirrored twice, at number {i}"
    return None


class Mirror:
    """Replaces half of the rows of a batch by their mirror images."""

    def __init__(self, symmetry: Symmetry, device: torch.device):
        self.actor = _Reflected(symmetry.actor, device)
        self.critic = None if symmetry.critic is None else _Reflected(symmetry.critic, device)
        self.action = _Reflected(symmetry.action, device)

    def chosen(self, place: Tensor) -> Tensor:
        """Which rows; `place` [B] or [B, S]: age + column of the rows drawn. The same shape."""
        number = torch.arange(len(place), device=place.device)
        return (number.view(-1, *[1] * (place.dim() - 1)) + place.sum(0)) % 2 == 1

    def obs(self, obs: Obs, chosen: Tensor) -> Obs:
        actor = self.actor.where(chosen, obs.actor)
        critic = actor if self.critic is None else self.critic.where(chosen, obs.critic)
        return Obs(actor, critic, obs.task)

    def batch(self, batch: Batch, place: Tensor) -> Batch:
        chosen = self.chosen(place)
        # Field by field: `_replace` is more than the compiler of torch 2.11 takes.
        return Batch(
            obs=self.obs(batch.obs, chosen),
            action=self.action.where(chosen, batch.action),
            reward=batch.reward,
            discount=batch.discount,
            next_obs=self.obs(batch.next_obs, chosen),
            weight=batch.weight,
            row_id=batch.row_id,
        )


class _Reflected:
    def __init__(self, reflection: Reflection, device: torch.device):
        self.index = torch.tensor(reflection.index, device=device)
        self.sign = torch.tensor(reflection.sign, dtype=torch.float32, device=device)

    def where(self, chosen: Tensor, rows: Tensor) -> Tensor:
        """`rows` [..., D], with their images where `chosen` [...]."""
        image = rows.index_select(-1, self.index) * self.sign.to(rows.dtype)
        return torch.where(chosen.unsqueeze(-1), image, rows)
