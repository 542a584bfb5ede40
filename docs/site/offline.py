"""Nothing of the site is loaded from elsewhere: what the theme would fetch for its search is here."""

from __future__ import annotations

from typing import Any

from mkdocs.structure.pages import Page

ELSEWHERE = "https://unpkg.com/iframe-worker/shim"
HERE = "javascripts/frame-worker.js"


def on_post_page(output: str, page: Page, config: Any) -> str:
    return output.replace(ELSEWHERE, "../" * page.url.count("/") + HERE)


def on_post_template(output: str, template_name: str, config: Any) -> str:
    return output.replace(ELSEWHERE, f"/{HERE}")
