"""``({ float a = x; a * 2; })``, which NVIDIA's compiler has not, as a lambda expression that is called."""

from __future__ import annotations

from collections.abc import Sequence

from mpsgrad.msl.tokens import IDENTIFIER, OPENING, Token, error, made_at, matching

_NO_VALUE = frozenset("if for while do switch break continue using typedef struct".split())
_GOES_ON = frozenset(". , ) ] + - * / % & | ^ ? : = == != < > <= >= << >> && || [ (".split())


def has_statement_expressions(tokens: Sequence[Token]) -> bool:
    return any(_opens(tokens, index) for index in range(len(tokens) - 1))


def without_statement_expressions(tokens: Sequence[Token]) -> list[Token]:
    """``tokens`` with calls in the place of such expressions; raises ``ShaderError`` for one that ``return`` leaves."""
    made: list[Token] = []
    index = 0
    while index < len(tokens):
        if not _opens(tokens, index):
            made.append(tokens[index])
            index += 1
            continue
        close = matching(tokens, index)
        body = tokens[index + 2 : close - 1]
        for token in body:
            if token.text == "return":
                raise error("a return out of a statement in an expression is not supported for CUDA", token)
        place = tokens[index]
        made += made_at(place, "[", "&", "]", "(", ")", "{")
        value = _value(body)
        made += without_statement_expressions(body[:value])
        if value < len(body):
            made += [*made_at(body[value], "return"), *without_statement_expressions(body[value:])]
        made += made_at(tokens[close], "}", "(", ")")
        index = close + 1
    return made


def _opens(tokens: Sequence[Token], index: int) -> bool:
    if tokens[index].text != "(" or tokens[index + 1].text != "{":
        return False
    # Values in braces may stand there as an argument.
    end = matching(tokens, index + 1)
    is_whole = end + 1 == matching(tokens, index)
    ends_with_block = tokens[end - 1].text == "}" and any(tokens[k].text == ";" for k in range(index, end))
    return is_whole and (tokens[end - 1].text == ";" or ends_with_block)


def _value(body: Sequence[Token]) -> int:
    """Where the last statement begins if it is an expression, whose value is that of all; the end without one."""
    start = index = 0
    while index < len(body) - 1:
        text = body[index].text
        if text in OPENING:
            index = matching(body, index) + 1
            is_block = text == "{" and index < len(body) and body[index].text not in _GOES_ON
            is_end = is_block and body[index].text not in ("else", "while", ";")
            start = index if is_end else start
            continue
        index += 1
        start = index if text == ";" else start
    is_expression = start < len(body) and body[start].text not in _NO_VALUE and body[start].text != ";"
    words = [body[k].kind == IDENTIFIER for k in range(start, min(start + 2, len(body)))]
    return start if is_expression and words != [True, True] else len(body)
