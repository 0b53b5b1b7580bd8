"""Which public names of mpsgrad the manifest of Apple's names reaches, and which are this package's own."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from typing import Any

import mpsgrad as mg
from mpsgrad.mps.classes import ours_of
from mpsgrad.mps.manifest import Member, declarations, own_names, snake_case

Name = tuple[str, str]
"""The name of the class that defines an attribute, and the attribute's."""


def _exported() -> dict[str, Any]:
    return {name: getattr(mg, name) for name in dir(mg) if not name.startswith("_")}


def public_classes() -> dict[str, type]:
    """The classes that ``mpsgrad`` exports, exceptions apart."""
    exported = {name: value for name, value in _exported().items() if inspect.isclass(value)}
    return {name: cls for name, cls in exported.items() if not issubclass(cls, Exception)}


def public_values() -> set[str]:
    """What ``mpsgrad`` exports besides classes and the modules of its parts."""
    return {name for name, value in _exported().items() if not inspect.isclass(value) and not inspect.ismodule(value)}


def public_attributes() -> set[Name]:
    """Every public attribute of the exported classes, by the class of this package that defines it.

    Classes that are this package's own as a whole are left out.
    """
    found = set()
    for name, cls in public_classes().items():
        for base in cls.__mro__ if name not in own_names()["classes"] else ():
            if base.__module__.startswith("mpsgrad"):
                found |= {(base.__name__, name) for name in vars(base) if not name.startswith("_")}
    return found


def own_attributes() -> set[Name]:
    """The attributes that the manifest marks as this package's own, of every class."""
    return {(cls, name) for cls, names in own_names()["attributes"].items() for name in names}


def reached_classes() -> set[str]:
    """The exported classes that have an Apple name."""
    return {each.python for each in declarations().values() if each.python is not None and each.status.is_callable}


def reached_attributes() -> set[Name]:
    """The attributes that an Apple name leads to."""
    found: set[Name] = set()
    for declaration in declarations().values():
        ours = ours_of(declaration) if declaration.status.is_callable else None
        if ours is None:
            continue
        inherited = [member for name in declaration.conforms for member in declarations()[name].members]
        for member in (*declaration.members, *inherited):
            if member.status.is_callable:
                for attribute in _attributes(member, ours, is_asked=declaration.is_protocol):
                    found |= set(_definitions(ours, attribute))
    return found


def _attributes(member: Member, ours: Any, *, is_asked: bool) -> list[str]:
    if is_asked:
        return [snake_case(member.name)]
    if not member.is_method and not member.is_property:
        return [name for name, known in ours.__members__.items() if known == member.annotations["value"]]
    node: Any = ast.parse(member.call(ours), mode="eval").body
    settings = [each.arg for each in node.keywords] if isinstance(node, ast.Call) and member.is_constructor else []
    given = {parameter.name for parameter in member.parameters}
    names = [each.id for each in ast.walk(node) if isinstance(each, ast.Name) and each.id not in given]
    return [*names, *settings]


def _definitions(ours: type, name: str) -> Iterator[Name]:
    """Every class in the line of ``ours`` that defines ``name``: an override is the same name."""
    for base in (*ours.__mro__, *_below(ours)):
        if name in vars(base):
            yield base.__name__, name


def _below(ours: type) -> Iterator[type]:
    for cls in ours.__subclasses__():
        yield cls
        yield from _below(cls)
