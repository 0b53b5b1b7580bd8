"""Runs Metal source on the default device, as the tests of the translator need it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

import mpsgrad as mg
from mpsgrad.devices.contract import CompileOptions, Dispatch, Library

LIBRARY = "#include <metal_stdlib>\nusing namespace metal;\n"
_MARGIN = np.full(1 << 14, 0xA5, np.uint8)
"""What lies behind each array. A kernel that writes there would change what other tests of the process work with."""


@lru_cache(maxsize=2)
def _compiled(device: mg.Device, source: str, of_user: bool) -> Library:
    return device.compile(source, name="test.metal", options=CompileOptions() if of_user else None)


def run(source: str, kernel: str, *arrays: Any, threads: int, of_user: bool = False) -> list[np.ndarray]:
    """Runs ``kernel`` in whole threadgroups of at least ``threads`` threads; returns every array as the kernel left it.

    It is compiled as the package's own kernels are, or with ``of_user`` as a user's. It may not write behind an array.
    """
    device = mg.default_device()
    function = _compiled(device, source, of_user).function(kernel)
    copies = [np.array(array, copy=True, order="C") for array in arrays]
    buffers = []
    for array in copies:
        buffer = device.allocate(array.nbytes + _MARGIN.nbytes)
        buffer.write(array.tobytes() + _MARGIN.tobytes())
        buffers.append(buffer)
    groups = -(-threads // function.threadgroup_size)
    device.submit([Dispatch(function, groups, tuple(buffers))]).wait()
    for index, (buffer, array) in enumerate(zip(buffers, copies, strict=True)):
        behind = buffer.read(array.nbytes, _MARGIN.nbytes)
        assert (behind == _MARGIN).all(), f"{kernel}: wrote behind the {array.nbytes} bytes of argument {index}"
    return [
        buffer.read(0, array.nbytes).view(array.dtype).reshape(array.shape)
        for buffer, array in zip(buffers, copies, strict=True)
    ]


def evaluate(
    body: str,
    *inputs: np.ndarray,
    output: Any = np.float32,
    before: str = "",
    count: int | None = None,
    of_user: bool = False,
    among: Sequence[str] = (),
) -> np.ndarray:
    """What a kernel with this ``body`` writes to ``out[i]``; inputs are ``a``, ``b``, ``c``, ``d`` in order.

    Threads beyond ``count`` (default: the length of the first input) leave before the body. It is one of ``among``,
    which are compiled together: a compiler takes longer for a source than for one small kernel.
    """
    count = count if count is not None else len(inputs[0])
    names = "abcd"
    parameters = [f"device const {metal_type(array.dtype)}* {names[i]}" for i, array in enumerate(inputs)]
    result = np.zeros(count, output)
    parameters += [f"device {metal_type(result.dtype)}* out", "constant uint& count"]
    bodies = among or (body,)
    source = f"{LIBRARY}{before}\n" + "".join(
        f"[[max_total_threads_per_threadgroup(64)]]\nkernel void evaluated_{place}({', '.join(parameters)},"
        " uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]],"
        " uint local_index [[thread_index_in_threadgroup]]) {\n"
        f"{'' if 'barrier' in each or 'simd' in each or 'quad' in each else 'if (i >= count) return;'}\n{each}\n}}\n"
        for place, each in enumerate(bodies)
    )
    arrays = (*inputs, result, np.uint32(count))
    return run(source, f"evaluated_{bodies.index(body)}", *arrays, threads=count, of_user=of_user)[len(inputs)]


def metal_type(dtype: np.dtype) -> str:
    return {
        "float32": "float", "float16": "half", "int8": "char", "uint8": "uchar", "int16": "short", "uint16": "ushort",
        "int32": "int", "uint32": "uint", "int64": "long", "uint64": "ulong",
    }[np.dtype(dtype).name]  # fmt: skip
