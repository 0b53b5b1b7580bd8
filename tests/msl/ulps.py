"""Errors in units in the last place, as the Metal specification defines them (section 8.4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class FloatFormat:
    """A floating-point format: bits after the point, and exponents of its smallest and largest normal numbers."""

    fraction_bits: int
    smallest_exponent: int
    largest_exponent: int

    @property
    def smallest_normal(self) -> float:
        return 2.0**self.smallest_exponent

    @property
    def overflow(self) -> float:
        """The first power of two that has no place: what infinity stands for where errors are measured."""
        return 2.0 ** (self.largest_exponent + 1)

    def unit(self, magnitude: np.ndarray) -> np.ndarray:
        """The distance between neighbouring numbers of the format at ``magnitude``."""
        exponent = np.frexp(np.abs(magnitude))[1] - 1
        exponent = np.where(np.abs(magnitude) > 0, exponent, self.smallest_exponent)
        exponent = np.clip(exponent, self.smallest_exponent, self.largest_exponent)
        return np.ldexp(1.0, exponent - self.fraction_bits)

    def flush(self, values: np.ndarray) -> np.ndarray:
        """``values`` with zeros in place of numbers too small to be normal."""
        return np.where(np.abs(values) < self.smallest_normal, np.copysign(0.0, values), values)


FORMATS = {"float": FloatFormat(23, -126, 127), "half": FloatFormat(10, -14, 15)}


def errors(got: np.ndarray, expected: np.ndarray, form: FloatFormat, scale: np.ndarray | None = None) -> np.ndarray:
    """The distance of ``got`` from the exact ``expected`` in units in the last place of ``expected``.

    ``scale`` has larger magnitudes whose units to count in instead: those of the terms that ``expected`` is a sum of.
    NaN for NaN is exact, any other mixture with NaN infinitely wrong. Infinity is as far away as the power of two that
    follows the largest number, and zero is exact in place of what is too small to be normal.
    """
    # Conversions complain of signalling NaN, which are results like any other.
    with np.errstate(invalid="ignore"):
        return _errors(np.asarray(got, np.float64), np.asarray(expected, np.float64), form, scale)


def _errors(got: np.ndarray, expected: np.ndarray, form: FloatFormat, scale: np.ndarray | None) -> np.ndarray:
    limited = np.clip(expected, -form.overflow, form.overflow)
    reached = np.clip(got, -form.overflow, form.overflow)
    unit = form.unit(limited if scale is None else np.fmax(np.abs(limited), np.minimum(scale, form.overflow)))
    distance = np.abs(reached - limited) / unit
    distance = np.where((got == 0) & (np.abs(expected) < form.smallest_normal), 0.0, distance)
    distance = np.where(np.isinf(expected) & (got != expected), np.inf, distance)
    one_is_nan = np.isnan(got) | np.isnan(expected)
    return np.where(one_is_nan, np.where(np.isnan(got) & np.isnan(expected), 0.0, np.inf), distance)
