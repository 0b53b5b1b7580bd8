"""The manifest of tested names against Apple's specification and against what the library's headers define."""

from __future__ import annotations

import pytest
from metal_manifest import FUNCTIONS, names_with_tests
from metal_specification import LEFT_OUT, SPECIFICATION

from mpsgrad.msl.headers import library
from mpsgrad.msl.versions import later_names

# No names of Metal's: the package's shaders define them where they are no instructions.
OWN = {f"simdgroup_{name}" for name in ("multiply_accumulate_16x8x16", "load_left_16x16", "load_right_16x16")}
OWN |= {f"threadgroup_copy_{name}" for name in ("16_bytes", "16_bytes_once", "8_bytes_once", "4_bytes_once")}
OWN |= {f"threadgroup_{name}" for name in ("end_copies", "wait_for_copies")}
OWN |= {f"threadgroup_{name}" for name in ("tile_part", "end_tile", "multiply_tiles", "wait_for_products")}
OWN |= {f"threadgroup_{name}_cluster" for name in ("arrive_in", "wait_for", "expect_in", "send_in")}
OWN |= {"threadgroup_wait_for_sent"}
OWN.update(("simdgroup_scale_columns", "simdgroup_store_halves"))
# Of C++, as SPIRV-Cross writes it; test_msl_spirv_cross.py has tests of it.
OWN.add("initializer_list")
# The compiler's, of which test_msl_extensions.py has tests.
OWN |= {f"__builtin_{name}" for name in ("clz", "ctz", "popcount")}
# A word of the language, of which test_msl_volatile_vectors.py has tests.
OWN.add("volatile")


@pytest.mark.parametrize("section", SPECIFICATION)
def test_every_name_of_the_specification_is_tested_or_has_a_reason(section: str) -> None:
    assert SPECIFICATION[section] - names_with_tests() - set(LEFT_OUT) == set()


def test_no_reason_is_given_for_what_is_tested() -> None:
    assert set(LEFT_OUT) & names_with_tests() == set()
    assert set(LEFT_OUT) <= set().union(*SPECIFICATION.values())


@pytest.mark.parametrize("target", ["opencl", "cuda"])
def test_every_name_of_the_headers_is_tested(target: str) -> None:
    defined = {name for name in library(target).sections if not name.endswith("_mtl")}
    variants = {f"{variant}{f.name}" for f in FUNCTIONS for variant in f.variants}
    assert defined - names_with_tests() - variants - later_names((2, 3)) - OWN == set()


def test_names_are_unique() -> None:
    identifiers = [function.identifier for function in FUNCTIONS]
    assert len(identifiers) == len(set(identifiers))
