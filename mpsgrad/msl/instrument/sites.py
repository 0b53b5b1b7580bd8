"""What is known of an instrumented program: the places that report, and the names of what they report on."""

from __future__ import annotations

from dataclasses import dataclass, field

from mpsgrad.msl.backend import SWIZZLES
from mpsgrad.msl.tokens import Token

THREADGROUP_NAMES = 64
CONSTANT_NAMES = 1 << 16
OWN_NAMES = 1 << 17
"""What the numbers of threadgroup variables, of tables of constants and of variables of a thread's own start from;
those of buffers are positions."""


@dataclass(frozen=True, slots=True)
class Site:
    """A place of the Metal source that reports; ``text`` is the array or the call that it is about, ``part`` what the
    source calls a part of a thread's own variable there."""

    file: str
    line: int
    column: int
    text: str
    part: str = ""


@dataclass(slots=True)
class Woven:
    """What was found while checks were put in.

    ``members`` are the names in paths, ``threadgroup`` those of threadgroup variables and arguments by their numbers,
    ``threadgroup_arguments`` those of arguments alone, by numbers of their own, ``own`` those of variables of a
    thread's own.
    """

    sites: list[Site] = field(default_factory=list)
    lane_sites: int = 0
    members: set[str] = field(default_factory=set)
    threadgroup: list[str] = field(default_factory=list)
    threadgroup_arguments: list[str] = field(default_factory=list)
    own: list[str] = field(default_factory=list)
    not_understood: list[Token] = field(default_factory=list)


def member_template(name: str, spelling: str) -> str:
    """The template that tells where a member called ``name`` lies, or which components of a vector it means.

    ``spelling`` is the member's name in the translation.
    """
    text = (
        f"template <typename T> struct member_{name}_mtl {{ typedef decltype(((T *)0)->{spelling}) type;"
        f" static constexpr uint offset = __builtin_offsetof(T, {spelling}), mask = 0, unit = 0; }};\n"
    )
    for letters in SWIZZLES:
        if 1 <= len(name) <= 4 and set(name) <= set(letters):
            mask = sum({1 << letters.index(letter) for letter in name})
            return text + (
                f"template <typename E, int N> struct member_{name}_mtl<vec_mtl<E, N>> {{ typedef E type;"
                f" static constexpr uint offset = 0, mask = {mask}, unit = sizeof(E); }};\n"
            )
    return text
