"""GPU kernels for some of `ops`."""
