"""``return object = value;`` as ``return (object = value, object);`` for OpenCL, whose assignment gives no reference to
what is a thread's own, and for classes one that does not say where the object is."""

from __future__ import annotations

from mpsgrad.msl.backend import is_swizzle
from mpsgrad.msl.edits import Edits
from mpsgrad.msl.tokens import IDENTIFIER, OPENING, Token, matching


def return_what_is_assigned(tokens: list[Token]) -> list[Token]:
    """``tokens`` with the object behind such assignments: a name, one's member, or ``*this``; brackets may be around
    them."""
    edits = Edits(tokens)
    last = len(tokens) - 4
    for index in range(last):
        if tokens[index].text != "return":
            continue
        start = index + 1
        while start < last and tokens[start].text == "(":
            start += 1
        equals = start + (tokens[start].text == "*")
        while equals < last and tokens[equals + 1].text in (".", "->"):
            equals += 2
        equals += 1
        words = [token.text for token in tokens[start:equals]]
        is_object = tokens[equals - 1].kind == IDENTIFIER and (words[0] != "*" or words[1:] == ["this"])
        if tokens[equals].text != "=" or not is_object or any(map(is_swizzle, words[2:])):
            continue
        end = equals + 1
        while end < len(tokens) and tokens[end].text not in (";", ")"):
            end = matching(tokens, end) + 1 if tokens[end].text in OPENING else end + 1
        if end < len(tokens):
            edits.before(start, "(")
            edits.before(end, ",", *words, ")")
    return edits.applied()
