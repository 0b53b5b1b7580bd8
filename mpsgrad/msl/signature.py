"""What a program that runs a kernel has to know about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from mpsgrad.msl.instrument import Instrumentation

AddressSpace = Literal["device", "constant", "threadgroup"]
Target = Literal["opencl", "cuda"]
Launch = Literal["whole", "row", "narrow", "box"]

WIDE_ROWS = 16
"""How many threads run abreast in kernels for which that pays: see ``analysis.sums``."""
PART_MACRO = "PART_MTL"
"""The macro whose value is the number of the only part of a translation that is to be compiled."""
WHOLE = 0
"""The part of functions in a translation that is not divided."""


@dataclass(frozen=True, slots=True)
class FunctionConstant:
    """A program-scope constant that gets its value when the source is compiled; ``type`` is a scalar or vector."""

    name: str
    index: int
    type: str


@dataclass(frozen=True, slots=True)
class HostTensor:
    """A tensor that the host passes: the type of its elements, where these are, the type of its indices, and its
    lengths, the innermost first, None for those that the host tells."""

    element: str
    address_space: AddressSpace
    is_writable: bool
    index_type: str
    lengths: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Argument:
    """One buffer, or one length of threadgroup memory, that a kernel takes.

    ``type`` is the pointee's type as written, without address space and ``const``. ``is_writable`` says that the kernel
    may store through it. ``alias_of`` is the built-in type that ``type`` is the program's own name for, if it is one.
    ``holds_pointers`` says that there are pointers in what it points to, which have to be filled in; ``tensor`` is the
    tensor that it stands for, if it does.
    """

    name: str
    index: int
    address_space: AddressSpace
    type: str
    is_reference: bool
    is_writable: bool
    alias_of: str | None = None
    holds_pointers: bool = False
    tensor: HostTensor | None = None

    @property
    def built_in_type(self) -> str:
        """``type``, or what it stands for."""
        return self.alias_of or self.type


def is_passed_as_number(argument: Argument, launch: Launch) -> bool:
    """Whether an entry point for OpenCL takes an address as a number of 64 bits, which it converts to a pointer.

    The runtime looks after each pointer that a launch takes. A number costs it next to nothing.
    """
    return launch == "whole" and argument.address_space != "threadgroup" and not argument.is_reference


@dataclass(frozen=True, slots=True)
class KernelSignature:
    """A kernel function: ``name`` is what a user looks up, ``entry_point`` its name in the translated source.

    ``arguments`` are ordered by index, buffers before threadgroup memory; the entry point takes them in that order.
    ``threadgroup_size`` is ``[[max_total_threads_per_threadgroup(N)]]``, or None, and ``required_threadgroup``, whose
    product it is then, ``[[required_threads_per_threadgroup(X, Y, Z)]]``. ``line`` is where the kernel's name
    stands in ``file``. ``unset_constants`` are function constants that it uses without asking whether they are defined,
    and that have no value. Its threadgroup variables have ``threadgroup_bytes`` in memory that a launch has to ask for,
    before those of its arguments. ``part`` is the part of the translation that it is in, see ``mpsgrad.msl.parts``. If
    it ``is_wide``, ``WIDE_ROWS`` threads of a threadgroup's rows run abreast, and the rest of a row one by one.
    """

    name: str
    entry_point: str
    arguments: tuple[Argument, ...]
    threadgroup_size: int | None
    line: int
    file: str
    uses_simdgroups: bool
    unset_constants: tuple[str, ...] = ()
    threadgroup_bytes: int = 0
    part: int = WHOLE
    is_wide: bool = False
    required_threadgroup: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Translation:
    """Translated source and the kernels in it, by the name that a user looks up.

    ``instrumentation`` says what the checks in it are, if it was made with checks. ``asks_for_safe_math`` says that it
    is not to be compiled with fast math.
    """

    source: str
    kernels: dict[str, KernelSignature]
    function_constants: tuple[FunctionConstant, ...] = ()
    shifts: dict[tuple[str, int], tuple[tuple[int, int], ...]] = field(default_factory=dict, repr=False, compare=False)
    instrumentation: Instrumentation | None = None
    asks_for_safe_math: bool = False

    def column(self, file: str, line: int, column: int) -> int:
        """The column of the Metal source that ``column`` of the translated line came from."""
        original = column
        for translated, source in self.shifts.get((file, line), ()):
            if translated > column:
                break
            original = source + column - translated
        return max(original, 1)
