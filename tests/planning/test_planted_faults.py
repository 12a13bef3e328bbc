"""Each law's check is shown a fault that breaks the law, and has to say so: proof that the properties can fail."""

import itertools
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from policies import recall
from policies.compact import Compacted, compact
from policies.context import Context, Policy
from policies.dialects import DIALECTS
from policies.model.conversation import Conversation
from policies.model.edits import Replace
from policies.planning import step as pipeline
from policies.rules.clip import Clip
from policies.rules.dedupe import Dedupe
from policies.rules.offload import Offload
from policies.text import stubs
from proxy.kernel.prepare import FailOpen
from proxy.requests import UpstreamRequest
from tests.kit.histories import CHEAP, EAGER, ROOMY, TIGHT, Json, body_of, eagerly, requests
from tests.kit.running import Start
from tests.kit.talk import calls, gives, runs, says, system, user
from tests.planning.test_laws import check_law_1, check_law_2, check_law_3, check_law_4, check_law_5

openai_chat = DIALECTS["openai_chat"]

JSON = {"content-type": "application/json"}
LONG = "\n".join(f"{i} lines of output" for i in range(300))
TALK: list[Json] = [
    system("be brief"),
    user("go"),
    *runs("pytest -q", LONG),
    calls("make a", "make b", text="two at once"),
    gives(LONG, "call_0"),
    gives(LONG[::-1], "call_1"),
    *runs("cat <<EOF\n" + LONG + "\nEOF", "ok"),
    *(message for i in range(5) for message in runs(f"make {i}", f"{i}\n" + LONG)),
    user("and now?"),
    *runs("ls", "a.py"),
    says("done"),
]


def grown(policies: tuple[Policy, ...] = EAGER) -> list[Compacted]:
    """The session as its client sends it, request by request."""
    return [compact(body_of(r), policies=policies, prices=CHEAP, budget=ROOMY, recall=True) for r in requests(TALK)]


def test_without_a_fault_the_checks_pass() -> None:
    for budget in (ROOMY, TIGHT):
        steps = [eagerly(request, budget) for request in requests(TALK)]
        assert any(step.plan.edits for step in steps)
        check_law_2(steps)
        for request, step in zip(requests(TALK), steps, strict=True):
            check_law_1(request, step)
            check_law_3(step)
            check_law_4(request, step)
            check_law_5(request, step)


def test_law_1_fails_where_splice_writes_every_message_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    splice = openai_chat.splice

    def anew(request: Any, conversation: Conversation, edits: Any) -> Mapping[int, bytes]:
        all_of_them = {i: json.dumps(json.loads(request.raw(i))).encode() for i in range(len(request.spans))}
        return {**all_of_them, **splice(request, conversation, edits)}

    monkeypatch.setitem(DIALECTS, "openai_chat", replace(openai_chat, splice=anew))
    with pytest.raises(AssertionError):
        check_law_1(TALK, eagerly(TALK))


def test_law_1_fails_where_the_body_is_written_anew_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    few = TALK[:3]
    check_law_1(few, eagerly(few))
    joined = openai_chat.joined
    anew = replace(openai_chat, joined=lambda *given: json.dumps(json.loads(joined(*given))).encode())
    monkeypatch.setitem(DIALECTS, "openai_chat", anew)
    with pytest.raises(AssertionError):
        check_law_1(few, eagerly(few))


def test_law_2_fails_where_a_stub_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    number = itertools.count()
    monkeypatch.setattr("policies.rules.offload.way_back", lambda *_: f"{stubs.MARK} hidden output {next(number)}]")
    with pytest.raises(AssertionError):
        check_law_2(grown())


def test_law_2_fails_where_tail_cuts_are_a_matter_of_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(7)

    def sometimes(conversation: Conversation, context: Context) -> Iterator[Replace]:
        offered = Offload(over=40, keep=1, keep_files=2, relevant_tokens=5)(conversation, context)
        return (edit for edit in offered if chance.random() < 0.5)

    with pytest.raises(AssertionError):
        check_law_2(grown((sometimes,)))


def test_law_2_fails_where_a_rewrite_is_not_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    fire = pipeline.Changes.fire

    def silently(self: Any, point: int, reason: str, context: Any) -> None:
        fire(self, point, reason, context)
        self._state.reason = ""

    monkeypatch.setattr(pipeline.Changes, "fire", silently)
    with pytest.raises(AssertionError):
        check_law_2(grown())


def check_law_3_on_all() -> None:
    prose = says(". ".join(f"The sentence {i} says something about it" for i in range(200)))
    session = [*TALK, user("why?"), prose, *(message for i in range(4) for message in (user(f"{i}?"), says("yes")))]
    for budget in (ROOMY, TIGHT):
        for request in requests(session):
            check_law_3(eagerly(request, budget))


def test_law_3_fails_where_a_stub_names_another_text(monkeypatch: pytest.MonkeyPatch) -> None:
    ref = Conversation.ref
    monkeypatch.setattr(Conversation, "ref", lambda self, at: ref(self, at - 1))
    with pytest.raises(AssertionError):
        check_law_3_on_all()


@pytest.mark.parametrize(
    "wording", ["offload.way_back", "clip.clipped_argument", "dedupe.hidden_output", "abridge.shortened_prose"]
)
def test_law_3_fails_where_a_stub_names_nothing(wording: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"policies.rules.{wording}", lambda *_: f"{stubs.MARK} left out]")
    with pytest.raises((AssertionError, ValueError)):
        check_law_3_on_all()


def test_law_3_fails_where_a_run_has_one_block_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    run_ref = Conversation.run_ref
    monkeypatch.setattr(Conversation, "run_ref", lambda self, first, last: run_ref(self, first, last - 1))
    with pytest.raises(AssertionError):
        check_law_3_on_all()


def test_law_3_fails_where_a_page_loses_a_character(monkeypatch: pytest.MonkeyPatch) -> None:
    page = recall._page
    monkeypatch.setattr(recall, "_page", lambda text, start, end, part: page(text, start + (start > 0), end, part))
    monkeypatch.setattr(recall, "PAGE", 100)
    with pytest.raises(AssertionError):
        check_law_3_on_all()


def test_law_3_fails_where_a_pointer_outlives_its_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    more = "\n".join([LONG] * 3)
    twice = [user("go"), *runs("a", more), *runs("b", more), *runs("c", "x"), *runs("d", "y"), *runs("e", "z")]

    def takes(conversation: Conversation, context: Context) -> Iterator[Replace]:
        if context.step == 4:
            yield Replace(conversation.blocks[2].anchor, stubs.hidden_output("command", conversation.ref(2)), "test")

    def done() -> Compacted:
        free = replace(CHEAP, read=1.0)
        return compact(body_of(twice), policies=(Dedupe(over=10), takes), prices=free, budget=ROOMY, recall=True)

    check_law_3(done())
    monkeypatch.setattr(pipeline.Pointers, "stands", lambda *_: True)
    with pytest.raises(AssertionError):
        check_law_3(done())


def test_law_4_fails_where_arguments_are_cut_inside_the_string(monkeypatch: pytest.MonkeyPatch) -> None:
    def half(conversation: Conversation, at: int, *_: object) -> str:
        return (text := conversation.blocks[at].text)[: len(text) // 2]

    monkeypatch.setattr("policies.rules.clip._clipped", half)
    monkeypatch.setattr("policies.planning.step.keeps_shape", lambda block, edit: True)
    cutting = (Clip(over=12, keep=1, keep_writes=1),)
    with pytest.raises(AssertionError):
        check_law_4(TALK, compact(body_of(TALK), policies=cutting, prices=CHEAP, budget=ROOMY, recall=True))


def test_law_4_fails_where_a_key_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policies.rules.clip._clipped", lambda *_: "{}")
    monkeypatch.setattr("policies.planning.step.keeps_shape", lambda block, edit: True)
    cutting = (Clip(over=12, keep=1, keep_writes=1),)
    with pytest.raises(AssertionError):
        check_law_4(TALK, compact(body_of(TALK), policies=cutting, prices=CHEAP, budget=ROOMY, recall=True))


def test_law_4_fails_where_a_result_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    splice = openai_chat.splice
    first = next(i for i, message in enumerate(TALK) if message["role"] == "tool")
    dropping = replace(openai_chat, splice=lambda *given: {**splice(*given), first: b""})
    monkeypatch.setitem(DIALECTS, "openai_chat", dropping)
    with pytest.raises(AssertionError):
        check_law_4(TALK, eagerly(TALK))


def shortens(kind: str) -> Policy:
    """A policy that respects nothing."""

    def offered(conversation: Conversation, context: Context) -> Iterator[Replace]:
        blocks = conversation.blocks[: conversation.ends[context.step]]
        return (Replace(block.anchor, "short", "fault") for block in blocks if block.kind == kind)

    return offered


@pytest.mark.parametrize("kind", ["system", "user", "opaque"])
def test_law_5_fails_where_the_protected_is_edited(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = json.loads(json.dumps(TALK).replace('"be brief"', json.dumps(LONG)).replace('"go"', json.dumps(LONG)))
    talk[2]["reasoning_content"] = LONG
    talk.insert(4, {"role": "developer", "content": LONG})
    policies = (shortens(kind),)
    free = CHEAP.__class__("m", read=1.0, write=1.0, listed=True)
    check_law_5(talk, compact(body_of(talk), policies=policies, prices=free, budget=ROOMY, recall=True))
    monkeypatch.setattr(pipeline, "may_edit", lambda *_: True)
    monkeypatch.setattr(pipeline, "best_point", lambda *_: 0)
    with pytest.raises(AssertionError):
        check_law_5(talk, compact(body_of(talk), policies=policies, prices=free, budget=ROOMY, recall=True))


def test_law_5_fails_where_the_newest_result_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    request = requests(TALK)[2]
    monkeypatch.setattr(pipeline, "may_edit", lambda *_: True)
    monkeypatch.setattr(pipeline, "best_point", lambda *_: 0)
    with pytest.raises(AssertionError):
        check_law_5(
            request, compact(body_of(request), policies=(shortens("result"),), prices=CHEAP, budget=ROOMY, recall=True)
        )


async def check_law_6(narrows: Start, body: bytes) -> None:
    """Whatever goes wrong in planning, the client's own bytes go out, and the reply says so."""
    started = await narrows(real=True)
    async with started.client.post(started.url + "/chat/completions", data=body, headers=JSON) as reply:
        await reply.read()
        assert (reply.status, reply.headers.get("x-narrows-mode")) == (200, "failed-open")
    assert [asked.body for asked in started.upstream.seen] == [body]


def raises(*_: Any) -> None:
    raise LookupError("planted")


async def test_law_6_holds_where_planning_raises(narrows: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.kernel.plan.is_quiet", raises)
    await check_law_6(narrows, body_of(TALK))


async def test_law_6_fails_where_nothing_catches(narrows: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unguarded(self: FailOpen, *request: Any) -> UpstreamRequest:
        return await self._prepare(*request)

    monkeypatch.setattr("proxy.kernel.plan.is_quiet", raises)
    monkeypatch.setattr(FailOpen, "__call__", unguarded)
    with pytest.raises(AssertionError):
        await check_law_6(narrows, body_of(TALK))
