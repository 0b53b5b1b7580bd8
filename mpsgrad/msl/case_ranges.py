"""``case 3 ... 5:`` as the labels that it stands for, where a target's compiler does not know ranges."""

from __future__ import annotations

from collections.abc import Sequence

from mpsgrad.msl.constant_expressions import constants_of, integer_value
from mpsgrad.msl.tokens import NUMBER, Token, error

_MOST_LABELS = 4096


def expand_case_ranges(tokens: list[Token]) -> list[Token]:
    """The tokens with a label for each value of a range; raises ``ShaderError`` for one that has too many."""
    if not any(token.text == "..." for token in tokens):
        return tokens
    constants: dict[str, int] | None = None
    output: list[Token] = []
    index = 0
    while index < len(tokens):
        colon = _label_end(tokens, index) if tokens[index].text == "case" else index
        dots = next((k for k in range(index, colon) if tokens[k].text == "..."), None)
        if dots is None:
            output.append(tokens[index])
            index += 1
            continue
        constants = constants_of(tokens, in_functions=True) if constants is None else constants
        first = integer_value(tokens[index + 1 : dots], tokens[index], constants)
        last = integer_value(tokens[dots + 1 : colon], tokens[index], constants)
        if last - first >= _MOST_LABELS:
            raise error(f"a range of more than {_MOST_LABELS} cases is not supported for CUDA", tokens[index])
        for value in range(first, last + 1):
            output += [tokens[index], tokens[index + 1].replaced(f"({value})", NUMBER), tokens[colon]]
        index = colon + 1
    return output


def _label_end(tokens: Sequence[Token], index: int) -> int:
    while index < len(tokens) and tokens[index].text not in (":", ";", "{", "}"):
        index += 1
    return index
