"""The navigation of the site is the table of contents in docs/README.md: headings are sections, links are pages.

A page that the table leaves out joins the section that has most pages of its folder. So a new page needs one line in
docs/README.md, and until it has one it can be found all the same.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import origin
from mkdocs.structure.files import Files, InclusionLevel

SECTION = re.compile(r"^## (.+)$|^\s*- \[([^\]]+)\]\(([^)#\s]+)\)", re.M)
HOME = "README.md"


def contents(text: str) -> dict[str, dict[str, str]]:
    """{section: {page: title}} of the table of contents."""
    sections: dict[str, dict[str, str]] = {}
    name = ""
    for heading, title, target in SECTION.findall(text):
        if heading:
            name = heading
        elif name and (page := origin.page_of(HOME, target)):
            sections.setdefault(name, {})[page] = title
    return sections


def on_files(files: Files, config: Any) -> Files:
    text = (origin.DOCS / HOME).read_text()
    pages = {file.src_uri for file in files.documentation_pages()}
    sections = {
        name: {page: title for page, title in section.items() if page in pages}
        for name, section in contents(text).items()
    }
    listed = {HOME}.union(*sections.values())
    folder_of: dict[str, Counter[str]] = {}
    for name, section in sections.items():
        for page in section:
            folder_of.setdefault(page.rpartition("/")[0], Counter())[name] += 1
    for page in sorted(pages - listed):
        folder = page.rpartition("/")[0]
        if folder.startswith(("reference", "source", "results")):
            continue
        name = folder_of[folder].most_common(1)[0][0] if folder in folder_of else "More"
        sections.setdefault(name, {})[page] = ""
    nav: list[Any] = [{"Home": HOME}]
    for name, section in sections.items():
        if section:
            nav.append(
                {name: [{title: page} if title else page for page, title in section.items()]}
            )
    for name, extra in origin.EXTRA_NAV.items():
        entry = next((item for item in nav if name in item), None)
        if entry is None:
            nav.append({name: extra})
        else:
            entry[name] += extra
    config.nav = nav
    for file in files.documentation_pages():
        if file.src_uri.startswith("source/"):  # reached by links alone
            file.inclusion = InclusionLevel.NOT_IN_NAV
    return files
