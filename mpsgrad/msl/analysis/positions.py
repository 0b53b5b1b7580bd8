"""What the parameters of a kernel say of the place of a thread, and which variables keep their first value."""

from __future__ import annotations

from collections.abc import Collection

from mpsgrad.msl.analysis.calls import argument_at
from mpsgrad.msl.analysis.expressions import expressions_of
from mpsgrad.msl.analysis.source import Function, Source, Variable, position_attribute
from mpsgrad.msl.tokens import ASSIGNMENTS

_CHANGING = ASSIGNMENTS | {"++", "--"}


class Positions:
    """Reads one function by the positions, indices and sizes that it gets; only kernels get some."""

    def __init__(self, source: Source, function: Function) -> None:
        self._source = source
        self._function = function
        self._expressions = expressions_of(source)
        self._attributes: dict[int, str] = {}
        for parameter in function.kernel.parameters if function.kernel is not None else ():
            attribute = position_attribute(parameter)
            if attribute is not None:
                self._attributes[id(parameter.place)] = attribute.name

    def has(self, attributes: Collection[str]) -> bool:
        """Whether there is a parameter with one of ``attributes``."""
        return not set(attributes).isdisjoint(self._attributes.values())

    def attribute(self, variable: Variable) -> str | None:
        """The attribute that makes a parameter one of them; None for other variables."""
        return self._attributes.get(id(self._source.tokens[variable.place]))


def changes(source: Source, variable: Variable, besides: int = -1) -> bool:
    """Whether a variable may get another value than its first, but by the assignment to its name at ``besides``."""
    for index in source.places(variable.name, start=variable.place + 1, end=variable.last):
        if index == besides:
            continue
        behind = index + (2 if source.text(index + 1) == "." else 0)
        if source.text(behind + 1) in _CHANGING or source.text(index - 1) in ("++", "--", "&"):
            return True
        if source.text(index - 1) in ("=", "(", ",") and _is_lent(source, index):
            return True
    return False


def _is_lent(source: Source, index: int) -> bool:
    """Whether the variable at ``index`` is what a reference is bound to, or may be."""
    if source.text(index - 1) == "=":
        return source.text(index - 3) == "&"
    name, number = argument_at(source, index)
    for function in source.functions_by_name.get(name, []):
        parameters = source.arguments(function.opening)
        if number >= len(parameters) or "&" in source.texts[slice(*parameters[number])]:
            return True
    return False
