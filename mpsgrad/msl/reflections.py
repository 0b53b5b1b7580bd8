"""Functions that call themselves once, where OpenCL has no recursion: ``if (x < 0) return -f(-x);``, as odd ones do.

Such a call goes to a copy of the function, which takes no number below 0 and so does not call itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.tokens import IDENTIFIER, NUMBER, OPENING, Token, matching

_SUFFIX = f"_reflected{RENAMED_SUFFIX}"


class _Reflection(NamedTuple):
    """A function from ``start`` to ``end`` whose name is at ``name``; ``call`` is that of the call in the statement
    that ``leave``, a ``return``, begins."""

    start: int
    name: int
    end: int
    leave: int
    call: int


def reflect_once(tokens: list[Token]) -> list[Token]:
    """``tokens`` with the copies, each in front of its function."""
    made: list[Token] = []
    position = 0
    for each in _reflections(tokens):
        name = tokens[each.name].text + _SUFFIX
        behind = matching(tokens, each.call + 1) + 1
        nothing = [tokens[each.leave], tokens[each.call].replaced("0", NUMBER)]
        copy = [*tokens[each.start : each.leave], *nothing, *tokens[behind : each.end]]
        copy = [token.replaced(token.text) for token in copy]
        copy[each.name - each.start].text = name
        made += [*tokens[position : each.start], *copy, *tokens[each.start : each.call]]
        made.append(tokens[each.call].replaced(name))
        position = each.call + 1
    return made + tokens[position:] if made else tokens


def _reflections(tokens: Sequence[Token]) -> Iterator[_Reflection]:
    conditions = (index for index, token in enumerate(tokens) if token.text == "if")
    calls = {index: found for index in conditions if (found := _call_with_negative(tokens, index)) is not None}
    openers: list[int] = []
    behind = 0
    for index, token in enumerate(tokens if calls else ()):
        if token.text in OPENING:
            openers.append(index)
        elif token.text in (")", "]", "}") and openers:
            openers.pop()
        if index not in calls or index < behind:
            continue
        leave, call = calls[index]
        for body in reversed(openers):
            name = _name_of_function(tokens, body)
            if name is not None:
                function = _reflection(tokens, name, body, leave, call)
                if function is not None:
                    yield function
                    behind = function.end
                break


def _call_with_negative(tokens: Sequence[Token], index: int) -> tuple[int, int] | None:
    """Where ``return`` and the name of ``f`` stand in ``if (x < 0) return -f(-x);`` at ``index``."""
    if index + 3 >= len(tokens) or tokens[index + 1].text != "(" or tokens[index + 3].text != "<":
        return None
    close = matching(tokens, index + 1)
    zero = [each.text for each in tokens[index + 4 : close]]
    if len(zero) == 4 and zero[1] == "(" and zero[3] == ")":
        zero = zero[2:3]
    if len(zero) != 1 or zero[0].rstrip("fFhH") not in ("0", "0.", "0.0", ".0"):
        return None
    words = [each.text for each in tokens[close + 1 : close + 10]]
    leave = int(words[:1] == ["{"])
    call = leave + 1 + (words[leave + 1 : leave + 2] in (["-"], ["+"]))
    expected = ["(", "-", tokens[index + 2].text, ")", ";"]
    if words[leave : leave + 1] != ["return"] or words[call + 1 : call + 6] != expected:
        return None
    return close + 1 + leave, close + 1 + call


def _name_of_function(tokens: Sequence[Token], body: int) -> int | None:
    """The index of the name of the function whose body opens at ``body``."""
    if tokens[body].text != "{" or tokens[body - 1].text != ")":
        return None
    depth, opening = 0, body - 1
    while opening > 0:
        depth += (tokens[opening].text == ")") - (tokens[opening].text == "(")
        if depth == 0:
            break
        opening -= 1
    is_word = tokens[opening - 1].kind == IDENTIFIER and tokens[opening - 2].kind == IDENTIFIER
    return opening - 1 if is_word else None


def _reflection(tokens: Sequence[Token], name: int, body: int, leave: int, call: int) -> _Reflection | None:
    """The function with its name at ``name``, if it has one parameter and calls itself at ``call`` only."""
    end = matching(tokens, body) + 1
    parameters = tokens[name + 2 : matching(tokens, name + 1)]
    calls = [place for place in range(body, end) if tokens[place].text == tokens[name].text]
    if calls != [call] or any(token.text in (",", "*", "&") for token in parameters):
        return None
    changed = any(
        tokens[place].text == parameters[-1].text and tokens[place + 1].text in ("=", "-=", "+=", "*=", "/=")
        for place in range(body, leave)
    )
    start = name
    while start and tokens[start - 1].text not in (";", "{", "}"):
        start -= 1
    if changed or parameters[-1].text != tokens[call + 3].text or any(t.kind == "pragma" for t in tokens[start:name]):
        return None
    return _Reflection(start, name, end, leave, call)
