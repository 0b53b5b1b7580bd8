"""Positions and extents in pixels, and what lies outside an image."""

from __future__ import annotations

import enum
import operator
from typing import Any, NamedTuple, TypeVar

import numpy as np

from mpsgrad.errors import FormatError, GeometryError

MAXIMUM = 2**64 - 1
"""The largest unsigned integer: "all there is" in sizes and channel counts."""

LARGEST_POSITION = 2**30
"""The largest coordinate that an offset may have: shaders compute with 32-bit integers."""


LARGEST_FLOAT = 3.4028234663852886e38
"""The largest finite float32."""

AnyEnum = TypeVar("AnyEnum", bound=enum.IntEnum | enum.IntFlag)


def ceiling_divide(a: int, b: int) -> int:
    """``a / b`` rounded up."""
    return -(-a // b)


class Offset(NamedTuple):
    """A signed position: ``x`` and ``y`` in pixels, ``z`` in images. Source: ``MPSOffset``."""

    x: int = 0
    y: int = 0
    z: int = 0


class ImageCoordinate(NamedTuple):
    """A column, a row and a feature channel, or how many of each. Source: ``MPSImageCoordinate``."""

    x: int = 0
    y: int = 0
    channel: int = 0


class Origin(NamedTuple):
    """The first pixel and image of a region. Source: ``MTLOrigin``."""

    x: int = 0
    y: int = 0
    z: int = 0


class Size(NamedTuple):
    """An extent: ``width`` and ``height`` in pixels, ``depth`` in images (for label data: feature channels).

    Source: ``MTLSize``.
    """

    width: int = MAXIMUM
    height: int = MAXIMUM
    depth: int = MAXIMUM


class Region(NamedTuple):
    """A box of pixels and images. Source: ``MTLRegion``."""

    origin: Origin = Origin()
    size: Size = Size()


NO_CLIP = Region()
"""All of an image. Source: ``MPSRectNoClip``."""


class EdgeMode(enum.IntEnum):
    """What a read outside the source image gives. Source: ``MPSImageEdgeMode``."""

    ZERO = 0
    CLAMP = 1
    MIRROR = 2
    MIRROR_WITH_EDGE = 3
    CONSTANT = 4


def integer(owner: str, argument: str, value: Any, minimum: int | None = None) -> int:
    """``value`` as an int; raises ``FormatError`` if it is none and ``GeometryError`` if it is below ``minimum``."""
    if isinstance(value, bool):
        raise FormatError(f"{owner}: {argument} is {value!r}; it has to be an integer")
    try:
        number = operator.index(value)
    except TypeError:
        raise FormatError(f"{owner}: {argument} is {value!r}; it has to be an integer") from None
    if minimum is not None and number < minimum:
        raise GeometryError(f"{owner}: {argument} is {number}; it has to be at least {minimum}")
    return number


def values_apart(
    owner: str, argument: str, distance: Any, itemsize: int, least: int, dense: int | None = None
) -> int:
    """``distance``, so many bytes, as a number of values of ``itemsize`` bytes, ``least`` at least.

    Without one it is ``dense``, or ``least``. Raises ``GeometryError`` for one that is shorter or no multiple of
    ``itemsize``.
    """
    if distance is None:
        return least if dense is None else dense
    number = integer(owner, argument, distance, itemsize * least)
    if number % itemsize:
        raise GeometryError(f"{owner}: {argument} is {number}; it has to be a multiple of {itemsize}")
    return number // itemsize


def real(owner: str, argument: str, value: Any, minimum: float | None = None, maximum: float | None = None) -> float:
    """``value`` as a float.

    Raises ``FormatError`` if it is no number and ``GeometryError`` if it is out of range or not finite in float32.
    """
    if isinstance(value, (str, bytes, bool)):
        raise FormatError(f"{owner}: {argument} is {value!r}; it has to be a number")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise FormatError(f"{owner}: {argument} is {value!r}; it has to be a number") from None
    if not abs(number) <= LARGEST_FLOAT:
        raise GeometryError(f"{owner}: {argument} is {number}; it has to be finite in float32")
    if minimum is not None and number < minimum:
        raise GeometryError(f"{owner}: {argument} is {number}; it has to be at least {minimum}")
    if maximum is not None and number > maximum:
        raise GeometryError(f"{owner}: {argument} is {number}; it has to be at most {maximum}")
    return number


def flag(owner: str, argument: str, value: Any) -> bool:
    """``value``, a bool or Objective-C's 0 or 1, as a bool; raises ``FormatError`` for anything else."""
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, (int, np.integer)) and value in (0, 1)):
        return bool(value)
    raise FormatError(f"{owner}: {argument} is {value!r}; it has to be True or False")


def member(owner: str, argument: str, kind: type[AnyEnum], value: Any) -> AnyEnum:
    """``value``, a member of the enumeration ``kind``, its number, or its name in any case, as a member.

    Raises ``FormatError`` if there is none.
    """
    try:
        return kind(kind[value.upper()] if isinstance(value, str) else value)
    except (KeyError, ValueError):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        names = ", ".join(name.lower() for name in kind.__members__)
        raise FormatError(
            f"{owner}: {argument} is {value!r}; it has to be {article} {kind.__name__} or one of {names}"
        ) from None


def integers(owner: str, argument: str, value: Any, count: int, minimum: int | None = None) -> tuple[int, ...]:
    """``value`` as ``count`` integers, each checked as ``integer`` does."""
    try:
        parts = tuple(value)
    except TypeError:
        parts = ()
    if len(parts) != count:
        raise FormatError(f"{owner}: {argument} is {value!r}; it has to be {count} integers")
    return tuple(integer(owner, argument, part, minimum) for part in parts)


def region(owner: str, argument: str, value: Any) -> Region:
    """``value`` (a ``Region`` or a pair of triples) as a ``Region``."""
    try:
        origin, size = value
    except (TypeError, ValueError):
        raise FormatError(f"{owner}: {argument} is {value!r}; it has to be a Region of an origin and a size") from None
    return Region(
        Origin(*integers(owner, f"{argument}.origin", origin, 3, 0)),
        Size(*integers(owner, f"{argument}.size", size, 3, 0)),
    )
