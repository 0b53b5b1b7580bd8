"""What of Metal neither target can carry, found by its names before anything is translated."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import pairwise

from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.backend import INDEX_ATTRIBUTES, POSITION_ATTRIBUTES
from mpsgrad.msl.program import Program
from mpsgrad.msl.tokens import IDENTIFIER, Token, error, matching

_BUFFERS_ONLY = "kernels take buffers only"
_TEXTURES = re.compile(r"(?:texture(?:1d|2d|3d|cube|_buffer)\w*|depth(?:2d|cube)\w*)$")
_REASONS = {
    _BUFFERS_ONLY: "imageblock threadgroup_imageblock",
    "there are no calls through tables": "visible_function_table intersection_function_table",
    "acceleration structures are not supported": """
        instance_acceleration_structure primitive_acceleration_structure acceleration_structure intersector
        intersection_query intersection_result
    """,
    "kernels encode no commands": """
        command_buffer render_command compute_command indirect_command_buffer render_pipeline_state
        compute_pipeline_state
    """,
    "it belongs to fragment functions": """
        discard_fragment dfdx dfdy fwidth simd_is_helper_thread quad_is_helper_thread get_num_samples
        get_sample_position
    """,
}
_NAMES = {name: reason for reason, names in _REASONS.items() for name in names.split()}
# What C and C++ have as words for types and Metal has not.
FOREIGN_TYPES = frozenset("double wchar_t char16_t char32_t _Float16 __fp16 __int128".split())
# The targets' words for address spaces and functions, which programs for them say.
_WORDS_OF_TARGETS = frozenset(
    "__private __global __local __constant __generic __kernel __shared__ __device__ __global__ __host__".split()
)
_AFTER_NAMES = frozenset({"(", ";", "=", ",", ")", "[", "{"})
_NOT_TYPES = frozenset({"return", "case", "else", "do", "throw", "sizeof", "in"})


def refuse_unsupported(tokens: Sequence[Token]) -> None:
    """Raises ``ShaderError`` at the first use of what cannot be carried; names that a program declares are its own."""
    own: set[str] | None = None
    for index, token in enumerate(tokens):
        if token.kind != IDENTIFIER:
            continue
        before = tokens[index - 1].text if index else ""
        following = tokens[index + 1].text if index + 1 < len(tokens) else ""
        if before in (".", "->"):
            if token.text == "operator" and not _declares_operators(tokens):
                # Intel's compiler would end the process for an object that is of no class.
                raise error("'operator' is called by name, but the program declares none", token)
            continue
        if token.text in FOREIGN_TYPES:
            raise error(f"'{token.text}' is not supported in Metal", token)
        if token.text in _WORDS_OF_TARGETS:
            raise error(f"unknown type name '{token.text}'", token)
        if _TEXTURES.match(token.text) and following in ("<", "::"):
            raise error(f"'{token.text}' is not supported: {_BUFFERS_ONLY}", token)
        if token.text == "sampler" and index + 1 < len(tokens) and tokens[index + 1].kind == IDENTIFIER:
            raise error(f"samplers are not supported: {_BUFFERS_ONLY}", token)
        reason = _NAMES.get(token.text)
        if reason is not None:
            own = _declared(tokens) if own is None else own
            if token.text not in own:
                raise error(f"'{token.text}' is not supported: {reason}", token)


def _declares_operators(tokens: Sequence[Token]) -> bool:
    return any(
        token.text == "operator" and token.kind == IDENTIFIER and before.text not in (".", "->")
        for before, token in pairwise(tokens)
    )


def refuse_function_pointers(tokens: Sequence[Token]) -> None:
    """Raises ``ShaderError`` at a declaration of a pointer to a function; parameters must be gone already."""
    for index in range(1, len(tokens) - 4):
        if tokens[index].text != "(" or tokens[index + 1].text != "*":
            continue
        is_type = tokens[index - 1].kind == IDENTIFIER and tokens[index - 1].text not in _NOT_TYPES
        behind = index + 2 + (tokens[index + 2].kind == IDENTIFIER)
        if tokens[behind].text == ")" and tokens[behind + 1].text == "(" and (
            is_type or tokens[index - 1].text in ("*", "&", ">")
        ):  # fmt: skip
            words = "function pointers are not supported; a function or a template can take a function"
            raise error(words, tokens[index + 1])


def refuse_positions_at_program_scope(program: Program) -> None:
    """Raises ``ShaderError`` at a variable outside of functions that a later Metal fills with a thread's position."""
    tokens = program.tokens
    for start, stop in program.variables:
        for index in range(start + 1, stop):
            name = tokens[index].text
            if tokens[index - 1].text == "[" and (name in INDEX_ATTRIBUTES or name in POSITION_ATTRIBUTES):
                message = f"[[{name}]] at program scope is not supported: make it a parameter of the kernel function"
                raise error(message, tokens[index])


def _declared(tokens: Sequence[Token]) -> set[str]:
    """The names among those refused that the program declares."""
    found = set()
    for index in range(1, len(tokens) - 1):
        if tokens[index].text not in _NAMES:
            continue
        before, after = tokens[index - 1], tokens[index + 1].text
        if before.text in ("struct", "class", "union", "enum", "typename", "using", "}"):
            found.add(tokens[index].text)
        elif before.kind == IDENTIFIER and before.text not in _NOT_TYPES and after in _AFTER_NAMES:
            found.add(tokens[index].text)
    return found


def refuse_array_designators(tokens: Sequence[Token]) -> None:
    """Raises for ``{[2] = 1}``, an extension of clang's that NVIDIA's compiler does not have."""
    for index in range(1, len(tokens) - 3):
        if tokens[index].text != "[" or tokens[index - 1].text not in ("{", ","):
            continue
        behind = matching(tokens, index) + 1
        if behind < len(tokens) and tokens[behind].text == "=":
            message = "designators of array elements are not supported for CUDA: write the values in order"
            raise error(message, tokens[index])


def refuse_recursion(program: Program, library: Collection[str], version: tuple[int, int], filename: str) -> None:
    """Raises ``ShaderError`` where a function of the program calls itself; ``library`` has the library's names."""
    from mpsgrad.msl.analysis.recursion import recursive_calls

    source = Source(program.tokens, program, version, False, "", filename)
    for index in recursive_calls(source, library):
        message = f"'{source.text(index)}' calls itself: recursion needs Metal 2.4 or later; see language_version"
        raise error(message, source.tokens[index])
