"""What the parameters of a kernel say of the place of a thread, and which variables keep their first value."""

from __future__ import annotations

from collections.abc import Collection

from mpsgrad.msl.analysis.calls import argument_at
from mpsgrad.msl.analysis.expressions import expressions_of
from mpsgrad.msl.analysis.source import Function, Source, Variable, position_attribute
from mpsgrad.msl.analysis.types import INTEGERS, built_in
from mpsgrad.msl.backend import THREAD_ATTRIBUTES
from mpsgrad.msl.tokens import ASSIGNMENTS, IDENTIFIER, NUMBER

_CHANGING = ASSIGNMENTS | {"++", "--"}
_IN_UNIFORM = frozenset("( ) [ ] . -> + - * / %".split())
_DEEPEST = 8


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

    def is_uniform(self, start: int, end: int, depth: int = 0) -> bool:
        """Whether all threads of a threadgroup find the same there."""
        source = self._source
        for index in range(start, end):
            kind, text = source.kind(index), source.text(index)
            if kind != IDENTIFIER or source.text(index - 1) in (".", "->"):
                if kind not in (IDENTIFIER, NUMBER) and text not in _IN_UNIFORM:
                    return False
                continue
            if text in source.constants or (built_in(text) is not None and source.text(index + 1) in ("(", ")")):
                continue
            variable = source.variable(text, index)
            if variable is None or not self._is_same_for_all(variable, depth):
                return False
        return True

    def _is_same_for_all(self, variable: Variable, depth: int) -> bool:
        attribute = self.attribute(variable)
        if attribute is not None:
            return attribute not in THREAD_ATTRIBUTES and not changes(self._source, variable)
        if variable.type is not None and variable.type.space == "constant":
            return True
        if variable.initialiser is None or changes(self._source, variable) or depth > _DEEPEST:
            return False
        is_number = variable.type is not None and variable.type.is_scalar and variable.type.base in INTEGERS
        return is_number and self.is_uniform(*variable.initialiser, depth + 1)


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
