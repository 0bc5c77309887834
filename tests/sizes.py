"""Sizes that meet every tail of the kernels: below, at and just past the widths of vectors, panels and blocks."""

AWKWARD_SIZES = (1, 2, 3, 5, 7, 15, 16, 17, 31, 33, 63, 64, 65, 97)
