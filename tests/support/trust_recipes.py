"""Small recipes for the command: `fleetfoot train support.trust_recipes:NAME`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fleetfoot import recipes
from fleetfoot.checkpoint import CheckpointConfig
from fleetfoot.envs.gym import GymConfig
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Recipe
from fleetfoot.replay.replay import ReplayConfig
from fleetfoot.topologies.pql.loop import SplitLearnersConfig
from fleetfoot.topologies.synchronous import SynchronousConfig
from support import misbehaving
from support.crashing import CrashingConfig, LongExamConfig
from support.gorila import small as small_gorila
from support.processes import ProcessesConfig
from support.runs import QUIET, small

EVALUATION = EvaluationConfig(every_vec_steps=0, episodes=1, max_vec_steps=5)

EVERY_STEP = replace(QUIET, every_vec_steps=1)


def tiny(**changes: Any) -> Recipe:
    """A run of a fraction of a second whose files are a few kB."""
    base = small()
    agent: Any = base.agent
    net = MLPConfig(hidden=(4,))
    fields: dict[str, Any] = {
        # "auto": a range would be named as too narrow where numbers are as made up as these.
        "agent": replace(
            agent, policy_net=net, critic_net=net, num_atoms=5, v_min="auto", v_max="auto"
        ),
        "num_envs": 2,
        "batch_size": 4,
        "pace": PaceConfig(updates_per_vec_step=2, warmup_vec_steps=4),
        "total_vec_steps": 20,
        "replay": ReplayConfig(capacity=40, n_step=2),
        "checkpoint": CheckpointConfig(every_vec_steps=10),
        "evaluation": replace(EVALUATION, every_vec_steps=10),
        "log": replace(QUIET, every_vec_steps=5),
    }
    return replace(base, **(fields | changes))


def plotting() -> Recipe:
    return tiny(log=replace(QUIET, every_vec_steps=5, tensorboard=True))


def endless(**changes: Any) -> Recipe:
    """A run that only a signal ends."""
    checkpoint = CheckpointConfig(every_vec_steps=1_000_000_000)
    fields = {"total_vec_steps": 10**9, "checkpoint": checkpoint, "evaluation": EVALUATION}
    return tiny(**(fields | changes))


def examined(**changes: Any) -> Recipe:
    """The evaluation after 15 vec steps does not end."""
    evaluation = replace(EVALUATION, every_vec_steps=15, max_vec_steps=10**9)
    return endless(env=LongExamConfig(), evaluation=evaluation, **changes)


def examined_at_the_end() -> Recipe:
    return examined(total_vec_steps=15)


def examined_in_threads() -> Recipe:
    base = examined(topology=SplitLearnersConfig())
    agent: Any = base.agent
    return replace(base, agent=replace(agent, policy_every=2))


def asynchronous() -> Recipe:
    return endless(env=GymConfig(id="Pendulum-v1", asynchronous=True))


def in_processes() -> Recipe:
    return endless(env=ProcessesConfig())


def talking() -> Recipe:
    """Prints a line for each entry of the log."""
    log = replace(QUIET, every_vec_steps=1, console=True, console_seconds=0)
    return tiny(total_vec_steps=60, log=log, evaluation=EVALUATION)


def hanging() -> Recipe:
    return endless(env=GymConfig(id=misbehaving.ID, kwargs={"how": "sleep"}), log=EVERY_STEP)


def hanging_overlapped() -> Recipe:
    return replace(hanging(), topology=SynchronousConfig(overlap=True))


def hanging_asynchronous() -> Recipe:
    env = GymConfig(id=misbehaving.ID, asynchronous=True, kwargs={"how": "loop"})
    return endless(env=env, log=EVERY_STEP)


def hanging_in_processes() -> Recipe:
    name = f"{misbehaving.__name__}:{misbehaving.ID}"
    return endless(env=ProcessesConfig(id=name, kwargs={"how": "loop"}), log=EVERY_STEP)


def apex(**changes: Any) -> Recipe:
    """Ape-X with two actors, saved every 50 vec steps."""
    base = recipes.get("apex_dqn/cartpole")
    topology: Any = base.topology
    fields: dict[str, Any] = {
        "topology": replace(topology, actors=2, block_vec_steps=5),
        "evaluation": replace(EVALUATION, every_vec_steps=0),
        "checkpoint": CheckpointConfig(every_vec_steps=50),
        "log": replace(QUIET, every_vec_steps=10),
        "num_envs": 8,
        "batch_size": 16,
        "total_vec_steps": 10**9,
        "threads": 1,
        "device": "cpu",
    }
    return replace(base, **(fields | changes))


def gorila(**changes: Any) -> Recipe:
    fields: dict[str, Any] = {"total_vec_steps": 10**9, "device": "cpu"}
    return small_gorila(**(fields | changes))


def apex_that_fails() -> Recipe:
    """Every actor's environment fails again and again, until there are no restarts left."""
    return apex(env=CrashingConfig(at=60))
