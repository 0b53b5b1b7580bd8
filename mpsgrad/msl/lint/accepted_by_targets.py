"""The rules that only Apple's compiler keeps: what breaks them is refused when it is translated."""

from __future__ import annotations

from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.lint import address_spaces, language, narrowing, values
from mpsgrad.msl.tokens import error

# What no other compiler sees: a Mac would refuse a kernel that runs here.
_ACCEPTED_BY_TARGETS = (
    address_spaces.pointers_have_an_address_space,
    address_spaces.references_have_an_address_space,
    address_spaces.program_scope_variables_are_constant,
    address_spaces.no_static_locals,
    address_spaces.external_constants_are_defined,
    language.doubles,
    language.no_forbidden_constructs,
    language.no_derived_classes,
    language.class_templates_have_arguments,
    values.component_names_are_known,
    values.casts_keep_the_number_of_components,
    narrowing.values_are_not_narrowed,
)


def refuse_what_targets_accept(source: Source) -> None:
    """Raises ``ShaderError`` at the first thing that Apple's compiler refuses and those of other targets do not."""
    found = [(token, message) for check in _ACCEPTED_BY_TARGETS for token, message, *_ in check(source)]
    for token, message in sorted(found, key=lambda each: (each[0].line, each[0].column))[:1]:
        raise error(message, token)
