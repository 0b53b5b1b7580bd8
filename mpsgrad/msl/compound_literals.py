"""C's ``(T){1, 2}``, which NVIDIA's compiler has not, as ``T{1, 2}``."""

from __future__ import annotations

from mpsgrad.msl.tokens import IDENTIFIER, PUNCTUATION, Token, matching

_ENDS_OPERAND = frozenset({")", "]", ">"})


def without_compound_literals(tokens: list[Token]) -> list[Token]:
    """``tokens`` with values of types of one name, which may be const or qualified, in C++'s way."""
    dropped: set[int] = set()
    for index in range(1, len(tokens) - 4):
        before = tokens[index - 1]
        begins_operand = before.kind == PUNCTUATION and before.text not in _ENDS_OPERAND or before.text == "return"
        # The head of an operator, as ``operator++(int) {``, looks alike.
        if tokens[index].text != "(" or not begins_operand or tokens[index - 2].text == "operator":
            continue
        closing = matching(tokens, index)
        if closing + 1 >= len(tokens) or tokens[closing + 1].text != "{":
            continue
        inside = range(index + 1, closing)
        words = [k for k in inside if tokens[k].text not in ("const", "::")]
        if len(words) == 1 + sum(tokens[k].text == "::" for k in inside) and all(
            tokens[k].kind == IDENTIFIER for k in words
        ):
            dropped |= {index, closing, *(k for k in inside if tokens[k].text == "const")}
    return [token for index, token in enumerate(tokens) if index not in dropped]
