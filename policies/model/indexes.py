"""Indexes of the blocks of a history, which grow with it.

Laws
  An index says the same whether it was carried over from an earlier request or worked out anew.
  One request at a time has an index: the one that extends a history takes it over and adds what is new; an earlier one
  works it out again where it is asked. What is worked on in a thread is `held`, and gives nothing away meanwhile.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Generic, Protocol, TypeVar

B = TypeVar("B")
T = TypeVar("T")
K = TypeVar("K")
B_co = TypeVar("B_co", covariant=True)


@dataclass(slots=True)
class Carried:
    values: "dict[Index[Any, Any], tuple[Any, int]]" = field(default_factory=dict)
    """Indexes, each with the number of blocks that it covers."""
    holders: int = 0
    rendering: object = None
    """The newest rendering of the history, or of one with which it has its first messages in common."""
    rendered_messages: int = 0
    """How many messages that one has in common with this history."""

    @contextmanager
    def held(self) -> Iterator[None]:
        self.holders += 1
        try:
            yield
        finally:
            self.holders -= 1


class Indexed(Protocol[B_co]):
    @property
    def blocks(self) -> Sequence[B_co]: ...

    @property
    def carried(self) -> Carried: ...


class Index(Generic[B, T]):
    """Something that is worked out block by block. As an attribute of a history it is worked out when it is first asked
    for; `of` does the same for an index that is defined elsewhere."""

    def __init__(
        self,
        make: Callable[[], T],
        extend: Callable[[T, Sequence[B], int], object],
        cut: Callable[[T, Sequence[B], int], object],
    ) -> None:
        """`extend` adds the blocks from an index on, `cut` takes them out again, for a history that branches off."""
        self._make, self._extend, self._cut = make, extend, cut
        self._name = f"index {id(self)}"

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    def __get__(self, history: Indexed[B], _: type | None = None) -> T:
        blocks = history.blocks
        value, count = history.carried.values.pop(self, None) or (self._make(), 0)
        if count < len(blocks):
            self._extend(value, blocks, count)
        vars(history)[self._name] = value  # found there before this is called again
        history.carried.values[self] = value, len(blocks)
        return value

    def of(self, history: Indexed[B]) -> T:
        value: T | None = vars(history).get(self._name)
        return self.__get__(history) if value is None else value

    def forget(self, history: Indexed[B]) -> None:
        vars(history).pop(self._name, None)

    def shorten(self, value: T, blocks: Sequence[B], end: int) -> bool:
        """Take out the blocks from `end` on, and return True, where that is less work than to begin anew."""
        if len(blocks) <= end:
            return True
        if len(blocks) > 2 * end:
            return False
        self._cut(value, blocks, end)
        return True


def carry_over(earlier: Indexed[Any], messages: int, end: int) -> Carried:
    """The indexes that a history takes over from an earlier one with which it has its first messages in common, and its
    first `end` blocks."""
    before = earlier.carried
    carried = Carried(rendering=before.rendering, rendered_messages=min(before.rendered_messages, messages))
    if not before.holders:
        for index, (value, count) in [*before.values.items()]:  # a thread may enter another one
            index.forget(earlier)
            if index.shorten(value, earlier.blocks[:count], end):
                carried.values[index] = value, min(count, end)
        before.values.clear()
    return carried


class Sums(Index[B, list[int]]):
    def __init__(self, count: Callable[[B], int]) -> None:
        def extend(sums: list[int], blocks: Sequence[B], start: int) -> None:
            sums[-1:] = accumulate(map(count, blocks[start:]), initial=sums[-1])

        def cut(sums: list[int], _: Sequence[B], end: int) -> None:
            del sums[end + 1 :]

        super().__init__(lambda: [0], extend, cut)


class Places(Index[B, dict[K, list[int]]]):
    """The blocks that have a key in common, ascending; it follows from the blocks up to theirs, and None is no key."""

    def __init__(self, key: Callable[[Sequence[B], int], K | None]) -> None:
        def extend(places: dict[K, list[int]], blocks: Sequence[B], start: int) -> None:
            for at in range(start, len(blocks)):
                if (name := key(blocks, at)) is not None:
                    places.setdefault(name, []).append(at)

        def cut(places: dict[K, list[int]], blocks: Sequence[B], end: int) -> None:
            for at in reversed(range(end, len(blocks))):
                if (name := key(blocks, at)) is not None:
                    places[name].pop()
                    if not places[name]:
                        del places[name]

        super().__init__(dict, extend, cut)
