"""Blocks of numbers that kernels for a GPU read: rows of positions, and columns of matrices."""

import triton
import triton.language as tl

# What a product of blocks has at least: rows, columns, and numbers in each.
SMALLEST = 16


@triton.jit
def rows(source, place, real, width, channel):  # type: ignore[no-untyped-def]
    """Return numbers (T, C) of positions, which have `width` each: zero where there is none."""
    mask = real[:, None] & (channel < width)[None, :]
    return tl.load(source + place[:, None] * width + channel[None, :], mask=mask, other=0)


@triton.jit
def columns(source, number, e, v, channel, column):  # type: ignore[no-untyped-def]
    """Return pointers to columns of a matrix (e, v), and which of them there are."""
    inside = (channel < e)[:, None] & (column < v)[None, :]
    return source + (number * e + channel[:, None]) * v + column[None, :], inside


def width(channels: int) -> int:
    """Return the width of a block that has room for all channels."""
    return max(SMALLEST, triton.next_power_of_2(channels))
