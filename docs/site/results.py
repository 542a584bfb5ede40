"""Pages of the measurements, made of benchmarks/results/*.json; and the figures that written pages take from there."""

from __future__ import annotations

from typing import Any

import origin
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from benchmarks import figures, result_page

BEHIND = "---\nsearch:\n  boost: 0.2\n---\n\n"  # what people wrote comes first in a search


def on_files(files: Files, config: Any) -> Files:
    pages = []
    for path in sorted((origin.ROOT / "benchmarks/results").glob("*.json")):
        page = f"results/{path.stem}.md"
        files.append(File.generated(config, page, content=BEHIND + result_page.page(path)))
        pages.append({path.stem: page})
    origin.EXTRA_NAV["Benchmarks"] = [{"Result files": pages}]
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    path = origin.written_pages().get(page.file.src_uri)
    return markdown if path is None else figures.refreshed(markdown)
