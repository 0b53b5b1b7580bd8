"""Shapes that several families of rows share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

Shape = tuple[int, int, int, int]
T = TypeVar("T")

RESNET50 = ((32, 112, 112, 64), (32, 56, 56, 256), (32, 28, 28, 512), (32, 14, 14, 1024), (32, 7, 7, 2048))
"""The results of ResNet-50's five stages at batch 32."""
AWKWARD = ((7, 57, 55, 3), (5, 31, 29, 37))
SMALL = (1, 28, 28, 64)

_SCANNED_EXPONENTS = {"cpu": range(10, 25, 4), "gpu": range(10, 31, 4)}


def scan(hardware: str) -> Iterator[Shape]:
    """Shapes of 2^10 elements and more, with 64 channels: up to 2^30 on a GPU, 2^22 on a CPU."""
    for exponent in _SCANNED_EXPONENTS[hardware]:
        size = min(32, 2 ** ((exponent - 6) // 2))
        yield 2**exponent // (64 * size * size), size, size, 64


def in_groups(design: Sequence[T], others: Mapping[str, Sequence[T]]) -> Iterator[tuple[str, T]]:
    """Each fixed shape of a module with the group that it belongs to."""
    for group, shapes in {"design": design, **others}.items():
        for shape in shapes:
            yield group, shape


def text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
