"""Rule 54: every name is declared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from mpsgrad.msl.analysis.expressions import expressions_of
from mpsgrad.msl.analysis.source import BUILT_IN_TYPE, Source
from mpsgrad.msl.analysis.template_brackets import template_brackets
from mpsgrad.msl.analysis.types import SIZES, built_in
from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.headers import library
from mpsgrad.msl.lint.library import LIBRARY_FUNCTIONS, NOT_IN_METAL
from mpsgrad.msl.lint.near_names import did_you_mean, nearest
from mpsgrad.msl.lint.rule import Found, needs, rule
from mpsgrad.msl.lint.statements import object_before
from mpsgrad.msl.program import ADDRESS_SPACES
from mpsgrad.msl.tokens import IDENTIFIER, skip_attributes
from mpsgrad.msl.versions import came_with

_WORDS = frozenset(
    """
    alignas alignof auto bool break case catch char char16_t char32_t class const const_cast constant constexpr continue
    decltype default delete device do double dynamic_cast else enum explicit extern false final float for fragment
    friend goto half if inline int long mutable namespace new noexcept nullptr operator override private protected
    public register reinterpret_cast restrict return short signed sizeof static static_assert static_cast struct switch
    template this thread thread_local threadgroup threadgroup_imageblock throw true try typedef typeid typename typeof
    union unsigned using vertex kernel virtual void volatile wchar_t while object_data ray_data visible asm
    """.split()
)
_NO_TYPES = frozenset(
    "return else do case goto new delete throw sizeof typeof using namespace operator break continue default".split()
)
_QUALIFIERS = frozenset("const constexpr device constant thread threadgroup static inline volatile".split())
_LIBRARY_WORDS = frozenset(
    """
    NULL metal simd fast precise std math vec packed_vec matrix sampler coord address filter access mem_flags
    memory_order memory_order_relaxed thread_scope simd_vote quad_vote os_log os_log_default uniform value type
    mag_filter min_filter mip_filter s_address t_address r_address border_color compare_func max_anisotropy lod_clamp
    component is_function_constant_defined triangle_data curve_data instancing primitive_data world_space_data
    max_levels
    """.split()
)
_SAMPLING = frozenset("level bias gradient2d gradient3d gradientcube min_lod_clamp".split())
"""What a texture's functions take, and what others may be called that nobody calls."""
_FAMILIES = re.compile(
    r"_|atomic|simd|quad|texture|depth|tensor|ray|intersect|mesh|imageblock|raster|visible|command|render|compute|MTL"
    r"|TARGET|air|vector_|matrix_|metal|(?:M|FLT|HALF|BFLOAT|INT|UINT|CHAR|SCHAR|UCHAR|SHRT|USHRT|LONG|ULONG)_|[A-Z0-9_]+$"
)


@cache
def _library_names() -> frozenset[str]:
    """Names of Metal's library, and of C's macros."""
    found = {name for target in ("opencl", "cuda") for name in library(target).sections}
    return frozenset(name for name in found if "_mtl" not in name) | LIBRARY_FUNCTIONS | _LIBRARY_WORDS


@rule(
    54,
    "undeclared-name",
    words="use of undeclared identifier 'coutn'; did you mean 'count'?",
    why="A name that is spelled otherwise than where it is declared, or that is declared in another block.",
)
def names_are_declared(source: Source) -> Iterator[Found]:
    """Looks at names in functions of a whole source, and at members of its structs; those behind '::' are left to the
    compiler, as are its own functions, and what looks like a name of the library unless one of the library differs in a
    letter or two."""
    if source.is_header:
        return
    names = _Names(source)
    seen: set[tuple[str, int]] = set()
    for start, end, _ in names.bodies:
        for index in names.uses(start, end):
            text = source.text(index)
            if names.is_declared(index) or text.startswith("__builtin_") or text.endswith(RENAMED_SUFFIX):
                continue
            if source.text(index + 1) == "(" and NOT_IN_METAL.match(text):
                continue
            is_type = source.kind(index + 1) == IDENTIFIER and source.text(index - 1) in (";", "{", "}")
            meant = names.meant(index, is_type)
            if (text, start) in seen or not meant and _FAMILIES.match(text):
                continue
            seen.add((text, start))
            message = f"unknown type name '{text}'" if is_type else f"use of undeclared identifier '{text}'"
            needed = came_with(text)
            hint = f": {needs('.'.join(map(str, needed)))}" if needed is not None else did_you_mean(meant)
            yield source.tokens[index], message + hint
    yield from _members(source)


def _members(source: Source) -> Iterator[Found]:
    """The members that a struct of the program does not have, where it is certain which struct it is."""
    expressions = expressions_of(source)
    for index in source.places(".", "->"):
        name = source.text(index + 1)
        if source.kind(index + 1) != IDENTIFIER or not source.in_body(index) or name in ("template", "operator"):
            continue
        kind = object_before(source, expressions, index)
        if kind is None or kind.base not in source.members or kind.pointers != (source.text(index) == "->"):
            continue
        start, end, _ = source.struct_bodies[kind.base][0]
        if name not in source.texts[start:end]:
            message = f"no member named '{name}' in '{kind.base}'"
            yield source.tokens[index + 1], message + did_you_mean(nearest(name, source.members[kind.base]))


class _Names:
    """The names that a source declares, and where it uses names."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._brackets = template_brackets(source)
        self._opening = _openings(source)
        declared = (variable for variables in source.variables.values() for variable in variables)
        self._in_brackets = {each.place for each in declared if source.text(each.place - 1) == "("}
        places: dict[str, list[int]] = {}
        for index in range(len(source.tokens)):
            if source.kind(index) == IDENTIFIER and self._may_declare(index):
                places.setdefault(source.text(index), []).append(index)
        self._declared = places
        self._scoped = frozenset(self._surely_scoped())
        self.bodies = sorted(
            (function.body_open, function.body_close, function.kernel is not None) for function in source.functions
        )

    def _surely_scoped(self) -> Iterator[str]:
        """The names that only variables have whose scopes are known: no members, which a derived struct has too."""
        source = self._source
        if any(source.text(index + 2) in (":", "final") for index in source.places("struct", "class")):
            return
        bodies = [(start, end) for bodies in source.struct_bodies.values() for start, end, _ in bodies]
        for text, places in self._declared.items():
            variables = source.variables.get(text, [])
            if len(places) != len(variables) or {variable.place for variable in variables} != set(places):
                continue
            if not any(start < place < end for place in places for start, end in bodies):
                yield text

    def uses(self, start: int, end: int) -> Iterator[int]:
        """The indices of the names in a body that must have been declared."""
        source = self._source
        index = start + 1
        while index < end:
            behind = skip_attributes(source.tokens, index, end)
            if behind > index:
                index = behind
                continue
            text = source.text(index)
            if (
                source.kind(index) == IDENTIFIER
                and text not in _WORDS
                and source.text(index - 1) not in (".", "->", "::")
                and source.text(index + 1) != "::"
                and built_in(text) is None
                and not BUILT_IN_TYPE.match(text)
            ):
                yield index
            index += 1

    def is_declared(self, index: int) -> bool:
        """Whether the name at ``index`` may mean anything there."""
        source = self._source
        text = source.text(index)
        if text in _library_names() or (text in _SAMPLING and source.text(index + 1) == "("):
            return True
        if text not in self._declared:
            return text in source.declared_functions
        if text in source.functions_by_name and self._is_early(index):
            return False
        return text not in self._scoped or source.variable(text, index) is not None

    def _is_early(self, index: int) -> bool:
        """Whether the name at ``index`` stands before all that may declare it, in no template and no class."""
        if min(self._declared[self._source.text(index)]) <= index:
            return False
        around = [function for function in self._source.functions if function.body_open < index < function.body_close]
        return bool(around) and not any(f.is_template or f.owner is not None for f in around)

    def _may_declare(self, index: int) -> bool:
        """Whether a name stands where one is declared."""
        source = self._source
        before, text = source.text(index - 1), source.text(index)
        if text in _WORDS:
            return False
        if source.kind(index - 1) == IDENTIFIER:
            if before in _QUALIFIERS:
                return source.kind(index + 1) != IDENTIFIER and source.text(index + 1) not in ("*", "&", "<")
            return before not in _NO_TYPES or before in ("using", "namespace")
        if before in ("*", "&", "&&", "..."):
            return before == "..." or self._ends_type(index - 1)
        if before == ">":
            return index - 1 in self._brackets
        if before == "(":
            return index in self._in_brackets
        if before == "]":
            return source.text(index - 2) == "]" or source.text(source.close(index - 1) - 1) == "["
        if before == ")":
            opening = source.close(index - 1)
            return source.text(opening - 1) in ("decltype", "typeof", "__attribute__", "alignas")
        if before == "}":
            return self._ends_class(index - 1)
        if before in ("{", ",", "["):
            return self._is_in_declaration(index)
        return False

    def _ends_type(self, index: int) -> bool:
        """Whether the ``*`` or ``&`` at ``index`` stands behind a type, or in brackets in the place of a name."""
        source = self._source
        while source.text(index) in ("*", "&", "&&") or source.text(index) in _QUALIFIERS:
            index -= 1
        if source.text(index) == "(":
            behind = source.text(source.close(index) + 1)
            return behind in ("(", "[") or behind in ("=", ";", ",", ")") and self._points_somewhere(index - 1)
        if source.text(index) == ",":
            return self._is_in_declaration(index + 1)
        if source.text(index) == ">":
            return index in self._brackets
        if source.text(index) == ")":
            return source.text(source.close(index) - 1) == "decltype"
        if source.kind(index) != IDENTIFIER:
            return False
        return source.is_type(index) or source.variable(source.text(index), index) is None

    def _points_somewhere(self, index: int) -> bool:
        """Whether a type that ends at ``index`` says in which memory it lies."""
        while self._source.kind(index) == IDENTIFIER or self._source.text(index) == "::":
            if self._source.text(index) in ADDRESS_SPACES:
                return True
            index -= 1
        return False

    def _is_in_declaration(self, index: int) -> bool:
        """Whether what stands behind a comma or an opening bracket may be a declarator or an enumerator."""
        source = self._source
        opening = self._opening[index]
        if opening < 0:
            return True
        text, before = source.text(opening), source.text(opening - 1)
        if text == "[":
            return before in ("auto", "&", "&&") or source.text(source.close(opening) + 1) in ("(", "{")
        if text == "(":
            return before in ("for", "if", "while", "switch") and source.text(index - 1) == ","
        if before in (")", ";", "{", "}", "else", "do", ":", "const", "thread", "device", "constant", "threadgroup"):
            return source.text(index - 1) == "," or before not in (")", ";", "}", "else", "do")
        return self._ends_class(source.close(opening))

    def _ends_class(self, closing: int) -> bool:
        """Whether the brace that closes at ``closing`` is that of a class, an enumeration or a namespace."""
        source = self._source
        start = opening = source.close(closing)
        while start > 0 and source.text(start - 1) not in (";", "{", "}", "(", ","):
            start -= 1
            if source.text(start) == ")" and source.close(start) >= 0:
                start = source.close(start)
        return bool({"enum", "struct", "class", "union", "namespace"} & set(source.texts[start:opening]))

    def meant(self, index: int, is_type: bool) -> list[str]:
        """The names that ``index`` may have been meant to be: those that differ from it least."""
        source = self._source
        types = source.types | {f"{base}{width}" for base in SIZES for width in ("", 2, 3, 4)}
        if is_type:
            return nearest(source.text(index), types)
        candidates = {name for name in source.variables if source.variable(name, index) is not None}
        if source.text(index + 1) == "(":
            candidates |= types | source.declared_functions | LIBRARY_FUNCTIONS
        else:
            candidates |= source.constants.keys() | {name for name in _library_names() if name.isupper()}
        return nearest(source.text(index), candidates - {source.text(index)})


def _openings(source: Source) -> list[int]:
    """For each token the innermost bracket that is open there, -1 where none is."""
    found = []
    stack = [-1]
    for index, token in enumerate(source.tokens):
        if token.text in (")", "]", "}") and source.close(index) >= 0 and len(stack) > 1:
            stack.pop()
        found.append(stack[-1])
        if token.text in ("(", "[", "{") and source.close(index) >= 0:
            stack.append(index)
    return found
