"""How the first writer of a step's decision is found, the same in both back ends."""

from collections.abc import Iterable, Sequence
from typing import Any

from policies.model.memory import StepRecord
from proxy.memory.decisions import Key
from proxy.memory.serialization import Codec, Names, names_of, packed


class ClaimedSteps:
    """Claims decisions, and mends those that cannot be read or are not sealed with the newest key."""

    _codec: Codec

    async def _write_step(
        self, names: Names, record: StepRecord, decision: bytes, sent: bytes | None
    ) -> Sequence[object]:
        """Store a decision, unless there is one, and what was sent; the row that is then stored."""
        raise NotImplementedError

    async def _mend_step(self, names: Names, anchor: str, stored: Any, decision: bytes) -> None:
        """Put a decision in the place of one that is stored."""
        raise NotImplementedError

    async def claim(self, key: Key, record: StepRecord, *, supersedes: bool = False) -> StepRecord:
        names, decision, sent = names_of(key), *self._stored_parts(key, record)
        row = await self._write_step(names, record, decision, sent)
        if supersedes:
            await self._mend_step(names, record.anchor, row[0], decision)
            return record
        first = self._codec.step(names, record.anchor, *row)
        if first is not None and self._codec.is_newest(row[0]):
            return first
        # A decision that cannot be read cannot be followed: the next writer is the first.
        await self._mend_step(names, record.anchor, row[0], self._codec.decision_bytes(names, first or record))
        again = None if first else await self._write_step(names, record, decision, sent)
        return first or (again and self._codec.step(names, record.anchor, *again)) or record

    def _stored_parts(self, key: Key, record: StepRecord) -> tuple[bytes, bytes | None]:
        """The decision of a record, and what was sent."""
        sent = None if record.sent is None else packed("sent", record.sent)
        return self._codec.decision_bytes(names_of(key), record), sent

    async def _claim_unsound(self, rows: Iterable[tuple[Key, StepRecord, bytes, object]]) -> None:
        """Claim the records that were written beside decisions that cannot be followed. Each comes with its decision,
        and the one that is stored."""
        for key, record, decision, first in rows:
            if first != decision:
                misses = self._codec.misses
                step = self._codec.step(names_of(key), record.anchor, first, None, None)
                self._codec.misses = misses  # it is counted once, when it is claimed
                if step is None or not self._codec.is_newest(first):
                    await self.claim(key, record)
