"""What a hidden text is called: digits that follow from what it says, and lead back to it."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.dialects import DIALECTS
from policies.model import conversation as conversations
from policies.model.conversation import Conversation, Message, converse
from policies.recall import original, run_of
from tests import examples
from tests.kit.histories import Json, requests, sessions
from tests.kit.talk import calls, conversation_of, gives, letters, runs, says, system, user

openai_chat = DIALECTS["openai_chat"]

quick = settings(deadline=None, max_examples=examples(50), suppress_health_check=[HealthCheck.too_slow])


def refs_of(conversation: Conversation) -> dict[int, str]:
    return {i: conversation.ref(i) for i, block in enumerate(conversation.blocks) if block.kind != "system"}


def check_refs(conversation: Conversation) -> None:
    refs = refs_of(conversation)
    for at, ref in refs.items():
        assert ref.isdecimal()
        assert len(ref) >= 6
        found = conversation.references.places.get(ref)
        assert found is not None
        assert conversation.blocks[found].text_digest == conversation.blocks[at].text_digest
        assert original(conversation, ref) == conversation.blocks[at].text


@quick
@given(sessions(most=6))
def test_r1_every_block_has_a_reference_that_leads_to_what_it_says(session: list[Json]) -> None:
    conversation = conversation_of(*session)
    check_refs(conversation)
    refs = refs_of(conversation)
    assert len({*refs.values()}) == len({conversation.blocks[i].text_digest for i in refs})


@quick
@given(sessions(most=6), st.integers(1, 2))
def test_r1_a_reference_stays_when_the_history_grows(session: list[Json], digits: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversations, "_REF", (digits, 9, 12, 18))  # so short that many collide
        known: dict[int, str] = {}
        for request in requests(session):
            refs = refs_of(conversation_of(*request))
            assert known.items() <= refs.items()
            known = refs


def read_once(session: list[Json], seen: dict[str, Message]) -> list[Message]:
    """Messages as the proxy reads them: equal bytes are one message."""
    raws = [json.dumps(message) for message in session]
    return [seen.setdefault(raw, openai_chat.read(raw.encode(), letters)) for raw in raws]


@quick
@given(sessions(most=6), sessions(most=4), st.integers(1, 2), st.data())
def test_r1_a_fork_calls_things_as_if_nothing_but_itself_was_ever_said(
    session: list[Json], other: list[Json], digits: int, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversations, "_REF", (digits, 9, 12, 18))  # so short that many collide
        seen: dict[str, Message] = {}
        known: Conversation | None = None
        for _ in range(6):
            kept = data.draw(st.integers(0, len(session)))
            messages = read_once([*session[:kept], *data.draw(st.sampled_from([other, session[kept:], []]))], seen)
            known = converse(messages, known)
            if data.draw(st.booleans()):  # not everybody asks
                refs = refs_of(known)
                assert refs == refs_of(converse(messages))
                assert all(
                    known.blocks[known.references.places.get(ref) or 0].text_digest == known.blocks[at].text_digest
                    for at, ref in refs.items()
                )


def test_names_are_carried_forward_and_nobody_works_them_out_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    worked_out: list[bytes] = []
    plain = conversations._digits
    monkeypatch.setattr(conversations, "_digits", lambda digest: worked_out.append(digest) or plain(digest))
    session = [user("go"), *(message for i in range(50) for message in runs(f"a {i}", f"output {i}"))]
    messages = read_once(session, {})
    before = converse(messages[:-4])
    assert before.ref(2)
    assert len(worked_out) == len(before.blocks)
    worked_out.clear()
    unasked = converse(messages[:-2], before)
    assert worked_out == []
    after = converse(messages, unasked)  # though nobody asked the one between
    assert after.references.places.get(after.ref(len(after.blocks) - 1)) == len(after.blocks) - 1
    assert len(worked_out) == 4


def test_r1_equal_texts_are_called_the_same_wherever_they_stand() -> None:
    conversation = conversation_of(user("go"), *runs("a", "same"), *runs("b", "other"), *runs("a", "same"))
    refs = refs_of(conversation)
    assert refs[2] == refs[6] != refs[4]
    assert refs[1] == refs[5] != refs[3]
    assert conversation.references.places.get(refs[6]) == 2


def test_r1_a_reference_follows_from_the_text_alone() -> None:
    here = conversation_of(user("go"), *runs("a", "same"))
    there = conversation_of(system("be brief"), user("now what?"), says("wait"), calls("b", "c"), gives("same"))
    assert here.ref(2) == there.ref(5)


def test_s6_a_reference_is_the_same_in_every_process() -> None:
    assert conversation_of(user("go"), *runs("a", "same")).ref(2) == "331233"


def collision() -> tuple[str, str]:
    """Two outputs whose references have the same first six digits."""
    seen: dict[str, str] = {}
    for number in range(10_000):
        text = f"output {number}"
        ref = conversation_of(user("go"), *runs("a", text)).ref(2)
        if ref in seen:
            return seen[ref], text
        seen[ref] = text
    raise AssertionError("no collision among so many")


def test_r1_texts_that_collide_are_called_differently() -> None:
    first, second = collision()
    alone = conversation_of(user("go"), *runs("a", second)).ref(2)
    both = conversation_of(user("go"), *runs("a", first), *runs("a", second))
    assert (len(both.ref(2)), len(both.ref(4))) == (6, 9)
    assert both.ref(2) == alone == both.ref(4)[:6]
    assert (original(both, both.ref(2)), original(both, both.ref(4))) == (first, second)
    # which is the longer one follows from the order, not from where the request begins to be looked at
    turned = conversation_of(user("go"), *runs("a", second), *runs("a", first))
    assert (original(turned, turned.ref(2)), original(turned, turned.ref(4))) == (second, first)


@pytest.mark.parametrize("length", [6, 9, 12, 18])
def test_r1_however_many_digits_collide(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = conversations._digits
    monkeypatch.setattr(conversations, "_digits", lambda digest: "4" * length + plain(digest)[length:])
    outputs = [message for i in range(4) for message in runs(f"a {i}", f"output {i}")]
    check_refs(conversation_of(user("go"), *outputs))


def test_law_5_system_text_has_no_reference() -> None:
    conversation = conversation_of(system("be brief"), user("go"), *runs("a", "x"))
    with pytest.raises(KeyError):
        conversation.ref(0)
    assert len(refs_of(conversation)) == 3


def test_r1_a_run_is_called_by_its_place_and_its_length() -> None:
    conversation = conversation_of(user("go"), *runs("a", "x"), *runs("b", "y"), *runs("a", "x"))
    ref = conversation.run_ref(1, 4)
    name, _, count = ref.partition("+")
    assert (len(name), name.isdecimal(), count) == (12, True, "4")
    assert run_of(conversation, ref) == range(1, 5)
    assert conversation.run_ref(5, 6) != conversation.run_ref(1, 2)  # the same words, at another place
    grown = conversation_of(user("go"), *runs("a", "x"), *runs("b", "y"), *runs("a", "x"), *runs("c", "z"))
    assert grown.run_ref(1, 4) == ref


@pytest.mark.parametrize(
    "ref", ["", "+", "1+1", "{}", "{}+0", "{}+7", "{}+-1", "{}+1+1", "{}+٣", "{}0+1", "{}+" + "9" * 50]
)
def test_r6_the_reference_of_no_run_finds_none(ref: str) -> None:
    conversation = conversation_of(user("go"), *runs("a", "x"), *runs("b", "y"))
    name = conversation.run_ref(1, 4).partition("+")[0]
    assert run_of(conversation, name + "+4") == range(1, 5)
    found = run_of(conversation, ref.format(name))
    assert found is None or json.dumps(ref) == '"{}+\\u0663"'
