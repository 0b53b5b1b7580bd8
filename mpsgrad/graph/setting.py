"""``Setting``: a value of a node that its kernel is made with."""

from __future__ import annotations

from typing import Any

from mpsgrad.errors import FormatError

REQUIRED: Any = object()
"""The default of a setting that has none."""


class Setting:
    """An attribute of a node: an argument of its kernel's constructor, or with ``of_kernel`` a kernel property."""

    name: str

    def __init__(self, default: Any = REQUIRED, *, of_kernel: bool = False) -> None:
        self.default = default
        self.of_kernel = of_kernel

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, node: Any, owner: type | None = None) -> Any:
        return self if node is None else node.__dict__[self.name]

    def __set__(self, node: Any, value: Any) -> None:
        node.__dict__[self.name] = value


def settings_of(node_class: type) -> dict[str, Setting]:
    """The settings of a node class, in the order of their definition, those of its bases first."""
    found: dict[str, Setting] = {}
    for each in reversed(node_class.__mro__):
        found |= {name: value for name, value in vars(each).items() if isinstance(value, Setting)}
    return found


def take_settings(node: Any, given: dict[str, Any]) -> None:
    """Sets the settings of ``node`` to ``given`` and their defaults.

    Raises ``FormatError`` for one that the node does not have or that is missing.
    """
    known, owner = settings_of(type(node)), type(node).__name__
    for name in given:
        if name not in known:
            raise FormatError(f"{owner}: has no setting {name!r}; it has {', '.join(known) or 'none'}")
    for name, setting in known.items():
        value = given.get(name, setting.default)
        if value is REQUIRED:
            raise FormatError(f"{owner}: {name} is missing")
        # By Apple's names some can be read only.
        setting.__set__(node, value)
