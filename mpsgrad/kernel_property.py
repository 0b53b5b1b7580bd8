"""The properties of kernels: a value is checked when it is set, and an error names the kernel and the property."""

from __future__ import annotations

from typing import Any

from mpsgrad.errors import GeometryError
from mpsgrad.geometry import (
    LARGEST_POSITION,
    EdgeMode,
    ImageCoordinate,
    Offset,
    Region,
    Size,
    integer,
    integers,
    member,
    real,
    region,
)
from mpsgrad.image import ImageAllocator, require_allocator
from mpsgrad.padding import Padding, require_padding


class KernelProperty:
    """A checked property of a kernel. Setting one that ``configures`` marks the kernel as configured by hand."""

    def __init__(self, default: Any, description: str, *, configures: bool = False) -> None:
        self.default = default
        self.configures = configures
        self.__doc__ = description

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, kernel: Any, owner: type) -> Any:
        return self if kernel is None else kernel._values.get(self.name, self.default)

    def __set__(self, kernel: Any, value: Any) -> None:
        kernel._configure(**{self.name: self.check(type(kernel).__name__, value)})
        if self.configures:
            kernel._configured_by_hand = True

    def check(self, owner: str, value: Any) -> Any:
        raise NotImplementedError


class IntegerProperty(KernelProperty):
    """An integer from ``minimum`` to ``maximum`` that is a multiple of ``multiple_of``."""

    def __init__(
        self,
        default: int,
        description: str,
        *,
        minimum: int | None = 0,
        maximum: int | None = None,
        multiple_of: int = 1,
        configures: bool = False,
    ) -> None:
        super().__init__(default, description, configures=configures)
        self.minimum = minimum
        self.maximum = maximum
        self.multiple_of = multiple_of

    def check(self, owner: str, value: Any) -> int:
        number = integer(owner, self.name, value, self.minimum)
        if self.maximum is not None and number > self.maximum:
            raise GeometryError(f"{owner}: {self.name} is {number}; it has to be at most {self.maximum}")
        if number % self.multiple_of:
            raise GeometryError(f"{owner}: {self.name} is {number}; it has to be a multiple of {self.multiple_of}")
        return number


class PositionProperty(IntegerProperty):
    """A coordinate of pixels, which may be negative, that 32-bit numbers hold with what kernels add to it."""

    def __init__(self, description: str) -> None:
        super().__init__(0, description, minimum=-LARGEST_POSITION, maximum=LARGEST_POSITION, configures=True)


class RealProperty(KernelProperty):
    """A number that is finite in float32, and at least ``minimum``."""

    def __init__(self, default: float, description: str, *, minimum: float | None = None) -> None:
        super().__init__(default, description)
        self.minimum = minimum

    def check(self, owner: str, value: Any) -> float:
        return real(owner, self.name, value, self.minimum)


class OffsetProperty(KernelProperty):
    def check(self, owner: str, value: Any) -> Offset:
        offset = Offset(*integers(owner, self.name, value, 3))
        if offset.z < 0:
            raise GeometryError(f"{owner}: {self.name}.z is {offset.z}; the first image has to be at least 0")
        if max(map(abs, offset)) > LARGEST_POSITION:
            raise GeometryError(
                f"{owner}: {self.name} is {tuple(offset)}; it has to lie between {-LARGEST_POSITION} and "
                f"{LARGEST_POSITION}"
            )
        return offset


class CoordinateProperty(KernelProperty):
    def check(self, owner: str, value: Any) -> ImageCoordinate:
        coordinate = ImageCoordinate(*integers(owner, self.name, value, 3, 0))
        if max(coordinate) > LARGEST_POSITION:
            raise GeometryError(
                f"{owner}: {self.name} is {tuple(coordinate)}; it has to be at most {LARGEST_POSITION}"
            )
        return coordinate


class RegionProperty(KernelProperty):
    def check(self, owner: str, value: Any) -> Region:
        return region(owner, self.name, value)


class SizeProperty(KernelProperty):
    def check(self, owner: str, value: Any) -> Size:
        return Size(*integers(owner, self.name, value, 3, 0))


class EdgeModeProperty(KernelProperty):
    def check(self, owner: str, value: Any) -> EdgeMode:
        return member(owner, self.name, EdgeMode, value)


class EnumProperty(KernelProperty):
    """A member of the enumeration of its default."""

    def check(self, owner: str, value: Any) -> Any:
        return member(owner, self.name, type(self.default), value)


class PaddingProperty(KernelProperty):
    def check(self, owner: str, value: Any) -> Padding:
        return require_padding(owner, value)


class AllocatorProperty(KernelProperty):
    def check(self, owner: str, value: Any) -> ImageAllocator:
        return require_allocator(owner, self.name, value)
