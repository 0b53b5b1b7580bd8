"""The types of MLX's arrays: what they are called in Metal, and how NumPy has their numbers."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpsgrad.errors import FormatError
from mpsgrad.runtime.element_types import bfloat_bits


@dataclass(frozen=True, slots=True)
class ArrayType:
    """``name`` in MLX and ``metal`` in a kernel; ``dtype`` is that of the memory, the bits of bfloats in uint16."""

    name: str
    metal: str
    dtype: np.dtype


_TYPES = {
    name: ArrayType(name, metal, np.dtype("uint16" if name == "bfloat16" else name))
    for name, metal in {
        "bool": "bool", "uint8": "uint8_t", "uint16": "uint16_t", "uint32": "uint32_t", "uint64": "uint64_t",
        "int8": "int8_t", "int16": "int16_t", "int32": "int", "int64": "int64_t", "float16": "float16_t",
        "bfloat16": "bfloat16_t", "float32": "float", "complex64": "complex64_t",
    }.items()
}  # fmt: skip
_FROM_WIDER = {"float64": "float32", "complex128": "complex64"}


def array_type(where: str, dtype: Any) -> ArrayType:
    """The type that ``dtype`` is: MLX's, NumPy's, PyTorch's, or a name; raises ``FormatError`` for others."""
    name = dtype if isinstance(dtype, str) else str(dtype).rpartition(".")[2] if not _is_numpy(dtype) else ""
    name = (name or np.dtype(dtype).name).rstrip("_")
    found = _TYPES.get(name)
    if found is None:
        raise FormatError(f"{where} is {dtype!r}; it has to be one of {', '.join(_TYPES)}")
    return found


def _is_numpy(dtype: Any) -> bool:
    return isinstance(dtype, (np.dtype, type))


def is_of_mlx(value: Any) -> bool:
    """Whether ``value`` is an array or a type of MLX, which then has been imported."""
    return type(value).__module__.startswith("mlx.core")


def as_input(where: str, value: Any) -> tuple[np.ndarray, ArrayType]:
    """The memory of ``value``, a number or an array, and its type; raises ``FormatError`` for what is neither."""
    if isinstance(value, (bool, int, float, complex)):
        kind = "bool" if isinstance(value, bool) else "int32" if isinstance(value, int) else "float32"
        kind = "complex64" if isinstance(value, complex) else kind
        try:
            return np.array(value, kind), _TYPES[kind]
        except OverflowError:
            return np.array(value, np.int64), _TYPES["int64"]
    if is_of_mlx(value) and array_type(where, value.dtype).name == "bfloat16":
        return np.asarray(value.view(sys.modules["mlx.core"].uint16)), _TYPES["bfloat16"]
    if not hasattr(value, "__array__") and not hasattr(value, "__dlpack__"):
        raise FormatError(f"{where} is {value!r}; it has to be an array or a number")
    if type(value).__module__.partition(".")[0] == "torch" and str(value.dtype) == "torch.bfloat16":
        return value.detach().view(sys.modules["torch"].uint16).numpy(), _TYPES["bfloat16"]
    array = np.asarray(value)
    if array.dtype.name in _FROM_WIDER:
        array = array.astype(_FROM_WIDER[array.dtype.name])
    kind_of = array_type(where, array.dtype)
    return array.view(kind_of.dtype), kind_of


def filled(shape: tuple[int, ...], kind: ArrayType, value: float) -> np.ndarray:
    """Memory for an output whose elements are ``value``."""
    if kind.name == "bfloat16":
        return np.full(shape, bfloat_bits(np.array(value, np.float32)), np.uint16)
    return np.full(shape, value, kind.dtype)


def require_output(where: str, kind: ArrayType, *, for_mlx: bool) -> None:
    """Raises ``FormatError`` for a type that a result cannot have."""
    if kind.name == "bfloat16" and not for_mlx and _bfloat_of_numpy() is None:
        raise FormatError(f"{where} is bfloat16, which NumPy has only with the package ml_dtypes")


def as_output(array: np.ndarray, kind: ArrayType, *, for_mlx: bool) -> Any:
    """``array`` as an array of MLX or of NumPy."""
    if for_mlx:
        mlx = sys.modules["mlx.core"]
        made = mlx.array(array)
        return made.view(mlx.bfloat16) if kind.name == "bfloat16" else made
    return array.view(_bfloat_of_numpy()) if kind.name == "bfloat16" else array


def _bfloat_of_numpy() -> np.dtype | None:
    try:
        import ml_dtypes
    except ImportError:
        return None
    return np.dtype(ml_dtypes.bfloat16)
