"""Rules 8 to 14, 17, 46, 47 and 53: what of C++ Metal leaves out, and the names that it keeps for itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.function_parameters import parameters_that_are_functions
from mpsgrad.msl.lint.library import LIBRARY_FUNCTIONS
from mpsgrad.msl.lint.rule import Found, needs, rule
from mpsgrad.msl.refusals import FOREIGN_TYPES
from mpsgrad.msl.tokens import IDENTIFIER, NUMBER, matching_angle
from mpsgrad.msl.versions import CPP_17, RECURSION

_DOUBLE = re.compile(
    rf"{'|'.join(sorted(FOREIGN_TYPES))}|double[234]|double\dx\d|long|[0-9.]*\.?[0-9.]+(?:[eE][+-]?\d+)?[lL]"
)
_BFLOAT = re.compile(r"(?:packed_)?bfloat[234]?")


@rule(
    8,
    "no-double",
    words="'double' is not supported in Metal",
    why="Apple GPUs have no 64-bit floating arithmetic, and a literal without suffix is a float.",
)
def no_double(source: Source) -> Iterator[Found]:
    yield from doubles(source)


def doubles(source: Source) -> Iterator[Found]:
    """The types that Metal has not."""
    for index in source.matches(_DOUBLE):
        token = source.tokens[index]
        if token.kind == IDENTIFIER and token.text != "long":
            if token.text in source.types or token.text not in FOREIGN_TYPES and _is_object(source, index):
                continue
            name = "long double" if source.text(index - 1) == "long" else token.text
            yield token, f"'{name}' is not supported in Metal"
        elif token.text == "long" and source.text(index + 1) == "long":
            yield token, "'long long' is not supported in Metal"
        elif token.kind == NUMBER:
            if "." in token.text or "e" in token.text.lower():
                yield token, "'long double' is not supported in Metal"


def _is_object(source: Source, index: int) -> bool:
    """Whether the name at ``index`` is a member's or a variable's."""
    name = source.text(index)
    is_member = any(name in members for members in source.members.values())
    return source.text(index - 1) in (".", "->") or is_member or source.variable(name, index) is not None


@rule(
    9,
    "no-bfloat",
    words="unknown type name 'bfloat'",
    why="The type came with Metal 3.1.",
)
def no_bfloat(source: Source) -> Iterator[Found]:
    if source.version >= (3, 1):
        return
    for index in source.matches(_BFLOAT):
        token = source.tokens[index]
        if token.kind == IDENTIFIER:
            if source.text(index - 1) in ("struct", "class", "union") or token.text in source.aliases:
                return
            if source.variable(token.text, index) is not None:
                continue
            if source.text(index - 1) not in (".", "->"):
                yield token, f"unknown type name '{token.text}': {needs('3.1')}"


@rule(
    10,
    "no-lambda",
    words="lambda expressions are not supported in Metal",
    why="They came with Metal 3.2.",
)
def no_lambdas(source: Source) -> Iterator[Found]:
    if source.version >= (3, 2):
        return
    for index in source.places("["):
        token = source.tokens[index]
        if source.text(index + 1) == "[" or source.text(index - 1) == "[":
            continue
        before = source.tokens[index - 1] if index else None
        if before is not None and (
            before.text in (")", "]", ">") or before.kind == IDENTIFIER and before.text != "return"
        ):
            continue
        if source.text(source.close(index) + 1) in ("(", "{"):
            yield token, f"lambda expressions are not supported in Metal: {needs('3.2')}"


@rule(
    11,
    "no-recursion",
    why="Before Metal 2.4 calls are inlined, so the compiler must see how deep they go.",
)
def no_recursion(source: Source) -> Iterator[Found]:
    """Sees what ``recursive_calls`` does."""
    from mpsgrad.msl.analysis.recursion import recursive_calls

    if source.version >= RECURSION:
        return
    for index in recursive_calls(source, LIBRARY_FUNCTIONS):
        message = f"'{source.text(index)}' calls itself: recursion is not supported; {needs('2.4')}"
        yield source.tokens[index], message


@rule(
    12,
    "function-pointer",
    words="pointers to functions are not allowed",
    severity="warning",
    why="Legal on Apple GPUs from Metal 2.3, but not in OpenCL C++, so such a kernel runs on Apple GPUs only.",
)
def function_pointers_stay_on_apple(source: Source) -> Iterator[Found]:
    """A function as a parameter of a template or of a function is let pass: no pointer is left of it."""
    tokens = source.tokens
    carried = parameters_that_are_functions(tokens) if source.version >= (2, 3) else frozenset[int]()
    heads = (i + 1 for i in source.places("template") if source.text(i + 1) == "<")
    templates = [(i, matching_angle(tokens, i) or i) for i in heads]
    for index in source.places("("):
        if source.text(index + 1) != "*" or source.close(index) < 0:
            continue
        close = source.close(index)
        if source.text(close + 1) != "(" or not (source.is_type(index - 1) or source.text(index - 1) == "*"):
            continue
        if close - index > 3 or (close == index + 3 and source.kind(index + 2) != IDENTIFIER):
            continue
        if source.text(index - 1) == "*" and not source.is_type(index - 2):
            continue
        if index in carried or any(start < index < end for start, end in templates):
            continue
        if source.version < (2, 3):
            yield source.tokens[index + 1], "pointers to functions are not allowed", "error"
        else:
            yield source.tokens[index + 1], "pointers to functions run on Apple GPUs only: they cannot be translated"


_FORBIDDEN = ("dynamic_cast", "typeid", "new", "delete", "virtual", "try", "catch", "throw", "thread_local")


@rule(
    13,
    "forbidden-construct",
    words="'new' is not supported in Metal",
    why="A GPU has no heap, no exceptions and no run-time types, and its threads must follow structured control flow.",
)
def no_forbidden_constructs(source: Source) -> Iterator[Found]:
    """From Metal 3.0 on 'noexcept' is let pass: sources in use have it."""
    later = ("noexcept",) if source.version < (3, 0) else ()
    for index in source.words(*_FORBIDDEN, *later):
        if source.text(index) == "delete" and source.text(index - 1) == "=":
            continue
        if source.text(index) == "virtual":
            yield source.tokens[index], "virtual member functions are not supported in Metal"
        else:
            yield source.tokens[index], f"'{source.text(index)}' is not supported in Metal"
    for index in source.words("asm", "__asm__", "__asm"):
        yield source.tokens[index], "illegal asm statement"
    for index in source.words("register"):
        yield source.tokens[index], "Metal does not support the 'register' storage class specifier"
    yield from jumps(source)


def jumps(source: Source) -> Iterator[Found]:
    """``goto`` and the labels that it would jump to."""
    for index in source.words("goto"):
        yield source.tokens[index], "'goto' is not supported in Metal"
    for colon in source.places(":"):
        index = colon - 1
        is_first = source.text(index - 1) in (";", "{", "}") or _ends_case(source, index - 1)
        if source.kind(index) == IDENTIFIER and is_first:
            token = source.tokens[index]
            if token.text not in ("default", "public", "private", "protected", "enum") and source.in_body(index):
                yield token, "labeled statements are not supported in Metal"


def _ends_case(source: Source, colon: int) -> bool:
    """Whether the colon at an index ends a ``case`` or a ``default``."""
    first = colon
    while first > 0 and source.text(first - 1) not in (";", "{", "}", "?"):
        first -= 1
    return source.text(colon) == ":" and source.text(first) in ("case", "default")


_TRAITS = re.compile(r"(?:bool_constant|integral_constant|true_type|false_type|is_\w+)$")


@rule(
    14,
    "no-derived-class",
    words="derived classes are not supported in Metal",
    why="Apple's compiler takes base classes only from Metal 3.0 on; a member does the same work.",
)
def no_derived_classes(source: Source) -> Iterator[Found]:
    """The library's type traits are let pass as bases: they hold no data."""
    if source.version >= (3, 0):
        return
    for index in source.words("struct", "class"):
        if source.kind(index + 1) != IDENTIFIER:
            continue
        position = index + 2 + (source.text(index + 2) == "final")
        if source.text(position) == "<":
            while position < len(source.tokens) and source.text(position) not in (":", "{", ";", "("):
                position += 2 if source.text(position + 1) == "::" else 1
        if source.text(position) != ":" or source.text(index - 1) == "enum":
            continue
        position += 1
        while source.text(position) in ("public", "private", "protected", "metal", "::"):
            position += 1
        if not _TRAITS.match(source.text(position)):
            yield source.tokens[index + 1], "derived classes are not supported in Metal"


@rule(
    17,
    "no-standard-library",
    words="use of undeclared identifier 'std'",
    why="Metal has its own library in <metal_stdlib>; the headers and names of C++'s do not exist there.",
)
def no_standard_library(source: Source) -> Iterator[Found]:
    for index in source.words("std"):
        if source.text(index + 1) == "::":
            yield source.tokens[index], "use of undeclared identifier 'std'"
        elif source.text(index - 1) == "namespace" and source.text(index - 2) == "using":
            yield source.tokens[index], "expected namespace name"


_LIBRARY_TYPES = re.compile(
    r"atomic_(?:u?int|bool|ulong|float)|simdgroup_(?:half|float|bfloat)8x8|simdgroup_matrix|(?:half|float)[2-4]x[2-4]"
)
# Their arguments are of a class, or of an enumeration, in namespace metal, where calls without it are looked up, too.
_OF_MATRICES = frozenset(f"simdgroup_{name}" for name in ("load", "store", "multiply", "multiply_accumulate"))
_OF_ENUMERATIONS = re.compile(r"atomic_\w+_explicit|(?:threadgroup|simdgroup)_barrier")
_INCLUDES_LIBRARY = re.compile(r"^\s*#\s*(?:include|import)\s*<metal_", re.MULTILINE)


@rule(
    46,
    "library-namespace",
    words="use of undeclared identifier",
    why="The library's names live in namespace metal: 'using namespace metal;' or 'metal::' must bring them in.",
)
def library_names_are_qualified(source: Source) -> Iterator[Found]:
    """Looks at called functions, namespaces, atomic types and matrices in a source that has kernels and includes the
    library; any 'using namespace metal' is taken to reach everywhere."""
    if source.is_header or not source.program.kernels or not _INCLUDES_LIBRARY.search(source.written):
        return
    texts = source.texts
    for index, text in enumerate(texts):
        if text == "using" and texts[index + 1 : index + 3] in (["namespace", "metal"], ["namespace", "simd"]):
            return
        if text == "using" and texts[index + 1 : index + 4] == ["namespace", "::", "metal"]:
            return
        if text == "namespace" and texts[index + 1 : index + 2] == ["metal"]:
            return
    brought = set()
    for index in source.places("metal"):
        before = [text for text in texts[max(index - 2, 0) : index] if text != "::"][-1:]
        if before == ["using"] and source.text(index + 1) == "::":
            brought.add(source.text(index + 2))
    for index in source.calls():
        name = texts[index]
        if name not in LIBRARY_FUNCTIONS or name in source.declared_functions or name in brought:
            continue
        has_value = _OF_ENUMERATIONS.fullmatch(name) and "metal" in texts[index : source.close(index + 1)]
        if name in _OF_MATRICES or has_value:
            continue
        if source.text(index - 1) != "::" and source.variable(name, index) is None and source.in_body(index):
            yield source.tokens[index], f"use of undeclared identifier '{name}'; did you mean 'metal::{name}'?"
    for index in source.places("fast", "precise"):
        name = texts[index]
        is_declared = any(texts[k + 1] == name for k in source.places("namespace"))
        if texts[index + 1] == "::" and source.text(index - 1) != "::" and name not in brought and not is_declared:
            yield source.tokens[index], f"use of undeclared identifier '{name}'; did you mean 'metal::{name}'?"
    own = source.struct_bodies.keys() | source.aliases.keys() | source.variables.keys() | brought
    for index in source.matches(_LIBRARY_TYPES):
        name = source.text(index)
        if name not in own and source.text(index - 1) not in ("::", "using", "struct", "class", ".", "->"):
            yield source.tokens[index], f"unknown type name '{name}'; did you mean 'metal::{name}'?"


_KEYWORDS = frozenset({"kernel", "vertex", "fragment", "device", "constant", "thread", "threadgroup", "half"})
_NO_ADDRESS_SPACES = ("kernel", "vertex", "fragment", "half")
_BEFORE_NAMES = ("struct", "class", "union", "enum", "namespace")
_RESERVED = re.compile(rf"packed_bool[234]|{'|'.join(sorted(_KEYWORDS))}")


@rule(
    47,
    "reserved-name",
    words="expected unqualified-id",
    why="Metal's keywords cannot name variables, and there are no packed vectors of bool.",
)
def reserved_names_are_not_used(source: Source) -> Iterator[Found]:
    for index in source.matches(_RESERVED):
        token = source.tokens[index]
        if token.kind != IDENTIFIER:
            continue
        if token.text not in _KEYWORDS:
            yield token, f"unknown type name '{token.text}'"
        elif source.text(index - 1) in _BEFORE_NAMES or _is_enumerator(source, index):
            yield token, f"expected unqualified-id: '{token.text}' is a keyword"
        elif source.is_type(index - 1) and source.text(index - 1) != "auto":
            following = source.text(index + 1)
            if source.text(index - 1) == "void" and following != "(":
                continue
            is_function = following == "(" and not source.in_body(index) and token.text in _NO_ADDRESS_SPACES
            ends = (",", ")") if source.text(index - 2) in ("(", ",") else (",",)
            is_name = is_function or (following in ("=", ";") or following in ends and token.text in _NO_ADDRESS_SPACES)
            is_cast = source.text(index - 2) == "(" and following != ")" and following not in ends
            if is_name and source.text(index - 2) not in ("using", "sizeof") and not is_cast:
                yield token, f"expected unqualified-id: '{token.text}' is a keyword"


def _is_enumerator(source: Source, index: int) -> bool:
    """Whether a name stands where an enumeration declares one; values before it may have no brackets."""
    if source.text(index + 1) not in (",", "}", "="):
        return False
    while source.text(index) not in ("{", "}", ";", "(", ")", ""):
        index -= 1
    head = index
    while source.text(index) == "{" and source.text(head - 1) not in (";", "{", "}", "(", ")", ""):
        head -= 1
    return "enum" in source.texts[head:index]


def class_templates_have_arguments(source: Source) -> Iterator[Found]:
    """Objects and temporaries of the program's own class templates whose arguments are left to be deduced."""
    if source.version >= CPP_17:
        return
    for name, bodies in source.struct_bodies.items():
        if not all(is_template for *_, is_template in bodies) or name in source.aliases:
            continue
        for index in source.words(name):
            if source.text(index - 1) in ("struct", "class", "friend") or source.variable(name, index) is not None:
                continue
            is_object = source.kind(index + 1) == IDENTIFIER and source.text(index + 2) in ("(", "{", "=", ";")
            is_temporary = source.text(index + 1) in ("(", "{") and source.in_body(index)
            if (is_object or is_temporary) and not _is_in_class(source, name, index):
                message = f"use of class template '{name}' requires template arguments: their deduction is C++17"
                yield source.tokens[index], message


def _is_in_class(source: Source, name: str, index: int) -> bool:
    """Whether ``index`` stands where the name of a class template alone means the class."""
    if any(start < index < end for start, end, _ in source.struct_bodies[name]):
        return True
    around = [each for each in source.functions if each.start <= index <= each.body_close]
    return any({name, "::"} <= set(source.texts[each.start : each.opening]) for each in around)


@rule(
    53,
    "later-c++",
    words="use of class template 'S' requires template arguments",
    why="Metal is C++14 up to 3.2, in which nothing tells a class template's arguments from those of its constructor.",
)
def nothing_of_later_cpp(source: Source) -> Iterator[Found]:
    """Sees the program's own class templates. Of 'if constexpr', which Apple's compiler takes, it warns."""
    yield from class_templates_have_arguments(source)
    for index in source.places("constexpr") if source.version < CPP_17 else ():
        if source.text(index - 1) == "if":
            yield source.tokens[index], "constexpr if is a C++17 extension", "warning"
