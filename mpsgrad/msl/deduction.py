"""Template arguments of kernels that are instantiated without them: ``template kernel void f(device float* x);``."""

from __future__ import annotations

from collections.abc import Sequence

from mpsgrad.msl.program import ADDRESS_SPACES, Kernel, Parameter
from mpsgrad.msl.tokens import Token


def deduced_arguments(kernel: Kernel, written: Sequence[Parameter]) -> list[list[Token]] | None:
    """The template arguments of ``kernel`` that make its parameters those that are ``written``; None if these do not
    tell.

    Each has to be all that differs in the type of a parameter. Arguments at the end that are not told have defaults.
    """
    if kernel.template is None or len(kernel.parameters) != len(written):
        return None
    names = {parameter.name for parameter in kernel.template}
    found: dict[str, list[Token]] = {}
    for parameter, given in zip(kernel.parameters, written, strict=True):
        pattern, tokens = _unqualified(parameter), _unqualified(given)
        places = [index for index, token in enumerate(pattern) if token.text in names]
        if len(places) != 1:
            continue
        before, behind = pattern[: places[0]], pattern[places[0] + 1 :]
        middle = tokens[len(before) : len(tokens) - len(behind)]
        around = tokens[: len(before)] + tokens[len(before) + len(middle) :]
        name = pattern[places[0]].text
        if not middle or [token.text for token in around] != [token.text for token in before + behind]:
            return None
        if [token.text for token in found.setdefault(name, middle)] != [token.text for token in middle]:
            return None
    told = [found.get(parameter.name) for parameter in kernel.template]
    defaults = [parameter.default for parameter in kernel.template]
    while told and told[-1] is None and defaults[len(told) - 1] is not None:
        told.pop()
    arguments = [tokens for tokens in told if tokens is not None]
    return arguments if len(arguments) == len(told) else None


def _unqualified(parameter: Parameter) -> list[Token]:
    return [token for token in parameter.type if token.text != "const" and token.text not in ADDRESS_SPACES]
