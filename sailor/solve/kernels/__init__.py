"""Inner loops as numba kernels, and whether they can be used."""
