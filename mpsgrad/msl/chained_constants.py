"""Constants at program scope that others are made of: ``constant float A = 1.5, B = 2 * A;``.

In C++ the value of a ``const float`` is known when a program is compiled only if it is ``constexpr``, too, and CUDA
begins no kernel by giving variables their values.
"""

from __future__ import annotations

from collections.abc import Iterator

from mpsgrad.msl.analysis.types import INTEGERS, built_in
from mpsgrad.msl.program import Program
from mpsgrad.msl.tokens import IDENTIFIER, Token, split_commas

_HEAD_WORDS = frozenset({"static", "const", "inline", "constant", "metal", "::"})
_KNOWN = INTEGERS | {"float"}


def chained_constants(program: Program) -> Iterator[Token]:
    """The word ``constant`` of the declarations of numbers and their arrays that are named in initialisers there."""
    named: set[str] = set()
    declarations: list[tuple[Token, set[str]]] = []
    for start, stop in program.variables:
        declaration = program.tokens[start:stop]
        words = [token.text for token in declaration]
        first = next((k for k, word in enumerate(words) if word not in _HEAD_WORDS), 0)
        kind = built_in(words[first])
        names: set[str] = set()
        for declarator in split_commas(declaration[first + 1 :]):
            begin = next((k for k, token in enumerate(declarator) if token.text in ("=", "{", "(")), len(declarator))
            names |= {token.text for token in declarator[:1] if token.kind == IDENTIFIER}
            named |= {token.text for token in declarator[begin:] if token.kind == IDENTIFIER}
        if "constant" in words[:first] and kind is not None and kind.is_scalar and kind.base in _KNOWN:
            declarations.append((declaration[words.index("constant")], names))
    for word, names in declarations:
        if not names.isdisjoint(named):
            yield word
