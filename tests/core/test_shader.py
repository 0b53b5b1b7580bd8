"""From templates to functions: where errors point, what structs hold, and that every family is legal Metal."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad.kernel import IMAGE_LAYOUT
from mpsgrad.shader import ParameterStruct, ShaderFamily, families, shader_directory

BODY = """// Writes one number.
{% include "prelude.metal.j2" %}

[[max_total_threads_per_threadgroup(32)]]
kernel void one(device {{ dtype }}* out [[buffer(0)]], uint index [[thread_position_in_grid]])
{
    LINE
}
"""


def errors_of(folder: Path, *, dtype: str = "float", **files: str) -> mg.ShaderError:
    """The error of compiling ``broken.metal.j2`` in ``folder`` with these files."""
    for name, text in files.items():
        (folder / f"{name}.metal.j2").write_text(text)
    with pytest.raises(mg.ShaderError) as caught:
        ShaderFamily("broken", directory=folder).function(mg.default_device(), "one", dtype)
    return caught.value


def assert_place(error: mg.ShaderError, file: str, line: int, text: str, at: str) -> None:
    """The error lies at ``at`` in the line with ``text``, and its message shows it."""
    assert (Path(error.file).name, error.line, error.source_line.strip()) == (file, line, text)
    assert error.source_line[error.column - 1 :].startswith(at)
    place, shown, caret = str(error).splitlines()
    assert place == f"{error.file}:{line}:{error.column}: {error.message}"
    assert shown.strip() == text and shown[caret.index("^") :].startswith(at)


JINJA = {
    "an undefined name": ("out[index] = {{ nothing }};", "nothing", "'nothing' is undefined"),
    "an undefined attribute": ("out[index] = {{ dtype.size }};", "size", "has no attribute 'size'"),
    "an unknown filter": ("out[index] = {{ dtype | shout }};", "shout", "No filter named 'shout'"),
    "an unknown tag": ("{% iff true %}", "iff", "unknown tag 'iff'"),
    "a missing include": ('{% include "gone.metal.j2" %}', "gone.metal.j2", "no template 'gone.metal.j2'"),
}


@pytest.mark.parametrize(("line", "at", "words"), JINJA.values(), ids=JINJA)
def test_an_error_in_a_template_names_its_place(tmp_path, line, at, words):
    error = errors_of(tmp_path, broken=BODY.replace("LINE", line))
    assert words in error.message
    assert error.file == f"{tmp_path.name}/broken.metal.j2"
    assert_place(error, "broken.metal.j2", 7, line, at)


@pytest.mark.parametrize("expression", ["1 // 0", "1 + dtype", "[1][3] + 1", "'%d' % dtype"])
def test_an_expression_that_fails_names_its_line(tmp_path, expression):
    error = errors_of(tmp_path, broken=BODY.replace("LINE", f"out[index] = {{{{ {expression} }}}};"))
    assert error.line == 7 and expression in error.source_line


def test_an_unfinished_block_names_its_line(tmp_path):
    error = errors_of(tmp_path, broken=BODY.replace("LINE", "{% if true %}"))
    assert error.line in (7, 8) and "broken.metal.j2" in error.file


COMPILE = {
    "an undeclared name": ("out[index] = {{ dtype }}(oops);", "oops"),
    "a constructor before it": ("out[index] = float4(1, 2, 3, 4).x + oops;", "oops"),
    "no such function": ("out[index] = sin(1.0f, 2.0f);", "sin"),
    "a missing operand": ("out[index] = 1 + ;", ";"),
}


@pytest.mark.parametrize(("line", "at"), COMPILE.values(), ids=COMPILE)
@pytest.mark.parametrize("dtype", ["float", "half"])
def test_an_error_of_the_compiler_points_into_the_template(tmp_path, line, at, dtype):
    error = errors_of(tmp_path, dtype=dtype, broken=BODY.replace("LINE", line))
    assert_place(error, "broken.metal.j2", 7, line.replace("{{ dtype }}", dtype), at)


PART = """// A function.
static inline float helper(float x)
{
    return LINE;
}
"""
INCLUDES = '{% include "prelude.metal.j2" %}\n{% include "part.metal.j2" %}\n' + BODY.replace(
    '{% include "prelude.metal.j2" %}\n', ""
).replace("LINE", "out[index] = helper(1.0f);")


@pytest.mark.parametrize(
    ("line", "at"), [("x + {{ lost }}", "lost"), ("x + lost", "lost"), ("{% loose %}", "loose")]
)
def test_an_error_in_an_included_file_names_that_file(tmp_path, line, at):
    error = errors_of(tmp_path, broken=INCLUDES, part=PART.replace("LINE", line))
    assert_place(error, "part.metal.j2", 4, f"return {line};", at)


def test_an_error_in_a_packaged_include_names_it_by_the_package():
    rendering = families()["soft_max"].render()
    assert {file for file, _ in rendering.origins} >= {"shaders/soft_max.metal.j2", "shaders/image.metal.j2"}


MACRO = """{% macro store(value) %}
    const float kept = 1.0f;
    out[index] = {{ value }} + LINE;
{% endmacro %}
"""


@pytest.mark.parametrize(("line", "text"), [("{{ lost }}", "{{ value }} + {{ lost }}"), ("lost", "kept + lost")])
@pytest.mark.parametrize("indent", ["", "    "])
def test_an_error_in_a_macro_names_the_macros_line(tmp_path, line, text, indent):
    template = MACRO.replace("LINE", line) + BODY.replace("    LINE", indent + "{{ store('kept') }}")
    assert_place(errors_of(tmp_path, broken=template), "broken.metal.j2", 3, f"out[index] = {text};", "lost")


def test_a_macro_used_twice_shows_the_use_that_is_wrong(tmp_path):
    macro = "{% macro store(value) %}\n    out[index] = {{ value }};\n{% endmacro %}\n"
    calls = "{{ store('1.0f') }}\n{{ store('lost') }}\n{{ store('2.0f') }}"
    error = errors_of(tmp_path, broken=macro + BODY.replace("LINE", calls))
    assert_place(error, "broken.metal.j2", 2, "out[index] = lost;", "lost")


def test_a_template_that_does_not_exist(tmp_path):
    error = errors_of(tmp_path)
    assert str(error) == f"{tmp_path.name}/broken.metal.j2: there is no template 'broken.metal.j2'"


def test_each_line_says_where_it_came_from(tmp_path):
    (tmp_path / "part.metal.j2").write_text("part 1\npart 2\n")
    (tmp_path / "origins.metal.j2").write_text(
        "first\n"
        "{% macro m(x) %}\n"
        "macro {{ x }}\n"
        "{% endmacro %}\n"
        "{% for i in range(2) %}\n"
        "loop {{ i }}\n"
        "{% endfor %}\n"
        '{% include "part.metal.j2" %}\n'
        "{{ dtype }} at the start\n"
        "  {{ m(7) -}}\n"
        "{% if false %}\n"
        "never\n"
        "{% endif %}\n"
        "last {# a comment\n"
        "over two lines #} end\n"
    )
    rendering = ShaderFamily("origins", directory=tmp_path).render("half")
    here = f"{tmp_path.name}/origins.metal.j2"
    part = f"{tmp_path.name}/part.metal.j2"
    lines = list(zip(rendering.source.splitlines(), rendering.origins, strict=True))
    assert [(text.split(), origin) for text, origin in lines if text.strip()] == [
        (["first"], (here, 1)),
        (["loop", "0"], (here, 6)),
        (["loop", "1"], (here, 6)),
        (["part", "1"], (part, 1)),
        (["part", "2"], (part, 2)),
        (["half", "at", "the", "start"], (here, 9)),
        (["macro", "7"], (here, 3)),
        (["last", "end"], (here, 14)),
    ]
    assert "\x01" not in rendering.source and "\x02" not in rendering.source


@pytest.mark.parametrize("name", sorted(families()))
def test_line_directives_lead_to_the_text_of_the_template(name):
    """A rendered line without an expression is the template's line that it claims to be."""
    family = families()[name]
    for dtype in family.dtypes:
        rendering = family.render(dtype)
        files = {file: _template_lines(file) for file in {file for file, _ in rendering.origins}}
        compared = 0
        for text, (file, line) in zip(rendering.source.splitlines(), rendering.origins, strict=True):
            written = files[file][line - 1]
            if text and "{{" not in written and "{%" not in written:
                assert text.strip() == written.strip()
                compared += 1
        assert compared > 3


def _template_lines(file: str) -> list[str]:
    name = Path(file).name
    path = shader_directory() / name
    return (path if path.is_file() else shader_directory() / "lib" / name).read_text().splitlines()


CASES = [(name, dtype) for name in sorted(families()) for dtype in families()[name].dtypes]


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=["-".join(case) for case in CASES])
def test_every_family_renders_to_tidy_text(name, dtype):
    """For every family of devices; most render the same for all."""
    devices = ("cpu", None), ("cpu", "cpu-avx2"), ("apple", None), ("nvidia", None)
    for source in {families()[name].render(dtype, *device).source for device in devices}:
        assert "{{" not in source and "{%" not in source
        assert not re.search(r"[ \t]$", source, re.MULTILINE), "trailing blanks"
        assert "\n\n\n" not in source, "two empty lines"


def test_a_family_takes_the_tunables_of_its_device(tmp_path):
    (tmp_path / "tuned.metal.j2").write_text("{{ tile }} {{ other }}\n")
    family = ShaderFamily("tuned", (), {"tile": 1, "other": 2}, {"cpu": {"tile": 8}}, directory=tmp_path)
    assert family.render("float", "cpu").source == "8 2\n"
    assert family.render("float", "apple").source == "1 2\n"
    assert "tuned" not in families()


def test_functions_are_made_once_each_of_what_it_needs(monkeypatch):
    family, device = families()["soft_max"], mg.default_device()
    name = "soft_max_up_to_32"
    assert family.function(device, name, "half") is family.function(device, name, "half")
    source = family.function_source(device, name, "half")
    assert source.count("kernel void ") == 1 < family.source(device, "half").count("kernel void ")
    with pytest.raises(KeyError, match="no kernel function 'nonsense'; there are .*soft_max"):
        family.function(device, "nonsense", "float")


def test_families_know_functions_that_they_forgot():
    """Encodes that are remembered go on with them when the tunables change, and neighbours are joined by them."""
    family, other, device = families()["soft_max"], families()["fill"], mg.default_device()
    functions = {dtype: family.function(device, "soft_max_up_to_32", dtype) for dtype in ("float", "half")}
    family.forget_functions()
    assert {dtype: family.dtype_of(function, device) for dtype, function in functions.items()} == {
        dtype: dtype for dtype in functions
    }
    assert other.dtype_of(functions["half"], device) is None


# parameter structs


INNER = ParameterStruct("Inner", a="int", b="float")
OUTER = ParameterStruct("Outer", first="uint", inner=INNER, image=IMAGE_LAYOUT, last="float")
integers = st.integers(-(2**31), 2**31 - 1)


@given(
    st.integers(0, 2**32 - 1),
    integers,
    st.floats(width=32, allow_nan=False),
    st.tuples(*[integers] * 8),
    st.floats(width=32, allow_nan=False),
)
def test_packed_bytes_read_as_the_dtype(first, a, b, image, last):
    packed = OUTER.pack(first=first, inner=(a, b), image=image, last=last)
    assert len(packed) == OUTER.dtype.itemsize == 4 * 12
    (record,) = np.frombuffer(packed, OUTER.dtype)
    assert record["first"] == first and record["last"] == np.float32(last)
    assert (record["inner"]["a"], record["inner"]["b"]) == (a, np.float32(b))
    assert tuple(record["image"]) == image


def test_a_struct_reads_as_metal():
    fields = ("uint first;", "Inner inner;", "ImageLayout image;", "float last;")
    assert OUTER.metal.splitlines() == ["struct Outer {", *(f"    {field}" for field in fields), "};"]


def test_a_struct_names_the_fields_that_are_missing_or_unknown():
    with pytest.raises(TypeError, match="Inner has the fields a, b but was given a, c"):
        INNER.pack(a=1, c=2)


def test_the_device_reads_a_struct_as_it_was_packed(tmp_path):
    """Every scalar of nested structs, written back by a kernel in the order of the declaration."""
    fields = ["p.first", "p.inner.a", "p.inner.b", *(f"p.image.{name}" for name in IMAGE_LAYOUT.fields), "p.last"]
    stores = "\n".join(f"    out[{index}] = float({field});" for index, field in enumerate(fields))
    (tmp_path / "structs.metal.j2").write_text(
        '{% include "prelude.metal.j2" %}\n\n[[max_total_threads_per_threadgroup(32)]]\n'
        "kernel void all_fields(device float* out [[buffer(0)]], constant Outer& p [[buffer(1)]],\n"
        "    uint index [[thread_position_in_grid]])\n{\n    if (index > 0) {\n        return;\n    }\n"
        f"{stores}\n}}\n"
    )
    family, device = ShaderFamily("structs", (INNER, IMAGE_LAYOUT, OUTER), directory=tmp_path), mg.default_device()
    numbers = [5, -7, 2.5, *range(10, 18), -0.125]
    packed = OUTER.pack(first=5, inner=(-7, 2.5), image=tuple(range(10, 18)), last=-0.125)
    out = device.allocate(4 * len(numbers))
    with mg.CommandBuffer() as commands:
        function = family.function(device, "all_fields", "float")
        commands.add_dispatch(function, 1, out, device.constant_buffer(packed))
    np.testing.assert_array_equal(out.read(0, 4 * len(numbers)).view(np.float32), np.float32(numbers))


def test_equal_constants_share_a_buffer():
    device = mg.default_device()
    assert device.constant_buffer(b"12345678") is device.constant_buffer(b"12345678")
    assert device.constant_buffer(b"12345678") is not device.constant_buffer(b"12345679")
