"""Where statements begin and end, and what they are made of, as all that looks at statements reads them."""

from __future__ import annotations

import pytest

from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.analysis.statements import Statement
from mpsgrad.msl.declarations import read_program
from mpsgrad.msl.preprocessor import Preprocessor


def read(body: str) -> tuple[Source, list[Statement]]:
    text = f"void f() {{\n{body}\n}}\n"
    program = read_program(Preprocessor(None, {}).run(text, "f.metal"))
    source = Source(program.tokens, program, (3, 2), False, text, "f.metal")
    (function,) = source.functions
    return source, list(source.statements.between(function.body_open + 1, function.body_close))


def spelled(source: Source, part: tuple[int, int]) -> str:
    return " ".join(source.texts[slice(*part)])


@pytest.mark.parametrize(
    ("body", "statements"),
    [
        ("a = 1; { b; c; } ; d;", ["a = 1 ;", "{ b ; c ; }", ";", "d ;"]),
        ("if (a) b; else c; d;", ["if ( a ) b ; else c ;", "d ;"]),
        ("if (a) if (b) c; else d; e;", ["if ( a ) if ( b ) c ; else d ;", "e ;"]),
        ("if (a) { if (b) c; } else d; e;", ["if ( a ) { if ( b ) c ; } else d ;", "e ;"]),
        ("if (a) while (b) if (c) d; else e; else f; g;",
         ["if ( a ) while ( b ) if ( c ) d ; else e ; else f ;", "g ;"]),
        ("if (a) for (;;) b; else c; d;", ["if ( a ) for ( ; ; ) b ; else c ;", "d ;"]),
        ("if constexpr (a) { b; } else { c; } d;", ["if constexpr ( a ) { b ; } else { c ; }", "d ;"]),
        ("if (a) [[likely]] { b; } c;", ["if ( a ) [ [ likely ] ] { b ; }", "c ;"]),
        ("do a; while (b); c;", ["do a ; while ( b ) ;", "c ;"]),
        ("do while (a) b; while (c); d;", ["do while ( a ) b ; while ( c ) ;", "d ;"]),
        ("do do a; while (b); while (c); d;", ["do do a ; while ( b ) ; while ( c ) ;", "d ;"]),
        ("if (a) do { b; } while (c); else d; e;", ["if ( a ) do { b ; } while ( c ) ; else d ;", "e ;"]),
        ("switch (a) { case 1: b; } c;", ["switch ( a ) { case 1 : b ; }", "c ;"]),
        ("switch (a) case 1: if (b) c; else d; e;", ["switch ( a ) case 1 : if ( b ) c ; else d ;", "e ;"]),
        ('_Pragma("x") for (;;) { a; } b;', ['_Pragma ( "x" ) for ( ; ; ) { a ; }', "b ;"]),
        ("__attribute__((x)) while (a) { b; } c;", ["__attribute__ ( ( x ) ) while ( a ) { b ; }", "c ;"]),
        ("auto a = [&](int b) { return b; }; c;", ["auto a = [ & ] ( int b ) { return b ; } ;", "c ;"]),
        ("struct A { int b; }; A c = {1};", ["struct A { int b ; } ;", "A c = { 1 } ;"]),
    ],
)  # fmt: skip
def test_ends(body: str, statements: list[str]) -> None:
    source, found = read(body)
    assert [spelled(source, (each.start, each.end)) for each in found] == statements


@pytest.mark.parametrize(
    ("statement", "condition", "parts"),
    [
        ("if (a) b; else if (c) d;", "a", ["b ;", "if ( c ) d ;"]),
        ("if constexpr (a > (b)) { c; }", "a > ( b )", ["{ c ; }"]),
        ("for (int a = 0; a < b; a++) c;", "int a = 0 ; a < b ; a ++", ["c ;"]),
        ("while (a) ;", "a", [";"]),
        ("do a(b); while (c || d);", "c || d", ["a ( b ) ;"]),
        ("do if (a) b; else c; while (d);", "d", ["if ( a ) b ; else c ;"]),
        ("switch (a) { case 1: b; }", "a", ["{ case 1 : b ; }"]),
        ("case a ? 1 : 2: b;", "", ["b ;"]),
        ("default: case A::b: c;", "", ["case A :: b : c ;"]),
        ("a = b;", "", []),
        ("{ a; }", "", []),
    ],
)
def test_parts(statement: str, condition: str, parts: list[str]) -> None:
    source, (found,) = read(statement)
    assert spelled(source, found.condition) == condition
    assert [spelled(source, part) for part in found.parts] == parts


@pytest.mark.parametrize(
    ("body", "sections"),
    [
        ("{ case 1: a; break; case 2: case 3: { b; } c; default: d; }", ["a ; break ;", "{ b ; } c ;", "d ;"]),
        ("{ a; case 1: b; default: }", ["b ;", ""]),
        ("{ case 1: switch (a) { case 2: b; } case 3: if (c) d; else e; f; }",
         ["switch ( a ) { case 2 : b ; }", "if ( c ) d ; else e ; f ;"]),
        ("default: a;", ["a ;"]),
        ("{ }", []),
        ("a;", []),
    ],
)  # fmt: skip
def test_sections(body: str, sections: list[str]) -> None:
    source, (found,) = read(f"switch (x) {body}")
    assert [spelled(source, (start, end)) for _, start, end in source.statements.sections(found)] == sections


def test_clauses() -> None:
    source, (loop, over) = read("for (int a = f([&] { b; }); ; a++, c(d)) e; for (auto a : b) c;")
    clauses = [spelled(source, part) for part in source.statements.clauses(loop.condition)]
    assert clauses == ["int a = f ( [ & ] { b ; } )", "", "a ++ , c ( d )"]
    assert len(source.statements.clauses(over.condition)) == 1


def test_the_while_of_a_do_is_no_statement() -> None:
    source, _ = read("do a; while (b); while (c) d; if (e) do { f; } while (g);")
    words = [source.text(each.word) for each in source.statements.deciding("while", "do")]
    assert words == ["do", "while", "do"]


def test_chains_may_be_long() -> None:
    count = 3000
    source, (chain,) = read(" else ".join(f"if (a == {number}) b;" for number in range(count)))
    assert len(list(source.statements.deciding("if"))) == count
    assert chain.end == source.functions[0].body_close
