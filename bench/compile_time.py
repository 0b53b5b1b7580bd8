"""How long users' sources of 80 to 200 lines take to compile: cold, and again from the cache on disk.

``python -m bench.compile_time`` prints milliseconds, medians of several sources that differ in a constant: for those
in ``user_kernels``, of one to six kernels each, and for one kernel with many statements of vectors. Intel's compiler
takes longest for the last with a ``simd_sum``: each vector of each thread is then part of one of 128 numbers.

"cold" is ``mg.compile`` and the function of the source that takes longest to get; on CPUs the functions of a long
source are compiled at their first use. "all" is ``mg.compile`` and every function.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import mpsgrad as mg
from mpsgrad.msl import translate
from mpsgrad.msl.signature import Target

USER_KERNELS = Path(__file__).parent / "user_kernels"

HEAD = """#include <metal_stdlib>
using namespace metal;

struct Params { uint count; float4 scale; };

template <typename T> T smooth(T x, T y) { return x + (y - x) * T(0.25); }

[[max_total_threads_per_threadgroup(128)]]
kernel void many_lines(device const float4* x [[buffer(0)]],
                       device float4* y [[buffer(1)]],
                       constant Params& params [[buffer(2)]],
                       uint i [[thread_position_in_grid]],
                       uint local_index [[thread_index_in_threadgroup]])
{
    threadgroup float4 shared[128];
    float4 v = i < params.count ? x[i] : float4(0);
    float total = 0;
"""
STATEMENTS = (
    "    v = smooth(v, v.wzyx * params.scale) + float4(%d.5, 1, 2, 3);",
    "    if (any(v > float4(100.0))) { v -= 100.0 * floor(v / 100.0); }",
    "    for (int k = 0; k < 3; k++) { total += exp(-abs(v[k])) * %d; }",
    "    v += normalize(v) * select(float4(1), float4(0.5), v < 0.0);",
    "    total += dot(v.xyz, float3(1, 0, %d));",
    "    v.xy = clamp(v.yx, -1e3, 1e3);",
)
REDUCTION = "    total = simd_sum(total);\n"
TAIL = """    shared[local_index] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    v += shared[127 - local_index];
    if (i < params.count) {
        y[i] = v + total;
    }
}
"""


def source_of(lines: int, variant: int, tail: str) -> str:
    """A kernel of so many lines that ends with ``tail``; ``variant`` makes it another one."""
    count = lines - HEAD.count("\n") - tail.count("\n")
    body = [STATEMENTS[k % len(STATEMENTS)] for k in range(count)]
    numbered = [line % (variant + k) if "%d" in line else line for k, line in enumerate(body)]
    return HEAD + "\n".join(numbered) + "\n" + tail


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--samples", type=int, default=5)
    arguments = parser.parse_args()
    device = mg.default_device()
    print(f"{device.name} ({device.identifier}), milliseconds")
    sources: dict[str, Callable[[int], str]] = {
        "vectors": lambda variant: source_of(arguments.lines, variant, TAIL),
        "vectors, simd_sum": lambda variant: source_of(arguments.lines, variant, REDUCTION + TAIL),
    }
    for file in sorted(USER_KERNELS.glob("*.metal")):
        sources[file.stem] = partial(variant_of, file.read_text())
    for title, source in sources.items():
        for name, values in measured(device, source, arguments.samples).items():
            spread = f"from {min(values):.1f} to {max(values):.1f}"
            print(f"{title:20}{name:12} median {statistics.median(values):8.1f}  {spread}", flush=True)


def variant_of(text: str, variant: int) -> str:
    """Another source for each ``variant``, which the constant ``SCALE`` of a file in ``user_kernels`` depends on."""
    return text.replace("VARIANT", str(variant))


def measured(device: mg.Device, source_of_variant: Callable[[int], str], samples: int) -> dict[str, list[float]]:
    """Milliseconds of each sample by what is measured."""
    target: Target = "cuda" if device.driver == "cuda" else "opencl"
    first = time.time_ns() % 1_000_000
    columns: dict[str, list[float]] = {}
    for sample in range(samples + 1):
        source = source_of_variant(first + 1000 * sample)
        started = time.perf_counter()
        translate(source, target)
        found = {"translation": (time.perf_counter() - started) * 1e3}
        found["cold"], found["all"] = _compiled(source)
        found["cached"], _ = _compiled(source)
        if sample:
            for title, value in found.items():
                columns.setdefault(title, []).append(value)
    return columns


def _compiled(source: str) -> tuple[float, float]:
    """Milliseconds until the function is there that takes longest, and until all are."""
    started = time.perf_counter()
    library = mg.compile(source)
    ends = [started, time.perf_counter()]
    for name in library.function_names:
        library.function(name)
        ends.append(time.perf_counter())
    longest = max(end - start for start, end in pairwise(ends[1:]))
    return (ends[1] - started + longest) * 1e3, (ends[-1] - started) * 1e3


if __name__ == "__main__":
    main()
