"""Versions of the language: what each has come with, and the macros that tell a program which one it is compiled as."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mpsgrad.msl.tokens import IDENTIFIER, NUMBER, Token, error, matching

DEFAULT = "230"
LANGUAGE_VERSIONS = ("2.0", "2.1", "2.2", "2.3", "2.4", "3.0", "3.1", "3.2", "4.0")

_CAME_WITH = {
    (2, 4): """
        simd_shuffle_and_fill_down simd_shuffle_and_fill_up quad_shuffle_and_fill_down quad_shuffle_and_fill_up
        atomic atomic_bool atomic_ulong atomic_max_explicit atomic_min_explicit
    """,
    (3, 0): "atomic_float",
    (3, 1): """
        bfloat bfloat2 bfloat3 bfloat4 packed_bfloat2 packed_bfloat3 packed_bfloat4 simdgroup_bfloat8x8 MAXBFLOAT
        HUGE_VALBF M_E_BF M_LOG2E_BF M_LOG10E_BF M_LN2_BF M_LN10_BF M_PI_BF M_PI_2_BF M_PI_4_BF M_1_PI_BF M_2_PI_BF
        M_2_SQRTPI_BF M_SQRT2_BF M_SQRT1_2_BF
    """,
    (3, 2): """
        atomic_thread_fence memory_order_seq_cst thread_scope thread_scope_thread thread_scope_simdgroup
        thread_scope_threadgroup thread_scope_device coherent os_log os_log_default
    """,
    (4, 0): """
        required_threads_per_threadgroup user_annotation tensor_handle tensor_inline tensor_offset cooperative_tensor
        matmul2d matmul2d_descriptor execution_thread execution_simdgroup execution_simdgroups convolution2d
        convolution2d_descriptor
    """,
}
CPP_17 = (4, 0)
TENSORS = (4, 0)
_FEATURES = {
    (2, 0): "__HAVE_SIMDGROUP_BARRIER__",
    (2, 1): "__HAVE_SIMDGROUP_BALLOT__ __HAVE_SIMDGROUP_REDUCTION__",
    (2, 3): "__HAVE_SIMDGROUP_MATRIX__",
    (3, 1): "__HAVE_BFLOAT__",
    TENSORS: "__HAVE_TENSOR__",
}
"""The macros by which Apple's headers say what there is, which sources ask for in place of the version."""
_VERSIONS = {name: version for version, names in _CAME_WITH.items() for name in names.split()}
RECURSION = (2, 4)
_LAMBDAS = (3, 2)
_BFLOAT_LITERALS = (3, 1)
_COHERENT = ["(", "device", ")"]
_STATEMENT_WORDS = frozenset({"return", "typedef", "const", "else", "case", "throw", "device", "constant", "thread"})


def version_of(macro: str) -> tuple[int, int]:
    """The version whose ``__METAL_VERSION__`` is ``macro``."""
    number = int(macro)
    return number // 100, number // 10 % 10


def macros(version: str) -> dict[str, str]:
    """The macros of a version, given its ``__METAL_VERSION__``; up to 2.4 they say macOS, later only Metal."""
    number = version_of(version)
    features = [name for needed, names in _FEATURES.items() if number >= needed for name in names.split()]
    system = "__METAL__" if number >= (3, 0) else "__METAL_MACOS__"
    standard = {"__cplusplus": "201703L"} if number >= CPP_17 else {}
    return {"__METAL_VERSION__": version, **standard, **dict.fromkeys((system, *features), "1")}


def came_with(name: str) -> tuple[int, int] | None:
    """The version that the library's ``name`` came with, if that is one after 2.0."""
    return _VERSIONS.get(name)


def later_names(version: tuple[int, int]) -> frozenset[str]:
    """The names of the library that ``version`` does not have."""
    return frozenset(name for name, needed in _VERSIONS.items() if needed > version)


def without_coherence(tokens: list[Token], version: tuple[int, int]) -> list[Token]:
    """``tokens`` without ``coherent(device)``, which asks for what all memory is here.

    Raises ``ShaderError`` if ``version`` does not have it.
    """
    dropped: set[int] = set()
    for index, token in enumerate(tokens[:-3]):
        if token.text == "coherent" and [each.text for each in tokens[index + 1 : index + 4]] == _COHERENT:
            if version < _VERSIONS["coherent"]:
                raise error(_message("'coherent'", _VERSIONS["coherent"], version), token)
            dropped.update(range(index, index + 4))
    return [token for index, token in enumerate(tokens) if index not in dropped] if dropped else tokens


def refuse_newer(tokens: Sequence[Token], version: tuple[int, int]) -> None:
    """Raises ``ShaderError`` at the first thing that a later version than ``version`` came with.

    Names that the program declares itself are its own.
    """
    own: set[str] | None = None
    for index, token in enumerate(tokens):
        if token.kind == IDENTIFIER:
            needed = _VERSIONS.get(token.text)
            if needed is None or needed <= version:
                continue
            if tokens[index - 1].text in (".", "->") or token.text == "coherent" and tokens[index + 1].text != "(":
                continue
            if token.text == "atomic" and tokens[index + 1].text != "<":
                continue
            own = _declared(tokens) if own is None else own
            if token.text not in own:
                raise error(_message(f"'{token.text}'", needed, version), token)
        elif token.kind == NUMBER and version < _BFLOAT_LITERALS and re.search(r"[0-9.]bf$", token.text, re.IGNORECASE):
            if not token.text.lower().startswith("0x"):
                raise error(_message(f"'{token.text}'", _BFLOAT_LITERALS, version), token)
        elif token.text == "[" and version < _LAMBDAS and _begins_lambda(tokens, index):
            raise error(_message("a lambda expression", _LAMBDAS, version), token)


def _message(what: str, needed: tuple[int, int], version: tuple[int, int]) -> str:
    needed_text, version_text = (".".join(map(str, each)) for each in (needed, version))
    return f"{what} needs Metal {needed_text} or later, and this is compiled as {version_text}; see language_version"


def _declared(tokens: Sequence[Token]) -> set[str]:
    """The names among those of later versions that the program declares."""
    found = set()
    for index in range(1, len(tokens) - 1):
        if tokens[index].text not in _VERSIONS:
            continue
        before, after = tokens[index - 1], tokens[index + 1].text
        if before.text in ("struct", "class", "union", "enum", "typename", "using", "namespace"):
            found.add(tokens[index].text)
        elif after in ("(", ";", "=", ",", ")", "[", "{"):
            is_word = before.kind == IDENTIFIER and before.text not in _STATEMENT_WORDS
            if is_word or before.text in ("*", "&", "}") or (before.text == ">" and after != "("):
                found.add(tokens[index].text)
    return found


def _begins_lambda(tokens: Sequence[Token], index: int) -> bool:
    before = tokens[index - 1] if index else None
    if before is not None and (
        before.text in (")", "]", ">", "[") or before.kind == IDENTIFIER and before.text not in ("return", "case")
    ):
        return False
    if index + 1 < len(tokens) and tokens[index + 1].text == "[":
        return False
    after = matching(tokens, index) + 1
    return after < len(tokens) and tokens[after].text in ("(", "{")
