"""What there is to play: a run, an exported folder, a `policy.onnx`, or the policy that ships with the package."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fleetfoot import deploy
from fleetfoot.api import Which
from fleetfoot.envs.robot import Robot
from fleetfoot.envs.robot.config import Ground
from fleetfoot.envs.vec_env import EnvConfig
from fleetfoot.errors import UserError, nearest_run
from fleetfoot.play import robot
from fleetfoot.recipe import Recipe
from fleetfoot.run.folder import from_stored, is_run, read_recipe, run_of, seeds_inside

# A Booster T1 that follows a joystick. `python -m benchmarks.shipped_policy RUN` makes another one.
SHIPPED = Path(__file__).parent / "shipped"


@dataclass(frozen=True)
class Source:
    """Policies for the same robot or environment, by name, and which."""

    policies: dict[str, deploy.Policy]
    robot: Robot | None  # simulated in plain MuJoCo
    env: EnvConfig | None  # or the environment of the recipe, drawn by itself


def open_source(
    places: Sequence[Path],
    which: Which = "best",
    model: Path | None = None,
    ground: Ground | None = None,
) -> Source:
    """Everything is exported first, where it is not yet, and loaded as a robot would load it. `ground` None: that of
    the first policy."""
    policies: dict[str, deploy.Policy] = {}
    recipe: Recipe | None = None
    with tempfile.TemporaryDirectory(prefix="fleetfoot-play-") as scratch:
        for place in places or (SHIPPED,):
            found = _exported(place, which, Path(scratch) / str(len(policies)))
            policy = deploy.load(found)
            policies[_name(place, policy, policies)] = policy
            if recipe is None and is_a_run(place):
                recipe = read_recipe(place)
    first = next(iter(policies.values()))
    env = None if recipe is None else recipe.env
    if (body := robot_for(first.about, env, model, ground)) is not None:
        for policy in policies.values():
            check_same(first.about, policy.about)
        return Source(policies, body, None)
    for option, given in (("--model", model), ("--ground", ground)):
        if given is not None:
            raise UserError(
                f"{first.about.name} is not for a robot of the package, nor does it describe its joints: "
                f"{option} has no effect."
            )
    return Source(policies, None, env or recipe_inside(first.about).env)


def is_exported(place: Path) -> bool:
    return place.is_file() or (place / "policy.onnx").is_file()


def needs_export(place: Path) -> bool:
    return not is_exported(place) and is_a_run(place)


def is_a_run(place: Path) -> bool:
    return is_run(run_of(place))


def recipe_inside(about: deploy.About) -> Recipe:
    """The recipe in an exported file. It may be a stranger's: nothing in it is imported or executed."""
    training = about.raw.get("training")
    tree = training.get("recipe") if isinstance(training, dict) else None
    return from_stored(tree, Path(about.name))


def check_same(one: deploy.About, other: deploy.About) -> None:
    """UserError where two policies are not for the same robot."""
    for what in ("robot", "joints", "control_hz"):
        name, theirs = one.raw.get(what), other.raw.get(what)
        if what == "robot":
            name, theirs = (
                told.get("robot") if isinstance(told, dict) else None for told in (name, theirs)
            )
        if what == "joints":  # earlier versions do not say the unit
            name, theirs = (
                [{**joint, "unit": None} for joint in joints or ()] for joints in (name, theirs)
            )
        if name != theirs:
            raise UserError(
                f"{one.name} and {other.name} are not for the same robot: their {what} differ."
            )


def robot_for(
    about: deploy.About,
    env: EnvConfig | None,
    model: Path | None = None,
    ground: Ground | None = None,
) -> Robot | None:
    """The robot of a policy: one whose model is given, the one that the environment of its run simulates, or one of the
    package. None: it is drawn by its environment."""
    if not robot.is_robot(about):
        return None
    if model is not None:
        return robot.find(about, model, ground)
    own = None if env is None else robot.of_ones_own(env)
    if own is None and robot.is_known(about):
        return robot.find(about, None, ground)
    if ground is not None:
        raise UserError(
            f"--ground is for robots of the package, and {about.name} is not for one of them."
        )
    # A controller must know what the policy observes.
    return own.robot if own is not None and own.task.explains_itself() else None


def _exported(place: Path, which: Which, scratch: Path) -> Path:
    if is_exported(place):
        return place
    if not is_a_run(place):
        raise _nothing_at(place)
    from fleetfoot.export import export_run

    return export_run(place, scratch, which=which, draw=True).folder


def _nothing_at(place: Path) -> UserError:
    if seeds := seeds_inside(place):
        return UserError(f"{place} holds the runs of several seeds; play one, such as {seeds[0]}.")
    if place.exists():
        what, near = "is no run and no exported policy", ""
    else:
        what, near = "does not exist", nearest_run(place, _can_be_played)
    usage = (
        " Give a run, an exported folder or a policy.onnx, or nothing for the policy that ships with the "
        "package."
    )
    return UserError(f"{place} {what}.{near or usage}")


def _can_be_played(path: Path) -> bool:
    return is_run(path) or os.path.isfile(path / "policy.onnx")


def _name(place: Path, policy: deploy.Policy, taken: dict[str, deploy.Policy]) -> str:
    """Runs are called after their folder, files after the recipe inside."""
    name = run_of(place).resolve().name if is_a_run(place) else policy.about.name
    names = [name, *(f"{name} ({k})" for k in range(2, len(taken) + 3))]
    return next(candidate for candidate in names if candidate not in taken)
