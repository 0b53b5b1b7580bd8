"""The values of integer constant expressions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from mpsgrad.errors import ShaderError
from mpsgrad.msl.program import ADDRESS_SPACES
from mpsgrad.msl.tokens import IDENTIFIER, Token, character_value, error, matching, spell, split_commas

_CASTS = frozenset({"int", "uint"})
_CONSTANT = frozenset({"const", "constexpr", "constant"})
_QUALIFIERS = frozenset({"const", *ADDRESS_SPACES})
_NUMBER = re.compile(r"(0[xX][0-9a-fA-F]+|0[bB][01]+|0[0-7]*|[1-9][0-9]*)(?:[uU]?[lL]{0,2}|[lL]{1,2}[uU])$", re.ASCII)
_LONGEST = 16
"""Tokens that the value of a constant may have."""


def integer_value(tokens: Sequence[Token], place: Token, constants: Mapping[str, int] | None = None) -> int:
    """The value of an integer constant expression of literals, operators, known constants and casts to ``int``."""
    question = next((at for at, token in enumerate(tokens) if token.text == "?"), None)
    colon = next((at for at in range(len(tokens) - 1, 0, -1) if tokens[at].text == ":"), None)
    if question is not None and colon is not None and question < colon:
        is_first = integer_value(tokens[:question], place, constants) != 0
        chosen = tokens[question + 1 : colon] if is_first else tokens[colon + 1 :]
        return integer_value(chosen, place, constants)
    words = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        texts = tuple(each.text for each in tokens[index : index + 4])
        if texts == ("static_cast", "<", "int", ">") or texts == ("static_cast", "<", "uint", ">"):
            index += 4
        elif texts[0] in _CASTS and texts[1:2] == ("(",) or "::" in texts[: 1 + (token.kind == IDENTIFIER)]:
            # What qualifies a name says only where it is declared.
            index += 1
        elif texts[0] == "(" and texts[1:2] and texts[1] in _CASTS and texts[2:3] == (")",):
            index += 3
        else:
            words.append(_word(token, tokens, place, constants or {}))
            index += 1
    try:
        return _evaluate(ast.parse(" ".join(words), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, ZeroDivisionError, MemoryError, OverflowError):
        raise error(f"expected an integer constant, found '{spell(tokens)}'", place) from None


def _word(token: Token, tokens: Sequence[Token], place: Token, constants: Mapping[str, int]) -> str:
    """What stands for ``token`` in Python."""
    character = character_value(token)
    if character is not None:
        return str(character)
    number = _NUMBER.match(token.text.replace("'", ""))
    if number is not None:
        return str(int(number[1], 8 if number[1].isdigit() and number[1].startswith("0") else 0))
    if token.kind == IDENTIFIER and token.text in constants:
        return str(constants[token.text])
    if token.text in ("+", "-", "*", "/", "(", ")", "<<", ">>", "%"):
        return "//" if token.text == "/" else token.text
    raise error(f"expected an integer constant, found '{spell(tokens)}'", place)


def constants_of(tokens: Sequence[Token], *, in_functions: bool = False) -> dict[str, int]:
    """The integer constants of a program: ``constant int n = 3;``, ``constexpr``, and enumerators.

    Those in the bodies of functions count with ``in_functions``. A name that has two values is left out.
    """
    values: dict[str, int] = {}
    ambiguous: set[str] = set()

    def add(name: str, value: int) -> None:
        if values.setdefault(name, value) != value:
            ambiguous.add(name)

    index = first = 0
    while index < len(tokens):
        text = tokens[index].text
        if text == "enum":
            for name, value in enumerators(tokens, index, values):
                add(name, value)
        elif text == "{" and not in_functions and _opens_function(tokens, index):
            index = matching(tokens, index)
        if text in (";", "{", "}"):
            first = index + 1
        elif text == "=" and index and tokens[index - 1].kind == IDENTIFIER:
            if not _CONSTANT.isdisjoint(token.text for token in tokens[first:index]):
                with suppress(ShaderError):
                    end = _end_of_value(tokens, index + 1)
                    add(tokens[index - 1].text, integer_value(tokens[index + 1 : end], tokens[index], values))
        index += 1
    return {name: value for name, value in values.items() if name not in ambiguous}


def enumerators(tokens: Sequence[Token], start: int, constants: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """The names and values of the enumeration that begins at ``start``, up to one whose value cannot be told."""
    index = start + 1
    while index < len(tokens) and tokens[index].text not in ("{", ";", "(", ")", "}"):
        index += 1
    if index == len(tokens) or tokens[index].text != "{":
        return
    known = dict(constants)
    value = -1
    for part in split_commas(tokens[index + 1 : matching(tokens, index)]):
        equals = next((k for k, token in enumerate(part) if token.text == "="), None)
        if not part or part[0].kind != IDENTIFIER:
            return
        try:
            value = value + 1 if equals is None else integer_value(part[equals + 1 :], part[0], known)
        except ShaderError:
            return
        known[part[0].text] = value
        yield part[0].text, value


def _opens_function(tokens: Sequence[Token], index: int) -> bool:
    """Whether the brace at ``index`` opens a function's body."""
    before = index - 1
    while before >= 0 and tokens[before].text in _QUALIFIERS:
        before -= 1
    return before >= 0 and tokens[before].text == ")"


def _end_of_value(tokens: Sequence[Token], index: int) -> int:
    end = index
    while end < len(tokens) and tokens[end].text not in (";", ",", "}", "{") and end - index < _LONGEST:
        end += 1
    return end


def _quotient(dividend: int, divisor: int) -> int:
    """As C rounds it: to zero."""
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


def _rest(dividend: int, divisor: int) -> int:
    return dividend - divisor * _quotient(dividend, divisor)


def _evaluate(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _evaluate(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _evaluate(node.left), _evaluate(node.right)
        if isinstance(node.op, ast.LShift):
            if not 0 <= right < 64:
                raise ValueError
            return left << right
        for kind, operation in (
            (ast.Add, int.__add__), (ast.Sub, int.__sub__), (ast.Mult, int.__mul__), (ast.FloorDiv, _quotient),
            (ast.Mod, _rest), (ast.RShift, int.__rshift__),
        ):  # fmt: skip
            if isinstance(node.op, kind):
                return operation(left, right)
    raise ValueError
