"""Recipes in files, JSON or YAML: whole ones, and partial ones that change some fields of a named recipe.

    recipe: fast_td3/pendulum      # where to start; without it the file states everything
    name: wide
    num_envs: 256
    explorer: AsSampledConfig      # another part, with its defaults
    agent:                         # the same part: what is not stated stays
      tau: 0.05
      critic_net: {part: SimbaV2Config, width: 128}

A file is read like a stranger's run: it names parts that are imported already, and executes nothing.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from fleetfoot import extras, recipes
from fleetfoot.config import PARTS, to_json
from fleetfoot.errors import UserError, one_line
from fleetfoot.files import read_bytes
from fleetfoot.recipe import Recipe
from fleetfoot.run.folder import from_stored, load_own_parts, read_recipe
from fleetfoot.run.stored import read_stored

ENDINGS = (".json", ".yaml", ".yml")
MOST_BYTES = 1 << 20
# What is no text in YAML 1.2.
PLAIN = {
    "null": r"(?:~|null|Null|NULL|)$",
    "bool": r"(?:true|True|TRUE|false|False|FALSE)$",
    "int": r"[-+]?[0-9][0-9_]*$",
    "float": r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$|[-+]?\.inf$",
}
BASE = "recipe"  # the field of a partial file that names where to start


def is_file(name: str) -> bool:
    """Is this a recipe file or a run folder, rather than the name of a recipe?"""
    return name.endswith(ENDINGS) or (Path(name) / "recipe.json").is_file()


def read_file(path: Path | str) -> Recipe:
    """The recipe in a file, or that of a run folder."""
    path = Path(path)
    if path.is_dir():
        return read_recipe(path)
    tree = _tree(path)
    if not isinstance(tree, dict):
        raise UserError(f"{path} is not a recipe: it must be a table of fields and values.")
    if {"format", "digest"} & tree.keys():  # that of a run folder
        return from_stored(read_stored(path, "recipe"), path)
    load_own_parts()
    return _changed(tree, path) if BASE in tree else _whole(tree, path)


def to_yaml(recipe: Recipe) -> str:
    text: str = _yaml().safe_dump(to_json(recipe), sort_keys=False, allow_unicode=True)
    return text


def _whole(tree: dict[str, Any], path: Path) -> Recipe:
    required = [
        field.name
        for field in dataclasses.fields(Recipe)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing := [name for name in required if name not in tree]:
        raise UserError(
            f"{path} does not state {missing[0]}. A file with only some fields must say which recipe it starts from: "
            f'"{BASE}": "{recipes.DEFAULT}".'
        )
    return from_stored({"part": "Recipe", **tree}, path)


def _changed(tree: dict[str, Any], path: Path) -> Recipe:
    """A named recipe, with what the file states."""
    name = tree[BASE]
    if not isinstance(name, str) or ":" in name:
        raise UserError(f"{path}: {BASE} must be the name of a recipe of this library.")
    try:
        start: dict[str, Any] = to_json(recipes.get(name))
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    stated = {key: value for key, value in tree.items() if key != BASE}
    recipe = from_stored(_over(start, stated), path)
    for field in recipe.derived_fields():
        if field in stated and _over(start[field], stated[field]) != to_json(
            getattr(recipe, field)
        ):
            raise UserError(f"{path}: {field} follows from replay, and cannot be set.")
    return recipe


def _over(old: Any, new: Any) -> Any:
    """What is stated replaces what was there. In a part of the same class, field by field."""
    holds_part = isinstance(old, dict) and "part" in old
    if isinstance(new, str) and new in PARTS and (holds_part or old is None):
        new = {"part": new}
    if not (holds_part and isinstance(new, dict)):
        return new
    if new.get("part", old["part"]) != old["part"]:
        return new
    return old | {name: _over(old.get(name), value) for name, value in new.items()}


def _tree(path: Path) -> Any:
    data = read_bytes(path, most=MOST_BYTES)
    try:
        if path.suffix == ".json":
            return json.loads(data, object_pairs_hook=_table)
        yaml = _yaml()
        return yaml.load(data, Loader=_plain_loader(yaml))
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except Exception as error:  # whatever a parser finds wrong
        kind = "JSON" if path.suffix == ".json" else "YAML"
        raise UserError(f"{path} cannot be read as {kind}: {one_line(error)}.") from error


def _table(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """A parser would take the last of two equal names, in silence."""
    made: dict[Any, Any] = {}
    for name, value in pairs:
        if name in made:
            raise UserError(f"{name!r:.80} is given twice.")
        made[name] = value
    return made


def _yaml() -> Any:
    return extras.load("yaml", "yaml", "YAML needs PyYAML (JSON does not)")


def _plain_loader(yaml: Any) -> Any:
    """The plain values of YAML 1.2: 1e-3 is a number and no is a word, unlike in PyYAML's own 1.1.

    There are no tags beyond those, and no aliases: a few lines of them can stand for billions of values.
    """

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012
        yaml_constructors: dict[Any, Any] = {  # noqa: RUF012
            None: yaml.SafeLoader.yaml_constructors[None],
            "tag:yaml.org,2002:str": yaml.SafeLoader.construct_yaml_str,
            "tag:yaml.org,2002:seq": lambda loader, node: loader.construct_sequence(node, True),
            "tag:yaml.org,2002:map": lambda loader, node: _table(
                loader.construct_pairs(node, True)
            ),
            "tag:yaml.org,2002:null": lambda loader, node: None,
            "tag:yaml.org,2002:bool": lambda loader, node: node.value.lower() == "true",
            "tag:yaml.org,2002:int": lambda loader, node: int(node.value),
            "tag:yaml.org,2002:float": lambda loader, node: float(
                node.value.replace(".inf", "inf")
            ),
        }

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise UserError("it has an alias (*name); write the value out.")
            return super().compose_node(parent, index)

    for kind, pattern in PLAIN.items():
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(pattern), None)
    return Loader
