"""Errors point at the Metal source: through the translation, from every compiler, whatever is wrong with the text."""

# Rows of a table are easier to read on one line each.
# ruff: noqa: E501
from __future__ import annotations

import copy
import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from metal_runner import LIBRARY
from nvrtc import compile_for_cuda

import mpsgrad as mg
from mpsgrad.errors import ShaderError
from mpsgrad.msl import Diagnostic, parse_compiler_log, translate
from mpsgrad.msl.lint import lint

KERNEL = """#include <metal_stdlib>
using namespace metal;

struct Params { uint count; float scale; };
#define HALF(x) ((x) * 0.5)

template <typename T> T twice(T x) { return x * 2.0; }

[[max_total_threads_per_threadgroup(64)]]
kernel void scale(device const float* x [[buffer(0)]], /* the input
    over two lines */ device float* y [[buffer(1)]],
    constant Params& p [[buffer(2)]], uint i [[thread_position_in_grid]])
{
    threadgroup float4 t[16];
    float4 v = float4(x[i], 1.0, 2, HALF(i)); // four
    t[i % 16] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (i < p.count) { y[i] = twice(v.x) * p.scale + simd_sum(t[0].y); }
}
template <typename T> kernel void fill(device T* x, uint i [[thread_position_in_grid]]) { x[i] = T(1); }
template [[host_name("fill_float")]] kernel void fill<float>(device float*, uint);
"""


@pytest.mark.parametrize("target", ["opencl", "cuda"])
def test_each_line_stays_where_it_was(target: str) -> None:
    translated = translate(KERNEL, target, filename="k.metal").source  # type: ignore[arg-type]
    shown, number = None, 0
    found = {}
    for line in translated.split("\n"):
        number += 1
        if line.startswith("#line "):
            _, digits, name = line.split(" ", 2)
            number, shown = int(digits) - 1, name.strip('"')
        elif shown == "k.metal" and line.strip():
            found[number] = found.get(number, "") + line
    for number, line in enumerate(KERNEL.split("\n"), 1):
        for word in ("struct Params", "twice(T x)", "t[i % 16] = v", "p.count", "x[i] = "):
            if word in line:
                assert word in found[number], (number, word)


@pytest.mark.parametrize(
    ("marked", "message"),
    [
        ("    out[0] = 1.0 * @missing;", "use of undeclared identifier 'missing'"),
        ("    float4 v = float4(1.0, 2.0, 3.0, 4.0); out[0] = v.x + @erf(v.y);", "use of undeclared identifier 'erf'"),
        ("    out[0] = @float2(1.0);", "float2"),
        ("    uint n = 3; @n.x = 4;", "member reference base type 'uint'"),
    ],
)
def test_compile_errors_name_file_line_and_column(marked: str, message: str) -> None:
    column = marked.index("@") + 1
    source = f"{LIBRARY}kernel void f(device float* out)\n{{\n{marked.replace('@', '')}\n}}\n"
    with pytest.raises(ShaderError) as raised:
        mg.default_device().compile(source, name="mine.metal")
    error = raised.value
    assert message in error.message
    assert (error.file, error.line) == ("mine.metal", 5)
    # clang points at what stands behind the operand.
    assert error.column in (column, column + 1)


SAID = [
    ("as_type<float>(1ul)", "as_type cast between types of different sizes is not allowed",
     "no matching function for call to 'as_type'"),
    ("clamp(1, 2.0f, 3u)", "call to 'clamp' is ambiguous", "call to 'clamp' is ambiguous"),
    ("dot(float2(1), float3(1))", "no matching function for call to 'dot'", "no matching function for call to 'dot'"),
    ("*n", "indirection requires pointer operand ('int' invalid)", "indirection requires pointer operand ('int' invalid)"),
    ("E::b", "no member named 'b' in 'E'", "no member named 'b' in 'E'"),
    ("x", "assigning to 'float' from incompatible type 'device float *'",
     "assigning to 'float' from incompatible type 'float *'"),
    ("1; 1 = n", "expression is not assignable", "expression is not assignable"),
    ("1; int k = E::a", "cannot initialize a variable of type 'int' with an rvalue of type 'E'",
     "cannot initialize a variable of type 'int' with a value of type 'E'"),
    ("1; break", "'break' statement not in loop or switch statement", "'break' statement not in loop or switch statement"),
    ("1; int a = 1; int a = 2", "redefinition of 'a'", "redefinition of 'a'"),
    ("1; device float a", "automatic variable qualified with an address space", None),
    ("1; float a[0]", "zero-length arrays are not permitted in C++", "the size of an array must be greater than zero"),
    ("1; threadgroup float t = 1", "'threadgroup' variable cannot have an initializer",
     "'threadgroup' variable cannot have an initializer"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "on_cpu", "on_nvidia"), SAID, ids=[each[0] for each in SAID])
def test_compilers_speak_of_metal(text: str, on_cpu: str, on_nvidia: str | None, opencl_device: mg.Device) -> None:
    source = f"{LIBRARY}enum class E {{ a }};\nkernel void f(device float* x, constant int& n) {{\n    x[0] = {text};\n}}\n"
    with pytest.raises(ShaderError) as raised:
        opencl_device.compile(source, name="mine.metal")
    assert (raised.value.message, raised.value.line) == (on_cpu, 5)
    if on_nvidia is not None:
        translation = translate(source, "cuda", filename="mine.metal", launch="row")
        with pytest.raises(AssertionError) as failed:
            compile_for_cuda(translation.source, "mine.metal")
        found = [each for each in parse_compiler_log(str(failed.value), "cuda", translation, source)]
        assert [(each.message, each.line) for each in found if each.severity == "error"][:1] == [(on_nvidia, 5)]


def test_an_error_survives_its_way_to_another_process() -> None:
    error = ShaderError("wrong", file="mine.metal", line=2, column=3, source_line="int x")
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(copied) is ShaderError
        assert str(copied) == str(error)
        assert vars(copied) == vars(error)


def test_line_directives_are_honoured() -> None:
    source = LIBRARY + '#line 40 "pool.metal.j2"\nkernel void f(device float* out) {\n    out[0] = missing;\n}\n'
    with pytest.raises(ShaderError) as raised:
        mg.default_device().compile(source, name="rendered.metal")
    assert (raised.value.file, raised.value.line) == ("pool.metal.j2", 41)
    with pytest.raises(ShaderError) as raised:
        translate(source.replace("device float*", "float*"), "opencl", filename="rendered.metal")
    assert (raised.value.file, raised.value.line) == ("pool.metal.j2", 40)
    assert raised.value.source_line == "kernel void f(float* out) {"


def test_logs_of_clang_and_nvrtc() -> None:
    clang = (
        "Compilation started\n"
        "a b.metal:7:12: error: use of undeclared identifier 'erf_mtl'\n    7 |   x = erf_mtl(1);\n"
        "k.metal:3:2: error: due to requirement"
        " 'sizeof(float __attribute__((ext_vector_type(3)))) == __private lift_mtl() == 12'\n"
        "C:\\k.metal:9:1: warning: unused\nk.metal:9:1: note: here\n"
    )
    assert parse_compiler_log(clang, "opencl") == [
        Diagnostic("a b.metal", 7, 12, "error", "use of undeclared identifier 'erf'"),
        Diagnostic("k.metal", 3, 2, "error", "due to requirement 'sizeof(float3) == 12'"),
        Diagnostic("C:\\k.metal", 9, 1, "warning", "unused"),
        Diagnostic("k.metal", 9, 1, "note", "here"),
    ]
    nvrtc = (
        'k.metal(12): error: identifier "foo" is undefined\n      x = foo;\n          ^\n\n'
        'k.metal(3): warning #177-D: variable "y" was declared but never referenced\n'
        'k.metal(4): catastrophic error: cannot open source file\n1 error detected in the compilation of "k.metal".\n'
    )
    assert parse_compiler_log(nvrtc, "cuda") == [
        Diagnostic("k.metal", 12, 9, "error", "use of undeclared identifier 'foo'"),
        Diagnostic("k.metal", 3, None, "warning", 'variable "y" was declared but never referenced'),
        Diagnostic("k.metal", 4, None, "error", "cannot open source file"),
    ]


def survives(source: str) -> None:
    for target in ("opencl", "cuda"):
        try:
            translation = translate(source, target)  # type: ignore[arg-type]
        except ShaderError as error:
            assert error.line is not None and error.line >= 1
        else:
            assert translation.source
    for finding in lint(source):
        assert finding.line >= 1


def test_truncated_source_gives_an_error_or_a_translation() -> None:
    for length in range(0, len(KERNEL), 3):
        survives(KERNEL[:length])


PIECES = ["(", ")", "[[", "]]", "{", "}", "<", ">", ">>", ";", ",", "::", "*", "&", "#", "\\", '"', "'", "/*", "//", "\n",
          "template", "kernel", "device", "constant&", "namespace", "struct", "using", "float4(", "[[buffer(", "host_name",
          "#define X(", "X(", "#if ", "#endif\n", "#include", "##", "__VA_ARGS__", "operator", "\0", "é", "0x", "1e", "= "]  # fmt: skip


def edited(source: str, choose: random.Random) -> str:
    for _ in range(choose.randint(1, 4)):
        at = choose.randrange(len(source))
        kind = choose.randrange(4)
        if kind == 0:
            source = source[:at] + choose.choice(PIECES) + source[at:]
        elif kind == 1:
            source = source[:at] + source[at + choose.randint(1, 12) :]
        elif kind == 2:
            other = choose.randrange(len(source))
            source = source[:at] + source[other : other + 30] + source[at:]
        else:
            source = source[:at] + choose.choice(PIECES) + source[at + 1 :]
        source = source or " "
    return source


def test_randomly_edited_source_gives_an_error_or_a_translation() -> None:
    choose = random.Random(1)
    for _ in range(600):
        survives(edited(KERNEL, choose))


@pytest.mark.nightly
def test_randomly_edited_source_gives_an_error_or_a_translation_all_night() -> None:
    choose = random.Random(2)
    for _ in range(20_000):
        survives(edited(KERNEL, choose))


@given(st.lists(st.sampled_from(PIECES + ["x", "1", " ", "void f"]), max_size=25))
def test_random_pieces_give_an_error_or_a_translation(pieces: list[str]) -> None:
    survives(" ".join(pieces))


def test_what_random_edits_found() -> None:
    survives("()")
    survives("using a /= uint2 void f() {}")
    survives("kernel void f(device float* x) { threadgroup ; }")
    survives("kernel void f(device float* x [[buffer(1if)]]) {}")
    survives("kernel void f() { x (a[1]")
    survives("constant int a; [[function_constant(0)]]")


@pytest.mark.parametrize("text", ["(" * 5000, "{" * 5000, "namespace a {" * 3000, "namespace a {" * 1500 + "}" * 1500, "#if 1\n" * 5000, "a<" * 5000, "[[" * 3000,
                                  "#define A B B\n" + "".join(f"#define {chr(66 + k)} {chr(67 + k)} {chr(67 + k)}\n" for k in range(24)) + "A",
                                  "#if " + "(" * 5000, "#if " + "!" * 5000, "template <" * 2000, "x = (" * 4000,
                                  "kernel void f() {" + "{" * 3000 + "float (a) = 1;"])  # fmt: skip
def test_deep_nesting_gives_an_error(text: str) -> None:
    with pytest.raises(ShaderError):
        translate(text, "opencl")
    lint(text)
