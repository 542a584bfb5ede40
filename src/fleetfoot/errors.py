"""Mistakes that a user can put right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can put right. The command line prints it as one line and exits with code 2."""


def nearest(name: str, known: Iterable[str]) -> str:
    """' Did you mean ...?' for a misspelt name, or the empty string when nothing is close."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(close)}?" if close else ""
