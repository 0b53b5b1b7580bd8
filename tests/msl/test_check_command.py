"""``mpsgrad check``: its output, its exit statuses, and what it says when something is wrong."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest

from mpsgrad import cli
from mpsgrad.devices import opencl
from mpsgrad.msl.lint import LANGUAGE_VERSIONS, RULES
from mpsgrad.runtime.findings import MISTAKES

without_note = pytest.mark.skipif(not opencl.devices(), reason="without a device there is a note")

LIBRARY = "#include <metal_stdlib>\nusing namespace metal;\n"
GOOD = LIBRARY + "kernel void f(device float* x, uint i [[thread_position_in_grid]]) { if (i < 4) x[i] = 1; }\n"
BAD = LIBRARY + "kernel void f(device float* x) {\n\tdouble y = x[0];\n    x[0] = isnan(y) ? 1 : 0;\n}\n"


def check(*arguments: object) -> int:
    return cli.main(["check", *map(str, arguments)])


@pytest.fixture
def good(tmp_path: Path) -> Path:
    (tmp_path / "good.metal").write_text(GOOD)
    return tmp_path / "good.metal"


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    (tmp_path / "bad.metal").write_text(BAD)
    return tmp_path / "bad.metal"


def give(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


@without_note
def test_a_good_file_gives_nothing_and_0(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(good) == 0
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", "")


@without_note
def test_findings_look_like_a_compilers(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(bad) == 1
    output = capsys.readouterr()
    assert output.out == (
        f"{bad}:4:2: error: 'double' is not supported in Metal [rule 8]\n    \tdouble y = x[0];\n    \t^\n"
        f"{bad}:5:12: warning: 'isnan' may be folded away under fast math [rule 42]\n"
        "        x[0] = isnan(y) ? 1 : 0;\n               ^\n"
    )
    assert output.err == "1 error and 1 warning; 'mpsgrad check --explain 8' says why\n"


def test_warnings_alone_give_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "warned.metal"
    file.write_text(LIBRARY + "bool g(float v) { return isnan(v); }")
    assert check(file) == 0
    assert ": warning: 'isnan'" in capsys.readouterr().out


@without_note
def test_json(good: Path, bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check("--json", good) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert check("--json", good, bad) == 1
    output = capsys.readouterr()
    assert output.err == ""
    assert json.loads(output.out)[0] == {
        "file": str(bad), "line": 4, "column": 2, "severity": "error", "rule": 8, "name": "no-double",
        "message": "'double' is not supported in Metal",
    }  # fmt: skip


def test_several_files_are_all_checked(good: Path, bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(bad, good, bad) == 1
    assert capsys.readouterr().out.count("error:") == 2


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    give(monkeypatch, BAD.encode())
    assert check("-") == 1
    assert capsys.readouterr().out.startswith("<stdin>:4:2: error: ")


def test_lines_may_end_as_on_windows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    give(monkeypatch, b"\xef\xbb\xbf" + BAD.replace("\n", "\r\n").encode())
    assert check("-") == 1
    assert "<stdin>:4:2: error: 'double'" in capsys.readouterr().out


def test_what_cannot_be_read_gives_2_and_the_rest_is_checked(
    bad: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "latin.metal").write_bytes(b"// \xe9\n")
    assert check(tmp_path / "none.metal", bad, tmp_path / "latin.metal", tmp_path) == 2
    output = capsys.readouterr()
    assert f"mpsgrad check: {tmp_path / 'none.metal'}: No such file or directory" in output.err
    assert f"{tmp_path / 'latin.metal'}: not UTF-8 text" in output.err
    assert f"{tmp_path}: Is a directory" in output.err
    assert "'double'" in output.out


def test_wrong_usage_gives_2(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check() == 2
    assert "no FILE given" in capsys.readouterr().err
    assert check("-D", "1x=2", good) == 2
    assert "'1x' cannot name a macro" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        check("--language-version", "2.9", good)
    assert caught.value.code == 2
    assert "2.3" in capsys.readouterr().err


def test_source_that_cannot_be_parsed_has_no_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "k.metal"
    file.write_text("kernel void f(device float* x) {")
    assert check(file) == 1
    assert f"{file}:1:32: error: expected '}}' to match this '{{'\n" in capsys.readouterr().out


def test_what_only_apple_compiles_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "k.metal"
    file.write_text(LIBRARY + "vertex float4 v(uint i [[vertex_id]]) { return float4(i); }\n")
    assert check(file) == 0
    assert ":3:1: warning: not checked from here on: 'vertex' functions are not supported" in capsys.readouterr().out


def test_language_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "k.metal"
    file.write_text(LIBRARY + "#if __METAL_VERSION__ >= 310\nbfloat g(bfloat b) { return b; }\n#endif\n")
    for version in LANGUAGE_VERSIONS:
        assert check("--language-version", version, file) == 0
    file.write_text(LIBRARY + "bfloat g(int b) { return b; }\n")
    assert check(file) == 1
    assert "unknown type name 'bfloat': it needs Metal 3.1" in capsys.readouterr().out
    assert check("--language-version", "3.1", file) == 0


def test_metalcompute(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "k.metal"
    file.write_text(LIBRARY + "kernel void f(texture2d<float> t [[texture(0)]]) {}\n")
    assert check(file) == 0
    assert check("--metalcompute", file) == 1
    assert "metalcompute cannot pass textures [rule 50]" in capsys.readouterr().out


def test_includes_and_macros(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "include"
    folder.mkdir()
    (tmp_path / "beside.h").write_text("#pragma once\n#ifdef WIDE\ndouble wide();\n#endif\n")
    (folder / "far.h").write_text("\ndouble far_away();\n")
    file = tmp_path / "k.metal"
    file.write_text(LIBRARY + '#include "beside.h"\n#include "far.h"\n')
    assert check(file) == 1
    assert f"{file}:4:10: error: 'far.h' file not found" in capsys.readouterr().out
    assert check("-I", folder, "-DWIDE", file) == 1
    output = capsys.readouterr().out
    assert (
        f"{folder / 'far.h'}:2:1: error: 'double' is not supported in Metal [rule 8]\n    double far_away();\n    ^"
        in output
    )
    assert f"{tmp_path / 'beside.h'}:3:1: error: 'double'" in output


@pytest.mark.parametrize("number", RULES)
def test_explain(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert check("--explain", number) == 0
    text = capsys.readouterr().out
    rule = RULES[number]
    assert text.startswith(f"rule {number}, {rule.name} (")
    assert rule.why in text and (rule.words or "") in text


@pytest.mark.parametrize("name", MISTAKES)
def test_explain_a_finding_of_a_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check("--explain", name) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{name} ({MISTAKES[name].severity}, found by --run)\n  {MISTAKES[name].why}\n")


def test_explain_an_unknown_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert check("--explain", 99) == 2
    assert "--explain 99: there is no such rule, only 1 to 59, and out-of-bounds, " in capsys.readouterr().err


# What the compiler finds

needs_compiler = pytest.mark.skipif(not opencl.devices(), reason="asks the OpenCL compiler")


@needs_compiler
def test_what_only_a_compiler_sees_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "scale.h").write_text("#pragma once\nfloat scaled(float x) { return FACTOR * x; }\n")
    file = tmp_path / "k.metal"
    kernel = "kernel void f(device float* x) {{ x[0] = scaled({}); }}\n"
    file.write_text(LIBRARY + '#include "scale.h"\n#include "scale.h"\n' + kernel.format("x[1]"))
    assert check("-D", "FACTOR=2", file) == 0
    file.write_text(
        LIBRARY + '#include "scale.h"\n\n' + kernel.format("x") + kernel.format("&x[1]").replace("f(", "g(")
    )
    assert check("--no-compile", "-D", "FACTOR=2", file) == 0
    assert check("-D", "FACTOR=2", file) == 1
    output = capsys.readouterr().out
    assert f"{file}:5:41: error: no matching function for call to 'scaled'" in output
    assert re.search(r":6:\d+: error: no matching function for call to 'scaled'\n", output)
    file.write_text(LIBRARY + '#include "scale.h"\n' + kernel.format("x[1]"))
    assert check("-D", "FACTOR=huge", file) == 1
    assert f"{tmp_path / 'scale.h'}:2:32: error: use of undeclared identifier 'huge'" in capsys.readouterr().out
    kernel = "kernel void f(device bfloat* x) { x[0] = bfloat(scaled(2)); }\n"
    file.write_text('/*\n#include "scale.h"\n*/\n#include <scale.h>\n' + kernel)
    later = ("--language-version", "3.1", "-D", "FACTOR=2", file)
    assert check(*later) == 1
    assert f"{file}:4:10: error: 'scale.h' file not found" in capsys.readouterr().out
    assert check("-I", tmp_path, *later) == 0


@needs_compiler
@pytest.mark.parametrize(
    ("declared", "body", "line", "message"),
    [
        ("", "float a = x[i]\nx[i] = a;", 4, "expected ';' at end of declaration"),
        ("", "float a[2], b[2];\na = b;", 5, "array type 'float[2]' is not assignable"),
        ("", "x[i] = 1;\nelse x[i] = 2;", 5, "expected expression"),
        ("", "x[i] = *y[i];", 4, "indirection requires pointer operand ('float' invalid)"),
        ("", "float3 v = y;", 4, "an lvalue of type 'const device float *'"),
        ("", "thread float& r = 3.0f;", 4, "cannot bind to a temporary of type 'float'"),
        ("", "threadgroup_barrier(1);", 4, "('int' and 'mem_flags')"),
        ("struct S { int a; };\n", "S s;\nsimd_sum(s);", 6, "no matching function for call to 'simd_sum'"),
        ("struct S { int a; }\n", "x[i] = 1;", 3, "expected ';' after struct"),
        ("struct S { int a; };\nstruct S { int a; };\n", "x[i] = 1;", 4, "redefinition of 'S'"),
        ("", "for (;;) {\nthreadgroup float s[2], t[-2];\ns[0] = 1; }", 5, "'t' declared as an array with a negative"),
    ],
)  # fmt: skip
def test_errors_stand_at_their_line_in_clangs_words(
    declared: str, body: str, line: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "k.metal"
    head = "kernel void f(device float* x, device const float* y, uint i [[thread_position_in_grid]]) {\n"
    file.write_text(f"{LIBRARY}{declared}{head}{body}\n}}\n")
    assert check("--json", file) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found[0]["line"], found[0]["severity"], found[0]["rule"]) == (line, "error", None)
    assert message in found[0]["message"]


@needs_compiler
@pytest.mark.parametrize(
    "source",
    [
        "kernel void f(device float* x) {}\ntypedef decltype(f) f_t;\n",
        "kernel void f(texture2d<float> t [[texture(0)]]) {}\n",
        "struct A {}; struct B { A a; int n : 3; };\n",
    ],
)
def test_a_limit_of_this_package_is_a_warning(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "k.metal"
    file.write_text(LIBRARY + source + "constant int later = nowhere;\n")
    assert check(file) == 0
    assert capsys.readouterr().out.count("warning: not checked from here on, a limit of mpsgrad: ") == 1


def test_without_a_device_a_note_says_so(
    good: Path, bad: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(opencl, "devices", list)
    monkeypatch.setattr(opencl, "unavailable_reason", lambda: "pyopencl is not installed")
    assert check(good) == 0
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == "mpsgrad check: only the rules are checked, nothing is compiled: pyopencl is not installed\n"
    assert check("--no-compile", good) == 0
    assert capsys.readouterr().err == ""
    assert check("--compile", good) == 2
    assert "mpsgrad check: --compile: pyopencl is not installed" in capsys.readouterr().err


def test_pre_commit_hook() -> None:
    text = (Path(__file__).parent.parent.parent / ".pre-commit-hooks.yaml").read_text()
    entry = re.search(r"^  entry: (.*)$", text, re.MULTILINE)
    files = re.search(r"^  files: (.*)$", text, re.MULTILINE)
    assert "- id: mpsgrad-check" in text
    assert entry and entry[1] == "mpsgrad check"
    assert files and re.search(files[1], "kernels/sum.metal") and not re.search(files[1], "sum.metal.j2")


@without_note
def test_macros_of_the_command_line_may_have_parameters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "k.metal"
    file.write_text(LIBRARY + "kernel void f(device float* x) { x[0] = SCALED(x[1], 3) + LAST(4, 5); }\n")
    given = ("-D", "SCALED(x, by)=((x) * by)", "-D", "LAST(...)=(__VA_ARGS__)")
    assert check(*given, file) == 0
    assert check("--no-compile", *given, file) == 0
    assert check(*given[:2], "-D", "LAST(x=3", file) == 2
    assert "'LAST(x' cannot name a macro" in capsys.readouterr().err
    assert check(*given[2:], "-D", "SCALED(x, y)=(x).z", file) == 1
