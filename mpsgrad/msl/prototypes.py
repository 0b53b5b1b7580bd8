"""Which declarations without a body belong to a function that is defined elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

from mpsgrad.msl.analysis.types import built_in
from mpsgrad.msl.declarations import operator_before
from mpsgrad.msl.program import ADDRESS_SPACES, Program
from mpsgrad.msl.tokens import IDENTIFIER, Token, matching, skip_attributes, split_commas

_NO_TYPES = frozenset({"return", "else", "do", "case", "new", "delete", "throw"})


def prototypes_of(program: Program) -> Mapping[int, Sequence[int]]:
    """For the brackets that open the parameters of functions with a body, those of their declarations without one."""
    tokens = program.tokens
    defined: dict[str, list[int]] = {}
    openings = {opening for _, opening, _ in program.function_heads} | {head[2] for head in program.member_heads}
    # What is defined in its class is not declared elsewhere.
    for _, opening, _ in program.function_heads:
        defined.setdefault(tokens[opening - 1].text, []).append(opening)
    classes = {b.text for a, b in pairwise(tokens) if a.text in ("struct", "class")}
    bodies = list(bodies_of_classes(tokens))
    found: dict[int, list[int]] = {}
    for index in range(1, len(tokens)):
        if tokens[index].text != "(" or index in openings or tokens[index - 1].text not in defined:
            continue
        if not _ends_declaration(tokens, matching(tokens, index) + 1) or not _is_declared(tokens, index - 1, classes):
            continue
        declared = _parameters(tokens, index)
        around = [name for start, end, name in bodies if start < index < end]
        for opening in defined[tokens[index - 1].text]:
            parameters = _parameters(tokens, opening)
            is_same = len(parameters) == len(declared) and all(map(_are_one_type, parameters, declared))
            is_same = is_same and class_of(tokens, opening, around) == (around[-1] if around else None)
            if is_same and _qualifiers(tokens, index) == _qualifiers(tokens, opening):
                found.setdefault(opening, []).append(index)
    return found


def bodies_of_classes(tokens: Sequence[Token]) -> Iterator[tuple[int, int, str]]:
    """The brackets of the classes that have a name, and their names; outer ones before those inside."""
    for index, token in enumerate(tokens):
        if token.text in ("struct", "class", "union"):
            opening = index + 1
            while opening < len(tokens) and tokens[opening].text not in ("{", ";", "(", ")", ",", ">", "="):
                opening += 1
            if opening < len(tokens) and tokens[opening].text == "{":
                name = skip_attributes(tokens, index + 1, opening)
                yield opening, matching(tokens, opening), tokens[name].text


def class_of(tokens: Sequence[Token], opening: int, classes: Collection[str]) -> str | None:
    """The one of ``classes`` whose member, defined outside of it, has its parameters at ``opening``; None of none."""
    operator = operator_before(tokens, opening)
    name = opening - 1 if operator is None else operator
    name -= tokens[name - 1].text == "~"
    if tokens[name - 1].text != "::":
        return None
    before = name - 2
    if tokens[before].text == ">":
        depth = 0
        while before > 0:
            depth += (tokens[before].text == ">") - (tokens[before].text == "<")
            before -= 1
            if depth == 0:
                break
    return tokens[before].text if tokens[before].text in classes else None


def _is_declared(tokens: Sequence[Token], name: int, classes: Collection[str]) -> bool:
    """Whether the name stands where a function is declared: behind a type, or a constructor's in its class."""
    before = tokens[name - 1]
    if "operator" in (before.text, tokens[name - 2].text) or before.text in (">", "*", "&"):
        return True
    if before.text in (";", "{", "}", ":"):
        return tokens[name].text in classes
    return before.kind == IDENTIFIER and before.text not in _NO_TYPES


def _ends_declaration(tokens: Sequence[Token], index: int) -> bool:
    """Whether a declaration ends at ``index``, or behind the qualifiers and attributes there."""
    while index < len(tokens) and (tokens[index].text in ADDRESS_SPACES or tokens[index].text in ("const", "[")):
        index = matching(tokens, index) + 1 if tokens[index].text == "[" else index + 1
    return index < len(tokens) and tokens[index].text == ";"


def _qualifiers(tokens: Sequence[Token], opening: int) -> set[str]:
    index = matching(tokens, opening) + 1
    found = set()
    while index < len(tokens) and (tokens[index].text in ADDRESS_SPACES or tokens[index].text == "const"):
        found.add(tokens[index].text)
        index += 1
    return found


def _parameters(tokens: Sequence[Token], opening: int) -> list[list[str]]:
    """The words of each parameter, without what it is by default."""
    found = []
    for parameter in split_commas(tokens[opening + 1 : matching(tokens, opening)]):
        texts = [token.text for token in parameter]
        found.append(texts[: texts.index("=")] if "=" in texts else texts)
    return found


def _are_one_type(first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether two parameters have one type, whatever their names."""
    types = [sorted(_without_name(parameter)) for parameter in (first, second)]
    # One may be ``T name`` and the other ``T``.
    return types[0] == types[1] or sorted(first) == types[1] or types[0] == sorted(second)


def _without_name(parameter: Sequence[str]) -> list[str]:
    """A parameter without its name, as far as the words alone tell."""
    words = list(parameter)
    name = len(words) - 1
    while name > 0 and not words[name].isidentifier():
        name -= 1
    is_type = words[name] in ("const", *ADDRESS_SPACES) or built_in(words[name]) is not None or words[name - 1] == "::"
    if name > 0 and not is_type:
        del words[name]
    return words
