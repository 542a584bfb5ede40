"""What this machine has: cores, devices, memory."""

from __future__ import annotations

import os
import re

import psutil
import torch

from fleetfoot.errors import UserError


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def resolve_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device {name!r} is not known; use auto, cpu, cuda or cuda:K.") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device {name!r} is not supported; use auto, cpu, cuda or cuda:K.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count() > 0:
        count = torch.cuda.device_count()
        raise UserError(f"there is no device {name}: torch sees {count} GPU{'s' * (count > 1)}.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "device cuda needs a GPU, and torch sees none: use --device cpu or auto. Recipes that ask for one are slow "
            "without one; `fleetfoot list recipes` says which are for CPU cores."
        )
    return device


def free_bytes(device: torch.device) -> int:
    """Memory that can still be had on a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return int(psutil.virtual_memory().available)


def out_of_memory(error: BaseException) -> bool:
    """Of a CPU or a GPU; for a CPU torch has no error of its own."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    texts = ("DefaultCPUAllocator", "Storage size calculation overflowed")
    return isinstance(error, RuntimeError) and any(text in str(error) for text in texts)


def asked_for(error: BaseException) -> str:
    """How much memory there was not, as the allocators of torch say it; empty where they do not."""
    found = re.search(r"allocate (\d+) bytes", str(error))
    size = f"{int(found[1]) / 2**20:,.1f} MiB" if found else ""
    if found := re.search(r"allocate ([\d.]+ [KMGT]iB)", str(error)):  # on a GPU, and by numpy
        size = found[1]
    return f" ({size} more were asked for)" if size else ""
