"""`python -m benchmarks NAME [options]`: the same as `fleetfoot bench NAME [options]`."""

import sys

from fleetfoot.cli.main import main

main(["bench", *sys.argv[1:]])
