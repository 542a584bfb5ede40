"""The recipe that the first word of a command names: of the library, of the user's module, in a file, or of a run."""

from __future__ import annotations

from collections.abc import Sequence

from fleetfoot import recipes
from fleetfoot.cli.main import import_own
from fleetfoot.errors import UserError
from fleetfoot.recipe import Recipe
from fleetfoot.recipes import file
from fleetfoot.run.folder import load_own_parts


def find_recipe(name: str) -> Recipe:
    load_own_parts()
    if file.is_file(name) and name not in recipes.names():
        return file.read_file(name)
    return own_recipe(name) if ":" in name else recipes.get(name)


def modules_of(name: str, recipe: Recipe, imports: Sequence[str]) -> list[str]:
    """The user's modules without which a run of this recipe cannot be read again."""
    own = name.partition(":")[0] if ":" in name and not file.is_file(name) else None
    by_env = str(getattr(recipe.env, "id", "")).rpartition(":")[0]  # "module:Id-v0"
    return list(dict.fromkeys(filter(None, [*imports, own, by_env])))


def own_recipe(name: str) -> Recipe:
    """A recipe from the user's own module, as `module:recipe`; or a function without arguments that returns one."""
    module_name, _, attribute = name.partition(":")
    module = import_own(module_name)
    if not hasattr(module, attribute):
        recipe_names = [key for key, value in vars(module).items() if isinstance(value, Recipe)]
        raise UserError(
            f"module {module_name} has no {attribute!r}; its recipes: {', '.join(recipe_names) or 'none'}."
        )
    value = getattr(module, attribute)
    recipe = value() if callable(value) else value
    if not isinstance(recipe, Recipe):
        raise UserError(f"{name} is a {type(recipe).__name__}, not a Recipe.")
    return recipe
