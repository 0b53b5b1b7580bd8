"""Structs for what a Metal source makes of its templates of structs."""

from __future__ import annotations

from typing import NamedTuple

from mpsgrad.msl.tokens import IDENTIFIER, Token, matching, matching_angle, split_commas
from mpsgrad.msl.type_names import type_names

_MOST = 64
"""How many structs may come of one type: templates may give ever more of each other."""


class _Template(NamedTuple):
    """The parameters, with their defaults, and the body from brace to brace."""

    parameters: list[list[Token]]
    body: list[Token]


def with_instances(tokens: list[Token], written: list[Token]) -> tuple[list[Token], list[Token]] | None:
    """``tokens`` with a struct for each ``Name<arguments>`` in the type ``written``, in these and in structs that are
    no templates, and the type with the names of those; None if there is none, or where the template has bases, packs
    or specialisations."""
    made = _Instances(tokens)
    kind = made.replaced(written)
    if kind is None:
        return None
    others = made.with_named_members(tokens)
    return (others + made.structs, kind) if made.structs else None


def _name(parameter: list[Token]) -> Token:
    """The last token before the default of a template's parameter."""
    equals = next((at for at, each in enumerate(parameter) if each.text == "="), len(parameter))
    return parameter[equals - 1]


def _templates(tokens: list[Token]) -> dict[str, _Template | None]:
    """The templates of structs by name; None for one that is not understood."""
    found: dict[str, _Template | None] = {}
    for index, token in enumerate(tokens[:-4]):
        is_template = token.text == "template" and tokens[index + 1].text == "<"
        close = matching_angle(tokens, index + 1) if is_template else None
        if close is None or close + 3 >= len(tokens) or tokens[close + 1].text not in ("struct", "class"):
            continue
        name, behind = tokens[close + 2], tokens[close + 3].text
        if name.kind != IDENTIFIER or behind == ";":
            continue
        parameters = split_commas(tokens[index + 2 : close])
        is_plain = behind == "{" and not any(part.text == "..." for part in tokens[index:close])
        body = tokens[close + 3 : matching(tokens, close + 3) + 1] if is_plain else []
        found[name.text] = _Template(parameters, body) if body and name.text not in found else None
    return found


class _Instances:
    """What is made of the templates of one source."""

    def __init__(self, tokens: list[Token]) -> None:
        self._templates = _templates(tokens)
        # The other names of what is made of them.
        self._aliases = {
            each.name.text: each.meaning
            for each in type_names(tokens)
            if not each.parameters and any(part.text in self._templates for part in each.meaning)
        }
        self._names: dict[str, str] = {}
        self.structs: list[Token] = []

    def replaced(self, tokens: list[Token]) -> list[Token] | None:
        """``tokens`` with the names of structs for what is made of templates; None where that is not understood."""
        output: list[Token] = []
        index = 0
        while index < len(tokens):
            token = tokens[index]
            index += 1
            if token.text in self._aliases:
                meaning = self.replaced(self._aliases[token.text])
                if meaning is None:
                    return None
                output += meaning
                continue
            output.append(token)
            is_template = token.text in self._templates and index < len(tokens) and tokens[index].text == "<"
            close = matching_angle(tokens, index) if is_template else None
            if close is None:
                continue
            name = self._instance(token, split_commas(tokens[index + 1 : close]))
            if name is None:
                return None
            output[-1] = token.replaced(name)
            index = close + 1
        return output

    def with_named_members(self, tokens: list[Token]) -> list[Token]:
        """``tokens`` with the names of structs for such types in the bodies of structs that are no templates."""
        if not self._templates:
            return tokens
        output: list[Token] = []
        index = 0
        while index < len(tokens):
            token = tokens[index]
            end = index + 1
            if token.text == "template" and end < len(tokens) and tokens[end].text == "<":
                while end < len(tokens) and tokens[end].text not in ("{", ";"):
                    end += 1
                end = matching(tokens, end) + 1 if end < len(tokens) and tokens[end].text == "{" else end
            is_body = token.text == "{" and index > 1 and tokens[index - 2].text in ("struct", "class")
            if is_body:
                end = matching(tokens, index) + 1
            output += (self.replaced(tokens[index:end]) if is_body else None) or tokens[index:end]
            index = end
        return output

    def _instance(self, token: Token, arguments: list[list[Token]]) -> str | None:
        template = self._templates[token.text]
        key = f"{token.text}<{','.join(' '.join(each.text for each in part) for part in arguments)}>"
        if key in self._names:
            return self._names[key]
        if template is None or len(self._names) >= _MOST or len(arguments) > len(template.parameters):
            return None
        name = self._names[key] = f"{token.text}_instance_{len(self._names)}"
        values: dict[str, list[Token]] = {}
        for number, parameter in enumerate(template.parameters):
            declared = _name(parameter)
            default = parameter[parameter.index(declared) + 2 :]
            value = arguments[number] if number < len(arguments) else _with(values, default)
            if not value or declared.kind != IDENTIFIER:
                return None
            values[declared.text] = value
        body = self.replaced(_with(values, template.body))
        if body is None:
            return None
        self.structs += [token.replaced("struct"), token.replaced(name), *body, token.replaced(";")]
        return name


def _with(values: dict[str, list[Token]], tokens: list[Token]) -> list[Token]:
    """``tokens`` with values for the names of parameters."""
    output: list[Token] = []
    for index, token in enumerate(tokens):
        is_member = index > 0 and tokens[index - 1].text in (".", "->", "::")
        is_parameter = token.text in values and not is_member
        output += [each.at(token) for each in values[token.text]] if is_parameter else [token.replaced(token.text)]
    return output
