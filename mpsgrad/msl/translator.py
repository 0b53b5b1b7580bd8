"""From Metal source to a target's C++: rewrites what the target's compiler would not read and leaves the rest to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache as once
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from mpsgrad.errors import ShaderError
from mpsgrad.msl.argument_buffers import refuse_unfillable_buffers
from mpsgrad.msl.assigned_lists import with_lists_by_name
from mpsgrad.msl.backend import Backend
from mpsgrad.msl.bit_fields import BITS, carry_bit_fields, has_bit_fields
from mpsgrad.msl.bracketed_names import without_bracketed_names
from mpsgrad.msl.case_ranges import expand_case_ranges, fill_ranges
from mpsgrad.msl.compound_literals import without_compound_literals
from mpsgrad.msl.declarations import read_program
from mpsgrad.msl.defaulted_constructors import one_default_constructor
from mpsgrad.msl.diagnostics import shader_error
from mpsgrad.msl.emission import emit
from mpsgrad.msl.entry_points import EntryPoints
from mpsgrad.msl.expressions import VectorTypes
from mpsgrad.msl.float_conversions import converting
from mpsgrad.msl.friends import open_to_friends
from mpsgrad.msl.function_arguments import replace_functions_as_template_arguments
from mpsgrad.msl.function_constants import FunctionConstants
from mpsgrad.msl.function_parameters import functions_as_types
from mpsgrad.msl.functions_that_wait import functions_that_wait
from mpsgrad.msl.host_tensors import carry_host_tensors
from mpsgrad.msl.library_marks import ANY_THREAD, OF_ANOTHER, OF_TEMPORARIES
from mpsgrad.msl.library_names import LibraryNames
from mpsgrad.msl.named_temporaries import functions_of_temporaries
from mpsgrad.msl.overloads import Overloads, Piece
from mpsgrad.msl.packed_structs import BEFORE_STRUCT, IN_STRUCT, packed_structs
from mpsgrad.msl.parts import parts_of
from mpsgrad.msl.preprocessor import Preprocessor
from mpsgrad.msl.program import Program
from mpsgrad.msl.reach import Reach
from mpsgrad.msl.reflections import reflect_once
from mpsgrad.msl.refusals import (
    refuse_array_designators,
    refuse_function_pointers,
    refuse_positions_at_program_scope,
    refuse_recursion,
    refuse_unsupported,
)
from mpsgrad.msl.returned_assignments import return_what_is_assigned
from mpsgrad.msl.rewriting import Rewriter
from mpsgrad.msl.signature import Launch, Target, Translation
from mpsgrad.msl.statement_expressions import has_statement_expressions, without_statement_expressions
from mpsgrad.msl.strings import move_strings
from mpsgrad.msl.temporaries import closed_to_temporaries
from mpsgrad.msl.thread_members import without_thread_beside_others
from mpsgrad.msl.tokens import IDENTIFIER, NUMBER, STRING, Span, Token, error, matching
from mpsgrad.msl.vector_forms import VectorForms
from mpsgrad.msl.vector_specialisations import specialise_for_vectors
from mpsgrad.msl.versions import DEFAULT, RECURSION, TENSORS, later_names, refuse_newer, version_of, without_coherence

if TYPE_CHECKING:
    from mpsgrad.msl.analysis.chosen_elements import ChosenElements, Step
    from mpsgrad.msl.analysis.detours import Condition, Detour
    from mpsgrad.msl.analysis.exits import Exits
    from mpsgrad.msl.analysis.guards import Guard
    from mpsgrad.msl.analysis.neighbours import Neighbours
    from mpsgrad.msl.analysis.source import Source

_ROLLED = "clang loop unroll(disable)"
_NEVER = "if (never_mtl())"
_PASSED_BY = f"{_NEVER} {{}} else"
_KEPT = "kept_value_mtl"
_FIRST, _STEPS = "first_mtl", "steps_mtl"
_OF_THREAD = "of_thread_mtl"

_TARGETS = ("cuda", "opencl")


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
    what versions of the language after 2.3 came with. ``function_constants`` has values by name or index; without one a
    function constant is not defined.

    ``launch`` says how the entry points are started. "whole": in whole threadgroups of the size that a kernel declares,
    as the target starts them itself. "row" and "box": over any grid, described by one more argument (``launch_mtl_t``
    in the translation). For OpenCL, with "row" threadgroups may have several rows only where a kernel uses no
    simdgroups, and with "box" kernels that do are started in rows of as many threads as a threadgroup has; for CUDA all
    are. "narrow" is as "row", but no kernel is wide. Beside each entry point another one, with ``SIZES_SUFFIX``, then
    stores the sizes of what the arguments point to.

    Without ``fast_math``, or where the source says ``#pragma METAL fp math_mode(safe)``, functions of the library
    without a qualifier are those of ``metal::precise``.

    ``checked``, for OpenCL only, names one kernel function: the translation then has no other, and reports what it does
    wrong when it runs (``Translation.instrumentation``).

    Raises ``ShaderError``, pointing at the Metal source, for what is malformed or cannot be carried; errors in function
    bodies are left to the target's compiler, whose messages ``parse_compiler_log`` reads. Raises ``FormatError`` for
    function constants that the source does not have or whose values do not fit.
    """
    if target not in _TARGETS:
        raise ValueError(f"translate: target is {target!r} but must be one of {[*_TARGETS]}")
    try:
        backend = _backend(target)
        version = version_of((definitions or {}).get("__METAL_VERSION__", DEFAULT))
        preprocessor = Preprocessor(resolve, {**backend.definitions, **(definitions or {})})
        tokens = preprocessor.run(source, filename)
        fast_math = fast_math and not preprocessor.asks_for_safe_math
        tokens = _accepted(tokens, version)
        strings = {} if backend.has_native_constructors else move_strings(tokens)
        program = read_program(_written_out(tokens, backend, version), fast_math)
        needs: list[str] = []
        if not backend.has_bit_fields and has_bit_fields(program.tokens):
            program = read_program(carry_bit_fields(program, filename))
            needs.append(BITS)
        refuse_newer(program.tokens, version)
        if version >= TENSORS and (carried := carry_host_tensors(program)) is not None:
            program = read_program(carried)
        guidance = _Guidance()
        if launch != "whole":
            analysed = _analysed(program, version, source, filename)
            if not backend.has_statement_expressions and has_statement_expressions(program.tokens):
                analysed = _analysed_again(analysed, without_statement_expressions(program.tokens))
                program = analysed.program
            if (listing := with_lists_by_name(analysed)) is not None:
                analysed = _analysed_again(analysed, listing)
                program = analysed.program
            if backend.has_native_constructors and (computing := _with_computed_constants(analysed)):
                program, analysed = computing.program, computing
            if whole := _with_whole_barriers(analysed, backend, is_checked=checked is not None):
                program, analysed = whole.program, whole
                needs.append(ANY_THREAD)
            if checked is None:
                if backend.guards_flow:
                    analysed = _with_conditions_that_ask(analysed)
                    program = analysed.program
                guidance = _guidance_of(analysed, backend, launch)
        instrumentation = None
        if checked is not None:
            from mpsgrad.msl.instrument import instrument

            program = read_program(_converting(program, version, source, filename), fast_math)
            instrumentation = instrument(program, checked, source, filename, strings)
            program = read_program(instrumentation.tokens)
            needs += instrumentation.library_names
        constants = FunctionConstants(program, function_constants or {})
        translator = _Translator(
            program, backend, filename, constants, launch, version, fast_math, checked, strings, needs, guidance
        )
        translation = translator.translation(instrumentation.members if instrumentation else ())
        asks_for_safe_math = preprocessor.asks_for_safe_math
        return replace(translation, instrumentation=instrumentation, asks_for_safe_math=asks_for_safe_math)
    except ShaderError as found:
        if found.source_line is None:
            raise shader_error(found, source, filename) from None
        raise


@once
def _backend(target: Target) -> Backend:
    """What is not needed takes long to import: another target, and checks at run time."""
    if target == "cuda":
        from mpsgrad.msl.cuda import CUDABackend

        return CUDABackend()
    from mpsgrad.msl.opencl import OpenCLBackend

    return OpenCLBackend()


class _Guidance(NamedTuple):
    """What begins the loops that are not to be unrolled; the short ways that choices need; conditions to keep apart;
    what leads out of loops and has to stay in them; the indices of neighbouring threads; those that none of the threads
    may have found, and divisors; the conditions of what stands there once more without them; the names of kernels that
    add up; and elements of vectors that threads choose. ``analysed`` is the program that they were found in."""

    rolled: Sequence[Token] = ()
    detours: Sequence[Detour] = ()
    conditions: Sequence[Condition] = ()
    exits: Exits | None = None
    neighbours: Neighbours | None = None
    elements: Sequence[Span] = ()
    divisors: Sequence[Span] = ()
    guards: Sequence[Guard] = ()
    adding: Sequence[Token] = ()
    chosen: ChosenElements | None = None
    analysed: Source | None = None

    def put_into(self, forms: VectorForms, backend: Backend, spelling: Callable[[str], str]) -> None:
        """Writes all of them at their places in the program, what stands around others last."""
        for _, behind, name in self.conditions:
            forms.put_before(behind, "))" if name is None else f"; apart_mtl((bool)({spelling(name)}))")
        for loop in self.rolled:
            if loop.kind == "pragma":
                loop.text = f"#pragma {_ROLLED}"
            elif loop.kind == STRING:
                loop.text = f'"{_ROLLED}"'
            else:
                forms.put_before(loop, f'_Pragma("{_ROLLED}") ')
        for token, jump, is_alone in self.detours:
            way = f"{_NEVER} {jump or '{}'}{'' if is_alone else ' else'}"
            if token.kind == "pragma":
                token.text = f"{way}\n{token.text}"
            else:
                forms.put_before(token, f"{way} ")
        if self.exits is not None:
            self._keep_inside(self.exits, forms)
        if self.neighbours is not None:
            self._show_neighbours(self.neighbours, forms, backend, spelling)
        for first, behind in self.elements:
            forms.put_before(first, "((")
            forms.put_before(behind, ") + zero_mtl())")
        for first, behind in self.divisors:
            forms.put_before(first, "in_place_mtl(")
            forms.put_before(behind, ")")
        for first, _, name in self.conditions:
            if name is None:
                forms.put_before(first, "apart_mtl((bool)(")
        if self.chosen is not None:
            for first, behind in self.chosen.assigned:
                forms.put_before(first, f"{_OF_THREAD}(")
                forms.put_before(behind, ")")
            for first, behind in self.chosen.indices:
                forms.put_before(first, "(int)(")
                forms.put_before(behind, ")")
            for step in self.chosen.stepped:
                self._add_for_each_thread(step, forms)

    @staticmethod
    def _add_for_each_thread(step: Step, forms: VectorForms) -> None:
        """Writes ``v[i]++`` as what assigns another sum."""
        sign = step.sign.text[0]
        added = f"{sign}= {_OF_THREAD}(1))"
        if step.is_prefix:
            step.sign.text = "(void)0,"
            forms.put_before(step.sign, "(")
            forms.put_before(step.behind, added)
        else:
            step.sign.text = added
            forms.put_before(step.element.first, f"({step.type})((" if step.type else "((")
            forms.put_before(step.behind, f" {'-' if sign == '+' else '+'} 1)")

    @staticmethod
    def _show_neighbours(
        neighbours: Neighbours, forms: VectorForms, backend: Backend, spelling: Callable[[str], str]
    ) -> None:
        """Makes sums of positions and of what threads agree about; ``spelling`` gives a name in the target."""
        for first, closing, attribute in neighbours.indices:
            position = backend.neighbours[attribute]
            forms.put_before(first, "(long)(int)((")
            forms.put_before(closing, f") - {position}) + (long){position}")
        for stride in neighbours.strides:
            name = spelling(stride.name.text)
            forms.put_before(stride.declared, f", {_STEPS} = 0, {name}")
            forms.put_before(stride.condition, f"{name} = {_FIRST} + {_STEPS}, (")
            forms.put_before(stride.tested, ")")
            stride.name.text, stride.stepped.text = _FIRST, _STEPS

    @staticmethod
    def _keep_inside(exits: Exits, forms: VectorForms) -> None:
        """Gives ways out of loops one back, which no thread takes."""
        for jump in exits.jumps:
            forms.put_before(jump, f"{_PASSED_BY} ")
        for word, behind in exits.values:
            word.text = f"{{ const auto {_KEPT} ="
            forms.put_before(behind, f"{_PASSED_BY} return {_KEPT}; }} ")
        for literal, name in exits.literals:
            literal.text = f"(never_mtl() ? {name} : {literal.text})"


def _accepted(tokens: list[Token], version: tuple[int, int]) -> list[Token]:
    """A preprocessed source in words that both targets know; raises for what neither can carry."""
    tokens = without_coherence(tokens, version)
    refuse_unsupported(tokens)
    tokens = [token for token in tokens if token.text != "__extension__"]
    for token in tokens:
        if token.kind == IDENTIFIER and token.text == "restrict":
            token.text = "__restrict"
    return functions_as_types(without_bracketed_names(tokens))


def _written_out(tokens: list[Token], backend: Backend, version: tuple[int, int]) -> list[Token]:
    """``tokens`` with other forms for those that a target has not, as far as that needs no outline of the program."""
    if not backend.has_case_ranges:
        tokens = without_compound_literals(fill_ranges(expand_case_ranges(tokens)))
        refuse_array_designators(tokens)
    tokens = one_default_constructor(tokens, backend.address_spaces)
    if backend.has_native_constructors:
        return tokens
    tokens = without_thread_beside_others(tokens)
    tokens = specialise_for_vectors(open_to_friends(return_what_is_assigned(tokens)))
    return tokens if version < RECURSION else reflect_once(tokens)


def _analysed(program: Program, version: tuple[int, int], source: str, filename: str) -> Source:
    """A user's program for analysis; raises for what Apple's compiler refuses and targets do not.

    The package's own shaders are checked by its tests, and tuned.
    """
    from mpsgrad.msl.analysis.source import Source
    from mpsgrad.msl.lint.accepted_by_targets import refuse_what_targets_accept

    analysed = Source(program.tokens, program, version, False, source, filename)
    refuse_what_targets_accept(analysed)
    return analysed


def _with_computed_constants(analysed: Source) -> Source | None:
    """A program whose constants are all constant expressions in CUDA; None if they are already."""
    from mpsgrad.msl.constant_components import with_places_of_components

    changes = [with_places_of_components]
    if analysed.program.variables:
        from mpsgrad.msl.computed_constants import with_computed_constants
        from mpsgrad.msl.local_externs import without_local_externs

        changes += [without_local_externs, with_computed_constants]
    found = None
    for change in changes:
        tokens = change(analysed)
        if tokens is not None:
            found = analysed = _analysed_again(analysed, tokens)
    return found


def _analysed_again(analysed: Source, tokens: list[Token]) -> Source:
    """What an analysed program is to be, analysed."""
    program = read_program(tokens)
    return type(analysed)(program.tokens, program, analysed.version, False, analysed.written, analysed.filename)


def _with_whole_barriers(analysed: Source, backend: Backend, *, is_checked: bool) -> Source | None:
    """A program in which all threads come to each barrier, where only some might; None if they do already."""
    from mpsgrad.msl.analysis.divergence import functions_with_partial_barriers

    partial = functions_with_partial_barriers(analysed, waits_for_returned=backend.waits_for_returned)
    if not partial:
        return None
    from mpsgrad.msl.partial_barriers import with_whole_barriers, without_declared_conditions

    simpler = without_declared_conditions(analysed)
    if simpler is not None:
        analysed = _analysed_again(analysed, simpler)
        partial = functions_with_partial_barriers(analysed, waits_for_returned=backend.waits_for_returned)
    return _analysed_again(analysed, with_whole_barriers(analysed, partial, is_checked=is_checked))


def _with_conditions_that_ask(analysed: Source) -> Source:
    """A program whose loops declare nothing in their conditions."""
    from mpsgrad.msl.analysis.detours import has_loops_that_declare

    if not has_loops_that_declare(analysed):
        return analysed
    from mpsgrad.msl.partial_barriers import without_declared_conditions

    tokens = without_declared_conditions(analysed)
    return analysed if tokens is None else _analysed_again(analysed, tokens)


def _guidance_of(analysed: Source, backend: Backend, launch: Launch) -> _Guidance:
    """All that, of a program that runs."""
    from mpsgrad.msl.analysis.chosen_elements import chosen_elements
    from mpsgrad.msl.analysis.detours import conditions_to_keep_apart, detours_of, loops_around_choices
    from mpsgrad.msl.analysis.divisors import divisors_of
    from mpsgrad.msl.analysis.elements import indices_of_elements
    from mpsgrad.msl.analysis.exits import exits_to_keep_inside
    from mpsgrad.msl.analysis.guards import guards_of
    from mpsgrad.msl.analysis.loops import loops_to_keep_rolled
    from mpsgrad.msl.analysis.neighbours import neighbours_of
    from mpsgrad.msl.analysis.sums import kernels_that_add

    is_in_rows = launch in ("row", "narrow")
    conditions = conditions_to_keep_apart(analysed) if backend.guards_flow else []
    guards = guards_of(analysed) if backend.last_position and is_in_rows else []
    return _Guidance(
        [*loops_to_keep_rolled(analysed), *loops_around_choices(analysed)] if backend.unrolls_too_much else (),
        detours_of(analysed) if backend.guards_flow else (),
        conditions,
        exits_to_keep_inside(analysed) if backend.guards_flow else None,
        neighbours_of(analysed) if backend.neighbours and is_in_rows else None,
        indices_of_elements(analysed) if backend.guards_flow else (),
        list(divisors_of(analysed)) if backend.guards_flow else (),
        [_beside(guard, conditions) for guard in guards],
        kernels_that_add(analysed) if backend.knows_wide_rows and launch == "row" else (),
        chosen_elements(analysed) if backend.guards_flow else None,
        analysed,
    )


def _beside(guard: Guard, conditions: Sequence[Condition]) -> Guard:
    """``guard``, whose limits do not begin with what is put before conditions."""
    beginnings = {id(condition.first) for condition in conditions}
    comparisons = [
        each._replace(limit=[token.at(token) if id(token) in beginnings else token for token in each.limit])
        for each in guard.comparisons
    ]
    return guard._replace(comparisons=tuple(comparisons))


def _converting(program: Program, version: tuple[int, int], source: str, filename: str) -> list[Token]:
    """The tokens of ``program`` with what makes integers as Metal does."""
    from mpsgrad.msl.analysis.source import Source

    analysed = Source(program.tokens, program, version, False, source, filename)
    return converting(analysed, VectorTypes(program.tokens, later_names(version)))


class _Translator:
    """The parts of one translation, and what they make together."""

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
        strings: Mapping[str, str],
        needs: Sequence[str],
        guidance: _Guidance,
    ) -> None:
        self._program = program
        self._backend = backend
        self._filename = filename
        self._constants = constants
        self._launch = launch
        _refuse_misplaced_constants(program)
        self._names = LibraryNames(program, backend, version, fast_math, needs)
        if checked is None and version < RECURSION and Reach(program, set()).may_recurse():
            refuse_recursion(program, self._names.known, version, filename)
        types = VectorTypes(program.tokens, self._names.users)
        self._passed = replace_functions_as_template_arguments(program)
        refuse_function_pointers(program.tokens)
        refuse_unfillable_buffers(program)
        refuse_positions_at_program_scope(program)
        self._strings = strings
        is_own = launch == "whole"
        is_run = not is_own and checked is None
        forms = VectorForms(
            program, backend, self._names, filename, is_own, guidance.analysed, types if is_run else None
        )
        if not is_own and backend.guards_flow:
            # Of a call of a function with a barrier the compiler takes for granted that all threads come to it, and
            # threads that run abreast have the positions of others there.
            for place in functions_that_wait(program):
                forms.put_before(program.tokens[place], "__attribute__((always_inline)) ")
        if not backend.has_native_constructors:
            self._carry_structs(forms)
        else:
            from mpsgrad.msl.chained_constants import chained_constants

            for word in chained_constants(program):
                forms.put_before(word, "constexpr ")
        if backend.regroups_sums and not fast_math and launch != "whole":
            for loop in _loops(program.tokens):
                forms.put_before(loop, '_Pragma("clang loop vectorize(disable)") ')
        guidance.put_into(forms, backend, self._names.spelling)
        self._forms = forms
        self._rewriter = Rewriter(program, backend, self._names, forms, types, constants)
        reach = Reach(program, self._passed.functions)
        divides = backend.is_compiled_in_parts and launch != "whole" and checked is None
        self._entry_points = EntryPoints(
            program,
            backend,
            self._names,
            self._rewriter,
            constants,
            launch,
            reach,
            parts_of(program, reach) if divides else {},
            checked,
            guidance.guards,
            guidance.adding,
        )

    def _carry_structs(self, forms: VectorForms) -> None:
        """Writes packed structs for OpenCL, which has none."""
        tokens = self._program.tokens
        _forget_unused_functions(self._program)
        for declaration, body in packed_structs(tokens):
            forms.put_before(declaration, BEFORE_STRUCT)
            forms.put_before(body, IN_STRUCT)

    def translation(self, members_in_checks: Sequence[str]) -> Translation:
        """All of the program; ``members_in_checks`` are members that what checks it at run time has to reach."""
        tokens = self._program.tokens
        output: list[Token] = []
        position = 0
        for start, end, make_tokens in sorted(self._pieces(), key=lambda piece: piece[0]):
            if start < position:
                continue
            output += self._rewriter.rewrite(tokens[position:start])
            output += make_tokens()
            position = end
        output += self._rewriter.rewrite(tokens[position:])
        members = {b.text for a, b in pairwise(tokens) if a.text in (".", "->")}
        prelude = self._backend.opening(self._names.closure(), members, self._launch) + self._names.prelude()
        prelude += self._names.makers() + self._backend.launch_parameter(self._launch)[0] + self._names.reaching()
        prelude += "".join(f"const __global char {name}[] = {text};\n" for text, name in self._strings.items())
        if members_in_checks:
            from mpsgrad.msl.instrument import member_template

            prelude += "".join(member_template(name, self._names.spelling(name)) for name in members_in_checks)
        text, shifts = emit(output, self._filename, prelude)
        return Translation(text, self._entry_points.signatures, self._constants.declared, shifts)

    def _pieces(self) -> list[Piece]:
        """What is to stand in the place of parts of the program; of those that overlap the first counts."""
        rewrite = self._rewriter.rewrite
        pieces: list[Piece] = [(index, index, partial(rewrite, made)) for index, made in self._passed.structs]
        kept = self._forms.kept_references
        if kept is not None:
            for end, name in closed_to_temporaries(self._program, kept.positions):
                self._names.used.add(OF_TEMPORARIES)
                text = f"{OF_TEMPORARIES}({self._names.spelling(name)})"
                pieces.append((end, end, partial(list, [self._program.tokens[end - 1].replaced(text, IDENTIFIER)])))
            for end, made in functions_of_temporaries(self._program, kept):
                self._names.used.update({OF_ANOTHER} & {token.text for token in made})
                pieces.append((end, end, partial(rewrite, made)))
        for kernel in self._program.kernels:
            pieces.append((kernel.start, kernel.body_close + 1, partial(self._entry_points.kernel, kernel)))
        for one in self._program.instantiations:
            pieces.append((one.start, one.end, partial(self._entry_points.instantiation, one)))
        pieces += [(start, end, partial(rewrite, made)) for start, end, made in self._constants.pieces()]
        pieces += [(start, end, list) for start, end in self._program.dropped]
        return pieces + Overloads(self._program, self._backend, rewrite).pieces()


def _loops(tokens: Sequence[Token]) -> Iterator[Token]:
    """The words that begin loops."""
    for index, token in enumerate(tokens):
        if token.text in ("for", "do"):
            yield token
        elif token.text == "while" and index + 2 < len(tokens) and tokens[index + 1].text == "(":
            behind = matching(tokens, index + 1) + 1
            if behind < len(tokens) and tokens[behind].text != ";":
                yield token


def _forget_unused_functions(program: Program) -> None:
    """Makes ``(void)0`` of ``(void)function``, which nobody calls: OpenCL has no addresses of functions."""
    tokens = program.tokens
    for index in range(3, len(tokens) - 1):
        token = tokens[index]
        if token.text in program.functions and tokens[index + 1].text == ";":
            if [before.text for before in tokens[index - 3 : index]] == ["(", "void", ")"]:
                token.text, token.kind = "0", NUMBER


def _refuse_misplaced_constants(program: Program) -> None:
    """Raises for a ``function_constant`` that is neither a variable's at program scope nor a kernel parameter's."""
    tokens = program.tokens
    spans = [(kernel.parameters_open, kernel.parameters_close) for kernel in program.kernels]
    spans += [(each.start, each.end) for each in program.instantiations]
    for index, token in enumerate(tokens):
        if token.text == "function_constant" and index and tokens[index - 1].text == "[":
            if not any(start <= index < stop for start, stop in (*program.variables, *spans)):
                raise error("a function constant has to be a constant at program scope", token)
