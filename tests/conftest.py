"""Every test process uses one torch thread: the suite runs several processes at once, and tests stay repeatable."""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import torch

torch.set_num_threads(1)
