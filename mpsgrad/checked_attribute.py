"""Attributes whose values are checked when they are set: an error names the class of the object and the attribute."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum, IntFlag
from operator import attrgetter
from typing import Any

from mpsgrad.errors import FormatError
from mpsgrad.geometry import member


class CheckedAttribute:
    """An attribute of objects with a ``__dict__``: ``check(owner, name, value)`` gives what is kept, or raises.

    Objects have the ``default`` until it is set.
    """

    name: str

    def __init__(self, default: Any, check: Callable[[str, str, Any], Any], description: str) -> None:
        self.default = default
        self.check = check
        self.__doc__ = description

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, thing: Any, owner: type | None = None) -> Any:
        return self if thing is None else thing.__dict__.get(self.name, self.default)

    def __set__(self, thing: Any, value: Any) -> None:
        thing.__dict__[self.name] = self.check(type(thing).__name__, self.name, value)


def text_or_none(owner: str, argument: str, value: Any) -> str | None:
    """``value``, a text or None; raises ``FormatError`` for anything else."""
    if value is None or isinstance(value, str):
        return value
    raise FormatError(f"{owner}: {argument} is {value!r}; it has to be a text or None")


def fixed(name: str, description: str) -> Any:
    """A property that gives what the object keeps as ``name``, and cannot be set."""
    return property(attrgetter(name), doc=description)


class EnumAttribute(CheckedAttribute):
    """A member of an enum."""

    def __init__(self, default: IntEnum | IntFlag, description: str) -> None:
        kind = type(default)
        super().__init__(default, lambda owner, name, value: member(owner, name, kind, value), description)


class Label(CheckedAttribute):
    """The name of an object in messages, or None."""

    def __init__(self) -> None:
        super().__init__(None, text_or_none, "What messages call the object, or None.")
