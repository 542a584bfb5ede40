"""The API reference: one page for each module, made of its docstrings."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path
from typing import Any

import origin
from mkdocs.structure.files import File, Files

# What people wrote comes first in a search.
BEHIND = "---\nsearch:\n  boost: 0.4\n---\n\n"
PACKAGE = origin.ROOT / "src" / "fleetfoot"


def on_files(files: Files, config: Any) -> Files:
    tree: dict[str, Any] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        package = parts[-1] == "__init__"
        if package:
            parts = parts[:-1]
        if any(part.startswith("_") for part in parts):
            continue
        module = ".".join(("fleetfoot", *parts))
        page = origin.reference_page(module, package)
        text = f"{BEHIND}# {module}\n\n::: {module}\n"
        if package:
            text += children(path.parent, module)
        text += shown(path)
        files.append(File.generated(config, page, content=text))
        branch = tree
        for part in parts[:-1]:
            branch = branch.setdefault(part, {})
        if package and parts:
            branch.setdefault(parts[-1], {})[""] = page
        elif package:
            tree[""] = page
        else:
            branch[parts[-1]] = page
    origin.EXTRA_NAV["Reference"] = entries(tree)
    return files


def shown(path: Path) -> str:
    """The whole file, folded; the search leaves it out."""
    block = f"````python\n{path.read_text()}````"
    name = path.relative_to(origin.ROOT).as_posix()
    folded = f'??? abstract "{name}"\n\n{textwrap.indent(block, "    ")}'
    return f"\n## Source\n\n<div data-search-exclude markdown>\n\n{folded}\n\n</div>\n"


def children(folder: Path, module: str) -> str:
    """The modules of a package, each with the first sentence of its docstring."""
    lines = []
    for path in sorted(folder.iterdir()):
        package = path.is_dir() and (path / "__init__.py").exists()
        if not package and (path.suffix != ".py" or path.stem.startswith("_")):
            continue
        source = path / "__init__.py" if package else path
        about = (ast.get_docstring(ast.parse(source.read_text())) or "").partition("\n\n")[0]
        here = origin.reference_page(module, True).rpartition("/")[0]
        target = origin.reference_page(f"{module}.{path.stem}", package).removeprefix(f"{here}/")
        sentence = " ".join(about.split()).replace("|", "\\|")
        lines.append(f"| [`{path.stem}`]({target}) | {sentence} |\n")
    return f"\n## Modules\n\n| module | |\n| --- | --- |\n{''.join(lines)}" if lines else ""


def entries(branch: dict[str, Any]) -> list[Any]:
    """A branch as entries of the navigation; its own page first."""
    nav: list[Any] = [branch[""]] if "" in branch else []
    for name in sorted(set(branch) - {""}):
        below = branch[name]
        nav.append({name: entries(below) if isinstance(below, dict) else below})
    return nav
