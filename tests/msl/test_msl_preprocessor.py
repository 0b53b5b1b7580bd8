"""What the preprocessor makes of macros and conditions, as the C standard and GNU C have it."""

# Rows of a table are easier to read on one line each.
# ruff: noqa: E501
from __future__ import annotations

import pytest

from mpsgrad.errors import ShaderError
from mpsgrad.msl.preprocessor import Preprocessor


def expanded(source: str) -> str:
    return " ".join(token.text for token in Preprocessor().run(source, "k.metal"))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('#define S(x) #x\nS( a  +  "b\\n" )', '"a + \\"b\\\\n\\""'),
        ("#define x 3\n#define f(a) f(x * (a))\n#undef x\n#define x 2\nf(x+1)", "f ( 2 * ( 2 + 1 ) )"),
        ("#define f(a) a*g\n#define g(a) f(a)\nf(2)(9)", "2 * 9 * g"),
        ("#define X Y\n#define Y X\nX", "X"),
        ("#define A(x) [x]\nA\n(\n3\n) A", "[ 3 ] A"),
        ("#define E(...) e(__VA_ARGS__)\nE() E(1) E(1,2)", "e ( ) e ( 1 ) e ( 1 , 2 )"),
        ("#define L(f, ...) f(a, ##__VA_ARGS__)\nL(x) L(x,1)", "x ( a ) x ( a , 1 )"),
        ("#define t(x,y,z) x ## y ## z\nt(1,2,3) t(,4,5) t(6,,7) t(8,9,) t(10,,) t(,11,) t(,,12) t(,,)", "123 45 67 89 10 11 12"),
        ("#define C(a,b) a ## b\nC(,x y) C(x y,) C(x,y z)", "x y x y xy z"),
        ("__COUNTER__ __LINE__\n__COUNTER__ __LINE__ __FILE__", '0 1 1 2 "k.metal"'),
        ("a // b \\\nc\nd /* e\n */ f", "a d f"),
        ("a and not b or c not_eq compl d; e xor_eq f bitand g", "a && ! b || c != ~ d ; e ^= f & g"),
    ],
)
def test_macros(source: str, expected: str) -> None:
    assert expanded(source) == expected


@pytest.mark.parametrize(
    "condition",
    [
        "1 ? 2 : 0",
        "'a' == 97 && '\\n' == 10 && '\\\\' == 92 && '\\0' == 0",
        "0x10 == 16 && 010 == 8 && 0b11 == 3 && 1'000 == 1000 && 1ul",
        "-7 / 2 == -3 && -7 % 2 == -1 && ~0 == -1",
        "!(5 > 3 > 1) && (7 & 3 | 8 ^ 1) == 11",
        "2 || 1 / 0",
        "!(defined(SIZE) && 1024 % SIZE == 0)",
        "1 ? 1 : 1 / 0",
        "defined(SIZE) or not 0 and (1 xor 0)",
        "(0 && (1 / 0 || 1 % 0)) || 1",
    ],
)
def test_conditions(condition: str) -> None:
    assert expanded(f"#if {condition}\nyes\n#else\nno\n#endif") == "yes"


@pytest.mark.parametrize("condition", ["1 / 0", "1 && 1 % 0", "0 ? 1 : 1 / 0", "(0 || 1 / 0) && 0"])
def test_a_division_by_zero_that_counts(condition: str) -> None:
    with pytest.raises(ShaderError, match="division by zero in #if expression"):
        expanded(f"#if {condition}\n#endif")
