"""Specialisations of classes for ``vec<T, n>`` where vectors of some elements are classes, as in OpenCL.

There ``template <typename T, int n> struct size_of<vec<T, n>>`` is for the compiler's own vectors only, and those of
bool or bfloat would be taken for any other type. So it is followed by copies of it for these.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.tokens import IDENTIFIER, PUNCTUATION, Token, matching, matching_angle, split_commas

_BOOLS = frozenset({"bool2", "bool3", "bool4"})


def specialise_for_vectors(tokens: list[Token]) -> list[Token]:
    """``tokens`` with the copies for the elements that the program may have vectors of."""
    words = {token.text for token in tokens}
    if "vec" not in words:
        return tokens
    elements = [name for name, has in (("bool", bool(words & _BOOLS)), ("bfloat", "bfloat" in words)) if has]
    made: list[Token] = []
    start = 0
    for index, token in enumerate(tokens[:-1] if elements else ()):
        if token.text != "template" or tokens[index + 1].text != "<" or index < start:
            continue
        close = matching_angle(tokens, index + 1, certain=True)
        if close is None or tokens[close + 1].text not in ("struct", "class") or tokens[close + 3].text != "<":
            continue
        end = matching_angle(tokens, close + 3)
        opening = end + 1 if end is not None else len(tokens)
        while opening < len(tokens) and tokens[opening].text not in ("{", ";"):
            opening += 1
        if end is None or opening == len(tokens) or tokens[opening].text == ";":
            continue
        parameters = split_commas(tokens[index + 2 : close])
        types = {part[-1].text for part in parameters if [each.text for each in part[:-1]] in (["typename"], ["class"])}
        element = _element(tokens, close + 3, end, types)
        behind = matching(tokens, opening) + 1
        if element is None or tokens[behind].text != ";":
            continue
        made += tokens[start : close + 1]
        made += _native(tokens[close + 1 : end]) if "bfloat" in elements else tokens[close + 1 : end]
        made += tokens[end : behind + 1]
        start = behind + 1
        for name in elements:
            if _is_specialised(tokens, tokens[close + 2].text, name):
                continue
            kept = [part for part in parameters if part[-1].text != element]
            made += [token.replaced("template"), token.replaced("<", PUNCTUATION)]
            for place, part in enumerate(kept):
                made += [token.replaced(",", PUNCTUATION)] * (place > 0) + [each.replaced(each.text) for each in part]
            made.append(token.replaced(">", PUNCTUATION))
            head = _of_class(tokens[close + 1 : end], element, f"{name}_vector{RENAMED_SUFFIX}")
            body = [each.replaced(each.text) for each in tokens[end : behind + 1]]
            made += [each.replaced(name) if each.text == element else each for each in (*head, *body)]
    return made + tokens[start:] if made else tokens


def _is_specialised(tokens: Sequence[Token], name: str, element: str) -> bool:
    """Whether the program itself specialises the class ``name`` for vectors of ``element``."""
    vectors = {f"{element}{width}" for width in (2, 3, 4)}
    for index, token in enumerate(tokens[:-2]):
        if token.text in ("struct", "class") and tokens[index + 1].text == name and tokens[index + 2].text == "<":
            end = matching_angle(tokens, index + 2)
            words = [each.text for each in tokens[index + 2 : end]]
            if vectors & set(words) or any(words[at : at + 3] == ["vec", "<", element] for at in range(len(words))):
                return True
    return False


def _element(tokens: Sequence[Token], start: int, end: int, types: set[str]) -> str | None:
    """The one of ``types`` that is the element of a vector among the arguments in a range."""
    for index in range(start, end - 3):
        if tokens[index].text == "vec" and tokens[index + 2].text in types and tokens[index + 3].text == ",":
            return tokens[index + 2].text
    return None


def _native(head: Sequence[Token]) -> list[Token]:
    """``head`` with the compiler's own vectors for ``vec``."""
    return [each.replaced(f"vec{RENAMED_SUFFIX}", IDENTIFIER) if each.text == "vec" else each for each in head]


def _of_class(head: Sequence[Token], element: str, name: str) -> list[Token]:
    """``head`` with the class ``name`` for vectors of ``element``."""
    made: list[Token] = []
    index = 0
    while index < len(head):
        words = [each.text for each in head[index : index + 4]]
        if words == ["vec", "<", element, ","]:
            made += [head[index].replaced(name), head[index + 1].replaced("<", PUNCTUATION)]
            index += 4
        else:
            made.append(head[index].replaced(head[index].text))
            index += 1
    return made
