"""What kernel functions use, themselves and in functions that they call, as far as names tell: overloads are one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise

from mpsgrad.msl.backend import SIMD_ATTRIBUTES
from mpsgrad.msl.program import Kernel, Program
from mpsgrad.msl.tokens import IDENTIFIER
from mpsgrad.msl.type_names import type_names

_LONG = ("8", "16")
_SIMD_NAME = re.compile(r"(?:simd_|quad_|simdgroup_)\w+$")

Range = tuple[int, int]


class Reach:
    """What the kernel functions of one program use. ``functions_passed`` are functions that are template arguments."""

    def __init__(self, program: Program, functions_passed: set[str]) -> None:
        self._program = program
        self._tokens = program.tokens
        self._functions_passed = functions_passed
        self._of_bodies: dict[int, tuple[set[str], list[Range]]] = {}

    def simd_names(self, kernel: Kernel) -> set[str]:
        """The functions and types of simdgroups and quadgroups that ``kernel`` uses."""
        return {name for name in self._of_body(kernel)[0] if _SIMD_NAME.match(name)}

    def uses_simdgroups(self, kernel: Kernel) -> bool:
        """Whether ``kernel`` uses functions or types of simdgroups, or asks for a position in one."""
        return bool(self.simd_names(kernel)) or any(
            attribute.name in SIMD_ATTRIBUTES for parameter in kernel.parameters for attribute in parameter.attributes
        )

    def has_long_vectors(self, kernel: Kernel) -> bool:
        """Whether ``kernel`` uses a vector type of the program's own with so many elements as registers hold."""
        return not self._long_vectors.isdisjoint(self._of_body(kernel)[0])

    @cached_property
    def _long_vectors(self) -> set[str]:
        """The names of such types, as in ``typedef float Eight __attribute__((ext_vector_type(8)))``."""
        return {
            each.name.text
            for each in type_names(self._tokens)
            for word, _, elements in zip(each.meaning, each.meaning[1:], each.meaning[2:], strict=False)
            if word.text == "ext_vector_type" and elements.text in _LONG
        }

    def tokens(self, kernel: Kernel) -> int:
        """The tokens of the bodies of ``kernel`` and of what it calls, each counted once."""
        return sum(end - start for start, end in self._of_body(kernel)[1])

    def names_and_constants(self, kernel: Kernel) -> set[str]:
        """The names that ``kernel`` uses, also in what the constants at program scope are made of."""
        tokens = self._tokens
        variables: dict[str, list[Range]] = {}
        for start, stop in self._program.variables:
            for token, following in pairwise(tokens[start:stop]):
                if token.kind == IDENTIFIER and following.text in ("=", "[", "{", ";", ","):
                    variables.setdefault(token.text, []).append((start, stop))
                    break
        return self._named([(kernel.start, kernel.body_close)], variables)[0]

    def may_recurse(self) -> bool:
        """Whether a function calls itself, or one of its name."""
        functions = self._program.functions
        calls: dict[str, set[str]] = {}
        for name, bodies in functions.items():
            calls[name] = {
                token.text
                for start, end in bodies
                for token, following in pairwise(self._tokens[start:end])
                if token.kind == IDENTIFIER and token.text in functions and following.text in ("(", "<")
            }
        while True:
            leaves = {name for name, called in calls.items() if not called}
            if not leaves:
                return bool(calls)
            calls = {name: called - leaves for name, called in calls.items() if name not in leaves}

    def _of_body(self, kernel: Kernel) -> tuple[set[str], list[Range]]:
        """What ``_named`` gives for the body of ``kernel`` and the functions that it may be made for."""
        found = self._of_bodies.get(kernel.start)
        if found is None:
            parts = [(kernel.body_open, kernel.body_close)]
            if any(parameter.is_function or parameter.names_function for parameter in kernel.template or ()):
                parts += [body for name in self._functions_passed for body in self._program.functions.get(name, ())]
            found = self._of_bodies[kernel.start] = self._named(parts, {})
        return found

    def _named(self, parts: Iterable[Range], variables: Mapping[str, Sequence[Range]]) -> tuple[set[str], list[Range]]:
        """The names and other tokens in ``parts`` of the program, in the functions that these name, and in such
        ``variables``; and where they are.

        An operator is named by its last token, ``()`` by each bracket: objects are called by names of their own.
        """
        names: set[str] = set()
        ranges: list[Range] = []
        todo = [*parts, *self._program.implicit]
        while todo:
            start, end = todo.pop()
            ranges.append((start, end))
            for token in self._tokens[start:end]:
                if token.text not in names:
                    names.add(token.text)
                    todo += self._program.functions.get(token.text, ())
                    todo += variables.get(token.text, ())
        return names, ranges
