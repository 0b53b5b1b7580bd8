"""What a translation needs to know of its target."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence

from mpsgrad.msl.program import Attribute, Kernel, Parameter
from mpsgrad.msl.signature import Argument, Launch, Target
from mpsgrad.msl.tokens import error, spell

VECTOR_TYPE = re.compile(r"(bool|char|uchar|short|ushort|int|uint|long|ulong|half|bfloat|float)([234])$")

INDEX_ATTRIBUTES = frozenset(
    {
        "thread_index_in_threadgroup",
        "thread_index_in_simdgroup",
        "thread_index_in_quadgroup",
        "simdgroup_index_in_threadgroup",
        "quadgroup_index_in_threadgroup",
        "simdgroups_per_threadgroup",
        "quadgroups_per_threadgroup",
        "dispatch_simdgroups_per_threadgroup",
        "dispatch_quadgroups_per_threadgroup",
        "threads_per_simdgroup",
        "thread_execution_width",
    }
)
POSITION_ATTRIBUTES = frozenset(
    {
        "thread_position_in_grid",
        "thread_position_in_threadgroup",
        "threadgroup_position_in_grid",
        "threads_per_grid",
        "threads_per_threadgroup",
        "dispatch_threads_per_threadgroup",
        "threadgroups_per_grid",
    }
)
THREAD_ATTRIBUTES = frozenset(
    {
        "thread_position_in_grid",
        "thread_position_in_threadgroup",
        "thread_index_in_threadgroup",
        "thread_index_in_simdgroup",
        "thread_index_in_quadgroup",
        "simdgroup_index_in_threadgroup",
        "quadgroup_index_in_threadgroup",
    }
)
"""What differs between the threads of a threadgroup."""
SIMD_ATTRIBUTES = frozenset(name for name in INDEX_ATTRIBUTES if name != "thread_index_in_threadgroup")


def position_dimensions(parameter: Parameter, attribute: Attribute) -> int:
    """How many components a position parameter has; raises ``ShaderError`` for a type that Metal refuses."""
    written = spell([token for token in parameter.type if token.text not in ("const", "metal", "::", "thread")])
    scalar = re.fullmatch(r"(?:uint|ushort|uint32_t|uint16_t|unsigned int|unsigned short|unsigned)", written)
    vector = re.fullmatch(r"(?:uint|ushort)([23])|vec<(?:uint|ushort), ?([23])>", written)
    if parameter.is_pointer or parameter.is_reference or (scalar is None and vector is None):
        raise error(f"type '{spell(parameter.type)}' is not valid for attribute '{attribute.name}'", parameter.place)
    dimensions = 1 if vector is None else int(vector[1] or vector[2])
    if dimensions > 1 and attribute.name in INDEX_ATTRIBUTES:
        raise error(f"type '{written}' is not valid for attribute '{attribute.name}'", parameter.place)
    return dimensions


class Backend(ABC):
    """One target's spelling of what Metal says otherwise."""

    target: Target
    address_spaces: dict[str, str]
    reserved: frozenset[str]
    library_names: frozenset[str]
    threadgroup_variable: str
    has_native_constructors: bool
    has_inner_threadgroup_variables: bool
    finds_functions_by_arguments: bool
    """Whether the library's functions on vectors are known only to calls with vectors as arguments."""
    has_wrapping_shifts: bool
    """Whether shift counts are taken modulo the width of what is shifted, as Metal does."""
    has_increments_of_bools: bool
    has_case_ranges: bool
    has_statement_expressions: bool
    has_bit_fields: bool
    regroups_sums: bool
    """Whether the target's compiler adds up in another order in loops, though it is not told that it may."""
    unrolls_too_much: bool
    """Whether the target's compiler takes long to unroll loops that are no faster for it."""
    guards_flow: bool
    """Whether the target's compiler has to see ways past loops in choices, and back into loops, that no thread takes:
    see ``analysis.detours`` and ``analysis.exits``."""
    waits_for_returned: bool
    """Whether threads that have returned have to come to barriers, too, and not only those that go another way."""
    class_scalars: frozenset[str]
    """The scalar types that are classes of the library."""
    most_threadgroup_bytes: int | None = None
    """What a kernel's threadgroup variables may have together, or None; launches ask for the memory of more."""
    is_compiled_in_parts = False
    """Whether the kernels of a long program are compiled one after the other, at their first use."""
    neighbours: Mapping[str, str] = {}
    """By its attribute, what gives a position that is one more in the next of threads that run abreast, at most
    2^31 - 1; nothing for a target whose compiler does not look for such: see ``analysis.neighbours``."""
    knows_wide_rows = False
    """Whether more threads may run abreast than a vector has: see ``analysis.sums``."""
    last_position = ""
    """What gives the position in the grid of the last thread of a threadgroup, along an axis; nothing for a target to
    which masks cost nothing: see ``analysis.guards``."""
    definitions: Mapping[str, str] = {}
    """Macros by which a program can tell the target."""

    @abstractmethod
    def opening(self, library_names: Collection[str], members: Collection[str], launch: Launch) -> str:
        """What stands before the library, given the names used of it and the names behind a dot in the program."""

    @abstractmethod
    def vector_type(self, name: str) -> str:
        """The target's name of a vector type."""

    @abstractmethod
    def pointer(self, argument: Argument) -> str:
        """The declarator of a kernel's buffer argument, before its name."""

    @abstractmethod
    def parameter(self, argument: Argument, type_name: str, name: str, launch: Launch) -> tuple[str, str] | None:
        """The parameter for an argument that is not passed as a pointer, and what declares it in the body, or None."""

    @abstractmethod
    def kernel_head(
        self,
        kernel: Kernel,
        entry_point: str,
        threadgroup_size: int | None,
        is_exact: bool,
        uses_simdgroups: bool,
        has_long_vectors: bool,
        is_wide: bool,
    ) -> str:
        """What stands before the parameters of an entry point that runs in threadgroups of up to so many threads, or
        of exactly so many in a row; ``has_long_vectors`` says that a thread's vectors are as long as registers, and
        ``is_wide`` that ``WIDE_ROWS`` threads are to run abreast."""

    @abstractmethod
    def simdgroup_prologue(self, names: Collection[str]) -> str:
        """The first statements of a kernel that uses these functions and types of simdgroups."""

    @abstractmethod
    def position(self, name: str, dimensions: int, flat: bool, launch: Launch) -> Sequence[str]:
        """The expressions of a position attribute's components; ``flat`` says that threadgroups are rows of threads."""

    @abstractmethod
    def launch_parameter(self, launch: Launch) -> tuple[str, str]:
        """What stands before the program, and an entry point's last parameter, for a kind of launch."""

    @abstractmethod
    def launch_prologue(self, launch: Launch) -> str:
        """The first statements of an entry point, for a kind of launch."""

    @abstractmethod
    def sizes(self, entry_point: str, type_names: Sequence[str]) -> str:
        """An entry point called like another one, with ``SIZES_SUFFIX``, that stores the sizes of ``type_names``."""

    @abstractmethod
    def vector(self, type_name: str, components: Sequence[str]) -> str:
        """An expression that makes a vector of ``components``."""

    @abstractmethod
    def vector_cast(self, type_name: str) -> str:
        """What stands before the brackets of a constructor with several components."""

    @abstractmethod
    def vector_maker(self, type_name: str, packed: bool) -> str:
        """The definition of ``make_<type>_mtl``, the constructor from a scalar, a vector or a packed vector."""

    @abstractmethod
    def number(self, text: str) -> str:
        """A numeric literal in the target's spelling: floating literals without suffix are ``float`` in Metal."""


SWIZZLES = ("xyzw", "rgba")
"""The letters of the components of vectors, of which a swizzle has one kind."""


def is_swizzle(name: str) -> bool:
    """Whether a member's name may stand for components of a vector."""
    return 1 <= len(name) <= 4 and any(set(name) <= set(letters) for letters in SWIZZLES)


def swizzles(members: Collection[str], width: int, vector: str, element: str) -> str:
    """The members of a vector of ``width`` components for the swizzles among ``members``.

    ``vector`` is the type of ``{}`` components of type ``element``.
    """
    found = []
    for name in sorted(members):
        for letters in SWIZZLES:
            if 2 <= len(name) <= 4 and set(name) <= set(letters[:width]):
                places = ", ".join(str(letters.index(letter)) for letter in name)
                found.append(f"swizzle_mtl<{vector.format(len(name))}, {element}, {width}, {places}> {name};")
    return " ".join(found)


_FLOATING = re.compile(
    r"(?:[0-9][0-9']*\.[0-9']*(?:[eE][+-]?[0-9']+)?|\.[0-9][0-9']*(?:[eE][+-]?[0-9']+)?|[0-9][0-9']*[eE][+-]?[0-9']+"
    r"|0[xX][0-9a-fA-F']*\.?[0-9a-fA-F']*[pP][+-]?[0-9]+)(?P<suffix>[fFhH]|bf|BF)?$"
)


def integer_literal(text: str) -> str:
    """An integer literal with the type that Metal has of this size: ``1LL`` is a ``long``."""
    return text.replace("LL", "L").replace("ll", "l")


def floating_literal(text: str) -> tuple[str, str] | None:
    """The digits and the suffix of a floating literal, or None for an integer or what is no number."""
    match = _FLOATING.match(text)
    if match is None:
        return None
    suffix = match["suffix"] or ""
    return (text[: -len(suffix)] if suffix else text), suffix.lower()
