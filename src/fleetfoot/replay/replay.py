"""Replay: ring + sampler + n-step fold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from fleetfoot.config import at_least, part
from fleetfoot.data import Batch, EnvSpec, Transition
from fleetfoot.errors import UserError
from fleetfoot.ops.nstep import fold
from fleetfoot.replay.mirror import Mirror, make_mirror
from fleetfoot.replay.ring import TERMINATED, Ring
from fleetfoot.replay.samplers import Drawn, Sampler, SamplerConfig, UniformConfig
from fleetfoot.replay.shared_ring import SharedRing
from fleetfoot.system import free_bytes

GIB = 1024**3


@part
class ReplayConfig:
    """The replay memory: its capacity, the n-step return and how rows are sampled."""

    capacity: int = 1_000_000
    """Transitions kept, over all environments together."""
    capacity_gib: float | None = None
    """Size of the memory in GiB; if given, `capacity` is ignored."""
    n_step: int = 1
    """Steps of the return (n); windows are folded when sampled."""
    storage: Literal["float32", "bf16"] = "float32"
    """bf16: observations in bfloat16 and actions in float16."""
    bootstrap_truncated: bool = True
    """False: a time limit counts as the end of the task."""
    final_share: float = 1 / 64
    """Room for the last observations of truncated episodes, as a share of all rows."""
    mirror: bool = False
    """Mirror half of the rows of every batch. For environments that declare a symmetry."""
    sampler: SamplerConfig = UniformConfig()

    def __post_init__(self) -> None:
        at_least(self, "replay", capacity=1, n_step=1)
        if self.capacity_gib is not None and not 0.0 < self.capacity_gib < math.inf:
            raise UserError(f"replay.capacity_gib must be above 0, not {self.capacity_gib}.")
        if not 0.0 <= self.final_share <= 1.0:
            raise UserError(f"replay.final_share must lie between 0 and 1, not {self.final_share}.")

    def rows(self, spec: EnvSpec) -> int:
        """Rows per environment (T)."""
        if self.capacity_gib is None:
            rows = self.capacity // spec.num_envs
        else:
            probe = 1024  # large enough for the share of final observations to count
            rows = int(self.capacity_gib * GIB / (self._bytes(spec, probe) / probe))
        if rows < self.n_step:
            stated = f"{self.capacity_gib} GiB" if self.capacity_gib else f"{self.capacity:,}"
            raise UserError(
                f"a replay of {stated} holds {rows} rows for each of {spec.num_envs:,} environments, "
                f"but a return of {self.n_step} steps needs at least {self.n_step}: "
                "raise --replay.capacity or lower --num-envs."
            )
        return rows

    def build(
        self,
        spec: EnvSpec,
        *,
        gamma: float,
        seed: int,
        device: torch.device,
        writers: int = 1,
        beside: int = 0,
    ) -> Replay:
        """`writers`: so many workers append, each the steps of its own share of the environments. `beside`: bytes that
        must fit on the device as well, for a memory of as many rows that is allocated later."""
        self.sampler.check(self.n_step)
        mirror = make_mirror(spec, device) if self.mirror else None
        rows = self.rows(spec)
        compact = replace(self, storage="bf16")._bytes(spec, rows)
        self.check_fit(spec, device, self._bytes(spec, rows) + beside, compact + beside)
        ring = self._ring(spec, rows, device, writers)
        sampler = self.sampler.build_sampler(ring, rows, seed, device)
        return Replay(self, ring, sampler, gamma, mirror)

    def bytes(self, spec: EnvSpec) -> int:
        """Memory the replay will take, without taking it."""
        return self._bytes(spec, self.rows(spec))

    def _bytes(self, spec: EnvSpec, rows: int) -> int:
        ring = self._ring(spec, rows, "meta")
        return ring.bytes() + self.sampler.tree_bytes(ring.lines * ring.columns)

    def _ring(self, spec: EnvSpec, rows: int, device: torch.device | str, writers: int = 1) -> Ring:
        make = Ring if writers == 1 else partial(SharedRing, writers=writers)
        return make(
            spec,
            self.sampler.ring_rows(rows),
            compact=self.storage == "bf16",
            final_share=self.final_share,
            device=torch.device(device),
        )

    def check_fit(self, spec: EnvSpec, device: torch.device, need: int, compact: int) -> None:
        """Refuse what does not fit. `need`: bytes of all its rows; `compact`: with observations in bfloat16."""
        free, rows = free_bytes(device), self.rows(spec)
        if need <= free:
            return
        fits = int(rows * spec.num_envs * 0.9 * free / need)
        advice = [f"--replay.capacity {fits}"]
        if self.storage == "float32" and compact <= free:
            advice.insert(0, f"--replay.storage bf16 ({compact / GIB:.1f} GiB)")
        raise UserError(
            f"the replay needs {need / GIB:.1f} GiB for {rows * spec.num_envs:,} transitions, but only "
            f"{free / GIB:.1f} GiB are free on {device}: use {', or '.join(advice)}."
        )

    def check_batch(self, spec: EnvSpec, batch_size: int, device: torch.device) -> None:
        """Refuse batches that do not fit, counted at no more than their rows take where they are stored."""
        free = free_bytes(device)
        need = batch_size * self.bytes(spec) // (self.rows(spec) * spec.num_envs)
        if need > free:
            raise UserError(
                f"a batch of {batch_size:,} rows needs {need / GIB:,.1f} GiB, but only {free / GIB:.1f} GiB are free "
                f"on {device}: lower --batch-size."
            )


class Replay:
    """The memory of one learner."""

    def __init__(
        self,
        cfg: ReplayConfig,
        ring: Ring,
        sampler: Sampler,
        gamma: float,
        mirror: Mirror | None = None,
    ):
        self.cfg, self.ring, self.sampler, self.gamma = cfg, ring, sampler, gamma
        self.mirror = mirror
        self.window = torch.arange(cfg.n_step, device=ring.reward.device)
        self.device = ring.reward.device

    @property
    def size(self) -> int:
        """Transitions that can be sampled."""
        return self.sampler.readable(self.ring)

    def append(self, step: Transition, td_error: Tensor | None = None, writer: int = 0) -> None:
        """Store one vec step, or the rows of it that belong to one of several writers. td_error [N], absolute: what
        those who collected it know of its errors already. Without it a prioritised sampler gives the largest priority
        so far."""
        self.ring.write_as(writer)
        self.ring.append(step)
        self.sampler.appended(self.ring, td_error)

    def append_lines(
        self, steps: Sequence[Transition], td_error: Tensor | None = None, writer: int = 0
    ) -> None:
        """Store several vec steps that follow one another, in a few operations for all of them; td_error [L, N]."""
        ring = self.ring
        ring.write_as(writer)
        # At once no more than the ring has rows, and than its side table has room for if every row is truncated.
        most = min(ring.rows, ring.finals // ring.width)
        for at in range(0, len(steps), most):
            some = steps[at : at + most]
            ring.append_lines(some)
            known = None if td_error is None else td_error[at : at + most].flatten()
            self.sampler.appended(ring, known, len(some))

    def mark_break(self, writer: int | None = None) -> None:
        """The next transition (of one writer, or of all) does not follow from the last one, say because the simulator
        was started anew."""
        for one in range(self.ring.writers) if writer is None else [writer]:
            self.ring.write_as(one)
            self.ring.mark_break()

    def sample(self, rows: int) -> Batch:
        """Draw `rows` transitions and fold each with the n - 1 that follow it."""
        return self.gather(*self.draw(rows))

    def sample_apart(self, rows: int, seed: int) -> Batch:
        """Draw rows to examine: what `sample` draws next stays the same."""
        return self.gather(*self.sampler.apart(seed).draw(rows, self.ring))

    def sample_newest(self, rows: int, seed: int, share: float) -> Batch:
        """The same, but only from this share of each environment's rows, those that came last."""
        drawn = self.sampler.apart(seed).draw(rows, self.ring)
        last = self.ring.num_stored - 1
        return self.gather(last - ((last - drawn.age) * share).long(), drawn.column, drawn.weight)

    def draw(self, rows: int) -> Drawn:
        """Which rows; `gather` reads them."""
        return self.sampler.draw(rows, self.ring)

    def gather(
        self, age: Tensor, column: Tensor, weight: Tensor, held_out: Drawn | None = None
    ) -> Batch:
        """The rows drawn, folded."""
        batch = self._mirrored(self._folded(age, column, weight), age, column)
        if held_out is None:
            return batch
        apart = self._folded(held_out.age, held_out.column, held_out.weight)
        return batch._replace(held_out=self._mirrored(apart, held_out.age, held_out.column))

    def _mirrored(self, batch: Batch, age: Tensor, column: Tensor) -> Batch:
        return batch if self.mirror is None else self.mirror.batch(batch, age + column)

    def _folded(self, age: Tensor, column: Tensor, weight: Tensor) -> Batch:
        ring = self.ring
        ages = age.unsqueeze(1) + self.window  # [B, n]
        at = ring.address(ages, column.unsqueeze(1)).flatten()
        ends = ring.ends.index_select(0, at).view(ages.shape)
        terminated = (ends & TERMINATED if self.cfg.bootstrap_truncated else ends) > 0
        window = fold(
            reward=ring.reward.index_select(0, at).view(ages.shape),
            terminated=terminated,
            ended=ends > 0,
            exists=ring.exists(ages, column.unsqueeze(1)),
            gamma=self.gamma,
        )
        last = age + window.length - 1
        obs, whole = ring.obs_at(age, column)
        next_obs, exact = ring.next_obs_at(last, column, window.ended)
        # A truncation whose last observation is gone has no target to bootstrap from; it must not teach.
        weight = torch.where(whole & (exact | (window.discount == 0)), weight, 0.0)
        return Batch(
            obs=obs,
            action=_as_executed(ring.action.index_select(0, at.view(ages.shape)[:, 0])),
            reward=window.reward,
            discount=window.discount,
            next_obs=next_obs,
            weight=weight,
            row_id=ring.row_id(age, column),
        )

    def reprioritize(self, row_id: Tensor, td_error: Tensor | None) -> None:
        """Tell the sampler what an update has found: the absolute errors [B] of the rows of a batch. Call it once after
        every update; rows that are gone by now are ignored."""
        self.sampler.reprioritize(self.ring, row_id, td_error)

    def trim(self, updates: int) -> None:
        """Call it after one update or several, with their number: now and then rows beyond the capacity go."""
        self.sampler.trim(self.ring, updates)

    def state_dict(self) -> dict[str, Any]:
        return {"ring": self.ring.state_dict(), "sampler": self.sampler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ring.load_state_dict(state["ring"])
        self.sampler.load_state_dict(state["sampler"])


def _as_executed(action: Tensor) -> Tensor:
    return action.float() if action.is_floating_point() else action
