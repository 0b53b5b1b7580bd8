"""NumPy's types with the layouts of structs, and dicts for structs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad import cli

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
SCALARS = ["bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "half", "float"]
VECTORS = [f"{scalar}{lanes}" for scalar in SCALARS for lanes in (2, 3, 4)]
PACKED = [f"packed_{scalar}{lanes}" for scalar in ("char", "half", "float", "int") for lanes in (2, 3, 4)]
MATRICES = [f"{scalar}{columns}x{rows}" for scalar in ("float", "half") for columns in (2, 3, 4) for rows in (2, 3, 4)]


def function(device: mg.Device, declarations: str, parameter: str, body: str = "") -> mg.KernelFunction:
    source = f"{HEAD}{declarations}\nkernel void f(device float* out, {parameter}) {{ {body} }}"
    return mg.compile(source, device=device).function("f")


def elements(expression: str, kind: str) -> list[str]:
    """Each number of an object of the type ``kind``, column by column."""
    if "x" in kind.removeprefix("packed_") and kind[-1].isdigit():
        columns, rows = int(kind[-3]), int(kind[-1])
        return [f"{expression}[{column}][{row}]" for column in range(columns) for row in range(rows)]
    return [f"{expression}[{lane}]" for lane in range(int(kind[-1]))] if kind[-1].isdigit() else [expression]


def without_gaps(value: np.ndarray, kind: str) -> np.ndarray:
    """What the type counts of an array of objects of ``kind``."""
    return value[..., :3] if kind[-1] == "3" and value.ndim and value.shape[-1] == 4 else value


@settings(max_examples=25)
@given(data=st.data())
def test_numbers_are_where_the_compiler_reads_them(device: mg.Device, data: st.DataObject) -> None:
    kinds = st.sampled_from([*SCALARS, *VECTORS, *PACKED, *MATRICES])
    inner = data.draw(st.lists(kinds, min_size=1, max_size=3), "members of the inner struct")
    outer = data.draw(st.lists(kinds, min_size=1, max_size=4), "members of the outer struct")
    extents = data.draw(st.lists(st.sampled_from([0, 1, 3]), min_size=5, max_size=5), "extents, none for 0")
    texts = [f"[{extent}]" if extent else "" for extent in extents]
    declarations = "struct Inner { " + " ".join(f"{kind} m{i};" for i, kind in enumerate(inner)) + " };\n"
    declarations += "struct Outer { " + " ".join(f"{kind} m{i}{texts[i]};" for i, kind in enumerate(outer))
    declarations += f" Inner inner{texts[4]}; uchar last; }};"
    reads = []
    for i, kind in enumerate(outer):
        for index in range(extents[i] or 1):
            reads += elements(f"s[1].m{i}" + (f"[{index}]" if extents[i] else ""), kind)
    for index in range(extents[4] or 1):
        for i, kind in enumerate(inner):
            reads += elements("s[1].inner" + (f"[{index}]" if extents[4] else "") + f".m{i}", kind)
    reads.append("s[1].last")
    body = " ".join(f"out[{place}] = float({read});" for place, read in enumerate(reads))
    made = function(device, declarations, "constant Outer* s", body)
    dtype = made.dtype("s")
    random = np.random.default_rng(len(reads))
    structs = np.zeros(2, dtype)
    expected: list[float] = []

    def fill(target: Any, kind: str, name: str) -> None:
        target[name] = random.integers(0, 2 if "bool" in kind else 100, target[name].shape)
        expected.extend(np.asarray(without_gaps(target[name], kind), np.float32).ravel())

    for i, kind in enumerate(outer):
        fill(structs[1], kind, f"m{i}")
    inners = structs[1]["inner"]
    for index in range(extents[4] or 1):
        for i, kind in enumerate(inner):
            fill(inners[index] if extents[4] else inners, kind, f"m{i}")
    structs[1]["last"] = 7
    out = np.zeros(len(reads), np.float32)
    made(1, out, structs)
    np.testing.assert_array_equal(out, [*expected, 7])


SETTINGS = """
namespace app { enum class Mode : uchar { A, B }; }
#define SIDE 2
typedef float Real;
typedef struct { Real rate; uint2 size; } Inner;
struct Settings {
    static constant int limit = 3;
    float3 colour; int counts[SIDE][limit]; Inner inner; float2x3 turn; bool on;
    float total() const constant { return rate() * counts[1][2]; }
    float rate() const constant { return inner.rate; }
};
"""
VALUES = {
    "colour": (1, 2, 3),
    "counts": [[1, 2, 3], [4, 5, 6]],
    "inner": {"rate": 0.5, "size": [7, 8]},
    "turn": np.arange(8).reshape(2, 4),
    "on": True,
}


@pytest.fixture(scope="module")
def of_settings(device: mg.Device) -> mg.KernelFunction:
    body = "out[0] = s.total(); out[1] = s.inner.size.y; out[2] = s.turn[1][2]; out[3] = s.on; out[4] = s.colour.z;"
    return function(device, SETTINGS, "constant Settings& s", body)


def test_dicts_are_structs(of_settings: mg.KernelFunction) -> None:
    out = np.zeros(5, np.float32)
    of_settings(1, out, VALUES)
    np.testing.assert_array_equal(out, [3, 8, 6, 1, 3])
    dtype = of_settings.dtype(1)
    assert dtype.names == tuple(VALUES)
    assert dtype["counts"].shape == (2, 3) and dtype["turn"].shape == (2, 4) and dtype["colour"].shape == (3,)


def test_dicts_are_checked_as_they_are_run(of_settings: mg.KernelFunction, opencl_device: mg.Device) -> None:
    out = np.zeros(4, np.float32)
    (finding,) = of_settings.check(1, out, VALUES)
    assert "out-of-bounds write of element 4 of 'out'" in str(finding)


def test_other_arguments_have_types_too(device: mg.Device) -> None:
    made = function(device, "using Real = float;", "constant half3& a, device const Real* b, constant Real& c")
    assert made.dtype("out") == np.float32
    assert made.dtype("a") == np.dtype((np.float16, 4))
    assert made.dtype("b") == np.float32
    made(1, np.zeros(1, np.float32), (1, 2, 3), np.zeros(2, np.float32), 0.5)


def test_structs_are_json_in_the_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "k.metal"
    kernel = "kernel void f(device float* y, constant Pair& p) { y[0] = p.b.y; }"
    path.write_text(HEAD + "struct Pair { int a; half2 b; };\n" + kernel)
    arguments = ["--grid", "1", "--arg", "zeros:float:1", "--arg", '{"a": 1, "b": [2, 3.5]}', "--out", "y"]
    assert cli.main(["run", str(path), "f", *arguments]) == 0
    assert "y = [3.5]" in capsys.readouterr().out


def test_arrays_of_structs_within_a_struct(device: mg.Device) -> None:
    declarations = "struct Pair { int a; float b; }; struct All { Pair pairs[2]; };"
    made = function(device, declarations, "constant All& s", "out[0] = s.pairs[1].b;")
    out, pairs = np.zeros(1, np.float32), np.zeros(2, made.dtype("s")["pairs"].base)
    pairs["b"] = 3, 4.5
    for given_pairs in (pairs, [*pairs]):
        out[0] = 0
        made(1, out, {"pairs": given_pairs})
        assert out[0] == 4.5
    for wrong in (pairs[:1], [[1], [2, 3]], 5):
        with pytest.raises(mg.FormatError, match=r"\.pairs is .*; it has to be a struct of shape 2"):
            made(1, out, {"pairs": wrong})


def test_arrays_of_the_library_within_a_struct(device: mg.Device) -> None:
    declarations = """
    constant int FIVE = 5;
    struct Inner { array<half, 3> a; };
    struct Params {
        int n; array<int, FIVE> sizes; metal::array<metal::array<float3, 2>, 3> deep[2]; array<Inner, 2> inner; bool on;
    };
    struct Several { array<float, 2> a, b; };
    """
    body = "out[0] = s.sizes[4]; out[1] = s.deep[1][2][1].z; out[2] = s.inner[1].a[2]; out[3] = s.on;"
    made = function(device, declarations, "constant Params& s", body)
    out, deep = np.zeros(4, np.float32), np.arange(48).reshape(2, 3, 2, 4)
    inner = np.zeros(2, made.dtype("s")["inner"].base)
    inner["a"] = [[1, 2, 3], [4, 5, 6]]
    made(1, out, {"n": 1, "sizes": [1, 2, 3, 4, 5], "deep": deep, "inner": inner, "on": True})
    np.testing.assert_array_equal(out, [5, 46, 6, 1])
    with pytest.raises(mg.FormatError, match="the layout of argument 1 .* cannot be told"):
        function(device, declarations, "constant Several& s").dtype("s")


def test_enumerations_within_a_struct(device: mg.Device) -> None:
    source = (
        "enum class Mode : uchar { plain, fast = 3 };\nenum Kind { low = 1, high };\n"
        "typedef enum { left = -1, right } Side;\nenum Pair : ushort;\nenum Pair : ushort { both = 2 };\n"
        "struct Chosen { Mode mode; Kind kinds[2]; Side side; Pair pair; float rate; };\n"
        "kernel void choose(device float* out, constant Chosen& c, constant Mode& mode) {\n"
        "    out[0] = uint(c.mode) * 1000 + c.kinds[1] * 100 + c.side * 10 + c.pair + c.rate; out[1] = uint(mode);\n}\n"
    )
    choose = mg.compile(source, device=device).function("choose")
    out = np.zeros(2, np.float32)
    choose(1, out, {"mode": 3, "kinds": (1, 2), "side": -1, "pair": 2, "rate": 0.5}, 3)
    assert out.tolist() == [3000 + 200 - 10 + 2 + 0.5, 3]
    layout = choose.dtype("c")
    assert [layout[name].base.name for name in layout.names or ()] == ["uint8", "uint32", "int32", "uint16", "float32"]
    with pytest.raises(mg.FormatError, match="mode is 300"):
        choose(1, out, {"mode": 300, "kinds": (1, 2), "side": -1, "pair": 2, "rate": 0.5}, 3)


def test_sequences_of_dicts_are_arrays_of_structs(device: mg.Device) -> None:
    source = (
        "struct Light { float3 at; half power; };\nstruct Room { Light lights[2]; Light more[1][2]; int count; };\n"
        "kernel void lit(device float* out, constant Room& r) {\n"
        "    out[0] = r.lights[1].at.z * 100 + r.lights[0].power * 10 + r.more[0][1].at.x + r.count; }\n"
    )
    lit = mg.compile(source, device=device).function("lit")
    out = np.zeros(1, np.float32)
    lights = [{"at": (1, 2, 3), "power": 4}, {"at": (5, 6, 7), "power": 8}]
    lit(1, out, {"lights": lights, "more": [lights], "count": 9})
    assert out[0] == 700 + 40 + 5 + 9
    for wrong, words in (
        (lights[:1], "lights has 1 values; it has to have 2"),
        ([lights[0], {"at": (1, 2, 3)}], r"lights\[1\]: no value is given for power"),
        ([lights[0], {"at": (1, 2), "power": 1}], r"lights\[1\].at is \(1, 2\)"),
    ):
        with pytest.raises(mg.FormatError, match=words):
            lit(1, out, {"lights": wrong, "more": [lights], "count": 9})


def test_included_files_are_read(tmp_path: Path, device: mg.Device) -> None:
    (tmp_path / "types.h").write_text("struct Pair { half a; float b; };")
    path = tmp_path / "kernels.metal"
    path.write_text(HEAD + '#include "types.h"\nkernel void f(device float* out, constant Pair& p) { out[0] = p.b; }')
    out = np.zeros(1, np.float32)
    mg.compile(path, device=device).function("f")(1, out, {"a": 1, "b": 2.5})
    assert out[0] == 2.5


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"on": None}, r"argument 1 \(constant Settings& s\): no value is given for on$"),
    ({"off": True}, r"has no member 'off'; it has colour, counts, inner, turn, on"),
    ({"colour": (1, 2)}, r"\.colour is \(1, 2\); it has to be a float32 of shape 3"),
    ({"counts": [[1, 2, 3], [4, 5, 6.5]]}, r"\.counts is .*; it has to be an int32 of shape 2x3"),
    ({"counts": [[1, 2], [3]]}, "it has to be an int32 of shape 2x3"),
    ({"inner": {"rate": 1}}, r"\.inner: no value is given for size"),
    ({"inner": 3}, r"\.inner is 3; it has to be a struct"),
    ({"inner": {"rate": 1, "size": (1, -1)}}, r"\.inner\.size is \(1, -1\); it has to be a uint32 of shape 2"),
    ({"on": 2}, r"\.on is 2; it has to be a bool"),
    ({"turn": np.ones((2, 3))}, "it has to be a float32 of shape 2x4"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_values_that_do_not_fit_are_refused(
    of_settings: mg.KernelFunction, change: dict[str, Any], message: str
) -> None:
    values = {name: value for name, value in (VALUES | change).items() if value is not None}
    with pytest.raises(mg.FormatError, match=message):
        of_settings(1, np.zeros(5, np.float32), values)


@pytest.mark.parametrize(
    ("declarations", "parameter"),
    [
        (
            "template <typename T> struct Pair { T a, b; }; template <> struct Pair<half> { half a, b, c; };",
            "constant Pair<float>& p",
        ),
        ("template <typename... T> struct Pair { int a, b; };", "constant Pair<float>& p"),
        ("union Pair { float a; int b; };", "constant Pair& p"),
        ("struct Pair { uint a : 3; uint b : 29; };", "constant Pair& p"),
        ("struct Pair { union { float a; int b; }; float c; };", "constant Pair& p"),
        ("struct __attribute__((packed)) Pair { char a; int b; };", "constant Pair& p"),
        ("struct Pair { char a; int b; } __attribute__((aligned(16)));", "constant Pair& p"),
    ],
)
def test_layouts_that_cannot_be_told_are_refused(device: mg.Device, declarations: str, parameter: str) -> None:
    made = function(device, declarations, parameter)
    with pytest.raises(mg.FormatError, match=r"f: the layout of argument 1 \(constant Pair.*& p\) cannot be told"):
        made.dtype("p")
    with pytest.raises(mg.FormatError, match="is a dict; a Pair.* has to be a NumPy scalar or array"):
        made(1, np.zeros(1, np.float32), {"a": 1, "b": 2})


@pytest.mark.parametrize("argument", ["q", 2, -1, 1.5, None])
def test_arguments_that_there_are_none_of(of_settings: mg.KernelFunction, argument: Any) -> None:
    with pytest.raises(mg.FormatError, match=f"f: dtype of {argument!r}, but the arguments are out, s"):
        of_settings.dtype(argument)


def test_structs_with_alignments_and_those_of_templates(device: mg.Device) -> None:
    declarations = (
        "struct alignas(32) Cell { char a; };\n"
        "template <typename T> struct Inner { T x; char c; static Inner<T> made(Inner<T> o) { return o; } };\n"
        "template <typename T, int N = 2, typename U = T> struct Outer {\n"
        "    alignas(float4) T a[N + 1]; Inner<U> inner[N]; array<Inner<char>, 2> more; Cell cell;\n"
        "    alignas(8) int last; };\n"
        "namespace n { typedef Outer<half, 3, float> Settings; }"
    )
    body = (
        "out[0] = s.a[3]; out[1] = s.inner[2].x; out[2] = s.more[1].c; out[3] = s.cell.a; out[4] = s.last;"
        "out[5] = sizeof(s);"
    )
    values = {
        "a": (1, 2, 3, 4),
        "inner": [{"x": i, "c": 0} for i in (5, 6, 7)],
        "more": [{"x": 0, "c": 8}, {"x": 0, "c": 9}],
        "cell": {"a": 10},
        "last": 11,
    }
    for written in ("Outer<half, 3, float>", "n::Settings"):
        made = function(device, declarations, f"constant {written}& s", body)
        out = np.zeros(6, np.float32)
        made(1, out, values)
        np.testing.assert_array_equal(out, [4, 7, 9, 10, 11, 128])
        assert made.dtype("s").itemsize == 128


def test_what_is_written_is_no_dict(device: mg.Device) -> None:
    made = function(device, "struct Pair { float a; };", "device Pair& p", "p.a = 1;")
    with pytest.raises(mg.FormatError, match="the kernel may write it, so it has to be an array"):
        made(1, np.zeros(1, np.float32), {"a": 1})


def test_members_of_types_that_name_arrays(device: mg.Device) -> None:
    source = (
        "struct Row { float inner[3]; };\ntypedef metal::float2 Pair[2];\ntypedef Pair Pairs[3];\n"
        "typedef Row Rows[1];\nstruct Sizes { uint n; Pairs pairs; Pair more[4]; Rows rows; };\n"
        "kernel void total(device float* out, constant Sizes& s) {\n"
        "    out[0] = s.pairs[2][1].y * 100 + s.more[3][0].x * 10 + s.rows[0].inner[2] + s.n; }\n"
    )
    total = mg.compile(source, device=device).function("total")
    layout = total.dtype("s")
    assert [layout[name].shape for name in layout.names or ()] == [(), (3, 2, 2), (4, 2, 2), (1,)]
    out, pairs, more = np.zeros(1, np.float32), np.zeros((3, 2, 2)), np.zeros((4, 2, 2))
    pairs[2, 1, 1], more[3, 0, 0] = 1, 2
    total(1, out, {"n": 4, "pairs": pairs, "more": more, "rows": [{"inner": (0, 0, 3)}]})
    assert out[0] == 127


def test_arguments_of_types_that_name_arrays(device: mg.Device) -> None:
    source = (
        f"{HEAD}constant constexpr int n = 4;\ntypedef float Row[n]; using Corners = float3[2];\n"
        "struct Both { Row row; Corners corners; };\n"
        "kernel void f(device Row* x, device Corners& y, constant Both& both, device Row& z,\n"
        "              uint i [[thread_position_in_grid]]) {\n"
        "    x[i][1] = y[1].x + both.row[2]; z[3] = both.corners[1].y; }"
    )
    made = mg.compile(source, device=device).function("f")
    assert [made.dtype(name).shape for name in "xyz"] == [(4,), (2, 4), (4,)]
    x, y, z = np.zeros(2, made.dtype("x")), np.ones((2, 4), np.float32), np.zeros(4, np.float32)
    made(2, x, y, {"row": (1, 2, 3, 4), "corners": ((1, 2, 3, 0), (4, 5, 6, 0))}, z)
    np.testing.assert_array_equal(x, [[0, 4, 0, 0]] * 2)
    np.testing.assert_array_equal(z, [0, 0, 0, 5])
