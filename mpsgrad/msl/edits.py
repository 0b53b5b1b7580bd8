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

    def applied(self) -> list[Token]:
        """The tokens with all changes."""
        result: list[Token] = []
        index = 0
        while index < len(self._tokens):
            result += self._before.get(index, ())
            result += self._replaced.get(index, (self._tokens[index],))
            end = self._ends.get(index, index + 1)
            result += self._after.get(end - 1, ())
            index = end
        return result
