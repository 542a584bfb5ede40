"""What an update of FlashSAC costs on a GPU: eager, compiled and captured, at the published sizes and large.

python benchmarks/flash_sac_gpu.py --out benchmarks/results/flash-sac-learner.json

First the captured updates are compared with eager ones: after the same updates the weights must be the same, but for
rounding. Then each is timed, batch drawing included, on a replay filled with noise. `--kernels 25` also lists where the
time of one round of captured updates goes, kernel by kernel. `--plain-norm` leaves BatchNorm to the compiler instead of
kernels of its own. `--horizontal` lets the compiler put small kernels that do not depend on each other into one.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from fleetfoot.bench.learner import SIZES, build, compare, forget, matrix_rate, measure
from fleetfoot.bench.provenance import provenance, write_result
from fleetfoot.ops import batch_norm
from fleetfoot.part import UserError


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", default=["flash-g1", "flash-g1-large"])
    parser.add_argument("--modes", nargs="+", default=["eager", "compiled", "captured"])
    parser.add_argument("--precision", default="bf16", choices=["float32", "tf32", "bf16"])
    parser.add_argument("--updates", type=int, default=800)
    parser.add_argument("--kernels", type=int, default=0, help="list so many of the slowest")
    parser.add_argument("--plain-norm", action="store_true")
    parser.add_argument("--horizontal", action="store_true")
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    if args.horizontal:
        torch._inductor.config.combo_kernels = True
    if args.plain_norm:
        batch_norm.in_kernels = batch_norm.in_torch
    made = provenance()
    result: dict[str, Any] = {"same_weights": [], "updates": [], "kernels": {}}
    if not args.no_check:
        for size in args.sizes:
            for precision in dict.fromkeys(("float32", args.precision)):
                result["same_weights"].append(checked(size, precision, device))
    rate = matrix_rate(device)
    print(f"{'size':16} {'mode':9} {'ms/update':>10} {'TFLOP/s':>8} {'GiB':>6} {'ready s':>8}")
    for size in args.sizes:
        for mode in args.modes:
            row = measure(size, mode, args.precision, args.updates, device, rate)
            result["updates"].append(row)
            print(
                f"{size:16} {row['mode']:9} {row['ms_per_update']:10.3f} {row['TFLOP/s']:8.1f} "
                f"{row.get('peak_GiB', 0.0):6.2f} {row['seconds_until_ready']:8.1f}",
                flush=True,
            )
        if args.kernels and device.type == "cuda":
            result["kernels"][size] = kernels(size, args.precision, device, args.kernels)
    arguments = {name: value for name, value in vars(args).items() if name != "out"}
    if args.out:
        print(f"written to {write_result(args.out, 'flash_sac_gpu', arguments, result, made)}")


def checked(size: str, precision: Any, device: torch.device) -> dict[str, Any]:
    """`compare`, but a difference is a figure to report, and no end of the measurement."""
    forget(device)
    try:
        found = compare(size, precision, device)
        print(f"{size} in {precision}: {found['compared']}, weights apart by {found['ratio']:.2g}")
    except UserError as error:
        found = {"size": size, "precision": precision, "error": str(error)}
        print(error)
    return found


def kernels(size: str, precision: Any, device: torch.device, most: int) -> list[dict[str, Any]]:
    """Where one round of captured updates spends its time, the slowest kernels first."""
    forget(device)
    updates = SIZES[size].updates
    _, _, learn = build(SIZES[size], "captured", precision, device)
    for _ in range(5):
        learn(updates)
    torch.cuda.synchronize(device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        learn(updates)
        torch.cuda.synchronize(device)
    times: dict[str, list[float]] = defaultdict(list)
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times[event.name].append(event.device_time)
    total, count = sum(map(sum, times.values())), sum(map(len, times.values()))
    print(f"{size}: {count / updates:.0f} kernels and {total / updates:.0f} us in them per update")
    rows = sorted(times.items(), key=lambda item: -sum(item[1]))[:most]
    for name, each in rows:
        print(f"  {sum(each) / updates:8.1f} us {len(each) / updates:6.1f} x  {name[:90]}")
    return [
        {
            "kernel": name,
            "us_per_update": sum(each) / updates,
            "launches_per_update": len(each) / updates,
        }
        for name, each in rows
    ]


if __name__ == "__main__":
    main()
