"""What a rule is, and the table of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.diagnostics import Diagnostic
from mpsgrad.msl.tokens import Token

Severity = Literal["error", "warning"]
Found = tuple[Token, str] | tuple[Token, str, Severity]
Check = Callable[[Source], Iterator[Found]]


@dataclass(frozen=True, slots=True)
class Finding(Diagnostic):
    """A diagnostic with the number of the rule that it comes from; 0 for source that cannot be read at all."""

    rule: int = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. ``words`` are those of Apple's compiler where they are known; ``limits`` says what is not seen."""

    number: int
    name: str
    severity: Severity
    why: str
    words: str | None
    check: Check
    limits: str | None


CATALOGUE: dict[int, Rule] = {}


def rule(
    number: int, name: str, *, why: str, words: str | None = None, severity: Severity = "error"
) -> Callable[[Check], Check]:
    """Enters a check into the table. What its docstring says below the first line are the rule's limits."""

    def register(check: Check) -> Check:
        if number in CATALOGUE:
            raise ValueError(f"rule {number} is defined twice")
        limits = " ".join((check.__doc__ or "").split()) or None
        CATALOGUE[number] = Rule(number, name, severity, why, words, check, limits)
        return check

    return register


def needs(version: str) -> str:
    return f"it needs Metal {version}"
