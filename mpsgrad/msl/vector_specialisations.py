"""Templates for ``vec<T, n>`` where vectors of some elements are classes, as in OpenCL.

There ``template <typename T, int n> float sum(vec<T, n> v)`` is for the compiler's own vectors only: those of bool or
bfloat would go to whatever else takes them. So such functions, and such specialisations of classes and variables, are
followed by copies for these.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations

from mpsgrad.msl.declarations import end_of_initialisers, operator_before, parts_of_declaration
from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.library_marks import CLASS_VECTOR, NATIVE_VECTOR
from mpsgrad.msl.program import ADDRESS_SPACES
from mpsgrad.msl.tokens import IDENTIFIER, Token, matching, matching_angle, skip_attributes, split_commas
from mpsgrad.msl.type_names import type_names

_CLASSES = ("struct", "class", "union")
_BEHIND_PARAMETERS = frozenset({*ADDRESS_SPACES, "const", "noexcept"})


def specialise_for_vectors(tokens: list[Token]) -> list[Token]:
    """``tokens`` with the copies."""
    words = {token.text for token in tokens}
    if not {"vec", "template"} <= words:
        return tokens
    return _Copies(_aliases(tokens)).expanded(tokens)


class _Copies:
    """The copies of one program. ``aliases`` are templates of its own that name ``vec<T, n>``, and which of their
    arguments is the element."""

    def __init__(self, aliases: Mapping[str, int]) -> None:
        self._aliases = aliases

    def expanded(self, tokens: list[Token]) -> list[Token]:
        made: list[Token] = []
        start = index = 0
        while index < len(tokens) - 1:
            if tokens[index].text != "template" or tokens[index + 1].text != "<":
                index += 1
                continue
            head, parameters = index, []
            while index < len(tokens) - 1 and [each.text for each in tokens[index : index + 2]] == ["template", "<"]:
                close = matching_angle(tokens, index + 1, certain=True)
                if close is None:
                    return tokens
                parameters, index = split_commas(tokens[index + 2 : close]), close + 1
            types = {part[1].text for part in parameters if len(part) > 1 and part[0].text in ("typename", "class")}
            end, first, last, is_class = _deducing(tokens, index, types)
            types -= set() if is_class else _of_owner(tokens, index, first)
            elements = dict.fromkeys(self._element(tokens, at) for at in self._vectors(tokens, first, last, types))
            if tokens[index].text == "using" and tokens[index + 1].text in self._aliases:
                made += tokens[start:end]
                for vector in (NATIVE_VECTOR, CLASS_VECTOR):
                    copy = [token.replaced(token.text) for token in tokens[head:end]]
                    copy[index + 1 - head].text = _alias(copy[index + 1 - head].text, vector)
                    for token in copy[index + 3 - head :]:
                        token.text = vector if token.text == "vec" else token.text
                    made += copy
                start = index = end
            elif elements:
                made += tokens[start:head]
                inside = tokens[last:end]
                behind = self.expanded(inside) if is_class else inside
                for count in range(len(elements) + 1):
                    for chosen in combinations(elements, count):
                        made += _copies(tokens[head:first]) if chosen else tokens[head:first]
                        made += self._of_classes(tokens, first, last, types, chosen)
                        made += _copies(behind) if chosen else behind
                start = index = end
            elif not is_class:
                index = max(index, end)
        return made + tokens[start:] if made else tokens

    def _vectors(self, tokens: Sequence[Token], first: int, last: int, types: Collection[str]) -> Iterator[int]:
        """Where from ``first`` to ``last`` a vector is named whose element is one of ``types`` that a call tells."""
        index = first
        while index < last:
            text = tokens[index].text
            if text in ("decltype", "typename"):
                index = _behind_nested(tokens, index)
                continue
            if text == "=":
                while index < last and tokens[index].text not in (",", ">"):
                    is_opening = tokens[index].text in ("(", "{", "[")
                    angle = matching_angle(tokens, index) if tokens[index].text == "<" else None
                    index = matching(tokens, index) + 1 if is_opening else index + 1 if angle is None else angle + 1
                continue
            if (text == "vec" or text in self._aliases) and self._element(tokens, index) in types:
                yield index
            index += 1

    def _element(self, tokens: Sequence[Token], index: int) -> str:
        """The element of the vector that is named at ``index``, if that is one word."""
        end = matching_angle(tokens, index + 1) if tokens[index + 1].text == "<" else None
        arguments = split_commas(tokens[index + 2 : end]) if end is not None else []
        place = self._aliases.get(tokens[index].text, 0)
        return arguments[place][0].text if len(arguments) > place and len(arguments[place]) == 1 else ""

    def _of_classes(
        self, tokens: Sequence[Token], first: int, last: int, types: Collection[str], chosen: Collection[str]
    ) -> list[Token]:
        """The tokens from ``first`` to ``last`` with vectors of the ``chosen`` elements as classes, and the compiler's
        own ones of others."""
        made = [token.replaced(token.text) for token in tokens[first:last]]
        for index in self._vectors(tokens, first, last, types):
            vector = CLASS_VECTOR if self._element(tokens, index) in chosen else NATIVE_VECTOR
            name = tokens[index].text
            made[index - first].text = vector if name == "vec" else _alias(name, vector)
        return made


def _deducing(tokens: Sequence[Token], index: int, types: Collection[str]) -> tuple[int, int, int, bool]:
    """The end of the declaration at ``index``, behind the parameters of templates; the range in which vectors tell the
    elements apart; and whether it is of a class."""
    nothing = index
    if tokens[index].text in _CLASSES:
        name = skip_attributes(tokens, index + 1, len(tokens))
        if name + 1 < len(tokens) and tokens[name + 1].text == "<":
            last = matching_angle(tokens, name + 1)
            end = last
            while end is not None and tokens[end].text not in ("{", ";"):
                end += 1
            if end is not None and last is not None:
                end = matching(tokens, end) + 1 if tokens[end].text == "{" else end
                return end + 1, name + 1, last, True
        return nothing, nothing, nothing, True
    parts = parts_of_declaration(tokens, index, len(tokens))
    opening = parts.parameters[0] if parts.parameters is not None else 0
    before = tokens[index:opening] if opening else ()
    if parts.is_class or not types or any(token.text == "kernel" for token in before):
        return parts.stop, nothing, nothing, False
    if parts.parameters is None:
        return parts.stop, *_specialised(tokens, index, parts.stop), False
    closing = parts.parameters[1]
    behind = closing + 1
    while tokens[behind].text in _BEHIND_PARAMETERS:
        behind += 1
    stop = parts.stop
    if tokens[behind].text == ":":
        stop = matching(tokens, end_of_initialisers(tokens, behind, len(tokens))) + 1
    operator = operator_before(tokens, opening)
    if operator is not None and tokens[operator + 1].kind == IDENTIFIER:
        opening = operator + 1
    return stop, opening, closing, False


def _of_owner(tokens: Sequence[Token], start: int, opening: int) -> set[str]:
    """The words of the template arguments of the class whose member has its parameters at ``opening``."""
    operator = operator_before(tokens, opening)
    name = opening - 1 if operator is None else operator
    for index in range(start, name):
        if tokens[index].text == "<" and tokens[index - 1].kind == IDENTIFIER:
            end = matching_angle(tokens, index)
            if end == name - 2 and tokens[name - 1].text == "::":
                return {token.text for token in tokens[index:end]}
    return set()


def _aliases(tokens: Sequence[Token]) -> dict[str, int]:
    """The templates ``template <typename T> using name = vec<T, n>;`` and the place of ``T`` among their parameters."""
    found = {}
    for each in type_names(tokens):
        parameters = [part[-1].text for part in each.parameters if part]
        meaning = [token for token in each.meaning if token.text not in ("typename", "metal", "::")]
        if [token.text for token in meaning[:2]] == ["vec", "<"] and matching_angle(meaning, 1) == len(meaning) - 1:
            element = split_commas(meaning[2:-1])[0]
            if len(element) == 1 and element[0].text in parameters:
                found[each.name.text] = parameters.index(element[0].text)
    return found


def _alias(name: str, vector: str) -> str:
    """The name of the alias ``name`` for ``vector`` alone."""
    return f"{name}_of_{vector.removesuffix(RENAMED_SUFFIX)}{RENAMED_SUFFIX}"


def _specialised(tokens: Sequence[Token], start: int, end: int) -> tuple[int, int]:
    """The template arguments of a variable that is specialised: ``is_vector<vec<T, n>> = true``."""
    equals = next((index for index in range(start, end) if tokens[index].text == "="), start)
    for index in range(start + 1, equals):
        if tokens[index].text == "<" and tokens[index - 1].kind == IDENTIFIER:
            last = matching_angle(tokens, index)
            if last == equals - 1:
                return index, last
    return start, start


def _behind_nested(tokens: Sequence[Token], index: int) -> int:
    """The index behind ``decltype(x)`` or ``typename name<T>::type``, from which nothing is deduced."""
    if tokens[index].text == "decltype":
        return matching(tokens, index + 1) + 1 if tokens[index + 1].text == "(" else index + 1
    index += 1
    while tokens[index].kind == IDENTIFIER or tokens[index].text == "::":
        angle = matching_angle(tokens, index + 1) if tokens[index + 1].text == "<" else None
        if angle is not None and tokens[angle + 1].text != "::":
            return angle + 1
        if angle is None and tokens[index].kind == IDENTIFIER and tokens[index + 1].text != "::":
            return index + 1
        index = index + 1 if angle is None else angle + 1
    return index


def _copies(tokens: Sequence[Token]) -> list[Token]:
    return [token.replaced(token.text) for token in tokens]
