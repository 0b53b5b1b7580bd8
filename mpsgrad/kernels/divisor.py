"""Division by a number that the host knows, which kernels do by multiplying: GPUs take 20 instructions to divide."""

from __future__ import annotations

from mpsgrad.shader import ParameterStruct

DIVISOR = ParameterStruct("Divisor", multiplier="uint", shift="uint")
"""What ``quotient`` of ``shaders/lib/divisor.metal.j2`` divides by."""


def divisor(number: int) -> tuple[int, int]:
    """The fields of ``DIVISOR`` that divide numbers below 2^31 by ``number``, 1 or more, or anything for 0.

    Source: Granlund, Montgomery: Division by invariant integers using multiplication, 1994, figure 4.1.
    """
    shift = max(number - 1, 0).bit_length()
    return (((1 << shift) - number) << 32) // max(number, 1) + 1 & 0xFFFFFFFF, shift
