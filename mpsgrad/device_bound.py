"""What holds a driver's memory or programs, and so is neither pickled nor copied deeply."""

from __future__ import annotations

from typing import Any, NoReturn, Self


class DeviceBound:
    """An object that holds what is a driver's. ``copy.copy`` gives another object with the same parts."""

    def __copy__(self) -> Self:
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"{name} cannot be copied deeply: what it holds is the device driver's; make another one")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"{name} cannot be pickled: what it holds is the device driver's; make it where it is needed")
