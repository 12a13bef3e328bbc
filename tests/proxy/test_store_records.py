"""What is written comes back, or is UnreadableError; never something else."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.context import Sent, StepRecord
from policies.edits import Edit, Exchange, Fold, Insert, Replace
from proxy.store import open_store, records
from tests.proxy.test_store import INSERT, KEY, ORIGINALS, RECORD, SENT

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
    recall=st.booleans(),
)
EXCHANGES = st.builds(
    Exchange,
    text=COUNTS,
    calls=st.lists(TEXTS, max_size=3).map(tuple),
    places=st.lists(COUNTS, max_size=3).map(tuple),
    fields=TEXTS,
    last=st.booleans(),
)
INSERTS = st.builds(
    Insert,
    after=st.text("0123456789abcdef", max_size=32),
    reply=st.text("0123456789abcdef", max_size=32),
    rounds=st.lists(EXCHANGES, max_size=4).map(tuple),
)

KINDS: dict[str, tuple[bytes, Callable[[object], object]]] = {
    "decision": (records.decision_bytes(RECORD), lambda stored: records.decision("anchor", stored)),
    "insert": (records.insert_bytes(INSERT), lambda stored: records.insert("anchor", stored)),
    "original": (
        records.original_bytes("482913", ORIGINALS["482913"]),
        lambda stored: records.original("482913", stored),
    ),
}
"""What is sealed: how it is written, and what reads it."""


@given(STEPS)
def test_any_record_comes_back_as_it_was(record: StepRecord) -> None:
    decided = records.decision(record.anchor, records.decision_bytes(record))
    assert decided == replace(record, sent=None, at=0.0)
    assert records.sent(records.sent_bytes(record.sent)) == record.sent


@given(INSERTS)
def test_any_insert_comes_back_as_it_was(insert: Insert) -> None:
    assert records.insert(insert.after, records.insert_bytes(insert)) == insert


@given(ref=TEXTS, text=TEXTS)
def test_any_original_comes_back_as_it_was(ref: str, text: str) -> None:
    assert records.original(ref, records.original_bytes(ref, text)) == text


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


@pytest.mark.parametrize("kind", KINDS)
def test_x7_every_flipped_bit_and_every_cut_of_every_kind_is_unreadable(kind: str) -> None:
    whole, read = KINDS[kind]
    flipped = (
        whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :] for at in range(len(whole)) for bit in range(8)
    )
    for stored in (*flipped, *(whole[:end] for end in range(len(whole))), whole + b"\0"):
        assert not records.is_original(stored)
        with pytest.raises(records.UnreadableError):
            read(stored)
    read(whole)
    assert records.is_original(whole) is (kind == "original")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stored", [b"", b"\2", b"\2\0\0\0\0", "text", 7, 1.5, None])
def test_x7_what_is_no_record_is_unreadable(stored: object, kind: str) -> None:
    assert not records.is_original(stored)
    with pytest.raises(records.UnreadableError):
        KINDS[kind][1](stored)


@pytest.mark.parametrize("version", [0, records.VERSION - 1, records.VERSION + 1, 255])
def test_x7_another_version_is_unreadable(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    monkeypatch.setattr(records, "VERSION", version)
    stored = {
        "decision": records.decision_bytes(RECORD),
        "insert": records.insert_bytes(INSERT),
        "original": records.original_bytes("482913", "text"),
    }
    monkeypatch.undo()
    for kind, (_, read) in KINDS.items():
        with pytest.raises(records.UnreadableError, match="version"):
            read(stored[kind])


def test_x7_a_record_of_another_kind_or_step_is_unreadable() -> None:
    for kind, (_, read) in KINDS.items():
        for stored in (records.sent_bytes(SENT), *(whole for other, (whole, _) in KINDS.items() if other != kind)):
            with pytest.raises(records.UnreadableError):
                read(stored)
    with pytest.raises(records.UnreadableError):
        records.decision("another", records.decision_bytes(RECORD))
    with pytest.raises(records.UnreadableError):
        records.insert("another", records.insert_bytes(INSERT))
    with pytest.raises(records.UnreadableError):
        records.original("another", records.original_bytes("482913", "text"))
