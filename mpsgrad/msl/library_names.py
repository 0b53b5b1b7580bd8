"""What a program's names are called in the target, and what of the library they call for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property

from mpsgrad.msl.analysis.types import built_in
from mpsgrad.msl.backend import Backend
from mpsgrad.msl.compiler_names import traits_added
from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.headers import library
from mpsgrad.msl.library_marks import VECTOR_TEMPLATES
from mpsgrad.msl.overloads import namespaces_of
from mpsgrad.msl.program import ADDRESS_SPACES, Program
from mpsgrad.msl.tokens import IDENTIFIER, Token, matching, matching_angle, split_commas
from mpsgrad.msl.versions import later_names

SCALAR_OR_VECTOR = re.compile(
    r"(?:bool|u?char|u?short|u?int|u?long|half|float|size_t|auto|void|unsigned|signed)[234]?$"
)

_QUALIFIERS = ("metal", "precise", "fast")
_ALL = "*"

# Where the library's functions on vectors are found by their arguments only, a variable of the same name hides them.
_REACHED = "reached_"
_REACHING = (
    f"template <typename... A> inline constexpr auto {_REACHED}{{0}}(A &&...a) {{{{"
    " return {0}(static_cast<A &&>(a)...); }}\n"
)


class LibraryNames:
    """The names of one program for one target. ``used`` collects what of the library the translation needs.

    ``users`` has the names that later versions of the language gave a meaning, and those of types that the program adds
    to the library's namespace: both are the program's own here.
    Without ``fast_math`` functions without a qualifier are those of ``metal::precise``.
    """

    def __init__(
        self, program: Program, backend: Backend, version: tuple[int, int], fast_math: bool, used: Iterable[str]
    ) -> None:
        self.used = set(used)
        self.users = later_names(version) | traits_added(program.tokens)
        self._program = program
        self._tokens = program.tokens
        self._backend = backend
        self._opened_as_precise = _opened(program.tokens, "precise")
        self._fast_math = fast_math and _ALL not in self._opened_as_precise
        self._library = library(backend.target)
        self._spellings: dict[str, str] = {}
        self._reached: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether the library's headers for this target have ``name``."""
        return name in self._library.sections

    def prelude(self) -> str:
        """The headers that the names in ``used`` call for."""
        return self._library.prelude(self.closure())

    def closure(self) -> set[str]:
        """The names in ``used`` and those that their headers need in turn."""
        found = self._library.closure(self.used)
        if self.mentions_bfloat:
            needed = {"simdgroup_matrix": "simdgroup_bfloat8x8", "matrix": "bfloat4"}
            found |= self._library.closure(needed[name] for name in found & needed.keys())
        return found

    def reaching(self) -> str:
        """The functions by which the program reaches those of the library that its own names hide."""
        return "".join(_REACHING.format(name) for name in sorted(self._reached))

    def makers(self) -> str:
        """The functions that construct vectors of one argument."""
        names = sorted(name.removeprefix("make:") for name in self.used if name.startswith("make:"))
        packed = any(name.startswith("packed_") for name in self.used)
        return "".join(self._backend.vector_maker(name, packed) for name in names)

    def spelling(self, name: str) -> str:
        """``name`` in the target, with the suffix where the target means something else by it."""
        spelling = self._spellings.get(name)
        if spelling is None:
            suffixed = self._is_renamed(name) or name in self._backend.reserved
            is_own = name in self._own_functions or name in self._own_types
            suffix = f"_own{RENAMED_SUFFIX}" if is_own else RENAMED_SUFFIX if suffixed else ""
            spelling = name + suffix
            if not is_own:
                spelling = self._precise(name) or spelling
            self._spellings[name] = spelling
        return spelling

    def _is_renamed(self, name: str) -> bool:
        return name in self._library.renamed and name not in self.users

    def _precise(self, name: str) -> str | None:
        """The name of the precise function ``name`` where one without a qualifier means that."""
        is_precise = not self._fast_math or name in self._opened_as_precise
        if not is_precise or not self.has(f"precise::{name}"):
            return None
        self.used.add(f"precise::{name}")
        return f"precise_{name}{RENAMED_SUFFIX}"

    def _library_spelling(self, name: str) -> str:
        """The target's name for the library's function ``name``, whatever the program means by it."""
        return self._precise(name) or (name + RENAMED_SUFFIX if self._is_renamed(name) else name)

    def qualified(self, tokens: Sequence[Token], index: int, output: list[Token]) -> int:
        """Rewrites a name qualified by ``metal``, ``fast`` or ``precise``; returns the index behind the qualifiers."""
        qualifiers = []
        position = index
        while (
            position + 1 < len(tokens)
            and tokens[position].text in ("metal", "precise", "fast", "simd")
            and tokens[position + 1].text == "::"
        ):
            qualifiers.append(tokens[position].text)
            position += 2
        if output and output[-1].text == "::" and (len(output) < 2 or output[-2].kind != IDENTIFIER):
            output.pop()
        if position >= len(tokens):
            return position
        name = tokens[position].text
        if output and output[-1].text == "typename" and not _is_member_named(tokens, position):
            output.pop()
        for qualifier in ("precise", "fast"):
            if qualifier in qualifiers and self.has(f"{qualifier}::{name}"):
                self.used.add(f"{qualifier}::{name}")
                output.append(tokens[position].replaced(f"{qualifier}_{name}{RENAMED_SUFFIX}"))
                return position + 1
        behind = tokens[position + 1].text if position + 1 < len(tokens) else ""
        if name in self._own_classes:
            self.used.add(name)
            output.append(tokens[position].replaced(f"::{self._library_spelling(name)}"))
            return position + 1
        is_looked_up = behind == "(" or behind == "<" and name not in self.users
        if name in self._hidden or (is_looked_up and name in self._shadowed):
            # The program means something else too by this name, which the library's function must not be taken for.
            self.used.add(name)
            spelling = self._library_spelling(name)
            if not self._backend.finds_functions_by_arguments or behind == "<":
                spelling = spelling if output and output[-1].text == "::" else f"::{spelling}"
            elif not spelling.startswith("precise_"):
                self._reached.add(spelling)
                spelling = _REACHED + spelling
            output.append(tokens[position].replaced(spelling))
            return position + 1
        return position

    @cached_property
    def _own_classes(self) -> frozenset[str]:
        """The types of the library whose names the program gives to classes and aliases of its own, too."""
        triples = [*zip(self._tokens, self._tokens[1:], self._tokens[2:], strict=False)]
        own = {name.text for a, name, b in triples if a.text in ("struct", "class") and b.text in (":", "{")}
        aliases = {name.text for a, name, b in triples if a.text == "using" and b.text == "="}
        own |= {name for name in aliases - VECTOR_TEMPLATES if built_in(name) is None}
        return frozenset(name for name in own - self.users if self.has(name)) | self._own_types

    @cached_property
    def _own_types(self) -> frozenset[str]:
        """The names of the library that the program gives to classes and aliases at its own scope, where only a
        qualifier leads to the library's."""
        own, index = set(), 0
        while index + 2 < len(self._tokens):
            before, name, behind = (token.text for token in self._tokens[index : index + 3])
            if (before in ("struct", "class") and behind in (":", "{")) or (before == "using" and behind == "="):
                own.add(name)
            index = matching(self._tokens, index) + 1 if before == "{" else index + 1
        return frozenset(name for name in own - self.users if self.has(name))

    @cached_property
    def mentions_bfloat(self) -> bool:
        names = {"bfloat", "bfloat2", "bfloat3", "bfloat4"} - self.users
        return any(token.text in names for token in self._tokens)

    @cached_property
    def has_packed_vectors(self) -> bool:
        return any(token.text.startswith("packed_") for token in self._tokens)

    @cached_property
    def _is_open(self) -> bool:
        """Whether the program says ``using namespace metal``."""
        texts = [token.text for token in self._tokens]
        return any(words == ("using", "namespace", "metal") for words in zip(texts, texts[1:], texts[2:], strict=False))

    @cached_property
    def known(self) -> frozenset[str]:
        """The names of the whole library."""
        return frozenset(self._library.sections.keys() | self._backend.library_names)

    @cached_property
    def _hidden(self) -> frozenset[str]:
        """The functions of the library that the program's own of the same name are not to be taken for.

        Where the library's names are open to the program, those that it calls by a qualifier.
        """
        called, opened = set(), set()
        triples = zip(self._tokens, self._tokens[1:], self._tokens[2:], strict=False)
        for index, (space, colons, name) in enumerate(triples):
            if space.text in _QUALIFIERS and colons.text == "::":
                called.add(name.text)
                if index and self._tokens[index - 1].text == "using":
                    opened.add(name.text)
        own = self._program.functions.keys() & self.known
        return frozenset(own & called if self._is_open else own - opened)

    @cached_property
    def _own_functions(self) -> frozenset[str]:
        """Those of the hidden functions that are renamed, since they may have the same parameters as the library's.

        Where the library's names are open to the program, functions with parameters of its own types or of any type
        overload the library's, and keep their name; so do those in namespaces and classes, which hide the library's.
        """
        if not self._is_open:
            return self._hidden
        texts = [token.text for token in self._tokens]
        namespaces = namespaces_of(self._tokens)
        overloads, at_program_scope = set(), set()
        for start, opening, _ in self._program.function_heads:
            if any(first < start < last for first, last, _ in namespaces):
                continue
            at_program_scope.add(texts[opening - 1])
            types = [
                next((t.text for t in part if t.text not in {"const", "metal", "::", *ADDRESS_SPACES}), "")
                for part in split_commas(self._tokens[opening + 1 : matching(self._tokens, opening)])
            ]
            if texts[start] == "template" or not all(SCALAR_OR_VECTOR.match(each) for each in types):
                overloads.add(texts[opening - 1])
        return self._hidden & at_program_scope - overloads

    @cached_property
    def _shadowed(self) -> frozenset[str]:
        """The functions of the library whose names the program also gives to variables and members."""
        bare = {
            name.text
            for before, name, after in zip(self._tokens, self._tokens[1:], self._tokens[2:], strict=False)
            if before.text != "::" and after.text not in ("(", "::", "<")
        }
        return frozenset(bare & self.known)


def _is_member_named(tokens: Sequence[Token], index: int) -> bool:
    """Whether the name at ``index`` qualifies another one, as in ``remove_cv<T>::type``."""
    if index + 1 < len(tokens) and tokens[index + 1].text == "<":
        index = matching_angle(tokens, index + 1) or index
    return index + 1 < len(tokens) and tokens[index + 1].text == "::"


def _opened(tokens: Sequence[Token], qualifier: str) -> frozenset[str]:
    """The names that ``using metal::qualifier::name;`` opens; ``_ALL`` for ``using namespace metal::qualifier;``."""
    found = set()
    for index in range(len(tokens) - 2):
        if tokens[index].text != qualifier:
            continue
        start = index - 1
        while start >= 0 and tokens[start].text in ("::", "metal", "namespace"):
            start -= 1
        if start >= 0 and tokens[start].text == "using":
            if any(token.text == "namespace" for token in tokens[start:index]):
                found.add(_ALL)
            elif tokens[index + 1].text == "::":
                found.add(tokens[index + 2].text)
    return frozenset(found)
