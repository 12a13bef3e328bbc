"""What is written comes back, or is UnreadableError; never something else."""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.edits import Edit, Fold, Insert, Origin, RecallRound, Replace
from policies.model.memory import Sent, StepRecord
from policies.model.summary_record import Kind, SummaryCost, SummaryRecord
from proxy.config import KeyRow
from proxy.memory import Event, open_store, serialization
from proxy.memory.serialization import record_of
from proxy.memory.store import key_bytes, key_row
from tests import examples
from tests.memory.test_store import INSERT, KEY, RECORD, SENT
from tests.memory.test_store_events import EVENT
from tests.memory.test_store_summaries import ORIGIN, SPENT, SUMMARY

TEXTS = st.text(st.characters(), max_size=40)
WORDS = st.text(max_size=8)
COUNTS = st.integers(0, 10**9)
TIMES = st.floats(0, 1e10) | st.integers(0, 10**10).map(float)
ORIGINS = st.builds(
    Origin,
    id=WORDS,
    model=TEXTS,
    policy=WORDS,
    prompt=WORDS,
    at=TIMES,
    last=WORDS,
    generation=COUNTS,
    cost=st.floats(0, 1e10),
)
EDITS: st.SearchStrategy[Edit] = st.one_of(
    st.builds(Replace, at=WORDS, text=TEXTS, by=WORDS),
    st.builds(Fold, first=WORDS, last=WORDS, text=TEXTS, by=WORDS, origin=st.none() | ORIGINS),
)
few = settings(deadline=None, max_examples=examples(40))
SENTS = st.builds(Sent, messages=COUNTS, tail=COUNTS, received=COUNTS)
STEPS = st.builds(
    StepRecord,
    anchor=st.text("0123456789abcdef", max_size=32),
    edits=st.lists(EDITS, max_size=4).map(tuple),
    reason=WORDS,
    sent=st.none() | SENTS,
    at=TIMES,
    recall=st.booleans(),
)
EXCHANGES = st.builds(
    RecallRound,
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
SPENTS = st.builds(
    SummaryCost,
    calls=COUNTS,
    prompt=COUNTS,
    cached=COUNTS,
    written=COUNTS,
    completion=COUNTS,
    dollars=st.floats(0, 1e6),
)
SUMMARIES = st.builds(
    SummaryRecord,
    id=WORDS,
    conversation=TEXTS,
    first=WORDS,
    last=WORDS,
    sources=st.lists(WORDS, max_size=4).map(tuple),
    model=TEXTS,
    content=TEXTS,
    tokens_before=COUNTS,
    tokens_after=COUNTS,
    created_at=TIMES,
    policy=WORDS,
    prompt=WORDS,
    kind=st.sampled_from(get_args(Kind)),
    generation=COUNTS,
    previous=WORDS,
    rejected=WORDS,
    owner=WORDS,
    spent=SPENTS,
)
EVENTS = st.builds(
    Event,
    at=TIMES,
    conversation=TEXTS,
    name=TEXTS,
    details=st.dictionaries(TEXTS, TEXTS | st.integers(-(10**9), 10**9) | st.floats(-1e9, 1e9), max_size=4),
)

ROW = KeyRow(name="alice", sha256=64 * "a")
ABOUT: dict[str, str | int | float] = {"tool": "read\udcff", "characters": 7, "at": 1.5}
KINDS: dict[str, tuple[bytes, Callable[[object], object]]] = {
    "decision": (serialization.decision_bytes(RECORD), lambda stored: serialization.decision("anchor", stored)),
    "insert": (serialization.packed("insert", INSERT), partial(record_of, "insert", "anchor")),
    "summary": (serialization.packed("summary", SUMMARY), partial(record_of, "summary", ("s1", "a1"))),
    "text": (serialization.packed("text", b"n", "a long text"), partial(record_of, "text", b"n")),
    "about": (serialization.packed("about", ABOUT), partial(record_of, "about", None)),
    "spent": (
        serialization.packed("spent", "compaction", SPENT),
        partial(record_of, "spent", "compaction"),
    ),
    "event": (serialization.packed("event", EVENT), partial(record_of, "event", "conversation")),
    "key": (key_bytes(ROW), partial(key_row, ROW.sha256.encode())),
}
"""What is sealed: how it is written, and what reads it."""


@few
@given(STEPS)
def test_any_record_comes_back_as_it_was(record: StepRecord) -> None:
    decided = serialization.decision(record.anchor, serialization.decision_bytes(record))
    assert decided == replace(record, sent=None, at=0.0)
    if record.sent is not None:
        assert record_of("sent", None, serialization.packed("sent", record.sent)) == record.sent


@few
@given(INSERTS)
def test_any_insert_comes_back_as_it_was(insert: Insert) -> None:
    assert record_of("insert", insert.after, serialization.packed("insert", insert)) == insert


@given(
    name=st.binary(),
    text=TEXTS,
    about=st.dictionaries(TEXTS.filter(str.isprintable), TEXTS | COUNTS | TIMES, max_size=4),
)
def test_any_text_that_is_kept_comes_back_with_what_is_said_of_it(
    name: bytes, text: str, about: dict[str, str | int]
) -> None:
    assert record_of("text", name, serialization.packed("text", name, text)) == text
    assert record_of("about", None, serialization.packed("about", about)) == about


@few
@given(SUMMARIES)
def test_m1_any_summary_comes_back_as_it_was(summary: SummaryRecord) -> None:
    assert record_of("summary", (summary.id, summary.first), serialization.packed("summary", summary)) == summary


@pytest.mark.parametrize("made", [replace(SUMMARY, kind="history", rejected="short"), ORIGIN, SPENT])
def test_m1_these_tests_leave_no_field_of_the_provenance_out(made: SummaryRecord | Origin | SummaryCost) -> None:
    """A field that is not written would come back as its default."""
    assert [field.name for field in fields(made) if getattr(made, field.name) == field.default] == []
    if isinstance(made, SummaryRecord):
        assert record_of("summary", (made.id, made.first), serialization.packed("summary", made)) == made
    elif isinstance(made, Origin):
        step = StepRecord("anchor", (Fold("a1", "a9", "text", "summarize", made),))
        assert serialization.decision("anchor", serialization.decision_bytes(step)) == step
    else:
        assert record_of("spent", "kind", serialization.packed("spent", "kind", made)) == made


@given(kind=TEXTS, spent=SPENTS)
def test_m9_what_was_spent_comes_back_as_it_was(kind: str, spent: SummaryCost) -> None:
    assert record_of("spent", kind, serialization.packed("spent", kind, spent)) == spent


@given(EVENTS)
def test_any_event_comes_back_as_it_was(event: Event) -> None:
    assert record_of("event", event.conversation, serialization.packed("event", event)) == event


@settings(few, max_examples=examples(20))
@given(st.lists(STEPS, max_size=5, unique_by=lambda record: record.anchor))
async def test_any_records_come_back_from_the_store(steps: list[StepRecord]) -> None:
    store = open_store("sqlite://", patience=10)
    await store.open()
    try:
        assert [await store.claim(KEY, record) for record in steps] == steps
        assert (await store.memory(KEY, [r.anchor for r in steps])).steps == {r.anchor: r for r in steps}
    finally:
        await store.close()


@few
@given(record=STEPS, where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_x7_a_record_cut_short_or_with_a_flipped_bit_is_unreadable(record: StepRecord, where: float, bit: int) -> None:
    stored = serialization.decision_bytes(record)
    at = int(where * len(stored))
    for spoilt in (stored[:at], stored[:at] + bytes([stored[at] ^ 1 << bit]) + stored[at + 1 :]):
        with pytest.raises(serialization.UnreadableRecordError):
            serialization.decision(record.anchor, spoilt)


@pytest.mark.parametrize("kind", KINDS)
def test_x7_every_flipped_bit_and_every_cut_of_every_kind_is_unreadable(kind: str) -> None:
    whole, read = KINDS[kind]
    flipped = (
        whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :] for at in range(len(whole)) for bit in range(8)
    )
    for stored in (*flipped, *(whole[:end] for end in range(len(whole))), whole + b"\0"):
        with pytest.raises(serialization.UnreadableRecordError):
            read(stored)
    read(whole)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stored", [b"", b"\3", b"\3\0\0\0\0", "text", 7, 1.5, None])
def test_x7_what_is_no_record_is_unreadable(stored: object, kind: str) -> None:
    with pytest.raises(serialization.UnreadableRecordError):
        KINDS[kind][1](stored)


@pytest.mark.parametrize("version", [0, serialization.VERSION - 1, serialization.VERSION + 1, 255])
def test_x7_another_version_is_unreadable(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    monkeypatch.setattr(serialization, "VERSION", version)
    stored = {
        "decision": serialization.decision_bytes(RECORD),
        "insert": serialization.packed("insert", INSERT),
        "summary": serialization.packed("summary", SUMMARY),
        "text": serialization.packed("text", b"n", "a long text"),
        "about": serialization.packed("about", ABOUT),
        "spent": serialization.packed("spent", "compaction", SPENT),
        "event": serialization.packed("event", EVENT),
        "key": key_bytes(ROW),
    }
    monkeypatch.undo()
    for kind, (_, read) in KINDS.items():
        with pytest.raises(serialization.UnreadableRecordError, match="version"):
            read(stored[kind])


def test_x7_a_record_of_another_kind_or_step_is_unreadable() -> None:
    for kind, (_, read) in KINDS.items():
        for stored in (
            serialization.packed("sent", SENT),
            *(whole for other, (whole, _) in KINDS.items() if other != kind),
        ):
            with pytest.raises(serialization.UnreadableRecordError):
                read(stored)
    with pytest.raises(serialization.UnreadableRecordError):
        serialization.decision("another", serialization.decision_bytes(RECORD))
    with pytest.raises(serialization.UnreadableRecordError):
        record_of("insert", "another", serialization.packed("insert", INSERT))
    with pytest.raises(serialization.UnreadableRecordError):
        record_of("text", b"another", serialization.packed("text", b"n", "text"))
    for id, first in (("another", "a1"), ("s1", "another")):
        with pytest.raises(serialization.UnreadableRecordError):
            record_of("summary", (id, first), serialization.packed("summary", SUMMARY))
    with pytest.raises(serialization.UnreadableRecordError):
        record_of("spent", "another", serialization.packed("spent", "compaction", SPENT))
    with pytest.raises(serialization.UnreadableRecordError):
        record_of("event", "another", serialization.packed("event", EVENT))
