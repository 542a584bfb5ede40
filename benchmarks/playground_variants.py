"""Which switch makes MuJoCo Warp under JAX faster? Each variant has a process of its own: XLA reads its flags once.

    python benchmarks/playground_variants.py --num-envs 1024 4096
    python benchmarks/playground_variants.py --only stock no-conditional --timeout 300

One line per variant and number of robots: milliseconds per vec step, how long the host was busy before it could go on,
how much of that was Warp's Python callback, and how many CUDA graphs Warp captured. `native` is the physics alone,
without JAX: `n_substeps` steps of MuJoCo Warp in one CUDA graph. It restarts nothing and is controlled by nobody.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from typing import Any

import torch

ALL_COMMANDS = "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,CONDITIONAL,WHILE"


@dataclasses.dataclass(frozen=True)
class Variant:
    why: str
    overrides: tuple[str, ...] = ()
    flags: str = ""  # XLA_FLAGS
    unroll: bool = False  # the substeps as straight code instead of a loop
    contacts_per_env: int = 0  # 0: the task's own room for contacts


VARIANTS = {
    "native": Variant("the floor: MuJoCo Warp alone"),
    "stock": Variant("as Playground sets it: Warp captures one graph per substep"),
    "no-conditional": Variant(
        "the solver's few iterations as straight code, not as a loop on the device",
        ("warp.graph_conditional=false",),
    ),
    "no-conditional-unrolled": Variant(
        "and the substeps too, without XLA's loop and its copies",
        ("warp.graph_conditional=false",),
        unroll=True,
    ),
    "jax-graph": Variant(
        "XLA captures the whole step, physics included, as its own command buffer",
        ("warp.graph_conditional=false", 'warp.graph_mode="jax"'),
        f"--xla_gpu_enable_command_buffer={ALL_COMMANDS} --xla_gpu_graph_min_graph_size=1",
    ),
    "jax-graph-unrolled": Variant(
        "the same without a loop",
        ("warp.graph_conditional=false", 'warp.graph_mode="jax"'),
        f"--xla_gpu_enable_command_buffer={ALL_COMMANDS} --xla_gpu_graph_min_graph_size=1",
        unroll=True,
    ),
    "staged": Variant(
        "Warp's graph on buffers of its own: no search by address, but copies in and out",
        ("warp.graph_conditional=false", 'warp.graph_mode="warp_staged"'),
    ),
    "few-contacts": Variant(
        "room for 16 contacts per robot: smaller launches over contacts",
        ("warp.graph_conditional=false",),
        contacts_per_env=16,
    ),
}


def measure(name: str, args: argparse.Namespace, num_envs: int) -> dict[str, Any]:
    variant = VARIANTS[name]
    from fleetfoot.envs.playground import PlaygroundConfig

    overrides = variant.overrides if args.impl != "jax" else ()
    if variant.contacts_per_env:
        overrides = (*overrides, f"naconmax={variant.contacts_per_env * num_envs}")
    config = PlaygroundConfig(task=args.task, impl=args.impl, overrides=overrides, start_states=64)
    device = torch.device(args.device)
    if name == "native":
        return native(config, num_envs, device, args.steps)
    callback = time_callbacks()
    if variant.unroll:
        unroll_substeps()
    begin = time.perf_counter()
    env = config.build(num_envs, 0, device)
    env.reset()
    size = env._program.task.action_size
    script = (
        torch.rand(16, num_envs, size, generator=torch.Generator().manual_seed(0)) * 2 - 1
    ).to(device)
    for action in script:  # compiles, and lets Warp capture its graphs
        env.step(action)
    wait(device)
    ready = time.perf_counter() - begin
    callback.update(seconds=0.0, calls=0)
    env.reset()
    wait(device)
    begin = time.perf_counter()
    for t in range(args.steps):
        env.step(script[t % 16])
    host = time.perf_counter() - begin
    wait(device)
    whole = time.perf_counter() - begin
    return {
        "ms": 1e3 * whole / args.steps,
        "host_ms": 1e3 * host / args.steps,
        "callback_ms": 1e3 * callback["seconds"] / args.steps,
        "callbacks": callback["calls"] / args.steps,
        "graphs": graphs_captured(),
        "ready_s": ready,
    }


def native(config: Any, num_envs: int, device: torch.device, steps: int) -> dict[str, Any]:
    from fleetfoot.envs.playground import task as playground_task

    playground_task.prepare(device)
    task = playground_task.load(playground_task.Wanted.of(config, device), num_envs)
    import warp as wp
    from mujoco.mjx.third_party import mujoco_warp as mjw

    begin = time.perf_counter()
    with wp.ScopedDevice(str(device) if device.type == "cpu" else f"cuda:{device.index or 0}"):
        model = mjw.put_model(task.env.mj_model)
        model.opt.warn_overflow = 0
        model.opt.graph_conditional = False
        room = {
            "naconmax": task.config.get("naconmax", None),
            "njmax": task.config.get("njmax", None),
        }
        data = mjw.make_data(task.env.mj_model, nworld=num_envs, **room)
        substeps = task.env.n_substeps

        def advance() -> None:
            for _ in range(substeps):
                mjw.step(model, data)

        advance()
        launch = advance
        if device.type == "cuda":
            with wp.ScopedCapture() as capture:
                advance()

            def launch() -> None:
                wp.capture_launch(capture.graph)

            launch()
        wp.synchronize()
        ready = time.perf_counter() - begin
        begin = time.perf_counter()
        for _ in range(steps):
            launch()
        host = time.perf_counter() - begin
        wp.synchronize()
        whole = time.perf_counter() - begin
    return {"ms": 1e3 * whole / steps, "host_ms": 1e3 * host / steps, "ready_s": ready}


def time_callbacks() -> dict[str, Any]:
    """Count and time the calls that XLA makes into Warp's Python."""
    from warp._src.jax import ffi

    seen: dict[str, Any] = {"seconds": 0.0, "calls": 0}
    own = ffi.FfiCallable.ffi_callback

    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return own(self, *args, **kwargs)
        finally:
            seen["seconds"] += time.perf_counter() - begin
            seen["calls"] += 1

    ffi.FfiCallable.ffi_callback = timed
    return seen


def graphs_captured() -> int:
    """Over all of Warp's callables that are alive."""
    import gc

    from warp._src.jax import ffi

    return sum(
        len(found.captures) for found in gc.get_objects() if isinstance(found, ffi.FfiCallable)
    )


def unroll_substeps() -> None:
    from mujoco import mjx
    from mujoco_playground._src import mjx_env

    def step(model: Any, data: Any, action: Any, n_substeps: int = 1) -> Any:
        for _ in range(n_substeps):
            data = mjx.step(model, data.replace(ctrl=action))
        return data

    mjx_env.step = step


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def child(name: str, args: argparse.Namespace, num_envs: int) -> dict[str, Any]:
    flags = " ".join(filter(None, (os.environ.get("XLA_FLAGS"), VARIANTS[name].flags)))
    if args.device == "cpu":
        flags = ""  # XLA stops at flags it does not know
    given = [sys.executable, __file__, "--child", name, "--num-envs", str(num_envs)]
    for field in ("task", "device", "steps", "impl"):
        given += [f"--{field}", str(getattr(args, field))]
    try:
        done = subprocess.run(
            given,
            env=os.environ | ({"XLA_FLAGS": flags} if flags else {}),
            capture_output=True,
            text=True,
            timeout=args.timeout,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"more than {args.timeout:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        return {"failed": (done.stderr.strip().splitlines() or ["no result"])[-1][:200]}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--task", default="T1JoystickFlatTerrain")
    parser.add_argument("--num-envs", type=int, nargs="+", default=[1024])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--impl", default="warp", choices=("warp", "jax"))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds per variant")
    parser.add_argument("--only", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--child", choices=list(VARIANTS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.child, args, args.num_envs[0])))
        return
    rows = []
    for num_envs in args.num_envs:
        for name in args.only:
            found = child(name, args, num_envs)
            rows.append((name, num_envs, found))
            print(f"{name}, {num_envs}: {found}", flush=True)
    columns = ("ms", "host_ms", "callback_ms", "callbacks", "graphs", "ready_s")
    print("\n" + f"{'variant':<26}{'envs':>6}" + "".join(f"{column:>13}" for column in columns))
    for name, num_envs, found in rows:
        shown = "".join(f"{found[c]:>13.2f}" if c in found else f"{'':>13}" for c in columns)
        print(f"{name:<26}{num_envs:>6}{found.get('failed') or shown}")
    print("\n" + "\n".join(f"{name}: {VARIANTS[name].why}" for name in args.only))


if __name__ == "__main__":
    main()
