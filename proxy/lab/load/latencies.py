"""Latencies as a histogram of three digits: any number of them in the same room, from any number of processes.

Law: what is recorded counts from when it was due. A target that stops is not spared what would have been sent
meanwhile (coordinated omission): the client records a late request with its wait.
"""

from collections.abc import Iterable, Sequence

from hdrh.histogram import HdrHistogram

PERCENTILES = (50.0, 90.0, 99.0, 99.9)
_LONGEST = 3_600_000_000
_MICROSECONDS = 1_000_000


class Latencies:
    """Recorded in seconds, and read in milliseconds."""

    def __init__(self, encoded: Iterable[str] = ()) -> None:
        self._histogram = HdrHistogram(1, _LONGEST, 3)
        for each in encoded:
            self._histogram.decode_and_add(each)

    def record(self, seconds: float) -> None:
        self._histogram.record_value(min(max(int(seconds * _MICROSECONDS), 1), _LONGEST))

    def encode(self) -> str:
        """As text, for another process."""
        encoded: bytes = self._histogram.encode()
        return encoded.decode()

    @property
    def count(self) -> int:
        return int(self._histogram.get_total_count())

    @property
    def mean(self) -> float:
        return float(self._histogram.get_mean_value()) / 1000

    @property
    def longest(self) -> float:
        return float(self._histogram.get_max_value()) / 1000 if self.count else 0.0

    def percentiles(self, which: Sequence[float] = PERCENTILES) -> dict[float, float]:
        if not self.count:
            return dict.fromkeys(which, 0.0)
        values = self._histogram.get_percentile_to_value_dict(list(which))
        return {at: values[at] / 1000 for at in which}

    def buckets(self, most: int = 60) -> list[tuple[float, int]]:
        """Columns of a picture: where each ends, by equal factors, and how many fell into it."""
        if not self.count:
            return []
        recorded = [
            (item.value_iterated_to, item.count_added_in_this_iter_step)
            for item in self._histogram.get_recorded_iterator()
        ]
        low, high = max(recorded[0][0], 1), recorded[-1][0]
        factor = (high / low) ** (1 / most) if high > low else 2.0
        ends = [low * factor ** (at + 1) for at in range(most if high > low else 1)]
        ends[-1] = high + 1
        counts, at = [0] * len(ends), 0
        for value, count in recorded:
            while value > ends[at]:
                at += 1
            counts[at] += count
        return [(end / 1000, count) for end, count in zip(ends, counts, strict=True)]
