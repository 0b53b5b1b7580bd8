"""Threadgroup variables of a kernel that together need more memory than a target gives to variables of fixed size.

CUDA gives those 48 KB, and far more to one array whose size a launch names. Each variable then becomes a reference to
its part of that array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from mpsgrad.errors import ShaderError
from mpsgrad.msl.analysis.types import SIZES
from mpsgrad.msl.backend import VECTOR_TYPE
from mpsgrad.msl.constant_expressions import integer_value
from mpsgrad.msl.declarations import declares_variable
from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.tokens import IDENTIFIER, Token, matching, split_commas

ALIGNMENT, SMALL_ALIGNMENT = 1024, 16
"""Of each variable in the array: instructions that read whole matrices from it ask for that. Small ones hold none."""
MEMORY = f"memory{RENAMED_SUFFIX}"
DECLARATION = f"extern __shared__ __align__({ALIGNMENT}) unsigned char {MEMORY}[];"


def with_memory_of_launches(
    body: Sequence[Token], most_bytes: int, constants: Callable[[], Mapping[str, int]]
) -> tuple[list[Token], int]:
    """The tokens of a kernel's body, and the bytes that its launches have to ask for.

    Those are 0, and the tokens ``body``, where variables of scalars and vectors have ``most_bytes`` or fewer together.
    """
    found = [
        (start, end, variables)
        for start, token in enumerate(body)
        if token.text == "threadgroup" and declares_variable(body, start)
        for end in (next(i for i in range(start, len(body)) if body[i].text == ";"),)
        for variables in (_variables(body[start + 1 : end], constants),)
        if variables
    ]
    if sum(size for _, _, variables in found for _, _, size in variables) <= most_bytes:
        return list(body), 0
    result = [body[0].replaced(DECLARATION, IDENTIFIER)]
    position = offset = 0
    for start, end, variables in found:
        result += body[position:start]
        for name, declared, size in variables:
            alignment = ALIGNMENT if size >= ALIGNMENT else SMALL_ALIGNMENT
            offset = -(-offset // alignment) * alignment
            alias = f"{name.text}_type{RENAMED_SUFFIX}"
            result += [
                name.replaced(f"using {alias} =", IDENTIFIER),
                *declared,
                body[end],
                name.replaced(f"{alias} &", IDENTIFIER),
                name,
                name.replaced(f"= *({alias} *)({MEMORY} + {offset})", IDENTIFIER),
                body[end],
            ]
            offset += size
        position = end + 1
    return [*result, *body[position:]], -(-offset // SMALL_ALIGNMENT) * SMALL_ALIGNMENT


def _variables(
    tokens: Sequence[Token], constants: Callable[[], Mapping[str, int]]
) -> list[tuple[Token, list[Token], int]]:
    """The name, the type as tokens and the bytes of each variable of a declaration; empty if these cannot be told."""
    if not tokens:
        return []
    element = tokens[0]
    vector = VECTOR_TYPE.match(element.text)
    size = SIZES.get(vector[1] if vector else element.text)
    if size is None:
        return []
    # Vectors of three take the place of four.
    size *= {"2": 2, "3": 4, "4": 4}[vector[2]] if vector else 1
    variables = []
    for declarator in split_commas(tokens[1:]):
        extents = []
        index = 1
        while index < len(declarator) and declarator[index].text == "[":
            closing = matching(declarator, index)
            extent = declarator[index + 1 : closing]
            known = dict(constants()) if any(token.kind == IDENTIFIER for token in extent) else None
            try:
                extents.append(integer_value(extent, declarator[index], known))
            except ShaderError:
                return []
            index = closing + 1
        if not declarator or declarator[0].kind != IDENTIFIER or index < len(declarator):
            return []
        variables.append((declarator[0], [element, *declarator[1:]], size * prod(extents)))
    return variables
