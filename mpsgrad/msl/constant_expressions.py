"""The values of integer constant expressions."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from mpsgrad.errors import ShaderError
from mpsgrad.msl.tokens import IDENTIFIER, NUMBER, Token, error, spell


def integer_value(tokens: Sequence[Token], place: Token, constants: dict[str, int] | None = None) -> int:
    """The value of an integer constant expression made of literals, operators and known constants."""
    words = []
    for token in tokens:
        if token.kind == NUMBER:
            words.append(token.text.replace("'", "").rstrip("uUlL"))
        elif token.kind == IDENTIFIER and constants and token.text in constants:
            words.append(str(constants[token.text]))
        elif token.text in ("+", "-", "*", "/", "(", ")", "<<", ">>", "%"):
            words.append("//" if token.text == "/" else token.text)
        else:
            raise error(f"expected an integer constant, found '{spell(tokens)}'", place)
    try:
        return _evaluate(ast.parse(" ".join(words), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, ZeroDivisionError, MemoryError, OverflowError):
        raise error(f"expected an integer constant, found '{spell(tokens)}'", place) from None


def constants_of(tokens: Sequence[Token]) -> dict[str, int]:
    """The integer constants of a program: ``constant int n = 3;``, ``constexpr``, and enumerators with a value."""
    values: dict[str, int] = {}
    for index in range(1, len(tokens) - 2):
        if tokens[index].text != "=" or tokens[index - 1].kind != IDENTIFIER:
            continue
        end = index + 1
        while end < len(tokens) and tokens[end].text not in (";", ",", "}", "{") and end - index < 16:
            end += 1
        try:
            values.setdefault(tokens[index - 1].text, integer_value(tokens[index + 1 : end], tokens[index], values))
        except ShaderError:
            continue
    return values


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
            (ast.Add, int.__add__), (ast.Sub, int.__sub__), (ast.Mult, int.__mul__), (ast.FloorDiv, int.__floordiv__),
            (ast.Mod, int.__mod__), (ast.RShift, int.__rshift__),
        ):  # fmt: skip
            if isinstance(node.op, kind):
                return operation(left, right)
    raise ValueError
