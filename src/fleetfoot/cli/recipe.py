"""`fleetfoot recipe show RECIPE` and `fleetfoot recipe diff A B`"""

from __future__ import annotations

from dataclasses import dataclass

from fleetfoot.errors import UserError, nearest

USAGE = """usage: fleetfoot recipe show RECIPE [--field value ...] [--yaml]
       fleetfoot recipe diff A B

show prints a whole recipe, which you can save and train: fleetfoot recipe show fast_td3/pendulum --yaml > mine.yaml
diff prints the fields in which two recipes differ. A recipe is a name, a file (.json, .yaml), a run folder, or
module:recipe."""


@dataclass(frozen=True, kw_only=True)
class Show:
    """What `fleetfoot recipe show` takes besides the fields of the recipe."""

    yaml: bool = False
    """As YAML; otherwise as JSON."""


def run(args: list[str], imports: list[str]) -> int:
    # `recipe show RECIPE --help` is the recipe's own
    if not args or {"-h", "--help"} & set(args[:2]):
        print(USAGE)
        return 0
    name, *rest = args
    commands = {"show": show, "diff": diff}
    if name not in commands:
        known = nearest(name, commands) or f" There are {' and '.join(commands)}."
        raise UserError(f"there is no command recipe {name}.{known}")
    print(commands[name](rest))
    return 0


def show(args: list[str]) -> str:
    if not args or args[0].startswith("-"):
        raise UserError("which recipe? fleetfoot recipe show RECIPE, a name, a file or a run.")
    from fleetfoot.cli.form import parse_recipe
    from fleetfoot.cli.which_recipe import find_recipe
    from fleetfoot.config import dumps
    from fleetfoot.recipes.file import to_yaml

    name, *rest = args
    start = find_recipe(name)
    fixed = start.derived_fields()
    recipe, options = parse_recipe(start, Show, rest, f"fleetfoot recipe show {name}", fixed)
    return (to_yaml(recipe) if options.yaml else dumps(recipe)).rstrip("\n")


def diff(args: list[str]) -> str:
    if len(args) != 2 or any(word.startswith("-") for word in args):
        raise UserError("which two? fleetfoot recipe diff A B, each a name, a file or a run.")
    from fleetfoot.cli.which_recipe import find_recipe
    from fleetfoot.config import flat_fields, shown, to_json

    one, other = (dict(flat_fields(to_json(find_recipe(name)))) for name in args)
    rows = [
        (path, *(shown(of[path]) if path in of else "-" for of in (one, other)))
        for path in dict.fromkeys([*one, *other])
    ]
    rows = [row for row in rows if row[1] != row[2]]
    if not rows:
        return "no field differs."
    rows.insert(0, ("field", *args))
    widths = [max(len(row[place]) for row in rows) for place in (0, 1)]
    return "\n".join(
        f"{path:<{widths[0]}}  {mine:<{widths[1]}}  {its}".rstrip() for path, mine, its in rows
    )
