"""Where the pages of the site come from, and what a link of a page means on the site.

Pages are written for a code host: they link to files by relative paths, also to those outside of docs/. On the site a
link to a module leads to its reference page, one to a result to the page made of it, and one to another file to a page
that shows it. The hooks of this folder share what they know through this module.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

# Pages outside of docs/ that belong to the site.
OUTSIDE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "RELEASING.md": "releasing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "results/README.md",
}
EXTRA_NAV: dict[str, list[Any]] = {}  # section -> entries that other hooks add

# Code is matched first, so that links inside it stay as they are.
LINK = re.compile(
    r"(?P<code>^(?P<fence>```+|~~~+).*?^(?P=fence)|(?P<ticks>`+)[^\n]+?(?P=ticks)(?!`))"
    r"|\]\(\s*<?(?P<target>[^)\s>]+)>?(?P<title>\s+\"[^\"]*\")?\s*\)",
    re.M | re.S,
)


def original(page: str) -> str:
    """The path of a page's source from the root of the repository."""
    return next((path for path, uri in OUTSIDE.items() if uri == page), f"docs/{page}")


def page_of(page: str, target: str) -> str | None:
    """What a link of a page leads to, as a page of the site (without its anchor); None: it leaves the project."""
    if re.match(r"[a-z][a-z+.-]*:|#|/", target):
        return None
    path = unquote(target.partition("#")[0])
    place = posixpath.normpath(posixpath.join(posixpath.dirname(original(page)), path))
    return site_path(place)


def site_path(place: str) -> str | None:
    """The page that shows a file or folder of the repository; None where there is no such file."""
    if place in OUTSIDE:
        return OUTSIDE[place]
    if place in ("README.md", "docs"):
        return "README.md"
    if place.startswith("docs/"):
        inside = place.removeprefix("docs/")
        return f"{inside}/README.md" if (DOCS / inside / "README.md").exists() else inside
    if place.startswith("src/fleetfoot"):
        module = place.removeprefix("src/").removesuffix(".py").removesuffix("/__init__")
        folder = (ROOT / place).is_dir() or place.endswith("__init__.py")
        if folder or place.endswith(".py"):
            return reference_page(module.replace("/", "."), folder)
    result = re.fullmatch(r"benchmarks/results/([^/]+)\.(json)", place)
    if result:
        return f"results/{result[1]}.md"
    return f"source/{place}.md" if (ROOT / place).is_file() else None


def reference_page(module: str, package: bool) -> str:
    path = module.replace(".", "/").removeprefix("fleetfoot").lstrip("/")
    return posixpath.normpath(f"reference/{path}/README.md") if package else f"reference/{path}.md"


def relink(page: str, text: str) -> str:
    """A page's text with links that mean the same on the site as on a code host."""

    def replace(match: re.Match[str]) -> str:
        target = match["target"]
        if target is None:
            return match[0]
        leads_to = page_of(page, target)
        if leads_to is None:
            return match[0]
        anchor = target.partition("#")[1:]
        path = posixpath.relpath(leads_to, posixpath.dirname(page) or ".")
        if not leads_to.endswith(".md"):
            anchor = ()
        if leads_to.startswith(("reference/", "source/")):
            anchor = ()  # lines of a file are not there
        return f"]({path}{''.join(anchor)}{match['title'] or ''})"

    return LINK.sub(replace, text)


def targets(page: str, text: str) -> set[str]:
    """Files of the repository, not pages, that a page links to."""
    found = set()
    for match in LINK.finditer(text):
        target = match["target"]
        leads_to = page_of(page, target) if target else None
        if target and leads_to and leads_to.startswith("source/"):
            found.add(leads_to.removeprefix("source/").removesuffix(".md"))
    return found


def written_pages() -> dict[str, Path]:
    """{page of the site: file} of all pages that people write."""
    inside = {
        path.relative_to(DOCS).as_posix(): path
        for path in sorted(DOCS.rglob("*.md"))
        if not path.is_relative_to(DOCS / "site")
    }
    outside = {uri: ROOT / path for path, uri in OUTSIDE.items() if os.path.exists(ROOT / path)}
    return inside | outside
