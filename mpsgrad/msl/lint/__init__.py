"""Apple's rules for Metal compute source, and those of metalcompute, checked without a Mac.

One small function per rule, with the rule's number; the modules go by subject. A rule looks at tokens after
preprocessing, at the outline of the program and at such types as can be told without a C++ front end: it is silent
where it is not certain. It reports what Apple's compiler would refuse, in Apple's words where they are known, and warns
of what compiles and bites.
"""

from typing import TYPE_CHECKING, Any

from mpsgrad.msl.lint.rule import Finding, Rule
from mpsgrad.msl.versions import LANGUAGE_VERSIONS

if TYPE_CHECKING:
    from mpsgrad.msl.lint.all_rules import RULES, lint

__all__ = ["LANGUAGE_VERSIONS", "RULES", "Finding", "Rule", "lint"]


def __getattr__(name: str) -> Any:
    """All rules take long to import, and a translation needs few of them."""
    if name in ("RULES", "lint"):
        from mpsgrad.msl.lint import all_rules

        return getattr(all_rules, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
