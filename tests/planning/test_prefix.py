"""The word for what became of the prefix is a comparison of digests."""

import json
from copy import deepcopy
from dataclasses import replace

import pytest

from policies.dialects import DIALECTS
from policies.model.conversation import Message, converse
from policies.model.memory import Sent, StepRecord
from policies.planning.prefix import Chains, outcome, sent_record
from tests.kit.talk import Json, gives, letters, runs, user

openai_chat = DIALECTS["openai_chat"]

FIRST = [user("go"), *runs("ls", "a")]
NEXT = [*FIRST, *runs("cat a", "x")]


def read(messages: list[Json]) -> list[Message]:
    return [openai_chat.read(json.dumps(message).encode(), letters) for message in messages]


def test_digests_go_to_another_process() -> None:
    _, chains = sent(NEXT, {0: b"x"})
    twin = deepcopy(chains)  # as pickle makes one
    assert [twin.sent_digest(n) for n in range(9)] == [chains.sent_digest(n) for n in range(9)]


def sent(messages: list[Json], changed: dict[int, bytes], head: str = "h", setup: str = "s") -> tuple[Sent, Chains]:
    chains = Chains(read(messages), changed)
    return sent_record(converse(read(messages)), chains, head, setup), chains


@pytest.mark.parametrize(
    ("before", "after", "reason", "word"),
    [
        ({}, {}, "", "extended"),
        ({0: b"x"}, {0: b"x"}, "checkpoint:paid", "extended"),
        ({}, {1: b"x"}, "tail-cut", "tail-cut"),
        ({}, {2: b"x"}, "tail-cut", "tail-cut"),
        ({}, {2: b"x"}, "checkpoint:paid", "checkpoint:paid"),
        ({}, {0: b"x"}, "tail-cut", "checkpoint:replayed"),
        ({}, {0: b"x"}, "checkpoint:cold", "checkpoint:cold"),
        ({}, {0: b"x"}, "", "checkpoint:replayed"),
        ({0: b"x"}, {0: b"y"}, "", "checkpoint:replayed"),
        ({1: b"x", 2: b""}, {1: b"x", 2: b""}, "", "extended"),
        ({}, {1: b"x", 2: b""}, "checkpoint:window", "checkpoint:window"),
    ],
)
def test_s2_the_word_follows_from_what_was_sent(
    before: dict[int, bytes], after: dict[int, bytes], reason: str, word: str
) -> None:
    was, _ = sent(FIRST, before)
    now, chains = sent(NEXT, after)
    assert outcome(StepRecord("a", sent=was), None, now, chains, reason) == word


def test_without_a_record_nothing_is_claimed() -> None:
    now, chains = sent(NEXT, {})
    assert outcome(None, None, now, chains, "") == "checkpoint:replayed"
    other = replace(now, received_digest="another")
    assert outcome(None, StepRecord("a", sent=now), now, chains, "") == "checkpoint:replayed"
    assert outcome(None, StepRecord("a", sent=other), now, chains, "") == "client-changed"
    assert outcome(StepRecord("a"), None, now, chains, "") == "checkpoint:replayed"


def test_s5_a_history_that_the_client_changed_is_called_so() -> None:
    was, _ = sent([user("gone"), *runs("ls", "a")], {})
    now, chains = sent(NEXT, {})
    assert outcome(StepRecord("a", sent=was), None, now, chains, "") == "client-changed"


def test_another_model_or_other_tools_are_the_clients_change() -> None:
    was, _ = sent(FIRST, {}, head="other")
    now, chains = sent(NEXT, {})
    assert outcome(StepRecord("a", sent=was), None, now, chains, "") == "client-changed"


def test_another_configuration_is_named_where_it_moved_the_prefix() -> None:
    was, _ = sent(FIRST, {}, setup="other")
    now, chains = sent(NEXT, {0: b"x"})
    assert outcome(StepRecord("a", sent=was), None, now, chains, "") == "checkpoint:config"
    now, chains = sent(NEXT, {})
    assert outcome(StepRecord("a", sent=was), None, now, chains, "") == "extended"


def test_what_a_record_counts() -> None:
    record, _ = sent(NEXT, {1: b"x", 2: b""})
    assert (record.messages, record.tail, record.received) == (4, 2, 5)
    assert sent([user("go")], {})[0].tail == 0
    assert sent([gives("odd")], {})[0].messages == 1
