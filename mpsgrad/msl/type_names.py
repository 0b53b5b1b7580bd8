"""The names that ``typedef`` and ``using`` give to types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mpsgrad.msl.tokens import (
    IDENTIFIER,
    OPENING,
    Token,
    made_at,
    matching,
    matching_angle,
    skip_attributes,
    split_commas,
)

_CLASSES = frozenset({"struct", "class", "union", "enum"})
_MARKERS = frozenset({"*", "&", "&&"})
_BEHIND_MARKERS = frozenset({"const", "volatile", "device", "constant", "threadgroup", "thread", "restrict"})


@dataclass(frozen=True, slots=True)
class TypeName:
    """A name, and the tokens of the type that it stands for: those of ``typedef float name[4];`` are ``float[4]``."""

    name: Token
    meaning: list[Token]
    place: range
    """The declaration without its semicolon, from its ``template`` on if it has one."""
    parameters: list[list[Token]]
    """Those of the template; none without one."""

    @property
    def defines_class(self) -> bool:
        """Whether the meaning has the body of a class or of an enumeration."""
        return any(token.text == "{" for token in self.meaning)


def type_names(tokens: Sequence[Token]) -> Iterator[TypeName]:
    """What each ``typedef`` of one name and each ``using name = `` declares, wherever it stands."""
    for index, token in enumerate(tokens):
        if token.text not in ("typedef", "using"):
            continue
        end = _end(tokens, index)
        if token.text == "typedef":
            name = _declared(tokens, index + 1, end)
            meaning = [*tokens[index + 1 : name], *tokens[name + 1 : end]]
            if name < end and meaning:
                yield TypeName(tokens[name], meaning, range(index, end), [])
            continue
        equals = skip_attributes(tokens, index + 2, end)
        if equals + 1 < end and tokens[equals].text == "=" and tokens[index + 1].kind == IDENTIFIER:
            start, parameters = _template(tokens, index)
            yield TypeName(tokens[index + 1], list(tokens[equals + 1 : end]), range(start, end), parameters)


def one_name_each(tokens: list[Token]) -> list[Token]:
    """``tokens`` with ``typedef T a; typedef T* b;`` for ``typedef T a, *b;`` and ``T typedef a, *b;``.

    The body of a class stays in the first of them, and the others have its name, ``a`` if it has none of its own.
    """
    made: list[Token] = []
    start = 0
    tokens = _typedef_first(tokens)
    for index, token in enumerate(tokens):
        if token.text != "typedef":
            continue
        end = _end(tokens, index)
        first, *others = split_commas(tokens[index + 1 : end])
        name = _declared(first, 0, len(first))
        base = _base(first, name) if others and name < len(first) else []
        if base:
            made += tokens[start:index]
            for part in [first, *([*(each.replaced(each.text) for each in base), *part] for part in others)]:
                made += [token.replaced("typedef"), *part, *made_at(tokens[end - 1], ";")]
            start = end + 1
    return made + tokens[start:] if made else tokens


def _typedef_first(tokens: list[Token]) -> list[Token]:
    """``tokens`` with ``typedef T a;`` for ``T typedef a;``."""
    for index in range(1, len(tokens)):
        if tokens[index].text != "typedef" or tokens[index - 1].kind != IDENTIFIER:
            continue
        start = index - 1
        while start and tokens[start - 1].text not in (";", "{", "}") and tokens[start - 1].kind != "pragma":
            start -= 1
        tokens = [*tokens[:start], tokens[index], *tokens[start:index], *tokens[index + 1 :]]
    return tokens


def _end(tokens: Sequence[Token], index: int) -> int:
    """The index of the semicolon that ends what begins at ``index``."""
    while index < len(tokens) and tokens[index].text not in (";", "}"):
        index = matching(tokens, index) + 1 if tokens[index].text in OPENING else index + 1
    return index


def _declared(tokens: Sequence[Token], index: int, end: int) -> int:
    """Where the name stands that ``typedef`` gives to the type from ``index`` to ``end``; ``end`` without one."""
    name = end
    while index < end:
        text = tokens[index].text
        behind = skip_attributes(tokens, index, end)
        if behind > index:
            index = behind
        elif text == "(":
            close = matching(tokens, index)
            inner = _declared(tokens, index + 1, close)
            is_nested = close + 1 < end and tokens[close + 1].text in ("(", "[")
            if is_nested and inner < close:
                return inner
            index = close + 1
        elif text == "<":
            angle = matching_angle(tokens, index, end)
            index = index + 1 if angle is None else angle + 1
        elif text in OPENING:
            name = end if text == "{" else name
            index = matching(tokens, index) + 1
        else:
            name = index if tokens[index].kind == IDENTIFIER else name
            index += 1
    return name


def _base(declaration: Sequence[Token], name: int) -> list[Token]:
    """What other names are given to as well: the type before the declarator around ``name``."""
    begin = name
    for index in range(name - 1, 0, -1):
        text = declaration[index].text
        if text in _MARKERS or text == "(":
            begin = index
        elif text not in _BEHIND_MARKERS:
            break
    base = list(declaration[:begin])
    body = next((at for at, token in enumerate(base) if token.text == "{"), None)
    if body is None:
        return base
    head = next((at for at, token in enumerate(base) if token.text in _CLASSES), body)
    of_class = skip_attributes(base, head + 1, body)
    if of_class < body:
        return [*base[:head], base[of_class]]
    return [*base[:head], declaration[name]] if begin == name == len(declaration) - 1 else []


def _template(tokens: Sequence[Token], index: int) -> tuple[int, list[list[Token]]]:
    """Where the template begins whose declaration is at ``index``, and its parameters; ``index`` if it is none."""
    if not index or tokens[index - 1].text != ">":
        return index, []
    start = next((at for at in range(index - 1, -1, -1) if tokens[at].text == "template"), index)
    return start, split_commas(tokens[start + 2 : index - 1])
