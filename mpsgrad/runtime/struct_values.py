"""Values for members of structs, from mappings."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mpsgrad.errors import FormatError, with_article
from mpsgrad.runtime.arguments import shown
from mpsgrad.runtime.element_types import fitting


def struct_by_value(where: str, type_name: str, dtype: np.dtype | None, value: Any) -> np.ndarray:
    """``value``, a mapping for a struct or else numbers, as a scalar or an array of ``dtype``, that of ``type_name``.

    Raises ``FormatError`` if it does not fit, or if there is no dtype.
    """
    kind = with_article(type_name)
    if dtype is None or (dtype.names is not None and not isinstance(value, Mapping)):
        named = f"a dict with {', '.join(dtype.names)}, or " if dtype is not None and dtype.names else ""
        raise FormatError(
            f"{where} is {shown(value)}; {kind} has to be {named}a NumPy scalar or array of a dtype with its layout"
        )
    return from_numbers(where, dtype, value) if dtype.names is None else from_mapping(where, dtype, value)


def from_mapping(where: str, dtype: np.dtype, values: Mapping[str, Any]) -> np.ndarray:
    """A structured scalar of ``dtype`` with a value for each of its members, in which those of structs are mappings.

    Raises ``FormatError`` for members that are missing or too many, and for values that do not fit.
    """
    assert dtype.names is not None and dtype.fields is not None
    for given in values:
        if given not in dtype.names:
            raise FormatError(f"{where} has no member {given!r}; it has {', '.join(dtype.names)}")
    missing = [name for name in dtype.names if name not in values]
    if missing:
        raise FormatError(f"{where}: no value is given for {', '.join(missing)}")
    made = np.zeros((), dtype)
    for name in dtype.names:
        member, value = dtype.fields[name][0], values[name]
        made[name] = of_member(f"{where}.{name}", member, value)
    return made


def of_member(where: str, dtype: np.dtype, value: Any) -> np.ndarray:
    """``value`` for a member of ``dtype``; a sequence of mappings fills an array of structs."""
    if dtype.names is not None and isinstance(value, Mapping):
        return from_mapping(where, dtype, value)
    if dtype.base.names is None or not dtype.shape or not _holds_mappings(value):
        return from_numbers(where, dtype, value)
    if len(value) != dtype.shape[0]:
        raise FormatError(f"{where} has {len(value)} values; it has to have {dtype.shape[0]}")
    inner = np.dtype((dtype.base, dtype.shape[1:]))
    return np.array([of_member(f"{where}[{place}]", inner, each) for place, each in enumerate(value)], dtype.base)


def _holds_mappings(value: Any) -> bool:
    is_sequence = isinstance(value, Sequence) and not isinstance(value, str)
    return is_sequence and any(isinstance(each, Mapping) or _holds_mappings(each) for each in value)


def from_numbers(where: str, dtype: np.dtype, value: Any) -> np.ndarray:
    """``value`` as a scalar or an array of the shape that ``dtype`` has; raises ``FormatError`` if it does not fit."""
    made = fitting(value, dtype.base, dtype.shape)
    if made is None:
        shape = f" of shape {'x'.join(map(str, dtype.shape))}" if dtype.shape else ""
        kind = "struct" if dtype.base.names is not None else dtype.base
        raise FormatError(f"{where} is {reprlib.repr(value)}; it has to be {with_article(kind)}{shape}")
    return made
