"""Constants at program scope whose values NVIDIA's compiler does not work out: ``constant float3 B = A * 2;``.

CUDA begins no kernel by giving variables their values, and what is done with vectors, with halves by name and by the
library is no constant expression there. Such a constant becomes a function that gives its value, which the compiler
works out where it is called::

    inline const float3 value_of_B_mtl() { const float3 B = A * 2; return B; }

and an array the member of a class that begins with its values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from mpsgrad.msl.analysis.source import Source, Variable, element_of
from mpsgrad.msl.analysis.types import INTEGERS, Type, built_in
from mpsgrad.msl.tokens import IDENTIFIER, Token, error, made_at

_KNOWN = INTEGERS | {"float"}
_DROPPED = frozenset({"constant", "const", "constexpr", "static", "inline"})
_OPERATORS = frozenset("+ - * / % & | ^ ~ ! << >> < > <= >= == != && || ?".split())
_UNEVALUATED = frozenset({"sizeof", "alignof", "decltype"})
_NO_FUNCTIONS = frozenset("static_cast reinterpret_cast const_cast is_function_constant_defined".split())


def with_computed_constants(source: Source) -> list[Token] | None:
    """The tokens of a program with functions in the place of such constants; None if it has none.

    Raises ``ShaderError`` where one has to have an address.
    """
    finder = _Finder(source)
    replaced: dict[int, tuple[int, list[Token]]] = {}
    for start, stop in source.program.variables:
        if finder.find(start, stop):
            replaced[start] = stop, list(finder.written(start, stop))
    if not replaced:
        return None
    uses = dict(finder.uses())
    made: list[Token] = []
    index = 0
    while index < len(source.tokens):
        if index in replaced:
            index, tokens = replaced[index]
            made += [word for token in tokens for word in uses.get(id(token), (token,))]
        else:
            token = source.tokens[index]
            made += uses.get(id(token), (token,))
            index += 1
    return made


class _Finder:
    """The constants of one source that are computed where they are used."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._computed: dict[int, Variable] = {}

    def find(self, start: int, stop: int) -> bool:
        """Whether the declaration from ``start`` to ``stop`` has such constants, which are noted."""
        source = self._source
        words = set(source.texts[start:stop])
        if "constant" not in words or words & {"function_constant", "extern"} or source.text(start - 1) == ">":
            return False
        found = [each for each in self._declared(start, stop) if self._is_computed(each)]
        self._computed |= {each.place: each for each in found}
        return bool(found)

    def _declared(self, start: int, stop: int) -> list[Variable]:
        source = self._source
        several = {source.text(k) for k in range(start, stop) if source.kind(k) == IDENTIFIER}
        found = [each for name in several for each in source.variables.get(name, ()) if each.first == start]
        return sorted(found, key=lambda each: each.place)

    def _kind(self, variable: Variable) -> Type | None:
        return None if variable.is_reference else element_of(variable.type, variable.extents)

    def _value(self, variable: Variable) -> tuple[int, int]:
        """Where the initialiser of a constant begins, with its sign or bracket, and ends."""
        source = self._source
        index = variable.place + 1
        while source.text(index) == "[":
            index = source.close(index) + 1
        if variable.initialiser is not None:
            return index, variable.initialiser[1]
        return index, source.close(index) + 1 if source.text(index) in ("(", "{") else index

    def _is_computed(self, variable: Variable) -> bool:
        source, kind = self._source, self._kind(variable)
        if kind is None or not (kind.is_scalar or kind.is_vector):
            return False
        start, stop = self._value(variable)
        index, depth = start, 0
        while index < stop:
            text = source.text(index)
            depth += (text in ("(", "[", "{")) - (text in (")", "]", "}"))
            if text in _UNEVALUATED and source.text(index + 1) == "(":
                index = source.close(index + 1)
            elif source.kind(index) == IDENTIFIER and self._needs_computing(index):
                return True
            elif text in _OPERATORS and (depth == 0 and kind.is_vector or self._is_beside_vector(index)):
                return True
            index += 1
        return False

    def _needs_computing(self, index: int) -> bool:
        """Whether a constant that names what stands at ``index`` is no constant expression in CUDA."""
        source, text = self._source, self._source.text(index)
        if source.text(index - 1) == ".":
            return True
        variable = source.variable(text, index)
        if variable is not None:
            kind = self._kind(variable)
            return variable.place in self._computed or kind is None or not (kind.is_scalar and kind.base in _KNOWN)
        opening = index + 1
        if text == "as_type":
            return True
        is_known = text in _NO_FUNCTIONS or text in source.functions_by_name or source.is_type(index)
        return source.text(opening) == "(" and not is_known

    def _is_beside_vector(self, operator: int) -> bool:
        """Whether an operand of an operator is a vector that is made there."""
        source = self._source
        places = [operator + 1]
        if source.text(operator - 1) == ")":
            places.append(source.close(operator - 1) - 1)
        kinds = [built_in(source.text(place)) for place in places]
        return any(kind is not None and kind.is_vector for kind in kinds)

    def written(self, start: int, stop: int) -> Iterator[Token]:
        """The declaration with functions and classes for those that are computed."""
        tokens, declared = self._source.tokens, self._declared(start, stop)
        specifiers = tokens[start : declared[0].place]
        type_words = [token for token in specifiers if token.text not in _DROPPED]
        for variable in declared:
            place, name = tokens[variable.place], variable.name
            begin, end = self._value(variable)
            extents = list(self._extents(variable, begin))
            if variable.place not in self._computed:
                yield from [*specifiers, place, *extents, *tokens[begin:end], *made_at(place, ";")]
                continue
            made = partial(made_at, place)
            constant = [*made("const"), *type_words, place, *extents, *tokens[begin:end], *made(";")]
            if variable.extents:
                yield from [*made("struct", f"values_of_{name}_mtl", "{"), *constant, *made("}", ";")]
            else:
                yield from [*made("inline", "const"), *type_words, *made(f"value_of_{name}_mtl", "(", ")", "{")]
                yield from [*constant, *made("return", name, ";", "}")]

    def _extents(self, variable: Variable, begin: int) -> Iterator[Token]:
        """The brackets behind a name, with a number between those that leave it to the values in braces."""
        source = self._source
        for index in range(variable.place + 1, begin):
            yield source.tokens[index]
            if source.text(index) == "[" and source.text(index + 1) == "]":
                opening = begin + (source.text(begin) == "=")
                yield from made_at(source.tokens[index], str(len(source.arguments(opening))))

    def uses(self) -> Iterator[tuple[int, Sequence[Token]]]:
        """What stands for names of computed constants, by the identity of the token; raises where it cannot."""
        source = self._source
        for variable in self._computed.values():
            for index in source.places(variable.name):
                if index == variable.place or source.text(index - 1) in (".", "->"):
                    continue
                if source.variable(variable.name, index) is not variable:
                    continue
                token = source.tokens[index]
                if self._needs_address(variable, index):
                    what = f"the constant '{variable.name}' is computed from others: on NVIDIA GPUs it has no address"
                    raise error(what, token)
                if variable.extents:
                    yield id(token), made_at(token, f"values_of_{variable.name}_mtl", "(", ")", ".", variable.name)
                else:
                    yield id(token), made_at(token, f"value_of_{variable.name}_mtl", "(", ")")

    def _needs_address(self, variable: Variable, index: int) -> bool:
        source = self._source
        if variable.extents:
            end = index + 1
            for _ in variable.extents:
                if source.text(end) != "[":
                    return source.text(index - 1) != "(" or source.text(index - 2) != "sizeof"
                end = source.close(end) + 1
        start = index
        while source.text(start - 1) == "::":
            start -= 2
        before = source.text(start - 1)
        if before == "&":
            return source.kind(start - 2) != IDENTIFIER and source.text(start - 2) not in (")", "]")
        if before != "return":
            return False
        around = (each for each in source.functions if each.body_open < index < each.body_close)
        return any("&" in source.texts[each.start : each.opening] for each in around)
