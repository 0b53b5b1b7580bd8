"""Threadgroup variables that a kernel declares in inner blocks, moved to where a target allows them.

OpenCL has them in the outermost block of a kernel only. Each is declared there under a name of its own, before the
statement that contains it, and its old place gets a reference of the old name. Constants and types that its declaration
needs from inner blocks are declared along with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from mpsgrad.msl.declarations import declares_variable
from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.tokens import IDENTIFIER, OPENING, PUNCTUATION, Token, matching, matching_angle

_Range = tuple[int, int]


def with_outer_threadgroup_variables(body: Sequence[Token]) -> list[Token]:
    """The tokens of a kernel's body with no threadgroup variable in an inner block."""
    if not any(token.text == "threadgroup" for token in body):
        return list(body)
    inserted: dict[int, list[Token]] = {}
    replaced: dict[int, tuple[int, list[Token]]] = {}
    number = 0
    for index, depth, start in _statements(body):
        if depth == 0 or not _declares_threadgroup_variable(body, index):
            continue
        number += 1
        end = _end(body, index)
        variables = _declarators(body, index, end)
        needed = _needed(body, index, end, set())
        names = [variable.text for variable in variables]
        names += [name for begin, stop in needed for name in _defined(body, begin, stop)]
        renamed = {name: f"{name}_inner{number}{RENAMED_SUFFIX}" for name in names}
        moved = [t for begin, stop in [*needed, (index, end)] for t in body[begin : stop + 1]]
        inserted.setdefault(start, []).extend(token.replaced(renamed.get(token.text, token.text)) for token in moved)
        references = []
        for variable in variables:
            for text in ("auto", "&", variable.text, "=", renamed[variable.text], ";"):
                kind = PUNCTUATION if text in "&=;" else IDENTIFIER
                references.append(Token(kind, text, variable.file, variable.line, variable.column, True))
        replaced[index] = (end, references)
    result: list[Token] = []
    position = 0
    while position < len(body):
        result += inserted.get(position, ())
        if position in replaced:
            end, references = replaced[position]
            result += references
            position = end + 1
            continue
        result.append(body[position])
        position += 1
    return result


def _statements(body: Sequence[Token]) -> list[tuple[int, int, int]]:
    """Where each statement begins, how many blocks it is in, and where the outermost statement around it begins."""
    found = []
    depth = brackets = 0
    outer = 0
    begins = True
    for index, token in enumerate(body):
        text = token.text
        if token.kind == "pragma":
            outer = index if begins and depth == 0 and not _continues(body, index) else outer
            continue
        if begins and text not in ("{", "}", ";"):
            follows_pragma = index > 0 and body[index - 1].kind == "pragma"
            if depth == 0 and not _continues(body, index) and not follows_pragma:
                outer = index
            found.append((index, depth, outer))
        begins = False
        if text in ("(", "["):
            brackets += 1
        elif text in (")", "]"):
            brackets -= 1
        elif text == "{" and not brackets:
            if depth == 0 and (index == 0 or body[index - 1].text in (";", "{", "}")):
                outer = index
            depth += 1
            begins = True
        elif text == "}" and not brackets:
            depth -= 1
            begins = True
        elif text in (";", ":") and not brackets:
            begins = True
    return found


def _continues(body: Sequence[Token], index: int) -> bool:
    """Whether the statement at ``index`` is a part of the one before: ``else``, or the ``while`` of a ``do``."""
    if body[index].text != "while":
        return body[index].text == "else"
    depth = 0
    position = index - 1
    while position >= 0:
        depth += (body[position].text == "}") - (body[position].text == "{")
        if depth == 0:
            break
        position -= 1
    return position > 0 and body[position - 1].text == "do"


def _declares_threadgroup_variable(body: Sequence[Token], index: int) -> bool:
    while index < len(body) and body[index].text in ("static", "volatile", "const"):
        index += 1
    return body[index].text == "threadgroup" and declares_variable(body, index)


def _end(body: Sequence[Token], index: int) -> int:
    while index < len(body) - 1 and body[index].text != ";":
        index = matching(body, index) + 1 if body[index].text in OPENING else index + 1
    return index


def _declarators(body: Sequence[Token], start: int, end: int) -> list[Token]:
    """The names that the declaration from ``start`` to its ``;`` at ``end`` gives to variables."""
    names = []
    index = start
    is_value = False
    while index < end:
        if body[index].text in OPENING:
            index = matching(body, index) + 1
            continue
        if body[index].text == "<" and body[index - 1].kind == IDENTIFIER:
            index = (matching_angle(body, index, end) or index) + 1
            continue
        if body[index].text in ("=", ","):
            is_value = body[index].text == "="
        elif body[index].kind == IDENTIFIER and body[index + 1].text in (";", ",", "[", "=") and not is_value:
            names.append(body[index])
        index += 1
    return names


def _needed(body: Sequence[Token], start: int, end: int, seen: set[str]) -> list[_Range]:
    """The declarations in inner blocks that the one from ``start`` to ``end`` makes use of, in order."""
    found: list[_Range] = []
    for token in body[start:end]:
        if token.kind != IDENTIFIER or token.text in seen:
            continue
        seen.add(token.text)
        for begin, depth, _ in reversed(_statements(body[:start])):
            if depth and token.text in _defined(body, begin, _end(body, begin)):
                found += [*_needed(body, begin, _end(body, begin), seen), (begin, _end(body, begin))]
                break
    return found


def _defined(body: Sequence[Token], start: int, end: int) -> list[str]:
    """The names of constants and types that the statement from ``start`` to ``end`` declares."""
    first = body[start].text
    if first == "using" and body[start + 1].kind == IDENTIFIER:
        return [body[start + 1].text]
    if first == "typedef":
        return [body[end - 1].text]
    if first == "enum":
        opening = next((i for i in range(start, end) if body[i].text == "{"), end)
        return [after.text for before, after in pairwise(body[opening:end]) if before.text in ("{", ",")]
    if first in ("constexpr", "const", "static"):
        return [name.text for name in _declarators(body, start, end)]
    return []
