"""Which worker a request belongs to: one conversation has one, however it grows and whoever spells it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.workers.worker import owner

TEXTS = st.text(max_size=60) | st.sampled_from(
    ['a "quoted" {word}', "\\", '"role": "user"', "]}", "x" * 40_000, '"' * 20_000]
)
CONTENTS = TEXTS | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}), min_size=1, max_size=3)
MESSAGES = st.lists(st.tuples(st.sampled_from(("user", "assistant", "tool")), CONTENTS), max_size=4)


def body(messages: list[tuple[str, Any]], **form: Any) -> bytes:
    history = [{"role": role, "content": content} for role, content in messages]
    return json.dumps({"model": "m", "messages": history, "stream": True}, **form).encode()


@given(TEXTS, CONTENTS, MESSAGES, st.sampled_from(({}, {"sort_keys": True}, {"separators": (",", ":")}, {"indent": 1})))
def test_a_conversation_stays_with_its_worker_as_it_grows(
    system: str, first: Any, more: list[tuple[str, Any]], form: dict[str, Any]
) -> None:
    begun = [("system", system), ("user", first)]
    owners = {owner("t", None, body([*begun, *more[:end]], **form), 1_000) for end in range(len(more) + 1)}
    assert len(owners) == 1
    assert None not in owners


def test_conversations_are_spread_over_the_workers() -> None:
    owners = [owner("t", None, body([("user", f"task {n}")]), 4) for n in range(400)]
    assert all(60 < owners.count(number) < 140 for number in range(4))


@pytest.mark.parametrize(
    "named", [b'{"prompt_cache_key": "c", %s', b'{"metadata":{"conversation_id":"c"}, %s', b'{"x": 1, "input": [], %s']
)
def test_a_name_counts_before_the_messages(named: bytes) -> None:
    bodies = [named % body([("user", text)])[1:] for text in ("one", "two", "three", "four")]
    owners = {owner("t", None, each, 1_000) for each in bodies}
    assert len(owners) == (4 if b"input" in named else 1)
    assert len({owner("t", "from a header", each, 1_000) for each in bodies}) == 1


def test_what_does_not_tell_belongs_to_nobody() -> None:
    assert owner("t", None, b'{"model":"m","input":"hello"}', 2) is None
    assert owner("t", None, b"", 2) is None
