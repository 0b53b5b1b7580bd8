"""Changes to a list of tokens, noted by index and applied at once; what is inserted stands where its neighbour does."""

from __future__ import annotations

from collections.abc import Sequence

from mpsgrad.msl.tokens import Token, made_at


class Edits:
    """Insertions before, after and in the place of tokens.

    Where several ranges begin or end at one token, the one that was noted first encloses those noted after it.
    """

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._before: dict[int, list[Token]] = {}
        self._after: dict[int, list[Token]] = {}
        self._replaced: dict[int, list[Token]] = {}
        self._ends: dict[int, int] = {}

    def _made(self, index: int, words: Sequence[str | Token]) -> list[Token]:
        made: list[Token] = []
        for word in words:
            made += [word] if isinstance(word, Token) else made_at(self._tokens[index], word)
        return made

    def before(self, index: int, *words: str | Token) -> None:
        self._before.setdefault(index, []).extend(self._made(index, words))

    def after(self, index: int, *words: str | Token) -> None:
        self._after[index] = self._made(index, words) + self._after.get(index, [])

    def replace(self, index: int, *words: str | Token) -> None:
        self._replaced[index] = self._made(index, words)

    def replace_range(self, start: int, end: int, *words: str | Token) -> None:
        """Puts ``words`` in the place of the tokens from ``start`` to ``end``, and of what was changed among them."""
        if start == end:
            self.before(start, *words)
            return
        self.replace(start, *words)
        self._ends[start] = end

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to change."""
        return not (self._before or self._after or self._replaced)

    def applied(self) -> list[Token]:
        """The tokens with all changes."""
        result: list[Token] = []
        index = 0
        for changed in sorted({*self._before, *self._after, *self._replaced}):
            if changed < index:
                continue
            result += self._tokens[index:changed]
            result += self._before.get(changed, ())
            result += self._replaced.get(changed, self._tokens[changed : changed + 1])
            index = self._ends.get(changed, changed + 1)
            result += self._after.get(index - 1, ())
        return [*result, *self._tokens[index:]]
