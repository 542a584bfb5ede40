"""Pages that lie outside of docs/, and files that pages link to; and what links mean on the site."""

from __future__ import annotations

from typing import Any

import origin
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

KINDS = {
    ".py": "python",
    ".toml": "toml",
    ".json": "json",
    ".yml": "yaml",
    ".sh": "bash",
    ".xml": "xml",
}
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n"


def on_files(files: Files, config: Any) -> Files:
    pages = origin.written_pages()
    for path, uri in origin.OUTSIDE.items():
        if uri in pages:
            files.append(File.generated(config, uri, content=(origin.ROOT / path).read_text()))
    linked = set().union(*(origin.targets(page, path.read_text()) for page, path in pages.items()))
    for name in sorted(linked):
        path = origin.ROOT / name
        kind = KINDS.get(path.suffix, "text")
        text = f"{UNSEARCHED}\n# {name}\n\n````{kind}\n{path.read_text()}````\n"
        files.append(File.generated(config, f"source/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    written = page.file.src_uri in origin.written_pages()
    return origin.relink(page.file.src_uri, markdown) if written else markdown
