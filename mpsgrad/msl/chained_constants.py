"""Constants at program scope that others are made of: ``constant float A = 1.5, B = 2 * A;``.

In C++ the value of a ``const float`` is known when a program is compiled only if it is ``constexpr``, too, and CUDA
begins no kernel by giving variables their values.
"""

from __future__ import annotations

from collections.abc import Iterator

from mpsgrad.msl.analysis.types import INTEGERS, built_in
from mpsgrad.msl.program import Program
from mpsgrad.msl.tokens import IDENTIFIER, OPENING, Token, matching

_HEAD_WORDS = frozenset({"static", "const", "inline", "constant", "metal", "::"})
_KNOWN = INTEGERS | {"float"}


def chained_constants(program: Program) -> Iterator[Token]:
    """The word ``constant`` of the declarations of numbers and their arrays that are named in initialisers there."""
    tokens = program.tokens
    named = set()
    declarations: list[tuple[Token, set[str]]] = []
    for start, stop in program.variables:
        words = [token.text for token in tokens[start:stop]]
        first = next((k for k, word in enumerate(words) if word not in _HEAD_WORDS), 0)
        kind = built_in(words[first])
        names = set()
        index = start + first + 1
        while index < stop:
            if tokens[index].kind == IDENTIFIER and tokens[index - 1].text not in ("]", "[", "("):
                names.add(tokens[index].text)
            while index < stop and tokens[index].text not in (",", ";"):
                end = matching(tokens, index) + 1 if tokens[index].text in OPENING else index + 1
                if tokens[index].text in ("=", "{", "("):
                    while end < stop and tokens[end].text not in (",", ";"):
                        end = matching(tokens, end) + 1 if tokens[end].text in OPENING else end + 1
                    named |= {token.text for token in tokens[index:end] if token.kind == IDENTIFIER}
                index = end
            index += 1
        if "constant" in words[:first] and kind is not None and kind.is_scalar and kind.base in _KNOWN:
            declarations.append((tokens[start + words.index("constant")], names))
    for word, names in declarations:
        if not names.isdisjoint(named):
            yield word
