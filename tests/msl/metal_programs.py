"""Programs that call functions of the manifest on every width of a type, and how far their results are off."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from metal_functions import Domain, Function, Parameter
from metal_samples import COUNT, DTYPES, FLOATS, UNSIGNED, sample
from ulps import FORMATS, errors

import mpsgrad as mg

KERNELS_PER_PROGRAM = 60
HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"


@dataclass(frozen=True)
class Case:
    """One function, called with elements of one type in vectors of some widths, by a qualified name, in a program
    compiled with or without fast math.

    OpenCL compiles kernels that use simdgroups otherwise than others: ``in_simdgroup`` makes one of those.
    """

    function: Function
    type: str
    widths: tuple[int, ...]
    variant: str = ""
    fast_math: bool = True
    in_simdgroup: bool = False

    @property
    def is_fast(self) -> bool:
        """Whether Metal promises no more than for fast math."""
        return self.fast_math and self.variant != "precise::"

    @property
    def bound(self) -> float:
        """The largest error that Metal grants, in units in the last place."""
        accuracy = self.function.accuracy
        if self.type == "half":
            return accuracy.half
        return accuracy.fast if self.is_fast and accuracy.fast is not None else accuracy.float

    @property
    def name(self) -> str:
        return self.function.name.replace("{T}", self.type)

    @property
    def kernel_name(self) -> str:
        kind = "simdgroup_" if self.in_simdgroup else ""
        return re.sub(r"\W+", "_", f"{kind}{self.function.section}_{self.variant}{self.name}_{self.type}")

    def _resolved(self, name: str) -> str:
        return {"T": self.type, "Tu": UNSIGNED.get(self.type, self.type)}.get(name, name)

    def arguments(self) -> list[np.ndarray]:
        """``COUNT`` elements for each parameter, the same ones every time."""
        function = self.function
        generator = np.random.default_rng(len(function.name) + sum(map(ord, self.type)))
        sampled = sum(parameter.draw is None for parameter in function.parameters)
        plain = iter(sample(self.type, sampled) if sampled else ())
        return [
            next(plain) if parameter.draw is None else parameter.draw(self.type, generator, COUNT)
            for parameter in function.parameters
        ]

    def results(self) -> list[np.ndarray]:
        """A section of ``COUNT`` elements for each width, for each result."""
        names = [self._resolved(result.type) for result in self.function.results]
        return [np.zeros((4, COUNT), np.uint8 if name == "bool" else DTYPES[name]) for name in names]

    def source(self) -> str:
        """A kernel that computes the results for every width from the same elements."""
        function = self.function
        parameters = [
            f"device const {_stored(self._resolved(parameter.type))}* a{k}"
            for k, parameter in enumerate(function.parameters)
        ]
        parameters += [
            f"device {_stored(self._resolved(result.type))}* b{k}" for k, result in enumerate(function.results)
        ]
        parameters.append("uint i [[thread_position_in_grid]]")
        if self.in_simdgroup:
            parameters.append("uint lane [[thread_index_in_simdgroup]]")
        blocks = "".join(self._block(width) for width in self.widths)
        return f"kernel void {self.kernel_name}({', '.join(parameters)})\n{{\n{blocks}}}\n"

    def _block(self, width: int) -> str:
        function = self.function
        lines = [
            f"const {_vector(self._resolved(p.type), 1 if p.scalar else width)} x{k} = {self._loaded(p, k, width)};"
            for k, p in enumerate(function.parameters)
        ]
        types = [_vector(self._resolved(result.type), 1 if result.scalar else width) for result in function.results]
        statement = function.statement or "{R0} r0 = {f}({arguments});"
        lines.append(
            statement.format(
                f=self.variant + self.name,
                T=self.type,
                arguments=", ".join(f"x{k}" for k in range(len(function.parameters))),
                **{f"R{k}": name for k, name in enumerate(types)},
            )
        )
        for k, result in enumerate(function.results):
            lines += self._stores(k, self._resolved(result.type), 1 if result.scalar else width, width)
        lanes = "lane < 32 && " if self.in_simdgroup else ""
        return f"    if ({lanes}i < {COUNT // width}) {{ {' '.join(lines)} }}\n"

    def _loaded(self, parameter: Parameter, k: int, width: int) -> str:
        name = self._resolved(parameter.type)
        test = " != 0" if name == "bool" else ""
        if width == 1 or parameter.scalar:
            return f"a{k}[i]{test}"
        return f"{name}{width}({', '.join(f'a{k}[{width} * i + {c}]{test}' for c in range(width))})"

    def _stores(self, k: int, name: str, components: int, width: int) -> list[str]:
        first = (width - 1) * COUNT
        lines = []
        for c in range(components):
            component = f"r{k}" if components == 1 else f"r{k}.{'xyzw'[c]}"
            value = f"uchar({component} ? 1 : 0)" if name == "bool" else component
            lines.append(f"b{k}[{first} + {components} * i + {c}] = {value};")
        return lines

    def run(self, library: mg.KernelLibrary) -> list[np.ndarray]:
        """What the kernel of this case gives, which is compiled in ``library``."""
        results = self.results()
        arguments = [each.view(np.uint8) if each.dtype == np.bool_ else each for each in self.arguments()]
        library.function(self.kernel_name)(COUNT, *arguments, *results)
        return results

    def worst(self, results: Sequence[np.ndarray]) -> Worst:
        """The largest error among ``results``. Numbers too small to be normal may count as zero, as in Metal."""
        function = self.function
        arguments = self.arguments()
        flushed = [_flushed(each) for each in arguments]
        found = Worst(0.0, "")
        for width in self.widths:
            given = self._exact(arguments, width)
            expected, defined = self._expected(given)
            alternative, defined_too = self._expected(self._exact(flushed, width))
            scale = None
            if function.scale is not None:
                with np.errstate(all="ignore"):
                    scale = np.asarray(function.scale(*given), np.float64)
            for k, result in enumerate(function.results):
                shape = (COUNT // width, 1 if result.scalar else width)
                got = results[k][width - 1][: shape[0] * shape[1]].reshape(shape)
                name = self._resolved(result.type)
                level = None if scale is None else _shaped(scale, shape)
                wanted = _shaped(expected[k], shape)
                error = np.minimum(
                    _distance(got, wanted, name, level),
                    _distance(got, _shaped(alternative[k], shape), name, level),
                )
                error = np.where(_shaped(defined, shape) & _shaped(defined_too, shape), error, 0.0)
                place = np.unravel_index(np.argmax(error), error.shape)
                if error[place] > found.error:
                    shown = ", ".join(str(each[place[0]].tolist()) for each in given)
                    where = f"{self.variant}{self.name} of {self.type}, width {width}, result {k}.{'xyzw'[place[1]]}"
                    found = Worst(
                        float(error[place]),
                        f"{where}: ({shown}) gives {got[place]} but should give {wanted[place]}: "
                        f"{error[place]:.4g} ulp where {self.bound:g} are granted",
                    )
        return found

    def _exact(self, arguments: Sequence[np.ndarray], width: int) -> list[np.ndarray]:
        """The arguments as vectors of exact numbers: float64, or Python's integers."""
        shaped = []
        for parameter, values in zip(self.function.parameters, arguments, strict=True):
            components = 1 if parameter.scalar else width
            vectors = values[: COUNT // width * components].reshape(-1, components)
            is_integer = values.dtype.kind in "iu" and self.type not in FLOATS
            shaped.append(vectors.astype(object if is_integer else np.float64))
        return shaped

    def _expected(self, arguments: Sequence[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
        """What each result should be, and where Metal defines it."""
        with np.errstate(all="ignore"):
            found = self.function.oracle(self.type, *arguments)
            domains: list[Domain | None] = [self.function.domain]
            if self.is_fast:
                domains.append(self.function.fast_domain)
            masks = [np.asarray(domain(self.type, *arguments)) for domain in domains if domain is not None]
        parts = found if isinstance(found, tuple) else (found,)
        defined = masks[0] if masks else np.True_
        return [np.asarray(part) for part in parts], defined & masks[1] if len(masks) > 1 else defined


@dataclass(frozen=True)
class Worst:
    """The largest error of a case in units in the last place, and where it was found."""

    error: float
    description: str


def cases_of(function: Function, *, thorough: bool = False) -> list[Case]:
    """Every type, qualified name and width of ``function``.

    Unless ``thorough``, types of which there are several have every other width, each the ones that the type before it
    lacks, and what takes long to compile is left out.
    """
    found = []
    for place, name in enumerate(function.types):
        widths = function.widths
        widest = widths if thorough else widths[-1:]
        if not thorough and function.wide_types is not None:
            widths = widest if name in function.wide_types else widths[:1]
        elif not thorough and len(function.types) > 1:
            widths = widths[place % 2 :: 2] or widths
        found.append(Case(function, name, widths))
        if name == "float":
            found += [Case(function, name, widest, variant) for variant in function.variants if variant]
        if function.section in ("math", "common"):
            found.append(Case(function, name, widest, fast_math=False))
            if thorough:
                found.append(Case(function, name, widths, in_simdgroup=True))
            elif name == "float":
                found.append(Case(function, name, widths[:1], in_simdgroup=True))
    return found


def programs(
    functions: Sequence[Function], fast_math: bool, *, thorough: bool = False
) -> tuple[tuple[Case, ...], ...]:
    """The cases of neighbouring functions together: compiling one program of many kernels is faster."""
    groups: list[list[Case]] = [[]]
    for function in functions:
        cases = [case for case in cases_of(function, thorough=thorough) if case.fast_math == fast_math]
        if len(groups[-1]) + len(cases) > KERNELS_PER_PROGRAM:
            groups.append([])
        groups[-1] += cases
    return tuple(tuple(group) for group in groups if group)


def program(cases: Sequence[Case]) -> str:
    return HEADER + "".join(case.source() for case in cases)


def _stored(name: str) -> str:
    return "uchar" if name == "bool" else name


def _vector(name: str, width: int) -> str:
    return name if width == 1 else f"{name}{width}"


def _flushed(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind != "f":
        return values
    return np.where(np.abs(values) < np.finfo(values.dtype).smallest_normal, np.copysign(0, values), values).astype(
        values.dtype
    )


def _shaped(values: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """``values``, one for each vector or each component, or one for all, as an array of ``shape``."""
    return np.broadcast_to(values[:, None] if np.ndim(values) == 1 else values, shape)


def _distance(got: np.ndarray, wanted: np.ndarray, name: str, scale: np.ndarray | None) -> np.ndarray:
    if name in FLOATS:
        return errors(got, wanted, FORMATS[name], scale)
    return np.where(got.astype(object) == wanted.astype(object), 0.0, np.inf)
