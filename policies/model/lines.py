"""An index of the lines in the outputs of a history, by which a new output finds lines that it repeats.

Laws
  What is found before a block follows from the blocks before it alone, whatever comes later.
  Each output is read once; a request that extends another reads what is new.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

SHORT = 4
"""A line with fewer characters (a bracket, `else`) is no landmark: it may stand anywhere."""
_MOST = 50_000
"""Lines of one output that are remembered."""
_NEWEST = 6
"""Places of one line that are looked at, beside its first one."""

Place = tuple[int, int, int]
"""A block, the character at which a line begins there, and the number of that line, from 1 on."""


@dataclass(frozen=True, slots=True)
class LinePlaces:
    """The places of the lines of the first `count` blocks, one of each line in a block, by a checksum of the line: what
    is found has to be compared."""

    places: Mapping[int, Sequence[Place]]
    count: int

    def extended(self, outputs: Sequence[tuple[int, str]], count: int) -> "LinePlaces":
        """With the lines of further outputs, each with its block, in ascending order."""
        places: dict[int, list[Place]] = {}
        for block, text in outputs:
            for start, number, line in landmarks(text):
                key = crc32(line.encode("utf-8", "surrogatepass"))
                those = places.get(key)
                if those is None:
                    those = places[key] = list(self.places.get(key, ()))
                if not those or those[-1][0] != block:
                    those.append((block, start, number))
        return LinePlaces({**self.places, **places}, count) if places else LinePlaces(self.places, count)

    def until(self, end: int) -> "LinePlaces":
        """The places in the blocks before `end`."""
        if self.count <= end:
            return self
        places = {
            key: those[: bisect_left(those, (end, 0, 0))] for key, those in self.places.items() if those[0][0] < end
        }
        return LinePlaces(places, end)

    def before(self, block: int, line: str) -> Iterator[Place]:
        """Where a line may stand in the blocks before this one: the newest places and the first."""
        those = self.places.get(crc32(line.encode("utf-8", "surrogatepass")), ())
        end = bisect_left(those, (block, 0, 0))
        yield from reversed(those[max(0, end - _NEWEST) : end])
        if end > _NEWEST:
            yield those[0]


def landmarks(text: str) -> Iterator[tuple[int, int, str]]:
    """The first lines of a text that are long enough, each with the character at which it begins, and its number."""
    start = 0
    for number in range(1, _MOST + 1):
        end = text.find("\n", start)
        line = text[start : end if end >= 0 else len(text)]
        if len(line.strip()) >= SHORT:
            yield start, number, line
        if end < 0:
            return
        start = end + 1


NO_LINES = LinePlaces({}, 0)
