"""The compiler's own functions, by which programs extend Metal's headers as these are written themselves:
``__metal_exp(x, __METAL_FAST_MATH__)`` is ``metal::fast::exp(x)``, also in a ``namespace metal`` of the program's."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from mpsgrad.msl.analysis.types import built_in
from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.tokens import IDENTIFIER, NUMBER, PUNCTUATION, Token, matching, matching_angle, spell, split_commas

LANE = f"simd_lane{RENAMED_SUFFIX}"
GROUP = f"simd_group{RENAMED_SUFFIX}"
_POSITIONS = {"get_thread_index_in_simdgroup": LANE, "get_simdgroup_index_in_threadgroup": GROUP}
BITS = {name: f"{name}{RENAMED_SUFFIX}" for name in ("simd_and", "simd_or", "simd_xor")}
"""What works on the bits of floats, too, which the library's functions of these names do not take."""
MATRIX_STORAGE = f"matrix_storage{RENAMED_SUFFIX}"
MATRIX_PRODUCT = f"multiply_accumulated{RENAMED_SUFFIX}"

_PREFIX = "__metal_"
_MATRIX_PRODUCT = f"{_PREFIX}simdgroup_matrix_8x8_multiply_accumulate"
_MATRIX_ELEMENTS = "64"
_INTERNALS = ("_conjunction", "_disjunction", "_negation")
_STORES = ("frexp", "modf", "sincos")
_NESTED = ("fast", "precise")
_WIDTH = "32"
_QUALIFIERS = {
    "__METAL_MAYBE_FAST_MATH__": ("metal",),
    "__METAL_FAST_MATH__": ("metal", "fast"),
    "__METAL_PRECISE_MATH__": ("metal", "precise"),
}


def name_library_functions(tokens: list[Token], fast_math: bool = True) -> list[Token]:
    """``tokens`` with the library's names for the compiler's functions, and with what the program adds to the library's
    nested namespaces where the translated library has it: outside of namespaces, with the qualifier in the name.

    Without ``fast_math`` functions without a qualifier are the precise ones, so that one definition is left of two with
    the same parameters.
    """
    for token, following in pairwise(tokens):
        if token.text in _INTERNALS and following.text == "<":
            token.text = token.text[1:]
    if any(token.text.startswith(_PREFIX) for token in tokens):
        if any(token.text == _MATRIX_PRODUCT for token in tokens):
            tokens = _with_matrices(tokens)
        tokens = _with_calls(tokens, 0, len(tokens))
    if any(token.text == "uniform" for token in tokens):
        tokens = _without_uniform(tokens)
    return _without_nested_namespaces(tokens, fast_math)


def _with_matrices(tokens: list[Token]) -> list[Token]:
    """``tokens`` with the library's names for what the compiler keeps a matrix of a simdgroup in, ``vec<T, 64>``, and
    for its function that multiplies two."""
    dropped: set[int] = set()
    for index, token in enumerate(tokens):
        if token.text == _MATRIX_PRODUCT:
            token.text = MATRIX_PRODUCT
        elif token.text == "vec" and tokens[index + 1].text == "<":
            close = matching_angle(tokens, index + 1)
            if close is not None and [each.text for each in tokens[close - 2 : close]] == [",", _MATRIX_ELEMENTS]:
                token.text = MATRIX_STORAGE
                dropped |= {close - 2, close - 1}
    return [token for index, token in enumerate(tokens) if index not in dropped]


def _without_uniform(tokens: list[Token]) -> list[Token]:
    """``tokens`` with ``int`` for ``uniform<int>`` and ``(n)`` for ``make_uniform(n)``, which say only that all threads
    have the same value."""
    made: list[Token] = []
    index = 0
    while index < len(tokens):
        words = [token.text for token in tokens[index : index + 4]]
        if words[0] in ("uniform", "make_uniform") and made and made[-1].text == "::" and made[-2].text == "metal":
            del made[-2:]
        if words[0] == "uniform" and words[1:2] == ["<"] and words[3:] == [">"] and built_in(words[2]) is not None:
            made.append(tokens[index + 2].at(tokens[index]))
            index += 4
        elif words[:2] == ["make_uniform", "("]:
            index += 1
        else:
            made.append(tokens[index])
            index += 1
    return made


def _with_calls(tokens: list[Token], start: int, end: int) -> list[Token]:
    made: list[Token] = []
    index = start
    while index < end:
        token = tokens[index]
        if not token.text.startswith(_PREFIX) or index + 1 >= end or tokens[index + 1].text != "(":
            made.append(token)
            index += 1
            continue
        close = matching(tokens, index + 1, end)
        name = token.text.removeprefix(_PREFIX)
        if name == "get_simdgroup_size":
            made.append(token.replaced(_WIDTH, NUMBER))
        elif name in _POSITIONS:
            made += [token.replaced(_POSITIONS[name]), tokens[index + 1], tokens[close]]
        else:
            arguments = split_commas(tokens[index + 2 : close])
            last = arguments[-1][-1].text if arguments and arguments[-1] else ""
            stop = close - 2 if last in _QUALIFIERS and len(arguments) > 1 else close
            for qualifier in () if name in BITS else _QUALIFIERS.get(last, ("metal",)):
                made += [token.replaced(qualifier), token.replaced("::", PUNCTUATION)]
            passed = _with_calls(tokens, index + 2, stop)
            if name in _STORES:
                # The second result goes through a pointer here, and through a reference in the library.
                pairs = pairwise([tokens[index + 1], *passed])
                passed = [each for before, each in pairs if (before.text, each.text) != (",", "&")]
            made += [token.replaced(BITS.get(name, name)), tokens[index + 1], *passed, tokens[close]]
        index = close + 1
    return made


def traits_added(tokens: list[Token]) -> frozenset[str]:
    """The types and variables that the program itself adds to ``namespace metal``: the library's own stay away."""
    found: set[str] = set()
    for index, token in enumerate(tokens[:-2]):
        if (token.text, tokens[index + 1].text, tokens[index + 2].text) != ("namespace", "metal", "{"):
            continue
        at, end = index + 3, matching(tokens, index + 2)
        while at < end - 1:
            before, name, behind = tokens[at - 1], tokens[at], tokens[at + 1].text
            is_class = before.text in ("struct", "class") and behind in (":", "{")
            if is_class or (name.kind == before.kind == IDENTIFIER and behind == "="):
                found.add(name.text)
            at = matching(tokens, at) + 1 if name.text in ("{", "(") else at + 1
    return frozenset(found - {"typename"})


def _without_nested_namespaces(tokens: list[Token], fast_math: bool) -> list[Token]:
    dropped: set[int] = set()
    renamed: dict[int, Token] = {}
    unqualified: set[str] = set()
    for index, token in enumerate(tokens):
        if token.text != "namespace" or index + 2 >= len(tokens) or tokens[index + 1].text != "metal":
            continue
        opening = index + 2
        nested: list[tuple[int, int]] = []
        words = [each.text for each in tokens[opening : opening + 3]]
        if words[:1] == ["::"] and words[1:2] and words[1] in _NESTED and words[2:] == ["{"]:
            # The library's own namespace stays, for what else reads it.
            dropped |= {opening, opening + 1}
            nested = [(opening + 1, matching(tokens, opening + 2))]
        elif tokens[opening].text == "{":
            close = matching(tokens, opening)
            for inner in range(opening + 1, close - 2):
                if tokens[inner].text == "namespace" and tokens[inner + 1].text in _NESTED:
                    if tokens[inner + 2].text == "{":
                        end = matching(tokens, inner + 2)
                        dropped |= {inner, inner + 1, inner + 2, end}
                        nested.append((inner + 1, end))
            if nested and not fast_math:
                found = _functions(tokens, opening + 1, close)
                unqualified |= {spell(tokens[name : parameters + 1]) for name, parameters, _, _ in found}
        for place, end in nested:
            qualifier = tokens[place].text
            for name, parameters, first, last in _functions(tokens, place + 2, end):
                if qualifier == "precise" and spell(tokens[name : parameters + 1]) in unqualified:
                    dropped |= set(range(first, last))
                else:
                    renamed[name] = tokens[name].replaced(f"{qualifier}_{tokens[name].text}{RENAMED_SUFFIX}")
    if not dropped:
        return tokens
    return [renamed.get(index, token) for index, token in enumerate(tokens) if index not in dropped]


def _functions(tokens: list[Token], start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The functions that are declared from ``start`` to ``end``, but not in braces: the index of the name, that of the
    bracket that closes the parameters, and those of the beginning and behind the end."""
    index = first = start
    found: list[tuple[int, int, int]] = []
    while index < end:
        text = tokens[index].text
        if text in ("{", "("):
            close = matching(tokens, index)
            before = tokens[index - 1]
            if text == "(" and before.kind == IDENTIFIER and before.text != "__attribute__" and not found:
                found.append((index - 1, close, first))
            index = close
        index += 1
        if text in ("{", ";"):
            first = index
            for name, parameters, beginning in found:
                yield name, parameters, beginning, index
            found = []
