"""How far torch.compile goes in a test.

To the graph of forward and backward takes seconds, and holds what is ours: that a loss can be traced, whole, and with
nothing in it that changes later. The C++ that is then written and compiled is torch's, and takes half a minute of g++:
tests go so far with `-m slow`.
"""

from __future__ import annotations

import shutil

import pytest

TRACED = "aot_eager"
BUILT_SLOW = pytest.param(
    "inductor",
    marks=[
        pytest.mark.slow,
        pytest.mark.skipif(
            shutil.which("c++") is None, reason="torch.compile needs a C++ compiler on CPU"
        ),
    ],
)
