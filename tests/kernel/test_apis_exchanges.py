"""R3-R5 over each API: a reply with recalls in it is one reply, and comes back in its place on later requests."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from policies.tools import RECALL
from proxy.app import App
from proxy.lab.provider import Answer, Received, Say
from tests.kit.apis import Api, Turn, answered, extends, fetched, mixed, plays, refs, text_of, told, wants
from tests.kit.forms import plain
from tests.kit.histories import Json
from tests.kit.recalling import BOTH, REPORT, SECOND, call, hiding, recall, runs
from tests.kit.speaking import Speaker, speaking
from tests.kit.stage import Stage

pytestmark = pytest.mark.usefixtures("patient")


def starting(name: str) -> list[Json]:
    """A history that hides an output, in a conversation of its own."""
    system, user, *rest = hiding()
    return [system, {**user, "content": f"Go on with {name}."}, *rest]


# --- R3: one reply ---


@BOTH
async def test_r3_usage_sums_the_answers_and_shows_the_last_prompt(
    stage: Stage, speaker: Speaker, stream: bool
) -> None:
    stage.provider.answer = plays(wants("One. "), wants("Two. "), Say("Seen."))
    heard = await speaker.ask(hiding(), stream)
    usages = [request.usage for request in stage.provider.requests]
    assert len(usages) == 3
    assert all(usages)
    total = sum(usage.completion for usage in usages if usage)
    assert speaker.api.usage(heard.reply) == (usages[-1] and usages[-1].prompt, total)


async def test_r3_what_no_recall_touches_is_the_providers_own_reply(
    stage: Stage, api: Api, app: App, speaker: Speaker
) -> None:
    """Short requests cost the same here and there, so that even ids and usage agree."""
    said: list[Json] = [{"role": "user", "content": "Hello, 漢字"}]
    stage.provider.answer = plays(*[Say("I look. ", [call("a", "look", at="λ.py")], thinking=("Hm.",))] * 4)
    async with speaking(api, stage.upstream) as direct:
        for stream in (False, True):
            stage.provider.answer = plays(*[Say("I look. ", [call("a", "look", at="λ.py")], thinking=("Hm.",))] * 2)
            theirs = await direct.hear(said, stream, tools=None, **api.thinks)
            stage.provider.answer = plays(*[Say("I look. ", [call("a", "look", at="λ.py")], thinking=("Hm.",))] * 2)
            ours = await speaker.hear(said, stream, tools=None, **api.thinks)
            assert ours.raw == theirs.raw
            assert stage.provider.requests[-1].body == speaker.request_body


# --- R4: the exchange is put back ---


@pytest.mark.parametrize(("place", "stream"), [(0, False), (1, True), (2, True)], ids=["first", "middle", "last"])
async def test_r4_beside_calls_of_the_clients_own(stage: Stage, speaker: Speaker, place: int, stream: bool) -> None:
    stage.provider.answer = plays(mixed(place))
    said = hiding()
    heard = await speaker.ask(said, stream)
    assert (heard.text, heard.calls, heard.finish) == ("Both. ", ["bash", "look"], "tool_calls")
    again = await speaker.ask(said + answered(heard.message(), "noon", "nothing"), stream)
    first, second = stage.provider.requests
    assert second.violation is None
    assert again.prefix == "extended"
    assert extends(first, second)
    message, *results = told(second)[len(said) :]
    names = [made["function"]["name"] for made in message["tool_calls"]]
    assert (message["content"], names.index(RECALL), len(names)) == ("Both. ", place, 3)
    ids = ["recall_1_1" if name == RECALL else f"{'a' if name == 'bash' else 'b'}_1" for name in names]
    assert [made["id"] for made in message["tool_calls"]] == ids
    texts = {"recall_1_1": REPORT, "a_1": "noon", "b_1": "nothing"}
    assert {m["tool_call_id"]: m["content"] for m in results} == texts


PLAYS: dict[str, tuple[int, list[Turn]]] = {
    "alone": (1, [wants()]),
    "text around": (1, [wants("Let me look. "), Say("Seen.")]),
    "two rounds": (2, [wants("One. "), wants("Two. ", "lines 1-2"), Say("Seen.")]),
    "silent between": (2, [wants("One. "), wants(None, "find case 7:"), Say("Seen.")]),
    "parallel": (
        2,
        [lambda r: Say("Both. ", [recall(refs(r)[0], f"lines {n}", f"r{n}") for n in (1, 2)]), Say("Seen.")],
    ),
    "nothing said": (1, [wants("Let me look."), Say("")]),
    "null said": (1, [wants("Let me look."), Say(None)]),
    "refused": (1, [Say("Hm. ", [recall("000000")]), Say("Seen.")]),
    "then calls": (1, [wants("Let me look. "), Say("So I act. ", [call("c", "bash", command="date")])]),
    "then both": (2, [wants("Let me look. "), mixed(1)]),
    "both, silent": (1, [mixed(2, "")]),
}


@pytest.mark.parametrize("name", PLAYS)
async def test_r4_the_next_request_extends_what_the_model_saw(stage: Stage, speaker: Speaker, name: str) -> None:
    count, turns = PLAYS[name]
    for stream in (False, True):
        stage.provider.requests.clear()
        stage.provider.answer = plays(*turns, wants("Again. ", "lines 9"))
        said = starting(f"{name} {stream}")
        for _ in range(2):  # the second reply recalls, too
            heard = await speaker.ask(said, stream)
            said += answered(heard.message(), "noon", "nothing")
        heard = await speaker.ask(said, stream)
        requests = list(stage.provider.requests)
        assert [request.violation for request in requests] == [None] * len(requests)
        assert [extends(*pair) for pair in pairwise(requests)] == [True] * (len(requests) - 1)
        assert heard.prefix == "extended"
        assert len(fetched(requests[-1])) == count + 1
        for old, new in pairwise(requests):  # what the provider says of its cache
            assert old.usage is not None
            assert new.usage is not None
            assert new.usage.cached >= old.usage.prompt // 128 * 128 > 0


@BOTH
async def test_r4_a_client_that_keeps_the_text_alone(stage: Stage, speaker: Speaker, stream: bool) -> None:
    """As one string, and without the space at its ends."""
    stage.provider.answer = plays(wants("Let me look.\n"), Say("Seen. \n\n"))
    said = hiding()
    heard = await speaker.ask(said, stream)
    assert heard.text == "Let me look.\nSeen. \n\n"
    kept = {"role": "assistant", "content": heard.text.strip()}
    heard = await speaker.ask([*said, *answered(kept)], stream)
    assert heard.prefix == "extended"
    assert fetched(stage.provider.requests[-1]) == [REPORT]
    assert text_of(told(stage.provider.requests[-1])[-2]) == "Seen."


CHANGES: dict[str, Any] = {
    "edited": lambda text: [{"role": "assistant", "content": "I never looked."}],
    "edited at the end": lambda text: [{"role": "assistant", "content": text + " Really!"}],
    "with a call more": lambda text: runs("date", "noon", "z", content=text),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_r4_a_reply_that_comes_back_as_another_has_no_exchange(
    stage: Stage, speaker: Speaker, change: str
) -> None:
    stage.provider.answer = plays(wants("Let me look. "), Say("Seen."))
    said = hiding()
    text = (await speaker.ask(said)).text
    said += [*CHANGES[change](text), {"role": "user", "content": "Go on."}]
    heard = await speaker.ask(said)
    last = stage.provider.requests[-1]
    assert heard.prefix == "checkpoint:recall"
    assert (last.violation, fetched(last)) == (None, [])
    ours, theirs = (plain({"messages": messages})["messages"] for messages in (told(last), said))
    assert ours[len(hiding()) :] == theirs[len(hiding()) :]


async def test_r4_a_client_that_drops_the_reply_or_asks_again(stage: Stage, speaker: Speaker) -> None:
    stage.provider.answer = plays(wants("Let me look. "), Say("Seen."), wants("Hm. "), Say("Aha."), Say("No."))
    said = hiding()
    replies = [(await speaker.ask(said)).message() for _ in range(3)]
    assert [text_of(reply) for reply in replies] == ["Let me look. Seen.", "Hm. Aha.", "No."]
    first, _, third, _, fifth = stage.provider.requests
    assert first.body == third.body == fifth.body
    for reply, count in zip(replies, (1, 1, 0), strict=True):
        await speaker.ask([*said, *answered(reply)])
        assert len(fetched(stage.provider.requests[-1])) == count
    heard = await speaker.ask([*said, {"role": "user", "content": "Forget it."}])
    assert fetched(stage.provider.requests[-1]) == []
    assert heard.prefix == "client-changed"


# --- R5: what becomes of it ---


async def test_r5_whole_in_the_keep_window_and_the_same_pointer_later(stage: Stage, speaker: Speaker) -> None:
    text = REPORT + SECOND
    stage.provider.answer = plays(wants("Let me look. ", at=1), Say("Seen."))
    said = hiding(REPORT * 3, text, SECOND * 3)
    for turn in range(4):
        said += runs(f"before {turn}", f"a word {turn}")
    said += answered((await speaker.ask(said)).message())
    ref = refs(stage.provider.requests[0])[1]
    held: list[tuple[str, str]] = []
    for turn in range(8):
        heard = await speaker.ask(said)
        (shown,) = fetched(stage.provider.requests[-1])
        held.append((shown, heard.prefix))
        said += runs(f"step {turn}", f"a short word {turn}")
    whole = [shown for shown, _ in held if shown == text]
    assert 2 <= len(whole) < len(held)  # and the round in which it was fetched
    assert [shown for shown, _ in held[len(whole) :]] == [f"[narrows: output: ref {ref}]"] * (len(held) - len(whole))
    assert [prefix for _, prefix in held].count("extended") == len(held) - 1
    assert held[len(whole)][1] == "checkpoint:paid"
    stage.provider.answer = plays(wants(at=-1))
    await speaker.ask(said)
    assert fetched(stage.provider.requests[-1])[-1] == text


# --- thoughts, signed or encrypted ---


def thoughts(value: Any) -> Iterator[str]:
    """Signed and encrypted thoughts, in their order, wherever they stand."""
    if isinstance(value, dict):
        if value.get("type") in ("thinking", "redacted_thinking"):
            yield json.dumps([value.get(key) for key in ("thinking", "signature", "data")])
        elif value.get("type") == "reasoning":
            yield json.dumps([value["encrypted_content"], value["summary"]])
        value = list(value.values())
    for entry in value if isinstance(value, list) else ():
        yield from thoughts(entry)


def thinking(*turns: Turn) -> list[Turn]:
    """The same model, which thinks aloud before whatever it does."""

    def thinks(turn: Turn, number: int) -> Turn:
        def answer(received: Received) -> Answer:
            said = turn(received) if callable(turn) else turn
            assert isinstance(said, Say)
            return Say(said.content, said.calls, thinking=(f"Thought {number} of λ.",))

        return answer

    return [thinks(turn, number) for number, turn in enumerate(turns)]


@BOTH
async def test_v6_signed_thoughts_survive_an_agents_loop_with_recalls(
    stage: Stage, speaker: Speaker, stream: bool
) -> None:
    """The provider refuses a thought that is not the one it signed, and one that is missing in a loop of tools."""
    loop = [Say("I begin. ", [call("c", "bash", command="date")]), wants("I look. "), mixed(1), wants(None), Say("So.")]
    stage.provider.answer = plays(*thinking(*loop))
    said = [*hiding(), {"role": "assistant", "content": "So far."}, {"role": "user", "content": "Go on."}]
    made: list[str] = []
    for _ in range(3):
        heard = await speaker.ask(said, stream, **speaker.api.thinks)
        made += thoughts(heard.message()["native"])
        said += answered(heard.message(), "noon", "nothing")
    heard = await speaker.ask(said, stream, **speaker.api.thinks)
    requests = list(stage.provider.requests)
    assert [request.violation for request in requests] == [None] * 6
    assert [extends(*pair) for pair in pairwise(requests)] == [True] * 5
    assert heard.prefix == "extended"
    assert list(thoughts(requests[-1].json)) == made
    assert len(made) == (5 if speaker.api.thinks else 0)
