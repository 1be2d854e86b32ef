"""Arithmetic of splits and slices: seeded permutations, exact shares, pixel statistics.

Pure functions of numbers: no storage, no images, no tables."""
