"""What a data source has to have, whichever kernel it is for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpsgrad.errors import FormatError


def require_members(owner: str, data_source: Any, names: Sequence[str], protocol: str) -> None:
    """Raises ``FormatError`` if ``data_source`` is a class or lacks attributes or methods that ``protocol`` has."""
    if isinstance(data_source, type):
        raise FormatError(f"{owner}: data_source is the class {data_source.__name__}; it has to be an object of one")
    # Properties of a data source need not be readable before it is loaded.
    missing = [name for name in names if not hasattr(type(data_source), name) and not hasattr(data_source, name)]
    if not missing:
        return
    article = "an" if protocol[0] in "AEIOU" else "a"
    hint = ""
    if any(hasattr(data_source, _camel_case(name)) for name in missing):
        hint = f", or with Apple's names an mpsgrad.mps.MPSCNN{protocol}"
    raise FormatError(
        f"{owner}: data_source is {type(data_source).__name__}, which has no {', '.join(missing)}; it has to be "
        f"{article} {protocol}{hint}"
    )


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
