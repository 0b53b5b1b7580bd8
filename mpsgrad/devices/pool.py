"""How drivers round the sizes of memory that they keep for later use."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=4096)
def pooled_size(nbytes: int, granularity: int) -> int:
    """``nbytes`` rounded up to ``granularity`` and to an eighth of its power of two, so that freed blocks fit again."""
    step = max(granularity, 1 << max(nbytes.bit_length() - 4, 0))
    return max(-(-nbytes // step) * step, granularity)
