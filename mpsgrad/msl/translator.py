"""From Metal source to a target's C++: rewrites what the target's compiler would not read and leaves the rest to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

from mpsgrad.errors import ShaderError
from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.backend import (
    INDEX_ATTRIBUTES,
    POSITION_ATTRIBUTES,
    SIMD_ATTRIBUTES,
    VECTOR_TYPE,
    Backend,
    position_dimensions,
)
from mpsgrad.msl.choices import choices
from mpsgrad.msl.cuda import CUDABackend
from mpsgrad.msl.declarations import (
    ADDRESS_SPACES,
    Attribute,
    Instantiation,
    Kernel,
    Parameter,
    Program,
    declares_variable,
    integer_value,
    read_program,
)
from mpsgrad.msl.diagnostics import RENAMED_SUFFIX, shader_error
from mpsgrad.msl.emission import emit
from mpsgrad.msl.function_arguments import replace_functions_as_template_arguments
from mpsgrad.msl.function_constants import IS_DEFINED, FunctionConstants
from mpsgrad.msl.headers import library
from mpsgrad.msl.instrument import LIBRARY_NAMES as CHECKS_NEED
from mpsgrad.msl.instrument import instrument, member_template
from mpsgrad.msl.opencl import OpenCLBackend
from mpsgrad.msl.overloads import Overloads
from mpsgrad.msl.preprocessor import Preprocessor
from mpsgrad.msl.refusals import refuse_function_pointers, refuse_pointers_in_buffers, refuse_unsupported
from mpsgrad.msl.signature import Argument, KernelSignature, Launch, Target, Translation
from mpsgrad.msl.temporaries import open_to_temporaries
from mpsgrad.msl.threadgroup_variables import with_outer_threadgroup_variables
from mpsgrad.msl.tokens import (
    IDENTIFIER,
    NUMBER,
    OPENING,
    PUNCTUATION,
    STRING,
    Token,
    error,
    matching,
    matching_angle,
    spell,
    split_commas,
)
from mpsgrad.msl.unions import class_bodies, owner_of_copies
from mpsgrad.msl.vector_operators import VectorOperators
from mpsgrad.msl.versions import DEFAULT, later_names, refuse_newer, version_of

LAST_BUFFER_INDEX = 30

_BACKENDS: dict[str, Backend] = {"opencl": OpenCLBackend(), "cuda": CUDABackend()}

_QUALIFIERS = ("metal", "precise", "fast")
_COMPARISONS = ("==", "!=", "<=", ">=")
_SHIFTS = ("<<", ">>", "<<=", ">>=")
WHOLE = f"whole{RENAMED_SUFFIX}"
_COMPONENTS = {letter: place for letters in ("xyzw", "rgba") for place, letter in enumerate(letters)}
VALUE = f"value{RENAMED_SUFFIX}"
UNALIGNED = f"unaligned{RENAMED_SUFFIX}"
CONSTRUCT = f"construct{RENAMED_SUFFIX}"
CHOOSE, ARM, ARM_OF_BFLOAT = (f"{name}{RENAMED_SUFFIX}" for name in ("choose", "arm", "arm_of_bfloat"))
WRAP, COUNT = f"wrap{RENAMED_SUFFIX}", f"count{RENAMED_SUFFIX}"
CONSTRUCT_ONE = f"construct_one{RENAMED_SUFFIX}"

# Where the library's functions on vectors are found by their arguments only, a variable of the same name hides them.
REACHED = "reached_"
_REACHING = (
    f"template <typename... A> inline constexpr auto {REACHED}{{0}}(A &&...a) {{{{"
    " return {0}(static_cast<A &&>(a)...); }}\n"
)

_TYPE_NAME = re.compile(r"(?:bool|u?char|u?short|u?int|u?long|half|float|size_t|auto|void|unsigned|signed)[234]?$")
_SIMD_NAME = re.compile(r"(?:simd_|quad_|simdgroup_)\w+$")

# OpenCL has these for integers only.
_FLOAT_ATOMICS = frozenset(
    """
    atomic_load_explicit atomic_store_explicit atomic_exchange_explicit atomic_compare_exchange_weak_explicit
    atomic_fetch_add_explicit atomic_fetch_sub_explicit
    """.split()
)

_UNSUPPORTED_ATTRIBUTES = {
    "texture": "textures are not supported",
    "sampler": "samplers are not supported",
    "stage_in": "[[stage_in]] is not supported: kernels take buffers only",
    "imageblock_data": "imageblocks are not supported",
    "id": "argument buffers are not supported",
    "grid_origin": "[[grid_origin]] is not supported: it belongs to [[stage_in]]",
    "grid_size": "[[grid_size]] is not supported: it belongs to [[stage_in]]",
}



def translate(
    source: str,
    target: Target,
    *,
    filename: str = "<metal>",
    resolve: Callable[[str, bool], tuple[str, str] | None] | None = None,
    definitions: Mapping[str, str] | None = None,
    function_constants: Mapping[str | int, Any] | None = None,
    launch: Launch = "whole",
    fast_math: bool = True,
    checked: str | None = None,
) -> Translation:
    """Metal Shading Language 2.3 as C++ for OpenCL 2021 or CUDA C++, with the signatures of its kernel functions.

    ``filename`` names the lines that no ``#line`` directive renames. ``resolve(name, quoted)`` finds an included file
    (its text and name). ``definitions`` are macros, as ``-D`` would set them; ``__METAL_VERSION__`` among them opens
    what versions of the language after 2.3 came with. ``function_constants`` has values by name
    or index; without one a function constant is not defined.

    ``launch`` says how the entry points are started. "whole": in whole threadgroups of the size that a kernel declares,
    as the target starts them itself. "row" and "box": over any grid, described by one more argument (``launch_mtl_t``
    in the translation). For OpenCL, with "row" threadgroups may have several rows only where a kernel uses no
    simdgroups, and with "box" kernels that do are started in rows of as many threads as a threadgroup has; for CUDA all
    are. Beside each entry point another one, with ``SIZES_SUFFIX``, then stores the sizes of what the arguments point
    to.

    Without ``fast_math`` functions of the library without a qualifier are those of ``metal::precise``.

    ``checked``, for OpenCL only, names one kernel function: the translation then has no other, and reports what it does
    wrong when it runs (``Translation.instrumentation``).

    Raises ``ShaderError``, pointing at the Metal source, for what is malformed or cannot be carried; errors in function
    bodies are left to the target's compiler, whose messages ``parse_compiler_log`` reads. Raises ``FormatError`` for
    function constants that the source does not have or whose values do not fit.
    """
    if target not in _BACKENDS:
        raise ValueError(f"translate: target is {target!r} but must be one of {sorted(_BACKENDS)}")
    try:
        backend = _BACKENDS[target]
        tokens = Preprocessor(resolve, {**backend.definitions, **(definitions or {})}).run(source, filename)
        refuse_unsupported(tokens)
        program = read_program(tokens)
        version = version_of((definitions or {}).get("__METAL_VERSION__", DEFAULT))
        refuse_newer(program.tokens, version)
        instrumentation = None
        if checked is not None:
            instrumentation = instrument(program, checked, source, filename)
            program = read_program(instrumentation.tokens)
        constants = FunctionConstants(program, function_constants or {})
        translator = _Translator(program, backend, filename, constants, launch, version, fast_math, checked)
        translation = translator.translation(instrumentation.members if instrumentation else ())
        return replace(translation, instrumentation=instrumentation) if instrumentation else translation
    except ShaderError as found:
        if found.source_line is None:
            raise shader_error(found, source, filename) from None
        raise


class _Translator:
    """The state of one translation."""

    def __init__(
        self,
        program: Program,
        backend: Backend,
        filename: str,
        constants: FunctionConstants,
        launch: Launch,
        version: tuple[int, int],
        fast_math: bool,
        checked: str | None,
    ) -> None:
        self._users_names = later_names(version)
        self._fast_math = fast_math
        self._function_constants = constants
        self._launch = launch
        self._launch_opening, self._launch_parameter = backend.launch_parameter(launch)
        self._program = program
        self._tokens = program.tokens
        self._backend = backend
        self._filename = filename
        self._library = library(backend.target)
        self._checked = checked
        self._used: set[str] = set(CHECKS_NEED if checked is not None else ())
        self._spellings: dict[str, str] = {}
        self._aliases = _aliases(program.tokens)
        self._signatures: dict[str, KernelSignature] = {}
        self._entry_points: set[str] = set()
        # By the identity of a token: what stands before it, and the left side of a compound assignment that converts.
        self._functions_passed: set[str] = set()
        self._reached_functions: set[str] = set()
        self._before: dict[int, str] = {}
        self._unnamed_spaces: frozenset[int] = frozenset()
        self._converted: dict[int, tuple[int, int]] = {}
        self._place = program.tokens[0] if program.tokens else Token(PUNCTUATION, ";", filename, 1, 1)

    @cached_property
    def _constants(self) -> dict[str, int]:
        return _constants(self._tokens)

    def _integer(self, attribute: Attribute, substitution: Mapping[str, str]) -> int:
        """The value of an attribute's argument."""
        literal = attribute.arguments[0].text if len(attribute.arguments) == 1 else ""
        if literal.isdecimal() and literal.isascii():
            return int(literal)
        bound = {name: int(text) for name, text in substitution.items() if text.isdecimal() and text.isascii()}
        return integer_value(attribute.arguments, attribute.token, {**self._constants, **bound})

    def translation(self, members_in_checks: Sequence[str]) -> Translation:
        self._refuse_misplaced_constants()
        passed = replace_functions_as_template_arguments(self._program)
        self._functions_passed = passed.functions
        refuse_function_pointers(self._tokens)
        refuse_pointers_in_buffers(self._program)
        self._compose_swizzles()
        if UNALIGNED in self._library.sections and self._makes_vector_pointers():
            self._used.add(UNALIGNED)
            self._index_components()
        self._mark_choices()
        if self._backend.has_native_constructors:
            self._make_unions_assignable()
        else:
            self._unnamed_spaces = open_to_temporaries(self._program)
            self._lift_operators()
        output: list[Token] = []
        pieces: list[tuple[int, int, Callable[[], list[Token]]]] = []
        templates: dict[tuple[tuple[str, ...], str], Kernel] = {}
        for kernel in self._program.kernels:
            make = partial(self._plain_kernel if kernel.template is None else self._template_declaration, kernel)
            if kernel.template is not None:
                templates[kernel.namespace, kernel.name.text] = kernel
            pieces.append((kernel.start, kernel.body_close + 1, make))
        for one in self._program.instantiations:
            pieces.append((one.start, one.end, partial(self._instantiated_kernel, one, templates)))
        for start, end, tokens in self._function_constants.pieces():
            pieces.append((start, end, partial(self._rewrite, tokens)))
        pieces += [(start, end, list) for start, end in self._program.dropped]
        pieces[:0] = [(index, index, partial(self._rewrite, made)) for index, made in passed.structs]
        pieces += Overloads(self._program, self._backend, self._rewrite).pieces()
        pieces.sort(key=lambda piece: piece[0])
        position = 0
        for start, end, make_tokens in pieces:
            if start < position:
                continue
            output += self._rewrite(self._tokens[position:start])
            output += make_tokens()
            position = end
        output += self._rewrite(self._tokens[position:])
        names = self._library.closure(self._used)
        members = {b.text for a, b in pairwise(self._tokens) if a.text == "."}
        prelude = self._backend.opening(names, members, self._launch) + self._library.prelude(names)
        prelude += self._vector_makers() + self._launch_opening
        prelude += "".join(_REACHING.format(name) for name in sorted(self._reached_functions))
        prelude += "".join(member_template(name, self._spelling(name)) for name in members_in_checks)
        text, shifts = emit(output, self._filename, prelude)
        return Translation(text, self._signatures, self._function_constants.declared, shifts)

    # What cannot be carried.

    def _refuse_misplaced_constants(self) -> None:
        for index, token in enumerate(self._tokens):
            if token.text == "function_constant" and index and self._tokens[index - 1].text == "[":
                if not self._may_be_function_constant(index):
                    raise error("a function constant has to be a constant at program scope", token)

    def _may_be_function_constant(self, index: int) -> bool:
        """Whether the ``function_constant`` at ``index`` is a variable's at program scope or a kernel parameter's."""
        return any(start <= index < stop for start, stop in self._program.variables) or any(
            kernel.parameters_open < index < kernel.parameters_close for kernel in self._program.kernels
        )

    def _makes_vector_pointers(self) -> bool:
        """Whether a user's program casts to pointers whose targets may be vectors, or have some.

        Metal lets these be aligned to an element only. The package's own kernels align them.
        """
        if self._launch == "whole":
            return False
        tokens = self._tokens
        for index, token in enumerate(tokens):
            if token.text == "reinterpret_cast":
                return True
            if token.text == "(" and tokens[index + 1].text in (*ADDRESS_SPACES, "const", "volatile"):
                close = matching(tokens, index)
                if tokens[close - 1].text == "*" and close + 1 < len(tokens) and _is_operand(tokens[close + 1]):
                    return True
        return False

    def _index_components(self) -> None:
        """Writes ``v[0]`` for ``v.x``, through which the compiler does not see that ``v`` were aligned."""
        tokens = self._tokens
        members = _members(tokens)
        for index in range(len(tokens) - 1):
            operator, name = tokens[index], tokens[index + 1]
            if operator.text not in (".", "->") or name.text not in _COMPONENTS or name.text in members:
                continue
            place = _COMPONENTS[name.text]
            name.text = f"[{place}]" if operator.text == "." else f"->operator[]({place})"
            operator.text = ""

    def _compose_swizzles(self) -> None:
        """Makes one swizzle of two in a row, ``v.zyx.x``: where a swizzle is an object, it has none of its own."""
        tokens = self._tokens
        index = len(tokens) - 4
        while index >= 0:
            first, second = tokens[index + 1], tokens[index + 3]
            if tokens[index].text == "." and tokens[index + 2].text == "." and first.text not in self._declared:
                for letters in ("xyzw", "rgba"):
                    for inner in ("xyzw", "rgba"):
                        is_pair = 2 <= len(first.text) <= 4 and set(first.text) <= set(letters)
                        if is_pair and second.text and set(second.text) <= set(inner[: len(first.text)]):
                            first.text = "".join(first.text[inner.index(letter)] for letter in second.text)
                            tokens[index + 2].text = second.text = ""
            index -= 1
        for index in range(4, len(tokens) - 3):
            if tokens[index].text == ")" and self._is_swizzle(index - 1, 2) and self._is_swizzle(index + 2, 1):
                start = self._opening(index)
                is_call = tokens[start - 1].kind == IDENTIFIER and tokens[start - 1].text != "return"
                if not is_call and tokens[start - 1].text not in (")", "]", ">"):
                    self._before[id(tokens[start])] = WHOLE + self._before.get(id(tokens[start]), "")
                    self._used.add(WHOLE)

    @cached_property
    def _views_read(self) -> frozenset[int]:
        """The identities of the swizzles, where these are objects, that the program reads: it means their vectors."""
        if not self._backend.has_native_constructors:
            return frozenset()
        tokens = self._tokens
        return frozenset(
            id(tokens[index])
            for index in range(1, len(tokens) - 1)
            if tokens[index - 1].text == "." and self._is_swizzle(index, 2)
        )

    def _is_swizzle(self, index: int, least: int) -> bool:
        """Whether a swizzle of ``least`` components or more, which nobody assigns to, is read at ``index``."""
        name, following = self._tokens[index].text, self._tokens[index + 1].text
        is_assigned = following in ("=", "++", "--") or (following.endswith("=") and following not in _COMPARISONS)
        return (
            self._tokens[index - 1].text == "."
            and least <= len(name) <= 4
            and any(set(name) <= set(letters) for letters in ("xyzw", "rgba"))
            and name not in self._declared
            and not is_assigned
        )

    def _opening(self, index: int) -> int:
        """The index of the bracket that ``index`` closes."""
        depth = 0
        while True:
            depth += (self._tokens[index].text == ")") - (self._tokens[index].text == "(")
            if depth == 0:
                return index
            index -= 1

    def _mark_choices(self) -> None:
        """Makes ``c ? a : b`` mean what it does in Metal where arms are classes of the library."""
        tokens = self._tokens
        scalars = self._backend.class_scalars - self._users_names
        for choice in choices(Source(tokens, self._program, (2, 3), False, "", self._filename), scalars):
            self._used.add(CHOOSE)
            if self._mentions_bfloat:
                self._used.add(ARM_OF_BFLOAT)
            for (start, end), function in ((choice.extent, CHOOSE), *((arm, ARM) for arm in choice.arms)):
                before = self._before.get(id(tokens[start]), "")
                # What makes a view whole belongs to the bracket behind it.
                view = WHOLE if before.endswith(WHOLE) else ""
                self._before[id(tokens[start])] = f"{before.removesuffix(WHOLE)}{function}({view}"
                self._before[id(tokens[end])] = ")" + self._before.get(id(tokens[end]), "")

    def _make_unions_assignable(self) -> None:
        """Gives assignment to unions of vectors, and to what has one without a name: they lose it where vectors are
        classes that have their own."""
        source = Source(self._tokens, self._program, (2, 3), False, "", self._filename)
        done = set()
        for index, close in class_bodies(source):
            names = {token.text for token in self._tokens[index + 1 : close] if token.kind == IDENTIFIER}
            is_special = any(VECTOR_TYPE.match(name) or name == "vec" or name in source.members for name in names)
            if self._tokens[index].text != "union" or not is_special:
                continue
            owner = owner_of_copies(source, index, close)
            if owner is None or owner in done:
                continue
            done.add(owner)
            start, end = owner
            name = self._tokens[start + 1].text
            if self._tokens[start + 1].text == "{":
                name = f"unnamed_{start}{RENAMED_SUFFIX}"
                self._before[id(self._tokens[start + 1])] = name
            else:
                name = self._spelling(name)
            copy = f"{{ memcpy(this, &o, sizeof({name})); "
            text = f"{name} &operator=(const {name} &o) {copy}return *this; }} "
            if UNALIGNED in self._used and self._tokens[start].text == "union":
                text += f"{name}() = default; {name}(const {name} &o) {copy}}} "
            self._before[id(self._tokens[end])] = text + self._before.get(id(self._tokens[end]), "")

    def _lift_operators(self) -> None:
        """Makes operators of vectors mean what they do in Metal."""
        tokens = self._tokens
        found = VectorOperators(Source(tokens, self._program, (2, 3), False, "", self._filename))
        for index, text in found.texts.items():
            tokens[index].text = text
            self._used.add("lift_mtl")
        for index, (left, end) in found.assignments.items():
            self._converted[id(tokens[index])] = left
            self._before[id(tokens[end])] = ")" + self._before.get(id(tokens[end]), "")
        for (start, end), element in found.conversions.items():
            self._before[id(tokens[start])] = self._before.get(id(tokens[start]), "") + f"({element})("
            self._before[id(tokens[end])] = ")" + self._before.get(id(tokens[end]), "")

    def _converted_assignment(self, token: Token) -> Token:
        """A compound assignment whose right side, which a bracket ends, converts to what stands on its left."""
        left = " ".join(each.text for each in self._rewrite(self._tokens[slice(*self._converted[id(token)])]))
        self._used.add("convert_operand_mtl")
        return token.replaced(f"{token.text} convert_operand_mtl<decltype(value_mtl({left}))>(")

    @cached_property
    def _declared(self) -> frozenset[str]:
        """Names that stand where variables and members are declared."""
        return frozenset(
            name.text
            for before, name, after in zip(self._tokens, self._tokens[1:], self._tokens[2:], strict=False)
            if name.kind == IDENTIFIER
            and (before.kind == IDENTIFIER or before.text in (">", "*", "&", ","))
            and after.text in (";", ",", "=", ")", "[", "{")
        )

    # Tokens of function bodies and other declarations.

    def _rewrite(self, tokens: Sequence[Token]) -> list[Token]:
        output: list[Token] = []
        appended: dict[int, str] = {}
        prefixed: dict[int, str] = {}
        bracketed: dict[int, tuple[str, str]] = {}
        backend = self._backend
        library_ = self._library
        index = 0
        count = len(tokens)
        while index < count:
            token = tokens[index]
            kind = token.kind
            if id(token) in self._before:
                output.append(token.replaced(self._before[id(token)], PUNCTUATION))
            if kind == PUNCTUATION:
                if id(token) in self._converted:
                    output.append(self._converted_assignment(token))
                    index += 1
                    continue
                if token.text == "(" and not backend.has_native_constructors:
                    close = self._end_of_vector_type(tokens, index + 1)
                    is_behind_cast = bool(output) and output[-1].text == ">("
                    if (
                        close is not None
                        and close + 1 < count
                        and tokens[close].text == ")"
                        and (_begins_operand(tokens, index, close + 1) or is_behind_cast)
                    ):
                        # Signs and further casts bind tighter than the operator that stands for a cast.
                        is_signed = index > 0 and tokens[index - 1].text in ("-", "+", "~", "!")
                        is_nested = self._is_cast(tokens, close + 1)
                        end = self._end_of_operand(tokens, close + 1) if is_signed or is_nested else count
                        maker = CONSTRUCT_ONE if end < count else f"cast{RENAMED_SUFFIX}"
                        self._used.add(maker)
                        output.append(token.replaced(f"{maker}<"))
                        output += self._rewrite(tokens[index + 1 : close])
                        output.append(tokens[close].replaced(">(" if end < count else ">()->*"))
                        if end < count:
                            self._before[id(tokens[end])] = ")" + self._before.get(id(tokens[end]), "")
                        index = close + 1
                        continue
                if token.text in _SHIFTS and not backend.has_wrapping_shifts:
                    output.append(token.replaced(self._wrapping_shift(tokens, index)))
                    index += 1
                    continue
                if token.text == "[" and index + 1 < count and tokens[index + 1].text == "[":
                    close = matching(tokens, index)
                    if tokens[close - 1].text == "]":
                        index = close + 1
                        continue
                if index in prefixed:
                    output.append(token.replaced(prefixed[index]))
                if index in appended:
                    token = token.replaced(token.text + appended[index])
                output.append(token)
                index += 1
                continue
            if kind == NUMBER:
                text = backend.number(token.text)
                if text.startswith("bfloat("):
                    self._used.add("bfloat")
                output.append(token.replaced(text) if text != token.text else token)
                index += 1
                continue
            if kind != IDENTIFIER:
                output.append(token)
                index += 1
                continue
            text = token.text
            following = tokens[index + 1].text if index + 1 < count else ""
            if index in bracketed:
                output.append(token.replaced(self._spelling(text)))
                opening, closer = bracketed[index]
                closing = matching(tokens, index + 1)
                self._unpack(split_commas(tokens[index + 2 : closing]), index + 1, prefixed, appended)
                output.append(tokens[index + 1].replaced(f" = {opening}" + appended.pop(index + 1, "")))
                appended[closing] = appended.get(closing, "") + closer[1:]
                index += 2
                continue
            if following == "::" and text in ("metal", "precise", "fast", "simd"):
                index = self._qualified(tokens, index, output)
                continue
            if text == IS_DEFINED and index + 3 < count and tokens[index + 3].text == ")":
                value = "true" if self._function_constants.is_set(tokens[index + 2]) else "false"
                output.append(token.replaced(value))
                index += 4
                continue
            if text in ADDRESS_SPACES:
                self._address_space(tokens, index, output)
                index += 1
                continue
            vector = VECTOR_TYPE.match(text)
            if vector is not None and text not in self._users_names:
                self._used.add(text)
                if backend.has_native_constructors:
                    output.append(token.replaced(backend.vector_type(text)))
                    index += 1
                    continue
                if following == "(" and (index == 0 or tokens[index - 1].text != "operator"):
                    closing = matching(tokens, index + 1)
                    arguments = split_commas(tokens[index + 2 : closing])
                    if len(arguments) > 1 or (arguments and tokens[closing - 1].text == ","):
                        output.append(token.replaced("(" + backend.vector_cast(text)))
                        self._unpack(arguments, index + 1, prefixed, appended)
                        appended[closing] = appended.get(closing, "") + ")"
                    elif arguments and not _declares(arguments[0], tokens, closing):
                        self._used.add("make:" + text)
                        output.append(token.replaced(f"make_{text}{RENAMED_SUFFIX}"))
                    else:
                        output.append(token)
                    index += 1
                    continue
                self._note_declarators(tokens, index + 1, f"({backend.vector_cast(text)}(", "))", bracketed)
                output.append(token)
                index += 1
                continue
            if (
                following == "("
                and not backend.has_native_constructors
                and text in self._aliases
                and (index == 0 or tokens[index - 1].text not in ("~", ".", "->"))
            ):
                making = _maker(split_commas(tokens[index + 2 : matching(tokens, index + 1)]))
                if making is not None:
                    self._used.add(making)
                    output.append(token.replaced(f"{making}<{self._spelling(text)}>"))
                    index += 1
                    continue
            if text == "static_cast" and following == "<" and not backend.has_native_constructors:
                close_angle = matching_angle(tokens, index + 1)
                if close_angle is not None and self._end_of_vector_type(tokens, index + 2) == close_angle:
                    self._used.add(CONSTRUCT_ONE)
                    output.append(token.replaced(CONSTRUCT_ONE))
                    index += 1
                    continue
            if not backend.has_native_constructors and text in self._aliases:
                maker = f"construct{RENAMED_SUFFIX}<{self._spelling(text)}>("
                noted = len(bracketed)
                self._note_declarators(tokens, index + 1, maker, ")", bracketed)
                if len(bracketed) > noted:
                    self._used.add("construct_mtl")
            if text == "vec" and self._uses_bfloat:
                self._used.add("vector_mtl")
                output.append(token.replaced("vector_mtl"))
                index += 1
                continue
            if text == "vec" and following == "<" and self._is_vector_of_bool(tokens, index):
                self._used.add("bool_vector_mtl")
                output += [token.replaced("bool_vector_mtl"), tokens[index + 1]]
                index += 4
                continue
            is_template = text == "vec" or text in self._aliases
            if is_template and following == "<" and not backend.has_native_constructors:
                close_angle = matching_angle(tokens, index + 1)
                if close_angle is not None and close_angle + 1 < count and tokens[close_angle + 1].text == "(":
                    closing = matching(tokens, close_angle + 1)
                    making = _maker(split_commas(tokens[close_angle + 2 : closing]))
                    if making is not None:
                        self._used.update((text, making) if text == "vec" else (making,))
                        output.append(token.replaced(f"{making}<{self._spelling(text)}"))
                        appended[close_angle] = appended.get(close_angle, "") + " >"
                        index += 1
                        continue
            if text in library_.sections and text not in self._users_names:
                self._used.add(text)
            spelling = self._spelling(text)
            if id(token) in self._views_read:
                spelling += f".{VALUE}()"
            output.append(token.replaced(spelling) if spelling != text else token)
            index += 1
        return output

    def _wrapping_shift(self, tokens: Sequence[Token], index: int) -> str:
        """The shift at ``index`` with its count modulo the width of what is shifted."""
        text = tokens[index].text
        if tokens[index - 1].text == "operator" or index + 2 >= len(tokens):
            return text
        count, following = tokens[index + 1].text, tokens[index + 2].text
        if count.isdecimal() and int(count) < 32 and following in (")", "]", ";", ",", "|", "&", "^", "<<", ">>"):
            # Scalars have at least as many bits once they are promoted, and vectors wrap by themselves.
            return text
        self._used.add(WRAP)
        if not text.endswith("="):
            return f"{text} {WRAP}() {text}"
        end = index + 1
        while end < len(tokens) and tokens[end].text not in (";", ")", "]", "}", ","):
            if tokens[end].text == "<" and tokens[end - 1].kind == IDENTIFIER:
                end = matching_angle(tokens, end) or end
            end = matching(tokens, end) + 1 if tokens[end].text in OPENING else end + 1
        self._before[id(tokens[end])] = ")" + self._before.get(id(tokens[end]), "")
        return f"{text} {COUNT}("

    def _is_cast(self, tokens: Sequence[Token], index: int) -> bool:
        """Whether the operand at ``index`` begins with a cast to a scalar or vector type."""
        if tokens[index].text != "(":
            return False
        close = matching(tokens, index)
        is_type = self._end_of_vector_type(tokens, index + 1) == close or (
            close == index + 2 and _TYPE_NAME.match(tokens[index + 1].text) is not None
        )
        return is_type and close + 1 < len(tokens) and _is_operand(tokens[close + 1])

    def _end_of_operand(self, tokens: Sequence[Token], index: int) -> int:
        """The index behind the operand of a cast at ``index``: signs, further casts, a primary and its suffixes."""
        count = len(tokens)
        while index < count and tokens[index].text in ("-", "+", "~", "!", "*", "&"):
            index += 1
        if index < count and tokens[index].text == "(":
            close = matching(tokens, index)
            if self._is_cast(tokens, index):
                return self._end_of_operand(tokens, close + 1)
            index = close + 1
        else:
            index += 1
            while index + 1 < count and tokens[index].text == "::":
                index += 2
            if index < count and tokens[index].text == "<":
                close_angle = matching_angle(tokens, index)
                if close_angle is not None and close_angle + 1 < count and tokens[close_angle + 1].text == "(":
                    index = close_angle + 1
        while index < count:
            text = tokens[index].text
            if text in ("(", "["):
                index = matching(tokens, index) + 1
            elif text in (".", "->"):
                index += 2
            elif text in ("++", "--"):
                index += 1
            else:
                break
        return index

    def _end_of_vector_type(self, tokens: Sequence[Token], index: int) -> int | None:
        """The index behind the type at ``index`` if that may be a vector's, by its own name or by another one."""
        while index + 1 < len(tokens) and tokens[index + 1].text == "::" and tokens[index].text == "metal":
            index += 2
        if index >= len(tokens):
            return None
        text = tokens[index].text
        if text == "vec" or text in self._aliases:
            if index + 1 < len(tokens) and tokens[index + 1].text == "<":
                close = matching_angle(tokens, index + 1)
                return None if close is None else close + 1
            return index + 1 if text != "vec" else None
        return index + 1 if VECTOR_TYPE.match(text) and text not in self._users_names else None

    def _unpack(
        self, arguments: Sequence[Sequence[Token]], opening: int, prefixed: dict[int, str], appended: dict[int, str]
    ) -> None:
        """Wraps a vector constructor's arguments where they may be packed vectors: the compiler takes only its own."""
        if not self._uses_packed:
            return
        position = opening
        for argument in arguments:
            appended[position] = f" unpack{RENAMED_SUFFIX}("
            position += len(argument) + 1
            prefixed[position] = ")" + prefixed.get(position, "")

    @cached_property
    def _uses_bfloat(self) -> bool:
        """Whether vectors may be of bfloat where they are classes then."""
        return self._mentions_bfloat and not self._backend.has_native_constructors

    @cached_property
    def _mentions_bfloat(self) -> bool:
        names = {"bfloat", "bfloat2", "bfloat3", "bfloat4"} - self._users_names
        return any(token.text in names for token in self._tokens)

    @cached_property
    def _uses_float_atomics(self) -> bool:
        return any(token.text in {"atomic_float", "atomic"} - self._users_names for token in self._tokens)

    @cached_property
    def _uses_packed(self) -> bool:
        return any(token.text.startswith("packed_") for token in self._tokens)

    def _is_vector_of_bool(self, tokens: Sequence[Token], index: int) -> bool:
        """Whether ``vec<bool, n>`` stands at ``index``, and means a class of the library."""
        following = tokens[index + 2 : index + 4]
        return not self._backend.has_native_constructors and [token.text for token in following] == ["bool", ","]

    def _note_declarators(
        self, tokens: Sequence[Token], index: int, opening: str, closing: str, found: dict[int, tuple[str, str]]
    ) -> None:
        """Notes the variables ``v(a, b, ...)`` of a declaration whose type ends before ``index``: they are to be
        initialised by what ``opening`` and ``closing`` stand around."""
        while index < len(tokens):
            if tokens[index].text in ("*", "&", "const"):
                index += 1
                continue
            if tokens[index].kind != IDENTIFIER or index + 1 >= len(tokens):
                return
            if tokens[index + 1].text == "(" and self._has_several_values(tokens, index + 1):
                found[index] = (opening, closing)
            elif tokens[index + 1].text not in (",", "=", "[", "{", "("):
                return
            while index < len(tokens) and tokens[index].text not in (",", ";", ")", "}", ":"):
                index = matching(tokens, index) + 1 if tokens[index].text in OPENING else index + 1
            if index >= len(tokens) or tokens[index].text != ",":
                return
            index += 1

    @staticmethod
    def _has_several_values(tokens: Sequence[Token], opening: int) -> bool:
        """Whether the brackets hold several values, and not the parameters of a function."""
        arguments = split_commas(tokens[opening + 1 : matching(tokens, opening)])
        for argument in arguments:
            words = [token for token in argument if token.text not in ("*", "&")]
            if not words or words[0].text in ADDRESS_SPACES or words[0].text == "const":
                return False
            if len(words) > 1 and words[0].kind == IDENTIFIER and words[1].kind == IDENTIFIER:
                return False
            if len(words) == 1 and _TYPE_NAME.match(words[0].text):
                return False
        return len(arguments) > 1

    @cached_property
    def _is_open(self) -> bool:
        """Whether the program says ``using namespace metal``."""
        texts = [token.text for token in self._tokens]
        return any(words == ("using", "namespace", "metal") for words in zip(texts, texts[1:], texts[2:], strict=False))

    @cached_property
    def _hidden(self) -> frozenset[str]:
        """The functions of the library that the program's own of the same name are not to be taken for.

        Where the library's names are open to the program, those that it calls by a qualifier.
        """
        known = self._library.sections.keys() | self._backend.library_names
        called, opened = set(), set()
        triples = zip(self._tokens, self._tokens[1:], self._tokens[2:], strict=False)
        for index, (space, colons, name) in enumerate(triples):
            if space.text in _QUALIFIERS and colons.text == "::":
                called.add(name.text)
                if index and self._tokens[index - 1].text == "using":
                    opened.add(name.text)
        own = self._program.functions.keys() & known
        return frozenset(own & called if self._is_open else own - opened)

    @cached_property
    def _own_functions(self) -> frozenset[str]:
        """Those of the hidden functions that are renamed, since they may have the same parameters as the library's.

        Where the library's names are open to the program, functions with parameters of its own types or of any type
        overload the library's, and keep their name.
        """
        if not self._is_open:
            return self._hidden
        texts = [token.text for token in self._tokens]
        overloads = set()
        for start, opening, _ in self._program.function_heads:
            types = [
                next((t.text for t in part if t.text not in {"const", "metal", "::", *ADDRESS_SPACES}), "")
                for part in split_commas(self._tokens[opening + 1 : matching(self._tokens, opening)])
            ]
            if texts[start] == "template" or not all(_TYPE_NAME.match(each) for each in types):
                overloads.add(texts[opening - 1])
        return self._hidden - overloads

    @cached_property
    def _shadowed(self) -> frozenset[str]:
        """The functions of the library whose names the program also gives to variables and members."""
        known = self._library.sections.keys() | self._backend.library_names
        bare = {
            name.text
            for before, name, after in zip(self._tokens, self._tokens[1:], self._tokens[2:], strict=False)
            if before.text != "::" and after.text not in ("(", "::", "<")
        }
        return frozenset(bare & known)

    def _library_spelling(self, name: str) -> str:
        """The target's name for the library's function ``name``, whatever the program means by it."""
        if not self._fast_math and f"precise::{name}" in self._library.sections:
            self._used.add(f"precise::{name}")
            return f"precise_{name}{RENAMED_SUFFIX}"
        renamed = name in self._library.renamed and name not in self._users_names
        return name + RENAMED_SUFFIX if renamed else name

    def _spelling(self, name: str) -> str:
        """``name`` in the target, with the suffix where the target means something else by it."""
        spelling = self._spellings.get(name)
        if spelling is None:
            renamed = name in self._library.renamed and name not in self._users_names
            suffixed = renamed or name in self._backend.reserved
            if name in _FLOAT_ATOMICS and self._backend.target == "opencl":
                suffixed = self._uses_float_atomics
            suffix = f"_own{RENAMED_SUFFIX}" if name in self._own_functions else RENAMED_SUFFIX if suffixed else ""
            spelling = name + suffix
            if not self._fast_math and name not in self._own_functions and f"precise::{name}" in self._library.sections:
                self._used.add(f"precise::{name}")
                spelling = f"precise_{name}{RENAMED_SUFFIX}"
            self._spellings[name] = spelling
        return spelling

    def _qualified(self, tokens: Sequence[Token], index: int, output: list[Token]) -> int:
        """Rewrites a name qualified by ``metal``, ``fast`` or ``precise``; returns the index behind the qualifiers."""
        qualifiers = []
        position = index
        while (
            position + 1 < len(tokens)
            and tokens[position].text in ("metal", "precise", "fast", "simd")
            and tokens[position + 1].text == "::"
        ):
            qualifiers.append(tokens[position].text)
            position += 2
        if output and output[-1].text == "::" and (len(output) < 2 or output[-2].kind != IDENTIFIER):
            output.pop()
        if position >= len(tokens):
            return position
        name = tokens[position].text
        for qualifier in ("precise", "fast"):
            if qualifier in qualifiers and f"{qualifier}::{name}" in self._library.sections:
                self._used.add(f"{qualifier}::{name}")
                output.append(tokens[position].replaced(f"{qualifier}_{name}{RENAMED_SUFFIX}"))
                return position + 1
        is_call = position + 1 < len(tokens) and tokens[position + 1].text == "("
        if name in self._hidden or (is_call and name in self._shadowed):
            # The program means something else too by this name, which the library's function must not be taken for.
            self._used.add(name)
            spelling = self._library_spelling(name)
            if not self._backend.finds_functions_by_arguments:
                spelling = spelling if output and output[-1].text == "::" else f"::{spelling}"
            elif not spelling.startswith("precise_"):
                self._reached_functions.add(spelling)
                spelling = REACHED + spelling
            output.append(tokens[position].replaced(spelling))
            return position + 1
        return position

    def _address_space(self, tokens: Sequence[Token], index: int, output: list[Token]) -> None:
        token = tokens[index]
        spelling = self._backend.address_spaces[token.text]
        if id(token) in self._unnamed_spaces:
            return
        if token.text == "threadgroup" and declares_variable(tokens, index):
            spelling = self._backend.threadgroup_variable
        if id(token) in self._constructor_qualifiers:
            spelling = spelling.removeprefix("const").strip()
        elif token.text == "constant":
            neighbours = (output[-1].text if output else "", tokens[index + 1].text if index + 1 < len(tokens) else "")
            if "const" in neighbours:
                spelling = spelling.removeprefix("const").strip()
        if spelling:
            output.append(token.replaced(spelling))

    def _vector_makers(self) -> str:
        names = sorted(name.removeprefix("make:") for name in self._used if name.startswith("make:"))
        packed = any(name.startswith("packed_") for name in self._used)
        return "".join(self._backend.vector_maker(name, packed) for name in names)

    @cached_property
    def _constructor_qualifiers(self) -> frozenset[int]:
        """The identities of the address spaces behind the parameters of constructors, which are never ``const``."""
        found = set()
        for opening in self._program.constructors:
            index = matching(self._tokens, opening) + 1
            while self._tokens[index].text in ADDRESS_SPACES:
                found.add(id(self._tokens[index]))
                index += 1
        return frozenset(found)

    # Kernel functions.

    def _plain_kernel(self, kernel: Kernel) -> list[Token]:
        host_name = kernel.attribute("host_name")
        name = (
            _host_name(host_name.arguments, host_name.token)
            if host_name
            else "::".join((*kernel.namespace, kernel.name.text))
        )
        if self._checked not in (None, name):
            return []
        return self._kernel(kernel, name, kernel.name, "_".join((*kernel.namespace, kernel.name.text)), {})

    def _template_declaration(self, kernel: Kernel) -> list[Token]:
        """The template without its body, so that ``decltype(name<T>)`` still means something."""
        tokens = self._tokens
        head = [
            t for t in _without_attributes(tokens[kernel.start : kernel.parameters_close + 1]) if t.text != "kernel"
        ]
        output = self._rewrite(head)
        output.append(tokens[kernel.parameters_close].replaced(";"))
        return output

    def _instantiated_kernel(
        self, instantiation: Instantiation, templates: Mapping[tuple[tuple[str, ...], str], Kernel]
    ) -> list[Token]:
        name = instantiation.name
        scope = instantiation.namespace
        kernel = templates.get((scope, name.text))
        while kernel is None and scope:
            scope = scope[:-1]
            kernel = templates.get((scope, name.text))
        if kernel is None:
            raise error(
                f"explicit instantiation of '{name.text}', which is no kernel function template defined above", name
            )
        assert kernel.template is not None
        if len(instantiation.arguments) > len(kernel.template):
            raise error(f"too many template arguments for '{name.text}'", name)
        host_name = instantiation.attribute("host_name")
        if host_name is not None:
            looked_up = _host_name(host_name.arguments, host_name.token)
        else:
            looked_up = f"{name.text}<{', '.join(spell(argument) for argument in instantiation.arguments)}>"
        if self._checked not in (None, looked_up):
            return []
        entry_point = self._unique_entry_point(re.sub(r"\W", "_", looked_up), name)
        bindings: list[Token] = []
        substitution: dict[str, str] = {}
        for position, parameter in enumerate(kernel.template):
            value = instantiation.arguments[position] if position < len(instantiation.arguments) else parameter.default
            if value is None:
                raise error(f"template argument '{parameter.name}' of '{name.text}' is missing", name)
            substitution[parameter.name] = spell(
                [t for v in value for t in [v.replaced(substitution.get(v.text, v.text))]]
            )
            moved = self._rewrite([token.at(name) for token in value])
            place = name.replaced(self._spelling(parameter.name))
            if parameter.is_type or parameter.is_function:
                bindings += [name.replaced("using"), place, name.replaced("="), *moved, name.replaced(";")]
            else:
                kind = self._rewrite([token.at(name, spaced=True) for token in parameter.kind])
                constexpr = [] if any(token.text == "constexpr" for token in kind) else [name.replaced("constexpr")]
                bindings += [
                    *constexpr,
                    *kind,
                    place,
                    name.replaced("="),
                    name.replaced("("),
                    *moved,
                    name.replaced(")"),
                    name.replaced(";"),
                ]
        opening = [name.replaced("namespace"), name.replaced(f"{entry_point}{RENAMED_SUFFIX}"), name.replaced("{")]
        for token in opening + bindings:
            token.spaced = True
        return [
            *opening,
            *bindings,
            *self._kernel(kernel, looked_up, name, entry_point, substitution),
            name.replaced("}"),
        ]

    def _unique_entry_point(self, wanted: str, place: Token) -> str:
        name = wanted if re.match(r"[A-Za-z_]", wanted) else f"_{wanted}"
        if name in self._backend.library_names or self._spelling(name) != name or name in self._library.sections:
            name += RENAMED_SUFFIX
        number = 1
        unique = name
        while unique in self._entry_points:
            number += 1
            unique = f"{name}_{number}"
        self._entry_points.add(unique)
        return unique

    def _kernel(
        self, kernel: Kernel, name: str, place: Token, wanted_entry_point: str, substitution: Mapping[str, str]
    ) -> list[Token]:
        if name in self._signatures:
            raise error(f"two kernel functions are called '{name}'; give each its own [[host_name]]", place)
        entry_point = wanted_entry_point
        if kernel.template is None:
            entry_point = self._unique_entry_point(wanted_entry_point, place)
        threadgroup_size = self._threadgroup_size(kernel, substitution)
        arguments: list[tuple[Argument, Parameter]] = []
        positions: list[Parameter] = []
        prologue: list[Token] = []
        dimensions = 1
        self._place = self._tokens[kernel.body_open]
        simd_names = self._simd_names(kernel)
        uses_simdgroups = bool(simd_names) or any(
            attribute.name in SIMD_ATTRIBUTES for parameter in kernel.parameters for attribute in parameter.attributes
        )
        buffers = [parameter for parameter in kernel.parameters if self._is_resource(parameter)]
        taken = self._explicit_indices(buffers, substitution)
        used = {"buffer": set(taken["buffer"]), "threadgroup": set(taken["threadgroup"])}
        for parameter in kernel.parameters:
            if parameter in buffers:
                argument = self._argument(parameter, used, substitution)
                if self._is_present(parameter):
                    arguments.append((argument, parameter))
                else:
                    prologue += self._absent(argument, parameter)
            else:
                attribute = parameter.attribute(*POSITION_ATTRIBUTES, *INDEX_ATTRIBUTES)
                assert attribute is not None
                dimensions = max(dimensions, position_dimensions(parameter, attribute))
                positions.append(parameter)
        if self._launch == "whole":
            flat = threadgroup_size is not None and dimensions == 1
        else:
            flat = uses_simdgroups
        opening = self._backend.launch_prologue(self._launch) + self._backend.simdgroup_prologue(simd_names)
        if opening:
            prologue.insert(0, self._place.replaced(opening, IDENTIFIER))
        for parameter in positions:
            prologue += self._position(parameter, flat)
        arguments.sort(key=lambda pair: (pair[0].address_space == "threadgroup", pair[0].index))
        special = {parameter.name: self._special_parameter(argument, parameter) for argument, parameter in arguments}
        for argument, parameter in arguments:
            found = special[parameter.name]
            if found is not None:
                prologue.append(self._place.replaced(found[1], IDENTIFIER))
            elif argument.is_reference:
                prologue += self._reference(parameter)
        self._signatures[name] = KernelSignature(
            name=name,
            entry_point=entry_point,
            arguments=tuple(argument for argument, _ in arguments),
            threadgroup_size=threadgroup_size,
            line=kernel.name.line,
            file=kernel.name.file,
            uses_simdgroups=uses_simdgroups,
            unset_constants=self._unset_constants(kernel),
        )
        is_exact = threadgroup_size is not None and flat and self._launch == "whole"
        head = self._backend.kernel_head(kernel, entry_point, threadgroup_size, is_exact, uses_simdgroups)
        tokens = self._tokens
        first = tokens[kernel.start]
        head = self._complete_types(arguments) + head
        output = [Token(IDENTIFIER, head, first.file, first.line, first.column, True)]
        output.append(tokens[kernel.parameters_open])
        for number, (argument, parameter) in enumerate(arguments):
            if number:
                output.append(parameter.type[0].replaced(","))
            found = special[parameter.name]
            if found is not None:
                output.append(parameter.type[0].replaced(found[0], IDENTIFIER))
            else:
                output += self._parameter(argument, parameter)
        if self._launch_parameter:
            separator = ", " if arguments else ""
            output.append(tokens[kernel.parameters_close].replaced(separator + self._launch_parameter))
        output.append(tokens[kernel.parameters_close])
        output.append(tokens[kernel.body_open])
        output += prologue
        body = tokens[kernel.body_open + 1 : kernel.body_close]
        if not self._backend.has_inner_threadgroup_variables:
            body = with_outer_threadgroup_variables(body)
        output += self._rewrite(body)
        output.append(tokens[kernel.body_close])
        if self._launch_parameter:
            sizes = self._backend.sizes(entry_point, [
                "char" if argument.type == "void" else self._pointee(parameter) for argument, parameter in arguments
            ])
            output.append(tokens[kernel.body_close].replaced(sizes))
        return output

    def _special_parameter(self, argument: Argument, parameter: Parameter) -> tuple[str, str] | None:
        """What stands in the entry point's head and body for an argument that the target passes in a way of its own."""
        type_name = self._pointee(parameter).removeprefix("const ").removesuffix(" const")
        return self._backend.parameter(argument, type_name, self._spelling(parameter.name), self._launch)

    def _pointee(self, parameter: Parameter) -> str:
        """The type that a parameter points to, as the target writes it."""
        pointee = [token for token in parameter.type if token.text not in ADDRESS_SPACES]
        end = next((i for i, token in enumerate(pointee) if token.text in ("*", "&")), None)
        if end is None:
            raise error(f"the type of the parameter '{parameter.name}' is malformed", parameter.place)
        return " ".join(token.text for token in self._rewrite(pointee[:end]))

    def _complete_types(self, arguments: Sequence[tuple[Argument, Parameter]]) -> str:
        """Statements that make the compiler instantiate what arguments point to: it must know them at the signature."""
        types = [self._pointee(parameter) for argument, parameter in arguments if not _TYPE_NAME.match(argument.type)]
        return "".join(f'static_assert(sizeof({name}) > 0, ""); ' for name in dict.fromkeys(types))

    def _is_present(self, parameter: Parameter) -> bool:
        """Whether the function constant that a parameter depends on, if any, is true."""
        attribute = parameter.attribute("function_constant")
        return attribute is None or self._function_constants.holds(attribute.arguments, attribute.token)

    def _absent(self, argument: Argument, parameter: Parameter) -> list[Token]:
        """A declaration for an argument that does not exist: code that is never reached may still name it."""
        place = self._place
        declared = " ".join(token.text for token in self._rewrite(parameter.type))
        name = self._spelling(parameter.name)
        value = f"*({declared.replace('&', '*')})0" if argument.is_reference else "0"
        return [place.replaced(f"{declared} {name} = {value};", IDENTIFIER)]

    def _unset_constants(self, kernel: Kernel) -> tuple[str, ...]:
        """The function constants without a value that ``kernel`` uses, itself or through what it names."""
        unset = self._function_constants.unset
        return tuple(sorted(unset & self._reached(kernel))) if unset else ()

    def _reached(self, kernel: Kernel) -> set[str]:
        """The names in ``kernel``, in the functions that it calls, and in the constants that these are made of."""
        tokens = self._tokens
        variables: dict[str, list[tuple[int, int]]] = {}
        for start, stop in self._program.variables:
            for token, following in pairwise(tokens[start:stop]):
                if token.kind == IDENTIFIER and following.text in ("=", "[", "{", ";", ","):
                    variables.setdefault(token.text, []).append((start, stop))
                    break
        seen: set[str] = set()
        todo = [(kernel.start, kernel.body_close)]
        while todo:
            start, end = todo.pop()
            for token in tokens[start:end]:
                if token.kind == IDENTIFIER and token.text not in seen:
                    seen.add(token.text)
                    todo += self._program.functions.get(token.text, ())
                    todo += variables.get(token.text, ())
        return seen

    def _threadgroup_size(self, kernel: Kernel, substitution: Mapping[str, str]) -> int | None:
        attribute = kernel.attribute("max_total_threads_per_threadgroup")
        if attribute is None:
            return None
        size = self._integer(attribute, substitution)
        if not 1 <= size <= 1024:
            raise error(f"max_total_threads_per_threadgroup({size}) must lie in 1..1024", attribute.token)
        return size

    def _is_resource(self, parameter: Parameter) -> bool:
        """Whether ``parameter`` is a buffer or threadgroup memory; raises for what a kernel cannot take."""
        for attribute in parameter.attributes:
            if attribute.name in _UNSUPPORTED_ATTRIBUTES:
                raise error(_UNSUPPORTED_ATTRIBUTES[attribute.name], attribute.token)
        position = parameter.attribute(*POSITION_ATTRIBUTES, *INDEX_ATTRIBUTES)
        if position is not None:
            if position.arguments:
                raise error(f"attribute '{position.name}' takes no argument", position.token)
            return False
        known = (
            "buffer",
            "threadgroup",
            "access",
            "host_name",
            "maybe_unused",
            "function_constant",
            "alias",
            "raster_order_group",
        )
        for attribute in parameter.attributes:
            if attribute.name not in known:
                raise error(f"unknown attribute '{attribute.name}'", attribute.token)
        written = spell(parameter.type)
        if not parameter.is_pointer and not parameter.is_reference:
            if parameter.attribute("buffer"):
                raise error(
                    f"type '{written}' is not valid for attribute 'buffer'; it takes a pointer or a reference",
                    parameter.place,
                )
            raise error(f"invalid type '{written}' for input declaration in a kernel function", parameter.place)
        space = parameter.address_space
        if space is None:
            kind = "reference" if parameter.is_reference else "pointer"
            raise error(f"{kind} type must have explicit address space qualifier", parameter.place)
        if space.text == "thread":
            raise error(f"invalid address space qualification for buffer pointee type '{written}'", parameter.place)
        if space.text == "threadgroup" and parameter.attribute("buffer"):
            raise error(f"invalid address space qualification for buffer pointee type '{written}'", parameter.place)
        if space.text != "threadgroup" and parameter.attribute("threadgroup"):
            raise error(f"type '{written}' is not valid for attribute 'threadgroup'", parameter.place)
        return True

    def _explicit_indices(
        self, buffers: Sequence[Parameter], substitution: Mapping[str, str]
    ) -> dict[str, dict[int, Parameter]]:
        taken: dict[str, dict[int, Parameter]] = {"buffer": {}, "threadgroup": {}}
        for parameter in buffers:
            attribute = parameter.attribute("buffer", "threadgroup")
            if attribute is None:
                continue
            index = self._integer(attribute, substitution)
            if not 0 <= index <= LAST_BUFFER_INDEX:
                bounds = f"must be between 0 and {LAST_BUFFER_INDEX}"
                raise error(f"'{attribute.name}' attribute parameter is out of bounds: {bounds}", attribute.token)
            if index in taken[attribute.name]:
                raise error(
                    f"cannot reserve '{attribute.name}' resource location at index {index}: it is taken",
                    attribute.token,
                )
            taken[attribute.name][index] = parameter
        return taken

    def _argument(self, parameter: Parameter, used: dict[str, set[int]], substitution: Mapping[str, str]) -> Argument:
        space = parameter.address_space
        assert space is not None
        kind = "threadgroup" if space.text == "threadgroup" else "buffer"
        attribute = parameter.attribute(kind)
        if attribute is not None:
            index = self._integer(attribute, substitution)
        else:
            index = next(i for i in range(len(used[kind]) + 1) if i not in used[kind])
            if index > LAST_BUFFER_INDEX:
                raise error(f"more than {LAST_BUFFER_INDEX + 1} buffers", parameter.place)
            used[kind].add(index)
        pointee = []
        const = False
        for token in parameter.type:
            if token.text in ("*", "&"):
                break
            if token.text == "const":
                const = True
            elif token.text not in ADDRESS_SPACES and token.text != "volatile":
                pointee.append(token.replaced(substitution.get(token.text, token.text)))
        address_space = (
            "device" if space.text == "device" else "constant" if space.text == "constant" else "threadgroup"
        )
        return Argument(
            name=parameter.name,
            index=index,
            address_space=address_space,  # type: ignore[arg-type]
            type=spell(pointee).replace("metal::", ""),
            is_reference=parameter.is_reference,
            is_writable=address_space != "constant" and not const,
        )

    def _parameter(self, argument: Argument, parameter: Parameter) -> list[Token]:
        output = []
        rewritten = self._rewrite(parameter.type)
        last = next(token for token in reversed(rewritten) if token.text in ("*", "&"))
        for token in rewritten:
            if token.text in ("*", "&") and token is last:
                token = token.replaced(self._backend.pointer(argument))
            elif token.text == "restrict":
                token = token.replaced("__restrict")
            output.append(token)
        name = self._spelling(parameter.name)
        if argument.is_reference:
            name = f"{parameter.name}_pointer{RENAMED_SUFFIX}"
        output.append(Token(IDENTIFIER, name, parameter.place.file, parameter.place.line, parameter.place.column, True))
        return output

    def _reference(self, parameter: Parameter) -> list[Token]:
        place = self._place
        declared = [token.at(place) for token in self._rewrite(parameter.type)]
        text = " ".join(token.text for token in declared)
        name = self._spelling(parameter.name)
        return [
            Token(
                IDENTIFIER,
                f"{text} {name} = *{parameter.name}_pointer{RENAMED_SUFFIX};",
                place.file,
                place.line,
                place.column,
                True,
            )
        ]

    def _position(self, parameter: Parameter, flat: bool) -> list[Token]:
        attribute = parameter.attribute(*POSITION_ATTRIBUTES, *INDEX_ATTRIBUTES)
        assert attribute is not None
        dimensions = position_dimensions(parameter, attribute)
        components = self._backend.position(attribute.name, dimensions, flat, self._launch)
        place = self._place
        declared = " ".join(token.text for token in self._rewrite(parameter.type))
        if dimensions == 1:
            value = components[0]
        else:
            written = "ushort" if "ushort" in declared else "uint"
            value = self._backend.vector(f"{written}{dimensions}", components)
            self._used.add(f"{written}{dimensions}")
        text = f"{declared} {self._spelling(parameter.name)} = {value};"
        return [Token(IDENTIFIER, text, place.file, place.line, place.column, True)]

    # Simdgroups.

    def _simd_names(self, kernel: Kernel) -> set[str]:
        """The functions and types of simdgroups and quadgroups that ``kernel`` uses, itself or in what it calls."""
        found: set[str] = set()
        seen: set[str] = set()
        todo = [(kernel.body_open, kernel.body_close)]
        if any(parameter.is_function for parameter in kernel.template or ()):
            todo += [body for name in self._functions_passed for body in self._program.functions.get(name, ())]
        while todo:
            start, end = todo.pop()
            for token in self._tokens[start:end]:
                if token.kind != IDENTIFIER or token.text in seen:
                    continue
                seen.add(token.text)
                if _SIMD_NAME.match(token.text):
                    found.add(token.text)
                todo += self._program.functions.get(token.text, ())
        return found


def _without_attributes(tokens: Sequence[Token]) -> list[Token]:
    rest = []
    index = 0
    while index < len(tokens):
        if tokens[index].text == "[" and index + 1 < len(tokens) and tokens[index + 1].text == "[":
            index = matching(tokens, index) + 1
        else:
            rest.append(tokens[index])
            index += 1
    return rest


def _begins_operand(tokens: Sequence[Token], opening: int, index: int) -> bool:
    """Whether the bracketed type at ``opening`` is a cast of the operand at ``index``."""
    before = tokens[opening - 1] if opening else None
    if before is not None and (before.text in (")", "]", "sizeof", "operator") or before.kind == NUMBER):
        return False
    if before is not None and before.kind == IDENTIFIER and before.text not in ("return", "case", "else", "do"):
        return False
    return _is_operand(tokens[index])


def _is_operand(token: Token) -> bool:
    """Whether an operand may begin with ``token``."""
    return token.kind in (IDENTIFIER, NUMBER) or token.text in ("(", "-", "+", "~", "!")


def _members(tokens: Sequence[Token]) -> set[str]:
    """The names that classes of the program declare between their braces, and those of their functions' variables."""
    found = set()
    for index, token in enumerate(tokens):
        if token.text not in ("struct", "class", "union"):
            continue
        opening = next((i for i in range(index, len(tokens)) if tokens[i].text in ("{", ";", "(")), None)
        if opening is None or tokens[opening].text != "{":
            continue
        for at in range(opening, matching(tokens, opening)):
            if tokens[at + 1].text in (";", ",", "=", "[", ":") and tokens[at - 1].text not in (".", "->"):
                found.add(tokens[at].text)
    return found


def _maker(arguments: Sequence[Sequence[Token]]) -> str | None:
    """The function that makes what may be a vector of ``arguments``; None if they are a function's parameters."""
    for argument in arguments:
        if not argument or argument[0].text in ADDRESS_SPACES or argument[0].text in ("const", "{"):
            return None
        if len(argument) > 1 and argument[0].kind == IDENTIFIER and argument[1].kind == IDENTIFIER:
            return None
        if len(argument) == 1 and _TYPE_NAME.match(argument[0].text):
            return None
    return None if not arguments else CONSTRUCT if len(arguments) > 1 else CONSTRUCT_ONE


def _declares(argument: Sequence[Token], tokens: Sequence[Token], closing: int) -> bool:
    """Whether ``type (argument)`` declares a pointer or reference to an array or function."""
    following = tokens[closing + 1].text if closing + 1 < len(tokens) else ""
    return argument[0].text in ("*", "&") and following in ("[", "(")


def _host_name(tokens: Sequence[Token], place: Token) -> str:
    if not tokens or any(token.kind != STRING or token.text[0] != '"' for token in tokens):
        raise error("host_name needs a string", place)
    name = "".join(token.text[1:-1] for token in tokens)
    if not name:
        raise error("host_name needs a string that is not empty", place)
    return name


def _aliases(tokens: Sequence[Token]) -> frozenset[str]:
    """Names that may stand for a vector type: template type parameters, ``using`` and ``typedef`` names."""
    names = set()
    for index, token in enumerate(tokens):
        if token.text in ("typename", "class") and index and tokens[index - 1].text in ("<", ","):
            if index + 1 < len(tokens) and tokens[index + 1].kind == IDENTIFIER:
                names.add(tokens[index + 1].text)
        elif token.text == "using" and index + 2 < len(tokens) and tokens[index + 2].text == "=":
            names.add(tokens[index + 1].text)
        elif token.text == "typedef":
            position = index
            while position < len(tokens) and tokens[position].text not in (";", "{", "("):
                position += 1
            if position < len(tokens) and tokens[position].text == ";" and tokens[position - 1].kind == IDENTIFIER:
                names.add(tokens[position - 1].text)
    return frozenset(names)


def _constants(tokens: Sequence[Token]) -> dict[str, int]:
    """Integer constants that attributes may name: ``constant int n = 3;``, ``constexpr``, and enumerators."""
    values: dict[str, int] = {}
    for index in range(1, len(tokens) - 2):
        if tokens[index].text != "=" or tokens[index - 1].kind != IDENTIFIER:
            continue
        end = index + 1
        while end < len(tokens) and tokens[end].text not in (";", ",", "}", "{") and end - index < 16:
            end += 1
        try:
            values.setdefault(tokens[index - 1].text, integer_value(tokens[index + 1 : end], tokens[index], values))
        except ShaderError:
            continue
    return values
