"""Reports: runs as one page of HTML that needs no network, or as a page that is served while they train."""

from __future__ import annotations

from fleetfoot.report.facts import read_facts
from fleetfoot.report.page import Page, Wish, build
from fleetfoot.report.render import page_html

__all__ = ["Page", "Wish", "build", "page_html", "read_facts"]
