"""Objects that have certain properties and no others: to set a misspelt one would have no effect."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from mpsgrad.errors import FormatError


class CheckedCalls(type):
    """Has calls of a class that its constructor does not take raise an error which names the class, and what it takes.

    Python's own error names the class that the constructor is inherited from.
    """

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        try:
            return super().__call__(*arguments, **named)
        except TypeError:
            signature = inspect.signature(cls)
            try:
                signature.bind(*arguments, **named)
            except TypeError as error:
                known = cls._argument_names()
                unknown = [name for name in named if name not in known]
                verb = "is no argument" if len(unknown) == 1 else "are no arguments"
                later = " but can be set later" if all(map(cls._is_set_later, unknown)) else ""
                reason = f"{', '.join(unknown)} {verb}{later}" if unknown else error
                raise FormatError(f"{cls.__name__}: {reason}; {cls._constructors()}") from None
            raise

    def _is_set_later(cls, name: str) -> bool:
        """Whether ``name`` is a property that can be set."""
        found = inspect.getattr_static(cls, name, None)
        return hasattr(type(found), "__set__") and getattr(found, "fset", found) is not None

    def _constructors(cls) -> str:
        """What there is instead, for the error."""
        return f"there is {cls.__name__}({', '.join(cls._argument_names())})"

    def _argument_names(cls) -> list[str]:
        """The names of the constructor's arguments, and in place of its ``**`` those that it passes on."""
        names: list[str] = []
        for base in cls.__mro__:
            if "__init__" not in vars(base):
                continue
            _, *parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
            kinds = {each.name: each.kind for each in parameters}
            names += [
                name
                for name, kind in kinds.items()
                if name not in names and (not names or kind is inspect.Parameter.KEYWORD_ONLY)
                if kind is not inspect.Parameter.VAR_KEYWORD
            ]
            if inspect.Parameter.VAR_KEYWORD not in kinds.values():
                break
        return [*names, *(name for name in cls._names_of_settings() if name not in names)]

    def _names_of_settings(cls) -> Iterable[str]:
        """Further names that the constructor takes by its ``**``."""
        return ()

    @property
    def __signature__(cls) -> inspect.Signature:
        """The constructor's, not that of ``__call__``."""
        _, *parameters = inspect.signature(cls.__init__).parameters.values()  # type: ignore[misc]
        return inspect.Signature(parameters)


class _Complete(CheckedCalls):
    """Notes when an object has been made: its constructors may give it any attributes."""

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        made = super().__call__(*arguments, **named)
        made.__dict__["_is_complete"] = True
        return made


class KnownAttributes(metaclass=_Complete):
    """An object whose attributes are those that its class has or that it was made with.

    Setting another one raises ``AttributeError`` that names the nearest, as setting one of ``_fixed_attributes`` does.
    Names that begin with an underscore are free.
    """

    _fixed_attributes: ClassVar[tuple[str, ...]] = ()
    """Those that cannot be set once the object is made."""

    _is_complete = False

    def __setattr__(self, name: str, value: Any) -> None:
        if name[0] != "_" and self._is_complete:
            if name in self._fixed_attributes:
                raise AttributeError(f"{type(self).__name__}: {name} cannot be set", name=name, obj=self)
            if name not in self.__dict__ and not hasattr(type(self), name):
                raise no_such_attribute(self, name)
        object.__setattr__(self, name, value)


class NoSuchAttributeError(AttributeError):
    """Finds its message when it is shown: who asks by ``hasattr``, as test runners do for many names, never sees it."""

    def __init__(self, message: Callable[[], str], name: str, thing: Any = None) -> None:
        super().__init__(name=name, obj=thing)
        self._message = message

    def __str__(self) -> str:
        return self._message()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return AttributeError, (str(self),)


def no_such_attribute(thing: Any, name: str) -> AttributeError:
    """The error of using an attribute ``name`` that ``thing`` has not, with the nearest that it has."""

    def message() -> str:
        known = [each for each in {*dir(type(thing)), *vars(thing)} if not each.startswith("_")]
        return f"{type(thing).__name__} has no {name}{nearest(name, known)}"

    return NoSuchAttributeError(message, name, thing)


def no_such_name(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """The error of using a name that ``module`` has not, with the nearest, or where names of others are told."""

    def message() -> str:
        hint = nearest(name, known)
        if name.startswith(("MPS", "MTL")):
            hint = "; mpsgrad.mps has Apple's names"
        elif not hint and not name.startswith("_"):
            hint = "; docs/pytorch.md has PyTorch's names beside those here"
        return f"{module} has no {name}{hint}"

    return NoSuchAttributeError(message, name)


def nearest(name: str, known: Iterable[str]) -> str:
    """``; close to it are`` and those of ``known`` that are, or nothing."""
    close = difflib.get_close_matches(name, sorted(known), n=3)
    return f"; close to it are {', '.join(close)}" if close else ""
