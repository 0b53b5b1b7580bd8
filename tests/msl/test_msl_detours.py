"""Numbers that are the same for all threads that come one way, where the ways lead through more flow."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.msl import translate
from mpsgrad.msl.analysis.loops import Loops
from mpsgrad.msl.analysis.source import Source

LANES = 64
HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
LONG = "for (int k = 0; k < 30; k++) a = a * 5 + b;"
SHORT = "for (int k = 0; k < 4; k++) a = a * 7 + b;"
ROLLED = f'_Pragma("clang loop unroll(disable)") {SHORT}'
FUNCTION = f"""uint of(uint a, uint b, thread uint& out) {{
  if (a & 1) {{ {LONG} out = a; return 10; }}
  {ROLLED} out = a; return 20;
}}
"""
CALLED = f"""uint one(thread uint& a, uint b) {{ {LONG} return 10; }}
uint two(thread uint& a, uint b) {{ {ROLLED} return 20; }}
"""
PLAIN = "struct Plain { uint one() const { return 1; } uint two() const { return 2; } };\nconstant Plain plain = {};\n"


CONSTANT = """constexpr int power(int base, int exponent) {
  int product = 1;
  if (exponent > 3) { for (int k = 0; k < exponent; k++) product *= base; return product; }
  for (int k = 0; k < exponent; k++) product *= base;
  return product;
}
constant constexpr uint TABLE[power(2, 4)] = {10, 20};
"""


def kernel(body: str, functions: str = "") -> str:
    return (
        f"{HEAD}{functions}kernel void f(device const uint* x, device uint* y, constant uint& n,\n"
        f"  uint i [[thread_position_in_grid]]) {{\n  uint a = x[i], b = x[i + {LANES}], r = 0;\n  {body}\n"
        f"  y[i] = r; y[i + {LANES}] = a;\n}}\n"
    )


def turned(a: np.ndarray, b: np.ndarray, factor: int, turns: int) -> np.ndarray:
    for _ in range(turns):
        a = a * np.uint32(factor) + b
    return a


@pytest.mark.parametrize(
    ("body", "functions"),
    [
        (f"if (a & 1) {{ {LONG} r = 10; }} else {{ {ROLLED} r = 20; }}", ""),
        (f"if (a & 1) {{ {LONG} r = 10; }} else if (n > 0) {{ {ROLLED} r = 20; }} else {{ {LONG} r = 30; }}", ""),
        (f"for (uint t = 0; t < n; t++) {{ if (a & 1) {{ {LONG} r = 10; break; }} {ROLLED} r = 20; break; }}", ""),
        (f"if (a & 1) {{ {LONG} y[i] = 10; y[i + {LANES}] = a; return; }} {ROLLED} r = 20;", ""),
        ("uint out; r = of(a, b, out); a = out;", FUNCTION),
        ("r = (a & 1) ? one(a, b) : two(a, b);", CALLED),
        ("if (a & 1) r = one(a, b); else r = two(a, b);", CALLED),
    ],
)
def test_each_thread_has_the_number_of_its_way(body: str, functions: str) -> None:
    x = np.random.default_rng(0).integers(0, 1000, 2 * LANES).astype(np.uint32)
    y = np.zeros(2 * LANES, np.uint32)
    mg.compile(kernel(body, functions)).function("f")(LANES, x, y, np.uint32(3))
    a, b = x.reshape(2, LANES)
    odd = a & 1 == 1
    np.testing.assert_array_equal(y[:LANES], np.where(odd, 10, 20))
    np.testing.assert_array_equal(y[LANES:], np.where(odd, turned(a, b, 5, 30), turned(a, b, 7, 4)))


@pytest.mark.parametrize(
    "body",
    [
        # Ways of several blocks without a loop.
        "if (p) { if (n) y[i + 256] = c; z.w = 58; r = 10; }"
        " else { if (c * b > a) y[i + 256] = 1; else z.w = 96; e = z.w; r = 20; }"
        " for (uint k = 0; k < turns; k++) if (e++ > 4000000000) r--;",
        "if (p) { switch (b & 3) { case 0: e = *w; break; case 1: e = x[e & 63]; default: if (n) y[i + 256] = e; }"
        f" {LONG} r = 10; }} else {{ switch (b & 3) {{ case 2: e = *w; default: y[i + 256] = 3; }} {LONG} r = 20; }}",
        f"switch (uint(p)) {{ case 0: {LONG} r = 20; break; default: {LONG} r = 10; break; }}",
        # A condition that all threads agree about, behind one that they do not.
        f"for (uint k = 0; k < 3; k++) {{ if (p) {{ e = *w; if (turns > 2) {{ r = 10; break; }} {LONG} }}"
        f" if (n) y[i + 256] = e; {LONG} r = 20; }}",
        f"for (uint k = 0; k < 3; k++) {{ r = 0; if (p) {{ {LONG} r = 10; if (turns > 2) continue; {LONG} }}"
        f" if (n) y[i + 256] = e; {LONG} r += 20; }}",
        # Ways that were found before they were made shorter.
        "for (uint k = 0; k < 2; k++) { if (p) { z.x = (n ? *w : c) >> 3; r = 10; }"
        " else { n = (b & b) > *w - turns; if ((p ? c : z.x) < (n ? 0u : 0u)) break; w++; r = 20; } }",
        "if (p) { switch (b & 3) { case 1: break; default: n = !n; } if (b > 5000) return; r = 10; }"
        " else { if (c >= b) z.y = 65; z.x = (a != z.y) ? 7u : z.x; r = 20; } e = n ? *w : 3u;",
    ],
)
def test_ways_of_several_blocks(body: str) -> None:
    parameters = "device const uint* x, device uint* y, constant uint& turns, uint i [[thread_position_in_grid]]"
    start = "uint a = x[i], b = x[i + 64], c = x[i + 128], r = 0, e = 0; uint4 z = uint4(a, b, c, i);"
    start += " bool p = a & 1, n = c > 7; device const uint* w = x + i;"
    end = "y[i] = r; y[i + 64] = e; y[i + 128] = z.x; y[i + 192] = a + n;"
    x = np.random.default_rng(2).integers(0, 40, 3 * LANES).astype(np.uint32)
    y = np.zeros(5 * LANES, np.uint32)
    mg.compile(f"{HEAD}kernel void f({parameters}) {{ {start} {body} {end} }}").function("f")(LANES, x, y, np.uint32(3))
    np.testing.assert_array_equal(y[:LANES], np.where(x[:LANES] & 1 == 1, 10, 20))


# What one arm chooses where the program has decided before: neither is a number that all threads may work out.
CHOSEN_IN_ARMS = [
    "z += !(m != 0) ? c : uint(turns);",
    "z += !(m != 0) ? c : uint(size.turns);",
    "z += !(m != 0) ? c : again;",
    "z += !(m != 0) ? c : second(x);",
    "z += chosen(!(m != 0), c, x);",
    "z += size.chosen(!(m != 0), c);",
    "z += !(m != 0) ? c / (b | 1) : c;",
    "z += !(m != 0) ? c : popcount(c);",
    "z += !(m != 0) ? uint(float(c) * 1.5f) : c;",
    "z += !(m != 0) ? c : c * a + a * b - (c ^ a) * (b | 3) + (a << 3) - b * b;",
    "z += !(m != 0u) && turns > int(m);",
    "z += !(m != 0u) || (c > a && a > b && b > c);",
]
CHOSEN_FUNCTIONS = """struct Size {
  int turns;
  uint chosen(bool p, uint c) constant const { return p ? c : uint(turns); }
};
uint second(device const uint* x) { return x[1]; }
uint chosen(bool p, uint c, device const uint* x) { return p ? c : *x; }
"""


@pytest.mark.parametrize("loop", ["", "for (int k = 0; k < turns; k++) { }"])
def test_ways_on_which_values_are_chosen(loop: str) -> None:
    parameters = "device const uint* x, device uint* y, constant int& turns, constant Size& size"
    start = "uint a = x[i], b = x[i + 64], c = x[i + 128], z = 3, e = a, m = a & 3, q[3] = {a, b, c};"
    start += " uchar r = uchar(b); bool p = a & 1; device const uint* w = x + i; bool u[4] = {p, true, p, true};"
    start += " thread uint& again = q[b % 3];"
    start += " threadgroup_barrier(mem_flags::mem_threadgroup); if (u[3]) { } else { m = 3u ? 0 : 0; }"
    end = f"else {{ e &= m == 2 ? uint(r) : *w; {loop} r = 20; }} y[i] = r; y[i + 64] = z; y[i + 128] = e;"
    source = HEAD + CHOSEN_FUNCTIONS
    for number, choice in enumerate(CHOSEN_IN_ARMS):
        head = f"kernel void f{number}({parameters}, uint i [[thread_position_in_grid]])"
        source += f"{head} {{ {start} if (p) {{ {choice} r = 10; }} {end} }}\n"
    library = mg.compile(source, language_version="3.2")
    x = np.random.default_rng(3).integers(-20, 20, 3 * LANES).astype(np.int32).view(np.uint32)
    for number, choice in enumerate(CHOSEN_IN_ARMS):
        y = np.zeros(3 * LANES, np.uint32)
        library.function(f"f{number}")(LANES, x, y, np.int32(3), np.int32([3]))
        np.testing.assert_array_equal(y[:LANES], np.where(x[:LANES] & 1 == 1, 10, 20), err_msg=choice)


@pytest.mark.parametrize("block", ["{{ {} }}", "{{ {{ {} }} }}"])
def test_ways_behind_blocks_that_end_with_a_choice(block: str) -> None:
    choice = "bool m = !q; if (q) m = u[0]; if (!m || !q) { if (x[126] > 7) { y[i + 64] = 24; return; } }"
    turn = f"{block.format(choice)} if (!p) {{ if (n > 2) continue; }} u[3] = x[100] > 7;"
    start = "bool p = a & 1, q = int(b) > 0, u[4] = {p, q, p, true};"
    source = kernel(f"{start} for (int k = 0; k < 2; k++) {{ {turn} }} r = 9 + u[3];", "")
    x = np.random.default_rng(5).integers(1, 1 << 32, 2 * LANES, dtype=np.uint64).astype(np.uint32)
    y = np.zeros(2 * LANES, np.uint32)
    mg.compile(source).function("f")(LANES, x, y, np.uint32(3))
    a, b = x.reshape(2, LANES)
    np.testing.assert_array_equal(y[:LANES], np.where((a & 1 == 1) & (b.view(np.int32) > 0), 10, 0))


TWO_LOOPS = f"for (uint t = 0; t < g; t++) {{ {LONG} r = 10; }} for (uint t = g; t < 1; t++) {{ {LONG} r = 20; }}"
DECIDED_BEFORE = [
    f"if (p) {{ {LONG} }} if (!p) {{ {ROLLED} r = 20; }} else {{ r = 10; }}",
    f"if (p) {{ }} else {{ {LONG} }} if (q == 0) {{ r = 20; }} else {{ {LONG} r = 10; }}",
    f"if ((m & 1) != 0) {{ {LONG} r = 10; }} b += 3; if (!(m & 1)) {{ {ROLLED} r = 20; }}",
    f"r = 10; if (p) {{ {LONG} }} while (!p) {{ {LONG} r = 20; break; }}",
    f"while (p && r != 10) {{ {LONG} r = 10; }} if (!p) {{ {LONG} r = 20; }}",
    f"for (uint t = 0; t < q; t++) {{ {LONG} r = 10; }} for (uint t = q; t < 1; t++) {{ {LONG} r = 20; }}",
    f"for (int t = 0; t < 3; t++) {{ if (p) {{ {LONG} }} if (!p) {{ {LONG} r = 20; }} else {{ r = 10; }} }}",
    f"if (p) {{ {LONG} }} if (bool even = !p) {{ {LONG} r = 20; }} else {{ r = 10; }}",
    "for (int t = 0; t < 4; t++) { if (p) { while (a > 5) a >>= 1; r = 10; } else { while (a > 6) a >>= 1; r = 20; } }",
    f"r = 10; if (p) {{ {LONG} }} while (bool even = !p) {{ {LONG} r = 20; break; }}",
    f"r = 10; if (p) {{ {LONG} }} for (int t = 0; uint even{{!p}}; t++) {{ {LONG} r = 20; break; }}",
    f"r = 10; if (p) {{ {LONG} }} if ([&](bool odd) {{ bool even = !odd; return even; }}(p)) {{ {LONG} r = 20; }}",
    f"r = 10; if (p) {{ {LONG} }} for (;;) {{ if (p) break; {LONG} r = 20; break; }}",
    f"r = 10; for (uint t = 0; t < n; t++) {{ switch (m & 1) {{ case 1: {LONG} }} if (p) continue; {LONG} r = 20; }}",
    f"grow(a, b, p); if (!p) {{ {LONG} r = 20; }} else {{ r = 10; }}",
    "grow(a, b, p); r = grow(a, b, !p) ? 20 : 10;",
    f"uint c = p ? until(a, n) : 3; if (!p) {{ {LONG} r = 20; }} else {{ r = 10; }} a += c;",
    f"y[i] = p; device const uint& g = y[i]; {TWO_LOOPS}",
    "y[i] = p; by_reference(a, b, r, y[i]);",
]
CHOSEN_BEFORE = [
    "c = (o || b & 2) ? (o ? 2u : 5u) : x[m & 63];",
    "c = (o || b & 2) ? (o ? 2u : 5u) : m / (b | 1);",
    "c = (o || b & 2) ? (o ? 2u : 5u) : uint(sin(float(m & 255)) * 40 + exp(float(b & 3)));",
    "if (o || b & 2) { c = o ? 2u : 5u; } else c = x[m & 63];",
]
DECIDED_BEFORE += [
    f"uint4 z = m; uint c = 0; bool o = int(a) > 0; for (uint t = 0; t < 3; t++) {{ {choice}"
    f" if (o) {{ {LONG} y[i] = 10; return; }} else {{ {ROLLED} z.w = 20; }} }} a = c; r = z.w;"
    for choice in CHOSEN_BEFORE
]
GROWING = f"""bool grow(thread uint& a, uint b, bool p) {{ if (p) {{ {LONG} return true; }} return false; }}
void by_reference(thread uint& a, uint b, thread uint& r, device const uint& g) {{ {TWO_LOOPS} }}
uint until(uint a, uint b) {{ for (uint k = 0; k < b; k++) {{ {LONG} if (a > 7) return k; }} return b; }}
"""


def test_choices_that_others_decide_about_before() -> None:
    start = "bool p = a & 1; uint q = p, m = a;"
    kernels = [
        kernel(f"{start} {body}", GROWING if not number else "").removeprefix(HEAD if number else "")
        for number, body in enumerate(DECIDED_BEFORE)
    ]
    source = "".join(text.replace("void f(", f"void f{number}(") for number, text in enumerate(kernels))
    library = mg.compile(source, language_version="3.2")
    x = np.random.default_rng(4).integers(0, 1 << 31, 2 * LANES, dtype=np.uint32)
    # Odd numbers are positive.
    x |= ~x << 31
    for number, body in enumerate(DECIDED_BEFORE):
        y = np.zeros(2 * LANES, np.uint32)
        library.function(f"f{number}")(LANES, x, y, np.uint32(3))
        np.testing.assert_array_equal(y[:LANES], np.where(x[:LANES] & 1, 10, 20), err_msg=body)


@pytest.mark.parametrize(
    ("body", "conditions"),
    [
        (f"if (a & 1) {{ {LONG} }}", []),
        (f"if (a & 1) {{ {LONG} }} if (b & 1) {{ {LONG} }}", ["b & 1"]),
        (f"if (a & 1) {{ {LONG} }} if (b & 1) r = 3;", []),
        (f"if (a & 1) {{ {LONG} }} if (uint c = b & 1) {{ {LONG} }}", ["c"]),
        (f"if (a & 1) {{ {LONG} }} while (uint c = b) {{ b = a; {LONG} }}", ["true"]),
        (f"if (a & 1) {{ {LONG} }} if (uint c = b; c & 1) {{ {LONG} }}", ["c & 1"]),
        (f"if (a & 1) {{ {LONG} }} if constexpr (sizeof(int) == 4) {{ {LONG} }}", []),
        (f"if (a & 1) {{ {LONG} }} for (uint t = 0; t < n; t++) {{ {LONG} }}", []),
        (f"device const uint& g = x[i]; if (a & 1) {{ {LONG} }} for (uint t = 0; t < g; t++) {{ {LONG} }}", ["t < g"]),
        (f"if (a & 1) {{ {LONG} }} constexpr uint c = (4), d = c; for (uint t = c; t < d; t++) {{ {LONG} }}", []),
        (f"if (a & 1) {{ {LONG} }} uint t; for (t = 0; t < 4; t++) {{ {LONG} }}", []),
        (f"if (a & 1) {{ {LONG} }} for (uint t = 0; t < b; t++) {{ {LONG} }}", ["t < b"]),
        (f"if (a & 1) {{ {LONG} }} for (;;) {{ {LONG} break; }}", []),
        (f"if (a & 1) {{ {LONG} }} if (uint c{{b}}) {{ {LONG} }}", ["c"]),
        (f"if (a & 1) {{ {LONG} }} if (b) return; if (r) c++; {LONG}", ["b"]),
        (f"c = a & 1 ? b : 3; if (b) {{ {LONG} }}", []),
        (f"c = a & 1 && b ? b : 3; if (b) {{ {LONG} }}", ["b"]),
        (f"c = a & 1 ? x[b] : 3; if (b) {{ {LONG} }}", ["b"]),
        (f"if (a & 1) {{ c = b ? 2 : 3; }} if (b) {{ {LONG} }}", ["b"]),
        (f"if (a & 1) return; if (b) {{ {LONG} }} if (c > b) {{ {LONG} }}", ["c > b"]),
    ],
)
def test_conditions_are_kept_apart_behind_other_choices(body: str, conditions: list[str]) -> None:
    text = translate(kernel(body), "opencl", launch="row").source
    found = re.findall(r"apart_mtl\(\(bool\)\(([^()]*)\)\)", text)
    assert [" ".join(each.split()) for each in found] == conditions


def test_all_arms_have_short_ways_to_where_one_jumps() -> None:
    body = """bool p = a & 1, n = c > 7; uint d = i;
    for (int k = 0; k < 4; k++) {
      if ((n ? d : 5) < 3) { if (n) { y[i] = 1; return; } } else { for (int t = 0; t < int(a & 3); t++) c = 4; }
      if ((p ? 7u : 2u) > b) { for (int t = 0; t < 4; t++) a = a * 3 + b; } else { d += c; }
    }"""
    parameters = "device const uint* x, device uint* y, uint i [[thread_position_in_grid]]"
    start = "uint a = x[i], b = x[i + 64], c = x[i + 128];"
    x = np.random.default_rng(2).integers(0, 40, 3 * LANES).astype(np.uint32)
    x[2 * LANES :] |= 8
    y = np.zeros(LANES, np.uint32)
    mg.compile(f"{HEAD}kernel void f({parameters}) {{ {start} {body} }}").function("f")(LANES, x, y)
    np.testing.assert_array_equal(y, np.arange(LANES) < 3)


def short_ways(body: str, functions: str) -> list[str]:
    version = {"__METAL_VERSION__": "320"}
    text = translate(kernel(body, functions), "opencl", launch="row", definitions=version).source
    return re.findall(r"if \(never_mtl\(\)\) ({[^}]*}|[^;]*;)", text)


@pytest.mark.parametrize(
    ("body", "functions", "ways"),
    [
        (f"if (a & 1) {{ {LONG} r = 10; }}", "", []),
        (f"if (a & 1) {{ {LONG} r = 10; }} {LONG}", "", []),
        (f"if (a & 1) {{ {LONG} r = 10; }} else r = 20;", "", []),
        (f"if (a & 1) {{ {LONG} r = 10; }} else {{ {LONG} r = 20; }}", "", ["{}", "{}"]),
        (f"if (a & 1) {{ r = a > 9 && b-- > 3; }} else {{ {LONG} r = 20; }}", "", ["{}", "{}"]),
        (f"if (a & 1) {{ r = b-- > 3 && a > 9; }} else {{ {LONG} r = 20; }}", "", []),
        (f"if (a & 1) {{ {LONG} return; }} {LONG}", "", ["return;", "return;"]),
        (f"for (; b < a; b++) {{ if (a & 1) {{ return; }} }} {LONG}", "", ["return;"]),
        ("for (; b < a; b++) { if (a & 1) { return; } } return;", "", []),
        (f"while (a) {{ for (; b < a; b++) {{ if (a & 1) {{ {LONG} break; }} }} }} {LONG}", "", ["break;"]),
        (
            f"while (a) {{ if (a & 1) {{ {LONG} return; }} else {{ if (b) break; {LONG} }} }}",
            "",
            [*["{ if (never_mtl(1)) return; if (never_mtl(2)) break; }"] * 2, "return;"],
        ),
        (f"while (a) {{ {{ if (a & 1) {{ {LONG} break; }} }} a >>= 1; }}", "", ["break;"] * 2),
        (f"while (a) {{ if (b) {{ if (a & 1) {{ {LONG} break; }} }} a >>= 1; }}", "", ["break;"] * 3),
        ("if (a & 1) return;", "", []),
        (f"{LONG} {ROLLED}", "", []),
        (f"if (a & 1) {{ {SHORT} r = 1; }} else {{ {SHORT} r = 2; }}", "", []),
        (f"while (a) {{ if (a & 1) {{ {LONG} break; }} a >>= 1; }}", "", ["break;"] * 2),
        (f"while (a) {{ switch (a) {{ case 1: {LONG} continue; case 2: a = 7; }} a >>= 1; }}", "", ["continue;"] * 2),
        ("while (a) { if (a & 1) { while (b) { b--; break; } } a >>= 1; }", "", []),
        (
            f"while (a) {{ while (b) b--; switch (b) {{ }} if (a & 1) {{ {LONG} break; }} a >>= 1; }}",
            "",
            ["break;"] * 2,
        ),
        (
            f"while (a) {{ while (b) switch (b) {{ case 1: if (a & 1) {{ {LONG} continue; }} b = 3; }} a >>= 1; }}",
            "",
            ["continue;"],
        ),
        (f"while (a) {{ switch (b) {{ }} do b--; while (b); }} if (a & 1) {{ {LONG} }} while (a) break;", "", []),
        ("uint out; r = of(a, b, out);", FUNCTION, ["return {};"] * 2),
        ("r = one(a, b) + two(a, b);", CALLED, []),
        ("r = (a & 1) ? one(a, b) : two(a, b);", CALLED, ["return {};", "return {};"]),
        ("r = (a & 1) ? Plain{}.one() : plain.two();", f"{CALLED}{PLAIN}", []),
        (f"if (a & 1) {{ threadgroup_barrier(mem_flags::mem_none); {LONG} }} else {{ {LONG} }}", "", []),
        (
            f"if (a < n) {{ if (b) {{ {LONG} return; }} }} threadgroup_barrier(mem_flags::mem_none);",
            "",
            ["{ active_mtl = false ; goto behind_1_mtl ; }"] * 4,
        ),
        (
            "switch (a) { case 1: threadgroup_barrier(mem_flags::mem_none); if (b) { r = n ? x[a] : x[b]; break; } }",
            "",
            [],
        ),
        (
            f"if (a & 1) {{ {LONG} return; }} auto g = [&](uint n) {{ {SHORT} return n; }}; r = g(a);",
            "",
            ["return;"] * 2,
        ),
    ],
)
def test_short_ways_stand_before_what_needs_them(body: str, functions: str, ways: list[str]) -> None:
    assert short_ways(body, functions) == ways


def test_many_arms_take_as_long_as_few_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    arm = "if (a == {}) {{ for (uint k = 0; k < n; k++) {{ r += k; if (r > b) break; }} }}"
    steps = 0

    def counted(method: Callable) -> Callable:
        def count(*arguments: Any) -> Any:
            nonlocal steps
            steps += 1
            return method(*arguments)

        return count

    monkeypatch.setattr(Source, "find_end", counted(Source.find_end))
    monkeypatch.setattr(Loops, "is_surely_unrolled", counted(Loops.is_surely_unrolled))
    for joint in (" else ", " "):
        needed = []
        for count in (20, 30, 40):
            steps = 0
            short_ways(joint.join(arm.format(number) for number in range(count)), "")
            needed.append(steps)
        assert needed[2] - needed[1] == needed[1] - needed[0] > 0


def test_where_a_value_cannot_be_written_loops_are_passed_by() -> None:
    function = "struct Pair { uint a; Pair(uint b) : a(b) {} };"
    function += f"Pair of(uint a, uint b) {{ if (a & 1) {{ {LONG} return Pair(10); }} {LONG} return Pair(20); }}"
    assert short_ways("r = of(a, b).a;", function) == ["{}"]
    x = np.random.default_rng(0).integers(0, 1000, 2 * LANES).astype(np.uint32)
    y = np.zeros(2 * LANES, np.uint32)
    mg.compile(kernel("r = of(a, b).a;", function)).function("f")(LANES, x, y, np.uint32(3))
    np.testing.assert_array_equal(y[:LANES], np.where(x[:LANES] & 1 == 1, 10, 20))


def test_constants_may_come_from_functions_with_short_ways() -> None:
    x = np.arange(2 * LANES, dtype=np.uint32)
    y = np.zeros(2 * LANES, np.uint32)
    mg.compile(kernel("r = TABLE[a & 1] + power(3, a & 7);", CONSTANT)).function("f")(LANES, x, y, np.uint32(3))
    expected = np.where(x[:LANES] & 1 == 1, 20, 10) + 3 ** (x[:LANES] & 7)
    np.testing.assert_array_equal(y[:LANES], expected)


def test_only_cpus_pass_loops_by() -> None:
    source = kernel(f"if (a & 1) {{ {LONG} r = 10; }} else {{ {ROLLED} r = 20; }}")
    assert "never_mtl" not in translate(source, "cuda", launch="row").source
    assert "never_mtl" not in translate(source, "opencl").source


def test_an_else_stays_with_its_if() -> None:
    body = f"if (a & 1) {LONG} else {ROLLED} if (n > 2) r = 5;"
    x = np.random.default_rng(1).integers(0, 1000, 2 * LANES).astype(np.uint32)
    y = np.zeros(2 * LANES, np.uint32)
    mg.compile(kernel(body)).function("f")(LANES, x, y, np.uint32(3))
    a, b = x.reshape(2, LANES)
    np.testing.assert_array_equal(y[:LANES], np.full(LANES, 5))
    np.testing.assert_array_equal(y[LANES:], np.where(a & 1 == 1, turned(a, b, 5, 30), turned(a, b, 7, 4)))
