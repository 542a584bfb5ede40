"""`python -m fleetfoot` is the `fleetfoot` command."""

from __future__ import annotations

from fleetfoot.cli.main import main

if __name__ == "__main__":
    main()
