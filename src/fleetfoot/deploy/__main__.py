"""`python -m fleetfoot.deploy FOLDER`: check an exported policy on the computer that is to run it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fleetfoot.deploy.policy import load
from fleetfoot.errors import UserError


def main(args: Sequence[str]) -> int:
    """Prints what the policy is; the exit code, 2 where the file is refused."""
    if len(args) != 1 or args[0] in ("-h", "--help"):
        print("usage: python -m fleetfoot.deploy FOLDER|policy.onnx")
        return 0 if args and args[0] in ("-h", "--help") else 2
    try:
        policy = load(args[0])
        worst = policy.check()
    except UserError as error:
        print(f"fleetfoot: {error}", file=sys.stderr)
        return 2
    about = policy.about
    kind = f"one of {about.action_size}" if about.discrete else str(about.action_size)
    rate = "unknown" if about.control_hz is None else f"{about.control_hz:g} Hz"
    print(f"policy        {about.name}")
    print(f"observations  {' x '.join(map(str, about.obs_shape))}, history {about.history}")
    print(f"actions       {kind}")
    print(f"joints        {', '.join(joint.name for joint in about.joints) or 'not named'}")
    print(f"control rate  {rate}")
    rows = len(about.recorded["obs"])
    print(f"check         {rows} recorded observations, largest difference {worst:.2g}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
