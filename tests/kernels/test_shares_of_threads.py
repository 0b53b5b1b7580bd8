"""How many elements that follow each other a thread of a CPU has: worth its waking, and no core has more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsgrad.kernels import pointwise
from mpsgrad.kernels.pointwise import elements_per_thread, elements_per_threadgroup
from mpsgrad.tunables import tunables

FEWEST = 8192
NUMBERS = tunables("cpu")
COUNTS, UNITS = st.integers(1, 1 << 23), st.integers(0, 200)


@pytest.fixture(scope="module", autouse=True)
def as_many_as_pay(threads_share_out_small_images: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pointwise, "FEWEST_ELEMENTS_OF_THREADGROUP", FEWEST)
        yield


def threadgroups_of(count: int, units: int) -> int:
    return -(-count // elements_per_threadgroup(count, units, NUMBERS))


@pytest.mark.parametrize(
    ("count", "units", "threadgroups"),
    [(1024, 2, 1), (16_383, 2, 1), (16_384, 2, 2), (50_176, 2, 6), (166_315, 2, 8), (166_315, 64, 20), (2**20, 48, 96)],
)
def test_few_elements_are_left_to_few_threads(count: int, units: int, threadgroups: int) -> None:
    assert threadgroups_of(count, units) == threadgroups


@given(count=COUNTS, units=UNITS)
def test_no_threadgroup_has_less_than_pays_or_more_than_a_chunk(count: int, units: int) -> None:
    share = elements_per_threadgroup(count, units, NUMBERS)
    assert min(count, FEWEST) <= share <= NUMBERS.stream_elements
    assert share % pointwise.WHOLE_LINES == 0


@given(count=COUNTS, units=st.integers(1, 8))
def test_cores_have_as_many_threadgroups(count: int, units: int) -> None:
    threadgroups = threadgroups_of(count, units)
    if units <= threadgroups <= 4 * units:
        assert threadgroups % units == 0


@given(count=COUNTS, units=UNITS)
def test_threads_of_a_threadgroup_have_whole_lines_of_it(count: int, units: int) -> None:
    of_thread = elements_per_thread(count, units, NUMBERS)
    lines = pointwise.THREADS_OF_EIGHTS * pointwise.WHOLE_LINES
    assert of_thread % pointwise.WHOLE_LINES == 0
    assert 0 <= of_thread * pointwise.THREADS_OF_EIGHTS - elements_per_threadgroup(count, units, NUMBERS) < lines
