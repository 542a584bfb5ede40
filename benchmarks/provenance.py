"""What a measurement was made with: hardware, versions, commit and time. Every result is written beside it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch

from fleetfoot.run.provenance import commit, facts, hardware, now


def provenance() -> dict[str, Any]:
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "time": now(),
        **facts(),
        "commit": commit(Path(__file__).parents[1]),
        "hardware": {
            **hardware(),
            # Others' work on the same cores slows a measurement; this is how a reader can tell.
            "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            "gpus": gpus,
        },
    }


def write_result(path: Path, name: str, arguments: dict[str, Any], result: Any, made: Any) -> Path:
    """One JSON file per measurement: what was asked, with what, and what came out."""
    path.parent.mkdir(parents=True, exist_ok=True)
    body = {"benchmark": name, "arguments": arguments, "provenance": made, "result": result}
    hidden = path.with_name(f".{path.name}.partial")
    hidden.write_text(json.dumps(body, indent=2, default=str) + "\n")
    os.replace(hidden, path)
    return path
