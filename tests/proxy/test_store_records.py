"""What is written comes back, or is UnreadableError; never something else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.context import Sent, StepRecord
from policies.edits import Edit, Fold, Replace
from proxy.store import open_store, records
from tests.proxy.test_store import KEY, RECORD, SENT

TEXTS = st.text(st.characters(), max_size=40)
EDITS: st.SearchStrategy[Edit] = st.one_of(
    st.builds(Replace, at=st.text(max_size=8), text=TEXTS, by=st.text(max_size=8)),
    st.builds(Fold, first=st.text(max_size=8), last=st.text(max_size=8), text=TEXTS, by=st.text(max_size=8)),
)
COUNTS = st.integers(0, 10**9)
SENTS = st.builds(Sent, messages=COUNTS, tail=COUNTS, given=COUNTS)
STEPS = st.builds(
    StepRecord,
    anchor=st.text("0123456789abcdef", max_size=32),
    edits=st.lists(EDITS, max_size=4).map(tuple),
    reason=st.text(max_size=8),
    sent=st.none() | SENTS,
    at=st.floats(0, 1e10) | st.integers(0, 10**10).map(float),
)


@given(STEPS)
def test_any_record_comes_back_as_it_was(record: StepRecord) -> None:
    assert records.decision(record.anchor, records.decision_bytes(record)) == (record.edits, record.reason)
    assert records.sent(records.sent_bytes(record.sent)) == record.sent


@settings(max_examples=50, deadline=None)
@given(st.lists(STEPS, max_size=5, unique_by=lambda record: record.anchor))
async def test_any_records_come_back_from_the_store(steps: list[StepRecord]) -> None:
    store = open_store("sqlite://", patience=10)
    await store.open()
    try:
        assert [await store.claim(KEY, record) for record in steps] == steps
        assert (await store.memory(KEY, [r.anchor for r in steps])).steps == {r.anchor: r for r in steps}
    finally:
        await store.close()


@given(record=STEPS, where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_x7_a_flipped_bit_is_unreadable(record: StepRecord, where: float, bit: int) -> None:
    stored = bytearray(records.decision_bytes(record))
    stored[int(where * len(stored))] ^= 1 << bit
    with pytest.raises(records.UnreadableError):
        records.decision(record.anchor, bytes(stored))


@given(record=STEPS, where=st.floats(0, 1, exclude_max=True))
def test_x7_a_record_cut_short_is_unreadable(record: StepRecord, where: float) -> None:
    stored = records.decision_bytes(record)
    with pytest.raises(records.UnreadableError):
        records.decision(record.anchor, stored[: int(where * len(stored))])


@pytest.mark.parametrize("stored", [b"", b"\1", b"\1\0\0\0\0", "text", 7, 1.5, None])
def test_x7_what_is_no_record_is_unreadable(stored: object) -> None:
    with pytest.raises(records.UnreadableError):
        records.decision("anchor", stored)


@pytest.mark.parametrize("version", [0, records.VERSION + 1, 255])
def test_x7_another_version_is_unreadable(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    monkeypatch.setattr(records, "VERSION", version)
    stored = records.decision_bytes(RECORD)
    monkeypatch.undo()
    with pytest.raises(records.UnreadableError):
        records.decision("anchor", stored)


def test_x7_a_record_of_another_kind_or_step_is_unreadable() -> None:
    with pytest.raises(records.UnreadableError):
        records.decision("anchor", records.sent_bytes(SENT))
    with pytest.raises(records.UnreadableError):
        records.decision("another", records.decision_bytes(RECORD))
