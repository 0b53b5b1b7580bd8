"""The outline of a source: its kernel functions and their instantiations, and where everything else lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mpsgrad.msl.tokens import Token

ADDRESS_SPACES = frozenset({"device", "constant", "threadgroup", "thread"})
SHARED_SPACES = frozenset({"device", "constant", "threadgroup"})
"""Those of memory that several threads see."""


@dataclass(slots=True)
class Attribute:
    """``name(arguments)`` from inside ``[[ ]]``; ``token`` is its name."""

    name: str
    arguments: list[Token]
    token: Token


@dataclass(slots=True)
class Parameter:
    """One parameter of a kernel function: ``type`` holds the tokens of the declaration before its name."""

    type: list[Token]
    name: str
    place: Token
    attributes: list[Attribute]
    is_reference: bool
    is_pointer: bool

    @property
    def address_space(self) -> Token | None:
        """The token of the outermost pointee's address space."""
        pointee = self.pointee
        spaces = [
            token
            for index, token in enumerate(pointee)
            if token.text in ADDRESS_SPACES and outside_angles(pointee, index)
        ]
        return spaces[-1] if spaces else None

    @property
    def pointee(self) -> list[Token]:
        """The tokens of ``type`` before the first pointer or reference."""
        return self.type[: next(iter(self._marks), None)]

    @property
    def holds_pointers(self) -> bool:
        """Whether what it points or refers to is a pointer."""
        return len(self._marks) > 1

    @property
    def _marks(self) -> list[int]:
        """The indices in ``type`` of pointers and references."""
        return [i for i, token in enumerate(self.type) if token.text in ("*", "&") and outside_angles(self.type, i)]

    def attribute(self, *names: str) -> Attribute | None:
        return next((attribute for attribute in self.attributes if attribute.name in names), None)


@dataclass(slots=True)
class TemplateParameter:
    """``kind`` holds the tokens before the name (``typename``, ``int``, ...), of a function its whole declaration;
    ``default`` those after ``=``. ``names_function`` says that the kind is a name for a type of functions."""

    kind: list[Token]
    name: str
    default: list[Token] | None
    is_type: bool
    is_function: bool = False
    names_function: bool = False


@dataclass(slots=True)
class Kernel:
    """A kernel function's definition; token indices are into the list it was found in."""

    start: int
    name: Token
    namespace: tuple[str, ...]
    template: list[TemplateParameter] | None
    attributes: list[Attribute]
    parameters: list[Parameter]
    parameters_open: int
    parameters_close: int
    body_open: int
    body_close: int

    def attribute(self, name: str) -> Attribute | None:
        return next((attribute for attribute in self.attributes if attribute.name == name), None)


@dataclass(slots=True)
class Instantiation:
    """``template [[host_name("...")]] kernel void qualifiers::name<arguments>(...);``"""

    start: int
    end: int
    name: Token
    namespace: tuple[str, ...]
    qualifiers: tuple[str, ...]
    arguments: list[list[Token]]
    attributes: list[Attribute]

    def attribute(self, name: str) -> Attribute | None:
        return next((attribute for attribute in self.attributes if attribute.name == name), None)


@dataclass(slots=True)
class Program:
    """The outline of a source, as token indices.

    ``functions`` maps each function's name to the ranges of its bodies. A head is a function's start, the bracket that
    opens its parameters, and its end; a member function's has its class before them. ``has_prototypes`` says that a
    function is declared where it has no body. ``constructors`` are the brackets in the heads of those.
    ``implicit`` are ranges that run although nothing names them: bodies of conversions, initialisers of constructors.
    ``aliases`` has what the names of pointers and of the types of positions stand for. ``variables`` are declarations
    at program scope that define no function or type.
    """

    tokens: list[Token]
    kernels: list[Kernel] = field(default_factory=list)
    instantiations: list[Instantiation] = field(default_factory=list)
    functions: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    function_heads: list[tuple[int, int, int]] = field(default_factory=list)
    member_heads: list[tuple[int, int, int, int]] = field(default_factory=list)
    has_prototypes: bool = False
    constructors: set[int] = field(default_factory=set)
    implicit: list[tuple[int, int]] = field(default_factory=list)
    aliases: dict[str, list[Token]] = field(default_factory=dict)
    variables: list[tuple[int, int]] = field(default_factory=list)
    dropped: list[tuple[int, int]] = field(default_factory=list)


def outside_angles(tokens: Sequence[Token], index: int) -> bool:
    """Whether ``index`` stands outside the arguments of templates."""
    depth = 0
    for token in tokens[:index]:
        depth += (token.text == "<") - (token.text == ">")
    return depth <= 0
