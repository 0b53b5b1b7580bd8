"""Every test of the benchmark runs on tiny shapes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tiny_rows import forget, make_tiny


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    make_tiny(monkeypatch)
    yield
    forget()
