"""What crosses between Apple's names and this package's classes: objects get the class whose names they are used by."""

from __future__ import annotations

import copy
import dataclasses
from functools import cache
from typing import Any, Self

from mpsgrad.base_kernel import BaseKernel
from mpsgrad.graph.nodes import FilterNode
from mpsgrad.image import Image, ImageBatch
from mpsgrad.known_attributes import no_such_attribute
from mpsgrad.padding import DefaultPadding
from mpsgrad.state import State, StateBatch

APPLE_CLASSES: dict[type, type] = {}
"""For each class of this package that has Apple's names in a subclass, that subclass."""


class CopiedDescriptor:
    """A descriptor that ``copyWithZone`` copies. Source: ``NSCopying``."""

    def copyWithZone(self, zone: Any) -> Self:
        """A copy; the zone is ignored."""
        return copy.copy(self)


class MutableDescriptor(CopiedDescriptor):
    """A descriptor whose properties may be set, as in MPS; what is made with it gets a copy of its own.

    The classes of this package that it is put before are frozen dataclasses, which check their fields when made.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        fields = {each.name for each in dataclasses.fields(self)}  # type: ignore[arg-type]
        if name not in fields:
            if name[0] != "_" and not hasattr(type(self), name):
                raise no_such_attribute(self, name)
            object.__setattr__(self, name, value)
            return
        changed = dataclasses.replace(self, **{name: to_ours(value)})  # type: ignore[type-var]
        kept = {key: held for key, held in vars(self).items() if isinstance(getattr(type(self), key, None), property)}
        vars(self).clear()
        vars(self).update(vars(changed), **kept)

    def to_ours(self) -> Any:
        """A copy that does not change."""
        ours = _class_of_ours(type(self))
        return ours(**{each.name: getattr(self, each.name) for each in dataclasses.fields(ours)})


def to_ours(value: Any) -> Any:
    """What a call of this package is given for an argument of a call by Apple's names."""
    kind: Any = type(value)
    # Other lists are passed on as they are: some calls fill them.
    if kind in (tuple, list) and any(hasattr(part, "to_ours") for part in value):
        return kind(map(to_ours, value))
    convert = getattr(kind, "to_ours", None)
    return value if convert is None else convert(value)


def block_to_ours(block: Any) -> Any:
    """A function that is given its arguments as objects of the classes with Apple's names; None and the like stay."""
    return (lambda *arguments: to_ours(block(*map(to_apple, arguments)))) if callable(block) else block


def to_apple(value: Any) -> Any:
    """A result of this package for who uses Apple's names: the same object, of the class that has them.

    Descriptors and padding policies, which are shared, are copied.
    """
    kind: Any = type(value)
    if kind in (tuple, list):
        return kind(map(to_apple, value))
    if isinstance(value, (ImageBatch, StateBatch)):
        for part in value._stored() if isinstance(value, ImageBatch) else value:
            to_apple(part)
        return value
    if hasattr(kind, "apple_object"):
        return value.apple_object
    apple = APPLE_CLASSES.get(kind) or _class_for(kind)
    if apple is None or apple is kind:
        return value
    if issubclass(apple, MutableDescriptor):
        return apple(**{each.name: getattr(value, each.name) for each in dataclasses.fields(value)})
    if isinstance(value, DefaultPadding):
        value = copy.copy(value)
    value.__class__ = apple
    return value


@cache
def _class_for(kind: Any) -> type | None:
    """The class for objects of ``kind``, which Apple has no name for: they go by that of the nearest class above."""
    if not issubclass(kind, (BaseKernel, DefaultPadding, FilterNode, Image, State)) or kind in APPLE_CLASSES.values():
        return None
    apple = next(APPLE_CLASSES[base] for base in kind.__mro__ if base in APPLE_CLASSES)
    if issubclass(kind, apple):
        return None
    namespace = {"__module__": apple.__module__, "__doc__": apple.__doc__}
    if issubclass(kind, BaseKernel):
        namespace["kernel_name"] = kind.kernel_name
    return type(apple.__name__, (apple, kind), namespace)


def _class_of_ours(apple: type) -> type:
    return next(base for base in apple.__mro__ if APPLE_CLASSES.get(base) is apple)
