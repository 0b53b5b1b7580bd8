"""What of metal_stdlib is no function of elements: matrices, packed vectors, atomics, barriers, layouts of types."""

# Rows of a table are easier to read on one line each.
# ruff: noqa: E501
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from metal_samples import DTYPES, FLOATS, INTEGERS
from ulps import FORMATS, errors

import mpsgrad as mg

Arrays = Sequence[np.ndarray]


@dataclass(frozen=True)
class Probe:
    """A kernel that uses ``names`` of the library on ``types``, what it is given, and the error of what it leaves.

    ``arguments()`` are fresh arrays; ``error(arguments)`` looks at them after the run, in units in the last place.
    """

    kernel_name: str
    section: str
    names: tuple[str, ...]
    types: tuple[str, ...]
    source: str
    threads: int
    threadgroup: int
    arguments: Callable[[], Arrays]
    error: Callable[[Arrays], float]
    bound: float = 0.0

    def run(self, library: mg.KernelLibrary) -> float:
        """The error of what the kernel gives, which is compiled in ``library``."""
        arguments = self.arguments()
        library.function(self.kernel_name)(self.threads, *arguments, threadgroup=self.threadgroup)
        return self.error(arguments)


def _exact(got: np.ndarray, wanted: np.ndarray) -> float:
    return 0.0 if np.array_equal(got, np.asarray(wanted).astype(got.dtype).reshape(got.shape)) else np.inf


# Matrices. Metal's floatCxR has C columns and R rows; here it is an array of columns.

MATRICES = 48


def _matrix_source(t: str, c: int, r: int) -> str:
    name, turned, other = f"{t}{c}x{r}", f"{t}{r}x{c}", "half" if t == "float" else "float"
    elements = c * r
    columns = ", ".join(f"{t}{r}({', '.join(f'a[{k * r + j}]' for j in range(r))})" for k in range(c))
    singles = ", ".join(f"b[{k}]" for k in range(elements))
    vector = f"{t}{c} v = {t}{c}({', '.join(f'd[{k}]' for k in range(c))});"
    covector = f"{t}{r} w = {t}{r}({', '.join(f'd[{4 + k}]' for k in range(r))});"
    loop = f"for (uint k = 0; k < {c}; k++) for (uint j = 0; j < {r}; j++)"
    turned_loop = f"for (uint k = 0; k < {r}; k++) for (uint j = 0; j < {c}; j++)"
    square_loop = f"for (uint k = 0; k < {r}; k++) for (uint j = 0; j < {r}; j++)"
    place = f"k * {r} + j"
    results = {
        "A * v": f"{t}{r} q = A * v; for (uint j = 0; j < {r}; j++) o[j] = q[j];",
        "w * A": f"{t}{c} q = w * A; for (uint j = 0; j < {c}; j++) o[j] = q[j];",
        "A * transpose(B)": f"{t}{r}x{r} q = A * transpose(B); {square_loop} o[{place}] = q[k][j];",
        "transpose(A)": f"{turned} q = transpose(A); {turned_loop} o[k * {c} + j] = q[k][j];",
        "A + B": f"{name} q = A + B; {loop} o[{place}] = q[k][j];",
        "A - B": f"{name} q = A - B; {loop} o[{place}] = q.columns[k][j];",
        "-A": f"{name} q = -A; {loop} o[{place}] = q[k][j];",
        "A * s": f"{name} q = A * d[0]; {loop} o[{place}] = q[k][j];",
        "s * A": f"{name} q = d[1] * A; {loop} o[{place}] = q[k][j];",
        "in place": f"{name} q = A; q += B; q -= A; q *= d[2]; {loop} o[{place}] = q[k][j];",
        "diagonal": f"matrix<{t}, {c}, {r}> q = {name}(d[3]); {loop} o[{place}] = q[k][j];",
        "columns": f"{name} q = A; q[{c - 1}] = w; q[0][1] = d[0]; q[0].x += d[1]; {loop} o[{place}] = q[k][j];",
        "converted": f"{name} q = {name}({other}{c}x{r}(A)); {loop} o[{place}] = q[k][j];",
    }
    if c == r:
        results["determinant(A)"] = "o[0] = determinant(A);"
    blocks = "".join(f"    {{ device {t}* o = out + {16 * k}; {text} }}\n" for k, text in enumerate(results.values()))
    return (
        f"kernel void matrix_{name}(device const {t}* as, device const {t}* bs, device const {t}* ds, device {t}* outs,\n"
        f"    uint i [[thread_position_in_grid]])\n{{\n"
        f"    if (i >= {MATRICES}) return;\n"
        f"    device const {t}* a = as + i * {elements};\n    device const {t}* b = bs + i * {elements};\n"
        f"    device const {t}* d = ds + i * 8;\n    device {t}* out = outs + i * {16 * 14};\n"
        f"    {name} A = {name}({columns});\n    {name} B = {name}({singles});\n    {vector} {covector}\n{blocks}}}\n"
    )


def _matrix_probe(t: str, c: int, r: int) -> Probe:
    dtype, form = DTYPES[t], FORMATS[t]

    def arguments() -> Arrays:
        generator = np.random.default_rng(c * 10 + r)
        drawn = [generator.normal(size=shape).astype(dtype) for shape in ((MATRICES, c, r), (MATRICES, c, r), (MATRICES, 8))]
        return [*drawn, np.zeros((MATRICES, 14, 16), dtype)]

    def error(arrays: Arrays) -> float:
        a, b, d = (each.astype(np.float64) for each in arrays[:3])
        v, w, s = d[:, :c], d[:, 4 : 4 + r], d[:, :, None, None]
        changed = a.copy()
        changed[:, c - 1] = w
        changed[:, 0, 1] = d[:, 0]
        changed[:, 0, 0] += d[:, 1]
        eye = np.eye(c, r)
        size = np.abs
        half = a.astype(np.float16).astype(np.float64)
        # Each result with the magnitudes of the terms that it is a sum of.
        wanted = [
            (np.einsum("nkj,nk->nj", a, v), np.einsum("nkj,nk->nj", size(a), size(v))),
            (np.einsum("nkj,nj->nk", a, w), np.einsum("nkj,nj->nk", size(a), size(w))),
            (np.einsum("nkj,nki->nij", a, b), np.einsum("nkj,nki->nij", size(a), size(b))),
            (a.transpose(0, 2, 1), None), (a + b, None), (a - b, None), (-a, None), (a * s[:, 0], None), (a * s[:, 1], None),
            (b * s[:, 2], (2 * size(a) + size(b)) * size(s[:, 2])), (eye * s[:, 3], None), (changed, None), (half, None),
        ]  # fmt: skip
        if c == r:
            wanted.append((np.linalg.det(a), np.array([_permanent(size(each)) for each in a])))
        worst = 0.0
        for k, (exact, scale) in enumerate(wanted):
            flat = exact.reshape(MATRICES, -1)
            got = arrays[3][:, k, : flat.shape[1]]
            level = None if scale is None else scale.reshape(flat.shape)
            worst = max(worst, float(errors(got, flat, form, level).max()))
        return worst

    names = (f"{t}{c}x{r}", "matrix", "transpose", *(("determinant",) if c == r else ()))
    return Probe(f"matrix_{t}{c}x{r}", "matrix", names, (f"{t}{c}x{r}",), _matrix_source(t, c, r), MATRICES, 32, arguments, error, 3.0)


def _permanent(m: np.ndarray) -> float:
    if len(m) == 1:
        return float(m[0, 0])
    rest = np.delete(m, 0, axis=0)
    return float(sum(m[0, k] * _permanent(np.delete(rest, k, axis=1)) for k in range(len(m))))


MATRIX_PROBES = [_matrix_probe(t, c, r) for t in FLOATS for c in (2, 3, 4) for r in (2, 3, 4)]


# Matrices of a simdgroup.


def _simdgroup_matrix_probe(t: str) -> Probe:
    dtype, form = DTYPES[t], FORMATS[t]
    kind = f"simdgroup_{t}8x8"
    source = f"""kernel void simdgroup_matrix_{t}(device const {t}* a, device const {t}* b, device {t}* out, uint i [[thread_position_in_grid]])
{{
    threadgroup {t} shared[64];
    {kind} x, y, z, q;
    simdgroup_load(x, a, 24, ulong2(8, 3));
    simdgroup_load(y, b, 24, ulong2(1, 2), true);
    simdgroup_matrix<{t}, 8, 8> filled = make_filled_simdgroup_matrix<{t}, 8, 8>(0.5);
    simdgroup_multiply(z, x, y);
    simdgroup_store(z, out, 8);
    simdgroup_multiply_accumulate(q, x, y, filled);
    simdgroup_store(q, out + 64);
    simdgroup_store(x * y, out + 128, 8, ulong2(0, 0), true);
    simdgroup_store({kind}(3.0), out + 192, 8);
    simdgroup_store(x, shared, 8);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_load(y, shared, 8, ulong2(0, 0), true);
    y.thread_elements()[0] += 1;
    simdgroup_store(y, out + 256, 8);
}}
"""

    def arguments() -> Arrays:
        generator = np.random.default_rng(8)
        return [*generator.normal(size=(2, 12, 24)).astype(dtype), np.zeros((5, 8, 8), dtype)]

    def error(arrays: Arrays) -> float:
        x = arrays[0].astype(np.float64)[3:11, 8:16]
        y = arrays[1].astype(np.float64)[2:10, 1:9].T
        lane = np.arange(32)
        row, column = (lane >> 4 & 1) * 4 + (lane >> 1 & 3), (lane >> 3 & 1) * 4 + (lane & 1) * 2
        changed = x.T.copy()
        changed[row, column] += 1
        scale = np.abs(x) @ np.abs(y) + 0.5
        wanted = [(x @ y, scale), (x @ y + 0.5, scale), ((x @ y).T, scale.T), (3 * np.eye(8), None), (changed, None)]
        return max(float(errors(got, exact, form, level).max()) for got, (exact, level) in zip(arrays[2], wanted, strict=True))

    names = (kind, "simdgroup_matrix", "simdgroup_load", "simdgroup_store", "simdgroup_multiply", "simdgroup_multiply_accumulate", "make_filled_simdgroup_matrix")
    return Probe(f"simdgroup_matrix_{t}", "simdgroup matrix", names, (kind,), source, 32, 32, arguments, error, 3.0)


# Packed vectors.

PACKED = 96


def _packed_probe(t: str, n: int) -> Probe:
    name, dtype, components = f"packed_{t}{n}", DTYPES[t], "xyzw"[:n]
    bitwise = f"    r <<= q; r |= p; r = ~(~r & w) ^ (p % {t}{n}({t}(3)));\n" if t in INTEGERS else ""
    source = f"""kernel void {name}_(device const {name}* a, device const {t}* b, device {name}* out, uint i [[thread_position_in_grid]])
{{
    if (i >= {PACKED}) return;
    packed_vec<{t}, {n}> p = a[i];
    {name} q = {name}({", ".join(f"b[{n} * i + {k}]" for k in range(n))}), z = {name}({t}{n}({t}(2)));
    {t}{n} v = p, w = {t}{n}(q);
    out[8 * i] = p + q;
    out[8 * i + 1] = p - w;
    out[8 * i + 2] = v * q;
    out[8 * i + 3] = p / z;
    {name} r = p;
    r += q; r -= w; r *= z; r[0] = p[{n - 1}]; r.{components[-1]} = b[{n} * i];
{bitwise}    out[8 * i + 4] = r;
    out[8 * i + 5] = {t}{n}(p) + {t}(3);
    out[8 * i + 6] = p * {t}(2);
    out[8 * i + 7] = -v;
}}
"""

    def arguments() -> Arrays:
        generator = np.random.default_rng(n)
        drawn = generator.integers(0, 8, size=(2, PACKED, n)).astype(dtype)
        return [*drawn, np.zeros((PACKED, 8, n), dtype)]

    def error(arrays: Arrays) -> float:
        p, q, got = arrays
        two, wide = dtype(2), np.int64 if t not in FLOATS else np.float64
        changed = (p * two).astype(dtype)
        changed[:, 0], changed[:, -1] = p[:, -1], q[:, 0]
        half = p // two if t in INTEGERS else p / two
        if t in INTEGERS:
            changed = (changed << (q & dtype(np.dtype(dtype).itemsize * 8 - 1)) | p).astype(dtype)
            changed = ~(~changed & q) ^ (p % dtype(3))
        wanted = [p + q, p.astype(wide) - q, p * q, half, changed, p + dtype(3), p * two, -p.astype(wide)]
        return max(_exact(got[:, k], np.asarray(each).astype(dtype)) for k, each in enumerate(wanted))

    return Probe(f"{name}_", "packed vector", (name, "packed_vec"), (name,), source, PACKED, 32, arguments, error)


PACKED_PROBES = [_packed_probe(t, n) for t in (*FLOATS, *INTEGERS) for n in (2, 3, 4)]


# Atomics.

ATOMIC_THREADS, ATOMIC_GROUP = 512, 128
_FETCH: dict[str, tuple[int, Callable[[np.ndarray], int]]] = {
    "add": (5, lambda x: 5 + int(x.sum())), "sub": (9, lambda x: 9 - int(x.sum())), "max": (3, lambda x: max(3, int(x.max()))),
    "min": (9999, lambda x: min(9999, int(x.min()))), "and": (8191, lambda x: 8191 & int(np.bitwise_and.reduce(x | 7))),
    "or": (64, lambda x: 64 | int(np.bitwise_or.reduce(x))), "xor": (77, lambda x: 77 ^ int(np.bitwise_xor.reduce(x))),
}  # fmt: skip


def _atomic_probe(t: str, space: str) -> Probe:
    dtype, kind = DTYPES[t], f"atomic_{t}"
    counters = len(_FETCH) + 3
    order = "memory_order_relaxed"
    fetches = "".join(
        f"    old[{k} * {ATOMIC_THREADS} + i] = atomic_fetch_{name}_explicit(c + {k}, {'x | 7' if name == 'and' else 'x'}, {order});\n"
        for k, name in enumerate(_FETCH)
    )
    n = len(_FETCH)
    declared = f"    threadgroup {kind} shared[{counters}];\n    threadgroup {kind}* c = shared;\n" if space == "threadgroup" else f"    device {kind}* c = counters;\n"
    source = f"""kernel void {kind}_{space}(device const {t}* values, device {kind}* counters, device {t}* old,
    uint i [[thread_position_in_grid]], uint local [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]])
{{
    {t} x = values[i];
{declared}"""
    if space == "threadgroup":
        source += f"    if (local < {counters}) atomic_store_explicit(c + local, atomic_load_explicit(counters + group * {counters} + local, {order}), {order});\n    threadgroup_barrier(mem_flags::mem_threadgroup);\n"
    source += f"""{fetches}    old[{n} * {ATOMIC_THREADS} + i] = atomic_exchange_explicit(c + {n}, {t}(i + 1), {order});
    {t} seen = atomic_load_explicit(c + {n + 1}, {order});
    while (!atomic_compare_exchange_weak_explicit(c + {n + 1}, &seen, seen + 2, {order}, {order})) {{}}
    old[{n + 1} * {ATOMIC_THREADS} + i] = seen;
    if (i % {ATOMIC_GROUP} == 5) atomic_store_explicit(c + {n + 2}, {t}(42), {order});
"""
    if space == "threadgroup":
        source += f"    threadgroup_barrier(mem_flags::mem_threadgroup);\n    if (local < {counters}) atomic_store_explicit(counters + group * {counters} + local, atomic_load_explicit(c + local, {order}), {order});\n"
    source += "}\n"
    groups = ATOMIC_THREADS // ATOMIC_GROUP if space == "threadgroup" else 1

    def arguments() -> Arrays:
        values = np.random.default_rng(4).integers(0, 4096, ATOMIC_THREADS).astype(dtype)
        start = np.array([*(first for first, _ in _FETCH.values()), 0, 0, 7], dtype)
        return [values, np.tile(start, (groups, 1)), np.zeros((counters - 1, ATOMIC_THREADS), dtype)]

    def error(arrays: Arrays) -> float:
        values, final, old = arrays
        size = ATOMIC_THREADS // groups
        is_right = True
        for group in range(groups):
            part = slice(group * size, (group + 1) * size)
            x, number = values[part].astype(np.int64), np.arange(ATOMIC_THREADS)[part] + 1
            for k, (_, total) in enumerate(_FETCH.values()):
                is_right &= int(final[group, k]) == int(np.asarray(total(x)).astype(dtype))
            # What additions found: each value is another thread's result, so they form one chain.
            after_addition = np.sort(np.append(old[0, part] + values[part], dtype(5)))
            is_right &= np.array_equal(after_addition, np.sort(np.append(old[0, part], final[group, 0])))
            exchanged = np.sort(np.append(old[n, part], final[group, n]))
            is_right &= np.array_equal(exchanged, np.sort(np.append(number, 0)).astype(dtype))
            is_right &= np.array_equal(np.sort(old[n + 1, part]), 2 * np.arange(size)) and int(final[group, n + 1]) == 2 * size
            is_right &= int(final[group, n + 2]) == 42
        return 0.0 if is_right else np.inf

    names = (kind, *(f"atomic_fetch_{name}_explicit" for name in _FETCH), "atomic_exchange_explicit", "atomic_compare_exchange_weak_explicit",
             "atomic_load_explicit", "atomic_store_explicit", "memory_order_relaxed", "memory_order")  # fmt: skip
    return Probe(f"{kind}_{space}", "atomic", names, (f"{space} {kind}",), source, ATOMIC_THREADS, ATOMIC_GROUP, arguments, error)


# Barriers.

_BARRIERS = """kernel void barriers(device const uint* in, device uint* middle, device uint* out, uint i [[thread_position_in_grid]],
    uint local [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]])
{
    threadgroup uint shared[128];
    shared[local] = in[i];
    middle[i] = in[i] + 1;
    threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
    uint a = shared[127 - local], b = middle[i - local + (local + 37) % 128];
    threadgroup_barrier(mem_flags::mem_none);
    threadgroup_barrier(mem_flags::mem_texture);
    shared[local] = a;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = a * 3 + b * 5 + shared[local - lane + (lane ^ 9)];
}
"""


def _barrier_arguments() -> Arrays:
    values = np.random.default_rng(1).integers(0, 1 << 20, 512).astype(np.uint32)
    return [values, np.zeros_like(values), np.zeros_like(values)]


def _barrier_error(arrays: Arrays) -> float:
    x = arrays[0].reshape(4, 128)
    local = np.arange(128)
    a = x[:, ::-1]
    return _exact(arrays[2].reshape(4, 128), a * 3 + (x[:, (local + 37) % 128] + 1) * 5 + a[:, local ^ 9])


# Sizes and alignments (tables 2.2 to 2.5 of the specification).


def _layouts() -> dict[str, tuple[int, int]]:
    sizes = {name: np.dtype(DTYPES[name]).itemsize for name in (*FLOATS, *INTEGERS, "bool")}
    found = {name: (size, size) for name, size in sizes.items()}
    found |= {f"{name}{n}": (size * (n + n % 2), size * (n + n % 2)) for name, size in sizes.items() for n in (2, 3, 4)}
    found |= {f"packed_{name}{n}": (size * n, size) for name, size in sizes.items() if name != "bool" for n in (2, 3, 4)}
    found |= {f"{t}{c}x{r}": (c * found[f"{t}{r}"][0], found[f"{t}{r}"][1]) for t in FLOATS for c in (2, 3, 4) for r in (2, 3, 4)}
    same = {
        "int8_t": "char", "uint8_t": "uchar", "int16_t": "short", "uint16_t": "ushort", "int32_t": "int", "uint32_t": "uint",
        "int64_t": "long", "uint64_t": "ulong", "size_t": "ulong", "ptrdiff_t": "long", "atomic_int": "int", "atomic_uint": "uint",
        "unsigned char": "uchar", "unsigned short": "ushort", "unsigned int": "uint", "unsigned": "uint", "unsigned long": "ulong",
        "signed char": "char",
    }  # fmt: skip
    return found | {alias: found[name] for alias, name in same.items()}


LAYOUTS = _layouts()


def _layout_probe() -> Probe:
    lines = "".join(
        f"    out[{2 * k}] = sizeof({name}); out[{2 * k + 1}] = alignof({name});\n" for k, name in enumerate(LAYOUTS)
    )
    source = f"kernel void layouts(device uint* out, uint i [[thread_position_in_grid]])\n{{\n    if (i) return;\n{lines}}}\n"

    def error(arrays: Arrays) -> float:
        wrong = [name for name, got in zip(LAYOUTS, arrays[0].tolist(), strict=True) if tuple(got) != LAYOUTS[name]]
        assert not wrong, ", ".join(f"{n}: {arrays[0][list(LAYOUTS).index(n)]} instead of {LAYOUTS[n]}" for n in wrong)
        return 0.0

    names = tuple(name for name in LAYOUTS if " " not in name)
    return Probe("layouts", "type", names, ("sizeof", "alignof"), source, 1, 1, lambda: [np.zeros((len(LAYOUTS), 2), np.uint32)], error)


PROBES: list[Probe] = [
    *MATRIX_PROBES,
    *(_simdgroup_matrix_probe(t) for t in FLOATS),
    *PACKED_PROBES,
    *(_atomic_probe(t, space) for t in ("int", "uint") for space in ("device", "threadgroup")),
    Probe("barriers", "synchronization", ("threadgroup_barrier", "simdgroup_barrier", "mem_flags"), ("void",), _BARRIERS, 512, 128, _barrier_arguments, _barrier_error),
    _layout_probe(),
]  # fmt: skip
