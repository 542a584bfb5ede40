"""The contract test itself: a correct environment passes, and each way to break one is caught."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fleetfoot.data import Continuous, Discrete, EnvSpec, Obs, Step
from fleetfoot.envs.check import CLAUSES, ContractError, check_env
from fleetfoot.errors import UserError

MADE = itertools.count()


class Walk:
    """A correct environment: two tasks, a privileged critic, both kinds of ends, saved state."""

    limit = 12

    def __init__(self, num_envs: int, seed: int) -> None:
        self.spec = EnvSpec(
            name="walk",
            num_envs=num_envs,
            obs_shape=(2,),
            critic_shape=(3,),
            critic_prefix=2,
            action=Continuous(2),
            device=torch.device("cpu"),
            episode_length=self.limit,
            tasks=("slow", "fast"),
            task_ids=tuple(i % 2 for i in range(num_envs)),
        )
        self.generators = [
            torch.Generator().manual_seed(self.seed_of(seed, i)) for i in range(num_envs)
        ]
        self.position = torch.zeros(num_envs, 2)
        self.clock = torch.zeros(num_envs, dtype=torch.int64)
        self.task = torch.tensor(self.spec.task_ids)

    def seed_of(self, seed: int, index: int) -> int:
        return 1000 * seed + index

    def draw(self, index: int) -> Tensor:
        return torch.rand(2, generator=self.generators[index]) - 0.5

    def observe(self, position: Tensor, clock: Tensor) -> Obs:
        return Obs(position.clone(), torch.cat([position, clock[:, None]], 1), self.task)

    def reset(self) -> Obs:
        self.position = torch.stack([self.draw(i) for i in range(len(self.clock))])
        self.clock = torch.zeros_like(self.clock)
        return self.observe(self.position, self.clock)

    def move(self, action: Tensor) -> Tensor:
        return 0.2 * (1 + self.task[:, None]) * action

    def step(self, action: Tensor) -> Step:
        position, clock = self.position + self.move(action), self.clock + 1
        next_obs = self.observe(position, clock)
        terminated = (position.abs() > 1).any(1)
        truncated = (clock >= self.limit) & ~terminated
        self.position, self.clock = position.clone(), clock.clone()
        for i, ended in enumerate((terminated | truncated).tolist()):
            if ended:
                self.position[i], self.clock[i] = self.draw(i), 0
        obs = self.observe(self.position, self.clock)
        info = {"distance": position.norm(dim=1)}
        return Step(obs, next_obs, -position.square().sum(1), terminated, truncated, info)

    def state_dict(self) -> dict[str, Any] | None:
        streams = [generator.get_state() for generator in self.generators]
        return {"position": self.position.clone(), "clock": self.clock.clone(), "streams": streams}

    def load_state_dict(self, state: dict[str, Any]) -> Obs:
        self.position, self.clock = state["position"].clone(), state["clock"].clone()
        for generator, stream in zip(self.generators, state["streams"], strict=True):
            generator.set_state(stream)
        return self.observe(self.position, self.clock)

    def render(self, index: int = 0) -> np.ndarray:
        return np.full((8, 8, 3), int(self.clock[index]), dtype=np.uint8)

    def close(self) -> None:
        pass


def with_spec(**changes: Any) -> type[Walk]:
    class Broken(Walk):
        def __init__(self, num_envs: int, seed: int) -> None:
            super().__init__(num_envs, seed)
            self.spec = dataclasses.replace(self.spec, **changes)

    return Broken


def any_type(value: Any) -> Any:
    """A value of the wrong type, given on purpose."""
    return value


def with_step(change: Callable[[Step, Step], Any]) -> type[Walk]:
    """`change(step, previous step)` gives what is returned in its place."""

    class Broken(Walk):
        before: Any = None

        def step(self, action: Tensor) -> Any:
            step = super().step(action)
            before, self.before = self.before or step, step
            return change(step, before)

    return Broken


def with_obs(change: Callable[[Obs], Any], **spec: Any) -> type[Walk]:
    class Broken(with_spec(**spec)):  # type: ignore[misc]
        def observe(self, position: Tensor, clock: Tensor) -> Any:
            return change(super().observe(position, clock))

    return Broken


def with_state(change: Callable[[dict[str, Any]], Any]) -> type[Walk]:
    class Broken(Walk):
        def state_dict(self) -> Any:
            state = super().state_dict()
            assert state is not None
            return change(state)

    return Broken


def ended(step: Step) -> Tensor:
    return (step.terminated | step.truncated)[:, None]


def keep_final(step: Step, wrong: Tensor, instead: Obs) -> Step:
    actor = torch.where(wrong, instead.actor, step.next_obs.actor)
    critic = torch.where(wrong, instead.critic, step.next_obs.critic)
    return step._replace(next_obs=step.next_obs._replace(actor=actor, critic=critic))


def ahead(step: Step, width: int) -> Obs:
    """`next_obs` with its last `width` critic features, and the actor's copies of them, moved."""
    moved = torch.arange(3) >= 3 - width
    critic = step.next_obs.critic + 1e-3 * moved
    return Obs(critic[:, :2].clone(), critic)


class ForgetsClockAtReset(Walk):
    def reset(self) -> Obs:
        clock = self.clock
        super().reset()
        self.clock = clock
        return self.observe(self.position, self.clock)


class OneStepTooMany(Walk):
    def __init__(self, num_envs: int, seed: int) -> None:
        super().__init__(num_envs, seed)
        self.spec = dataclasses.replace(self.spec, episode_length=self.limit - 1)


class NeverTruncates(Walk):
    def __init__(self, num_envs: int, seed: int) -> None:
        super().__init__(num_envs, seed)
        self.limit = 10**6


class OneBuffer(Walk):
    buffer: Any = None

    def observe(self, position: Tensor, clock: Tensor) -> Obs:
        # A buffer that is filled again every other time: what `next_obs` showed is lost later.
        obs = super().observe(position, clock)
        self.buffer = self.buffer or [obs.critic.clone() for _ in range(8)]
        self.buffer = self.buffer[1:] + self.buffer[:1]
        return obs._replace(critic=self.buffer[0].copy_(obs.critic))


class WritesAction(Walk):
    def step(self, action: Tensor) -> Step:
        step = super().step(action)
        action.mul_(0.5)
        return step


class NewSeedEachTime(Walk):
    def seed_of(self, seed: int, index: int) -> int:
        return next(MADE)


class RenderDraws(Walk):
    def render(self, index: int = 0) -> np.ndarray:
        self.draw(index)
        return super().render(index)


class SaveDraws(Walk):
    def state_dict(self) -> dict[str, Any] | None:
        state = super().state_dict()
        self.draw(0)
        return state


class IgnoresSeed(Walk):
    def seed_of(self, seed: int, index: int) -> int:
        return index


class AllAlike(Walk):
    def seed_of(self, seed: int, index: int) -> int:
        return seed


class SharedStream(Walk):
    def draw(self, index: int) -> Tensor:
        return torch.rand(2, generator=self.generators[0]) - 0.5


class SeedOfSize(Walk):
    def seed_of(self, seed: int, index: int) -> int:
        return 1000 * seed + index * len(self.spec.task_ids)


class MeanAction(Walk):
    def move(self, action: Tensor) -> Tensor:
        return super().move(action) + 0.1 * action.mean()


class SecondPushesFirst(Walk):
    def move(self, action: Tensor) -> Tensor:
        push = torch.zeros_like(action)
        push[0] = 0.1 * action[1]
        return super().move(action) + push


class LastPushesThird(Walk):
    def move(self, action: Tensor) -> Tensor:
        push = torch.zeros_like(action)
        push[2] = 0.1 * action[3]
        return super().move(action) + push


class IgnoresActions(Walk):
    def move(self, action: Tensor) -> Tensor:
        return torch.full_like(action, 0.1)


class LastIgnoresAction(Walk):
    def move(self, action: Tensor) -> Tensor:
        moved = super().move(action)
        moved[3] = 0.1
        return moved


class RestoresWithoutClock(Walk):
    def load_state_dict(self, state: dict[str, Any]) -> Obs:
        obs = super().load_state_dict(state)
        self.clock = torch.zeros_like(self.clock)
        return obs


class RestoresWithoutStreams(Walk):
    def load_state_dict(self, state: dict[str, Any]) -> Obs:
        self.position, self.clock = state["position"].clone(), state["clock"].clone()
        return self.observe(self.position, self.clock)


class RestoresToAReset(Walk):
    def load_state_dict(self, state: dict[str, Any]) -> Obs:
        super().load_state_dict(state)
        return Walk.reset(self)


class LiveState(Walk):
    def step(self, action: Tensor) -> Step:
        held = self.clock
        step = super().step(action)
        held.copy_(self.clock)
        self.clock = held
        return step

    def state_dict(self) -> dict[str, Any] | None:
        state = super().state_dict()
        assert state is not None
        return {**state, "clock": self.clock}


class KeepsLoadedState(LiveState):
    state_dict = Walk.state_dict

    def load_state_dict(self, state: dict[str, Any]) -> Obs:
        obs = super().load_state_dict(state)
        self.clock = state["clock"]
        return obs


def with_picture(picture: Any) -> type[Walk]:
    class Broken(Walk):
        def render(self, index: int = 0) -> Any:
            if isinstance(picture, Exception):
                raise picture
            return picture

    return Broken


class ClosesOnce(Walk):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("already closed")
        self.closed = True


def flip_row(tensor: Tensor, row: int, value: float) -> Tensor:
    changed = tensor.clone()
    changed[row] = value
    return changed


BROKEN: dict[str, tuple[str, type[Walk]]] = {
    "other num_envs": ("spec", with_spec(num_envs=5)),
    "no name": ("spec", with_spec(name="")),
    "device is a string": ("spec", with_spec(device="cpu")),
    "flat obs_shape": ("spec", with_spec(obs_shape=(2, 3))),
    "obs_shape of floats": ("spec", with_spec(obs_shape=(2.0,))),
    "float64 observations": ("spec", with_spec(obs_dtype=torch.float64)),
    "no actions": ("spec", with_spec(action=Continuous(0))),
    "no choices": ("spec", with_spec(action=Discrete(0))),
    "foreign action space": ("spec", with_spec(action="box")),
    "prefix too long": ("spec", with_spec(critic_prefix=3)),
    "prefix without critic": ("spec", with_spec(critic_shape=None)),
    "no episode_length": ("spec", with_spec(episode_length=0)),
    "too few task_ids": ("spec", with_spec(task_ids=(0, 1, 0))),
    "task_ids out of range": ("spec", with_spec(task_ids=(0, 1, 2, 0))),
    "task_ids without tasks": ("spec", with_spec(tasks=())),
    "repeated task": ("spec", with_spec(tasks=("slow", "slow"))),
    "no step_seconds": ("spec", with_spec(step_seconds=0.0)),
    "announced wider": ("tensors", with_spec(obs_shape=(4,))),
    "float64 reward": ("tensors", with_step(lambda s, _: s._replace(reward=s.reward.double()))),
    "reward column": ("tensors", with_step(lambda s, _: s._replace(reward=s.reward[:, None]))),
    "reward array": (
        "tensors",
        with_step(lambda s, _: s._replace(reward=any_type(s.reward.numpy()))),
    ),
    "reward elsewhere": ("tensors", with_step(lambda s, _: s._replace(reward=s.reward.to("meta")))),
    "infinite reward": ("tensors", with_step(lambda s, _: s._replace(reward=s.reward / 0))),
    "NaN": ("tensors", with_obs(lambda o: o._replace(actor=flip_row(o.actor, 1, float("nan"))))),
    "gradient": ("tensors", with_obs(lambda o: o._replace(actor=o.actor.requires_grad_()))),
    "float64 obs": ("tensors", with_obs(lambda o: o._replace(actor=o.actor.double()))),
    "plain tuple obs": ("tensors", with_obs(tuple)),
    "plain tuple step": ("tensors", with_step(lambda s, _: tuple(s))),
    "info of other size": ("tensors", with_step(lambda s, _: s._replace(info={"x": s.reward[:2]}))),
    "info number": ("tensors", with_step(lambda s, _: s._replace(info={"x": any_type(1.0)}))),
    "critic copied": (
        "critic",
        with_obs(lambda o: o._replace(critic=o.actor.clone()), critic_shape=None, critic_prefix=0),
    ),
    "critic is actor": ("critic", with_obs(lambda o: o._replace(critic=o.actor))),
    "other prefix": ("critic", with_obs(lambda o: o._replace(critic=o.critic.roll(1, 1)))),
    "task missing": ("tasks", with_obs(lambda o: o._replace(task=None))),
    "other task": ("tasks", with_obs(lambda o: o._replace(task=1 - any_type(o.task)))),
    "task unannounced": ("tasks", with_spec(tasks=(), task_ids=())),
    "terminated as float": ("ends", with_step(lambda s, _: s._replace(terminated=s.reward * 0))),
    "truncated as bytes": (
        "ends",
        with_step(lambda s, _: s._replace(truncated=s.truncated.to(torch.uint8))),
    ),
    "both ends": (
        "ends",
        with_step(lambda s, _: s._replace(truncated=s.truncated | s.terminated)),
    ),
    "next_obs ahead": ("next_obs", with_step(lambda s, _: keep_final(s, ~ended(s), ahead(s, 3)))),
    "critic ahead": ("next_obs", with_step(lambda s, _: keep_final(s, ~ended(s), ahead(s, 1)))),
    "final_obs lost": ("final_obs", with_step(lambda s, _: s._replace(next_obs=s.obs))),
    "final_obs lost at terminations": (
        "final_obs",
        with_step(lambda s, _: keep_final(s, s.terminated[:, None], s.obs)),
    ),
    "final_obs lost at truncations": (
        "final_obs",
        with_step(lambda s, _: keep_final(s, s.truncated[:, None], s.obs)),
    ),
    "final_obs one step old": (
        "final_obs",
        with_step(lambda s, before: keep_final(s, ended(s), before.obs)),
    ),
    "truncated late": ("episode_length", OneStepTooMany),
    "never truncated": ("episode_length", NeverTruncates),
    "truncated early": ("episode_length", with_spec(episode_length=13)),
    "reset forgets the clock": ("episode_length", ForgetsClockAtReset),
    "one buffer": ("ownership", OneBuffer),
    "action written": ("ownership", WritesAction),
    "new seed each time": ("same_seed", NewSeedEachTime),
    "render draws": ("same_seed", RenderDraws),
    "saving draws": ("same_seed", SaveDraws),
    "seed ignored": ("different_seeds", IgnoresSeed),
    "all alike": ("different_seeds", AllAlike),
    "shared stream": ("independent_seeds", SharedStream),
    "seed depends on size": ("independent_seeds", SeedOfSize),
    "mean action": ("independent_seeds", MeanAction),
    "second pushes first": ("independent_seeds", SecondPushesFirst),
    "last pushes third": ("independent_seeds", LastPushesThird),
    "actions ignored": ("actions", IgnoresActions),
    "last action ignored": ("actions", LastIgnoresAction),
    "clock not restored": ("state", RestoresWithoutClock),
    "streams not restored": ("state", RestoresWithoutStreams),
    "restored to a reset": ("state", RestoresToAReset),
    "live state": ("state", LiveState),
    "loaded state kept": ("state", KeepsLoadedState),
    "array in state": ("state", with_state(lambda s: {**s, "extra": np.zeros(2)})),
    "tuple in state": ("state", with_state(lambda s: {**s, "extra": [1, (2, 3)]})),
    "number as key": ("state", with_state(lambda s: {**s, "extra": {1: 2}})),
    "float picture": ("render", with_picture(np.zeros((4, 4, 3)))),
    "grey picture": ("render", with_picture(np.zeros((4, 4), dtype=np.uint8))),
    "picture first": ("render", with_picture(np.zeros((3, 4, 4), dtype=np.uint8))),
    "no picture": ("render", with_picture(None)),
    "render crashes": ("render", with_picture(RuntimeError("no display"))),
    "closes once": ("close", ClosesOnce),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_clause_is_caught_and_named(name: str) -> None:
    clause, broken = BROKEN[name]
    with pytest.raises(ContractError) as caught:
        check_env(broken, vec_steps=40)
    assert caught.value.clause == clause, caught.value
    assert CLAUSES[clause] in str(caught.value)


def test_every_clause_has_an_environment_that_breaks_it() -> None:
    assert {clause for clause, _ in BROKEN.values()} == set(CLAUSES)


def test_a_correct_environment_passes_in_silence(capsys: pytest.CaptureFixture[str]) -> None:
    report = check_env(Walk, vec_steps=40)
    assert report.terminations > 0
    assert report.truncations > 0
    assert report.saves_state
    assert report.renders
    assert report.untried == ()
    assert report.vec_steps == 40
    assert capsys.readouterr() == ("", "")


def test_what_could_not_be_tried_is_reported() -> None:
    class Mute(Walk):
        def state_dict(self) -> dict[str, Any] | None:
            return None

        def render(self, index: int = 0) -> np.ndarray:
            raise UserError("no screen")

    assert check_env(Mute, vec_steps=40).untried == ("state", "render")
    assert set(check_env(Mute, vec_steps=2).untried) >= {"final_obs", "episode_length"}


def test_options_switch_clauses_off() -> None:
    check_env(SharedStream, vec_steps=40, independent_seeds=False)
    check_env(IgnoresSeed, vec_steps=40, random_starts=False)
    check_env(with_picture(None), vec_steps=40, render=False)
    inexact = with_step(lambda s, _: s._replace(next_obs=s.obs))
    check_env(lambda n, seed: _inexact(inexact(n, seed)), vec_steps=40)


def _inexact(env: Walk) -> Walk:
    env.spec = dataclasses.replace(env.spec, exact_final_obs=False)
    return env


def test_configs_are_built_on_the_device_asked_for() -> None:
    class Config:
        def build(self, num_envs: int, seed: int, device: torch.device) -> Walk:
            return Walk(num_envs, seed)

        def for_evaluation(self) -> Config:
            return self

    assert check_env(Config(), vec_steps=40).spec.name == "walk"
    with pytest.raises(ContractError, match="asked for meta"):
        check_env(Config(), vec_steps=40, device="meta")


def test_every_environment_is_closed_even_when_a_clause_is_broken() -> None:
    made: list[ClosesOnce] = []

    class Counted(ClosesOnce, IgnoresActions):
        def __init__(self, num_envs: int, seed: int) -> None:
            super().__init__(num_envs, seed)
            made.append(self)

    with pytest.raises(ContractError):
        check_env(Counted, vec_steps=40)
    assert len(made) > 1
    assert all(env.closed for env in made)
