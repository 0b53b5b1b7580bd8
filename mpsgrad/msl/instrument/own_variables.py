"""Which of a thread's own variables are fenced, watched or made known where they are declared."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mpsgrad.msl.analysis.source import Function, Source
from mpsgrad.msl.analysis.types import built_in
from mpsgrad.msl.edits import Edits
from mpsgrad.msl.instrument.declarators import Declarator
from mpsgrad.msl.instrument.scopes import form_of
from mpsgrad.msl.instrument.tree import Node
from mpsgrad.msl.tokens import IDENTIFIER, NUMBER, Token

_UNLIKE = frozenset("constexpr volatile static extern alignas constant device threadgroup auto".split())

_SIGNED = {"unsigned": "uint", "signed": "int"}


@dataclass(frozen=True, slots=True)
class Own:
    """``fenced``: bytes around the variable are nobody's. ``watched``: reads before it has a value are found. What is
    neither is made known as it is."""

    fenced: bool
    watched: bool


class Declared(NamedTuple):
    """One variable of a declaration, the values that it begins with, and where they end; ``number`` is that of its name
    among those of the thread's own."""

    declarator: Declarator
    values: Sequence[Node]
    end: int
    own: Own | None
    number: int | None

    @property
    def is_fenced(self) -> bool:
        return self.own is not None and self.own.fenced

    @property
    def is_built(self) -> bool:
        """Whether it is a watched object that begins with values, which a constructor gets."""
        return self.own is not None and self.own.watched and self.end > self.declarator.end


def holder_of(name: str) -> str:
    """What a fenced variable is a member of."""
    return f"holder_of_{name}_mtl"


class OwnVariables:
    """Those of one function at a time."""

    def __init__(self, source: Source, granule: int) -> None:
        self._source = source
        self._text = source.text
        self._granule = str(granule)
        self._unions = {source.text(k + 1) for k in source.places("union")}
        self._holds: dict[str, bool] = {}
        self._with_address: frozenset[str] = frozenset()
        self._can_fence = False

    def enter(self, function: Function) -> None:
        """Looks at what the function does with its variables."""
        source, text = self._source, self._text
        body = range(function.body_open, function.body_close)
        self._with_address = frozenset(
            text(k + 1)
            for k in source.places("&", start=body.start, end=body.stop)
            if not self._ends_operand(k - 1) and source.kind(k + 1) == IDENTIFIER
        )
        self._can_fence = not source.places("decltype", start=body.start, end=body.stop)

    def _ends_operand(self, index: int) -> bool:
        is_word = self._source.kind(index) in (IDENTIFIER, NUMBER) and self._text(index) != "return"
        return is_word or self._text(index) in (")", "]")

    def _is_captured(self, name: str, start: int, end: int) -> bool:
        """Whether a lambda expression between ``start`` and ``end`` names a variable: what holds the flags is none that
        it captures."""
        return any(
            start < each.start < end and self._source.places(name, start=each.start, end=each.body_close)
            for each in self._source.lambdas
        )

    def of(self, declarator: Declarator, name_at: int, words: Collection[str], end: int, scope_end: int) -> Own | None:
        """What is done with the variable that is declared at ``name_at``, None for nothing; ``words`` are those before
        it, ``end`` is where its declaration ends."""
        if not declarator.is_object or not _UNLIKE.isdisjoint(words) or self._text(name_at) != declarator.name:
            return None
        if any(word.startswith("simdgroup") for word in words) or self._is_deduced(name_at - 1):
            return None
        value = self._text(declarator.end)
        has_value = value in ("=", "(", "{")
        types = [self._source.aliases.get(word) or built_in(_SIGNED.get(word, word)) for word in words]
        is_number = any(kind is not None and (kind.is_scalar or kind.is_vector) and not kind.packed for kind in types)
        is_struct = any(self._is_class(word) for word in words)
        has_address = declarator.name in self._with_address
        can_fill = self._can_fence and not self._is_captured(declarator.name, name_at, scope_end)
        can_watch = can_fill and not has_value
        if declarator.is_array:
            is_open = any(
                self._text(k) == "[" and self._text(k + 1) == "]" for k in range(name_at, declarator.end)
            )
            fenced = self._can_fence and not is_open and value not in ("(", "{" if is_struct else "")
            return Own(fenced, fenced and (can_watch or (can_fill and is_struct)))
        is_object = form_of(self._source, words) != ""
        is_assigned = is_object and self._is_assigned_copy(declarator.name, end, scope_end)
        if can_watch and (has_address or is_assigned or not self._begins_with_value(declarator.name, end, scope_end)):
            return Own(True, True)
        is_constructed = value in ("(", "{") and any(self._has_constructor(word) for word in words)
        is_copied = value == "=" and is_object and self._text(declarator.end + 1) != "{"
        if can_fill and (is_constructed or is_copied or (is_assigned and has_value)):
            return Own(True, True)
        if is_struct and (has_address or any(self._has_array(word) for word in words)):
            return Own(self._can_fence and value not in ("(", "{"), False)
        return Own(False, False) if is_number and has_address else None

    def _is_deduced(self, index: int) -> bool:
        """Whether a class template stands there, whose arguments the value tells."""
        bodies = self._source.struct_bodies.get(self._text(index), ())
        return bool(bodies) and all(is_template for *_, is_template in bodies)

    def copied_parameter(self, start: int, end: int, scope_end: int) -> int | None:
        """Where the name of a parameter stands that is a struct of the program's or a matrix, None for others."""
        words = self._source.texts[start:end]
        stop = start + words.index("=") if "=" in words else end
        name_at = stop - 1
        if not self._can_fence or not (_UNLIKE | {"&", "&&", "*", "[", "...", "("}).isdisjoint(words):
            return None
        is_named = self._source.kind(name_at) == IDENTIFIER and self._text(name_at - 1) != "::"
        type_words = self._source.texts[start:name_at]
        if not is_named or not form_of(self._source, type_words):
            return None
        return None if self._is_captured(self._text(name_at), name_at, scope_end) else name_at

    def copy(self, start: int, name_at: int, number: int) -> list[str | Token]:
        """A watched copy of a parameter, declared in a block of its own."""
        name = self._text(name_at)
        kind, own = f"type_of_{name}_mtl", holder_of(name)
        specifiers = [token for token in self._source.tokens[start:name_at] if token.text != "thread"]
        words: list[str | Token] = ["typedef", *specifiers, kind, ";"]
        words += [f"watched_own_mtl<{kind}, {self._granule}>", own, "=", "{", "{", "}", ",", name, "}", ";"]
        words += ["thread", kind, "&", name, "=", own, ".", "object", ";"]
        return [*words, "own_variable_mtl", f"entry_of_{name}_mtl", "(", own, ",", str(number), ",", "0", ")", ";"]

    def _is_class(self, word: str) -> bool:
        return word in self._source.struct_bodies or word in self._unions or word == "array"

    def _has_constructor(self, word: str) -> bool:
        return word in self._source.struct_bodies and word in self._source.functions_by_name

    def _is_assigned_copy(self, name: str, start: int, end: int) -> bool:
        text = self._text
        return any(
            text(k + 1) == "=" and text(k + 2) != "{"
            for k in self._source.places(name, start=start, end=end)
            if text(k - 1) not in (".", "->")
        )

    def _has_array(self, word: str) -> bool:
        """Whether objects of a class hold arrays, as far as its body tells."""
        if word == "array" or word in self._unions:
            return True
        if word not in self._holds:
            self._holds[word] = False
            for start, end, _ in self._source.struct_bodies.get(word, ()):
                texts = self._source.texts[start:end]
                if "[" in texts or any(self._has_array(each) for each in set(texts) if self._is_class(each)):
                    self._holds[word] = True
        return self._holds[word]

    def _begins_with_value(self, name: str, end: int, scope_end: int) -> bool:
        """Whether a variable certainly gets a value where it is first named, for all that comes behind."""
        text = self._text
        mentions = [
            k for k in self._source.places(name, start=end, end=scope_end) if text(k - 1) not in (".", "->")
        ]
        if not mentions:
            return True
        first = mentions[0]
        is_first_of_for = text(first - 1) == "(" and text(first - 2) == "for"
        if text(first + 1) != "=" or not (text(first - 1) in (";", "{", "}") or is_first_of_for):
            return False
        stop = first
        while text(stop) not in (";", ""):
            stop += 1
        if len(mentions) > 1 and mentions[1] < stop:
            return False
        around = [k for k in self._source.places("{", start=end, end=first) if self._source.close(k) > first]
        block_end = self._source.close(around[-1]) if around else scope_end
        return mentions[-1] < block_end and not any(self._is_switch(k) for k in around[-1:])

    def _is_switch(self, opening: int) -> bool:
        return self._text(opening - 1) == ")" and self._text(self._source.close(opening - 1) - 1) == "switch"

    def declare(self, edits: Edits, start: int, first: int, stop: int, declared: Sequence[Declared]) -> None:
        """Notes the edits that make variables known, and fence them: each of them then has a declaration of its own.

        The declaration is ``tokens[start:stop]``, and ``first`` where its specifiers end.
        """
        if all(each.own is None for each in declared):
            return
        if declared[0].is_fenced:
            edits.before(start, "typedef")
            for k in self._source.places("thread", start=start, end=first):
                edits.replace(k)
        for position, each in enumerate(declared):
            name = each.declarator.name
            kind, own = f"type_of_{name}_mtl", holder_of(name)
            words: list[str | Token] = []
            if each.own is not None and each.own.fenced:
                watched = f"watched_own_mtl<{kind}, {self._granule}>"
                holder = watched if each.own.watched else f"fenced_own_mtl<{kind}>"
                edits.replace(each.declarator.place, kind)
                begins = ["own_begins_mtl", "(", str(each.number), ")", ";"] if each.own.watched else []
                edits.after(each.declarator.end - 1, ";", *begins, holder, own)
                begin = each.declarator.end
                if each.is_built and self._text(begin) != "=":
                    # In place: a constructor may leave members without a value.
                    edits.before(begin, "=", "{", "{", "}", ",", kind)
                    edits.after(each.end - 1, "}")
                else:
                    for value in each.values:
                        equals = () if self._text(begin) == "=" else ("=",)
                        edits.before(value.start, *equals, "{", "{", "}", ",")
                        edits.after(value.end - 1, "}")
                words += ["thread", kind, "&", name, "=", own, ".", "object", ";"]
            if each.own is not None:
                known = [own] if each.own.fenced else ["&", name]
                known += [",", str(each.number), *([",", "0"] if each.is_built else [])]
                words += ["own_variable_mtl", f"entry_of_{name}_mtl", "(", *known, ")", ";"]
            if position + 1 == len(declared):
                edits.after(stop, *words)
                break
            is_fenced = declared[position + 1].is_fenced
            unlike = "thread" if is_fenced else ""
            specifiers = [token for token in self._source.tokens[start:first] if token.text != unlike]
            edits.replace(each.end, ";", *words, *["typedef"] * is_fenced, *specifiers)
