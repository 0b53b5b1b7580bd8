"""What the device can do at most, measured in the same run: the bandwidth of a copy, and the rate of multiply-adds."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import mpsgrad as mg
from bench.case import TorchCall, Work
from bench.inputs import RandomArray, empty_image
from bench.timing import Timer

COPY_BYTES = {"cpu": 64 << 20, "gpu": 1 << 30}
MATRIX_SIZE = {"cpu": 1536, "gpu": 8192}
CHAINS, ROUNDS, THREADS_PER_UNIT, ASSUMED_UNITS = 8, 4096, 2048, 40
TRIES = 5


def copy_bandwidth(device: mg.Device, where: Any, timer: Timer, hardware: str, samples: int) -> float:
    """GB/s, read plus written, of a plain copy by a kernel of this package or by PyTorch, whichever is faster."""
    shape = (1, COPY_BYTES[hardware] // (4 * 64 * 1024), 1024, 64)
    numbers = RandomArray(shape, "float32")
    source, destination = numbers.image(device), empty_image(shape, "float32", device)
    kernel = mg.NeuronLinear(1.0, 0.0, device=device)
    work = Work(
        partial(kernel.encode, source_image=source, destination_image=destination),
        lambda: {"result": destination},
        lambda: [],
    )
    calls = {}
    if where is not None:
        tensor = numbers.tensor(where)
        calls["copy"] = TorchCall(tensor.new_empty(tensor.shape).copy_, (tensor,), lambda returned: {})
    result = timer.measure(work, calls, samples, seconds=5.0).repeated
    fastest = min(ms for ms in (result.median_ms, result.torch_ms) if ms is not None)
    return 2 * numbers.nbytes / (fastest * 1e-3) / 1e9


def arithmetic_peaks(device: mg.Device, where: Any, hardware: str) -> dict[str, float]:
    """TFLOP/s by dtype: float32 the rate of multiply-adds or of PyTorch's matrix product, whichever is higher; float16
    that of PyTorch's matrix product on a GPU, which runs on matrix units."""
    peaks = {"float32": _multiply_add_rate(device)}
    if where is not None:
        dtypes = ("float32", "float16") if hardware == "gpu" else ("float32",)
        for dtype in dtypes:
            peaks[dtype] = max(peaks.get(dtype, 0.0), _matrix_product_rate(where, dtype, MATRIX_SIZE[hardware]))
    return peaks


def _multiply_add_rate(device: mg.Device) -> float:
    function = mg.compile(Path(__file__).parent / "multiply_add.metal", device=device).function("multiply_add")
    threads = THREADS_PER_UNIT * (device.compute_units or ASSUMED_UNITS)
    results = mg.Vector(threads, device)
    shortest = float("inf")
    for _ in range(TRIES):
        started = time.perf_counter()
        run = function(threads, results, ROUNDS, 0.5)
        shortest = min(shortest, run.gpu_time or time.perf_counter() - started)
    return 2 * CHAINS * ROUNDS * threads / shortest / 1e12


def _matrix_product_rate(where: Any, dtype: str, size: int) -> float:
    import torch

    a = torch.from_numpy(np.random.default_rng(0).standard_normal((size, size), np.float32))
    a = a.to(where).to(getattr(torch, dtype))
    b, shortest = a.clone(), float("inf")
    for _ in range(TRIES):
        _wait(where)
        started = time.perf_counter()
        torch.mm(a, b)
        _wait(where)
        shortest = min(shortest, time.perf_counter() - started)
    return 2 * size**3 / shortest / 1e12


def _wait(where: Any) -> None:
    import torch

    if where.type == "cuda":
        torch.cuda.synchronize(where)
