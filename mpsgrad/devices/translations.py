"""What a driver needs of a translation beside the compiled program, kept on disk under the source that it was made of.

A compile that finds it does not translate. The name of an entry depends on everything that a translation does: the
source and what messages call it, the options, the translator itself, and whatever the driver adds, such as the device;
an entry counts only while the files that the source included still say the same. Entries may vanish or be damaged like
all of the cache, which costs a translation.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache as once
from pathlib import Path

import numpy as np

from mpsgrad.devices import cache
from mpsgrad.devices.contract import CompileOptions
from mpsgrad.msl import Argument, KernelSignature, Launch, Translation
from mpsgrad.msl.signature import HostTensor, Target

Resolve = Callable[[str, bool], tuple[str, str] | None]

_LOADED = time.time_ns()


@dataclass(frozen=True, slots=True)
class KeptTranslation:
    """``program`` is the name of the compiled program in the cache, ``kernels`` are the signatures by name.

    ``source`` is the translated text instead, where its parts are compiled at their first use. ``asks_for_safe_math``
    is the translation's.
    """

    program: str
    kernels: dict[str, KernelSignature]
    source: str = ""
    asks_for_safe_math: bool = False


class Includes:
    """Finds the files that a source includes, and remembers what it found."""

    def __init__(self, resolve: Resolve | None) -> None:
        self._resolve = resolve
        self.found: list[tuple[str, bool, str]] = []

    def __call__(self, name: str, quoted: bool) -> tuple[str, str] | None:
        found = self._resolve(name, quoted) if self._resolve is not None else None
        self.found.append((name, quoted, _digest(found)))
        return found


def translated(
    source: str,
    target: Target,
    name: str,
    options: CompileOptions | None = None,
    launch: Launch = "whole",
    resolve: Resolve | None = None,
    checked: str | None = None,
) -> Translation:
    """``source`` in the language of ``target``, as a driver compiles it; without ``options`` for whole threadgroups."""
    from mpsgrad.msl import translate

    if options is None:
        return translate(source, target, filename=name)
    return translate(
        source,
        target,
        filename=name,
        resolve=resolve,
        definitions=options.definitions(),
        function_constants=options.function_constants,
        launch=launch,
        fast_math=options.fast_math,
        checked=checked,
    )


def name_of(driver: Sequence[str], source: str, name: str, options: CompileOptions | None) -> str | None:
    """The name of the entry for ``source``, or None if nothing is to be kept of it."""
    translator = _translator()
    described = _described(options)
    if translator is None or described is None:
        return None
    return cache.key("translation", translator, *driver, name, *described, source)


def load(name: str | None, resolve: Resolve | None) -> KeptTranslation | None:
    """The entry called ``name``; ``resolve`` finds the files that its source includes."""
    payload = cache.load(name) if name is not None else None
    if payload is None:
        return None
    try:
        entry = json.loads(payload)
        for included, quoted, digest in entry["includes"]:
            if _digest(resolve(included, quoted) if resolve is not None else None) != digest:
                return None
        kernels = [_signature(signature) for signature in entry["kernels"]]
        by_name = {kernel.name: kernel for kernel in kernels}
        return KeptTranslation(str(entry["program"]), by_name, str(entry["source"]), bool(entry["safe_math"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def store(name: str | None, kept: KeptTranslation, includes: Includes) -> None:
    """Keeps an entry under ``name``; does nothing where the cache cannot be written."""
    if name is None:
        return
    kernels = [asdict(signature) for signature in kept.kernels.values()]
    entry = {
        "program": kept.program,
        "includes": includes.found,
        "kernels": kernels,
        "source": kept.source,
        "safe_math": kept.asks_for_safe_math,
    }
    cache.store(name, json.dumps(entry).encode())


def _signature(fields: dict) -> KernelSignature:
    arguments = tuple(
        Argument(**{**argument, "tensor": _host_tensor(argument["tensor"])}) for argument in fields["arguments"]
    )
    lists = ("unset_constants", "required_threadgroup")
    tuples = {name: tuple(fields[name]) for name in lists if fields[name] is not None}
    return KernelSignature(**{**fields, **tuples, "arguments": arguments})


def _host_tensor(fields: dict | None) -> HostTensor | None:
    return None if fields is None else HostTensor(**{**fields, "lengths": tuple(fields["lengths"])})


def _digest(found: tuple[str, str] | None) -> str:
    return cache.key(*found) if found is not None else ""


def _described(options: CompileOptions | None) -> list[str] | None:
    """``options`` as text; None if a function constant's value has none."""
    if options is None:
        return []
    described = [str(options.fast_math), repr(sorted(options.definitions().items())), str(options.include_directory)]
    described.append(repr([str(folder) for folder in options.include_folders]))
    for key, value in options.function_constants.items():
        try:
            given = np.asarray(value)
        except (TypeError, ValueError):
            return None
        if given.dtype.hasobject:
            return None
        described += [type(key).__name__, str(key), given.dtype.str, str(given.shape), given.tobytes().hex()]
    return described


@once
def _translator() -> str | None:
    """The contents of the translator's files; None if they changed since this process read them."""
    digest = hashlib.sha256()
    try:
        for file in _files():
            if file.stat().st_mtime_ns > _LOADED:
                return None
            data = file.read_bytes()
            digest.update(f"{file.name}:{len(data)}:".encode())
            digest.update(data)
    except OSError:
        return None
    return digest.hexdigest()


def _files() -> Iterator[Path]:
    yield Path(__file__)
    translator = Path(__file__).parent.parent / "msl"
    yield from sorted(translator.rglob("*.py"))
    yield from sorted(translator.rglob("*.h"))
