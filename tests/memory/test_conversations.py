"""Conversations that begin alike go on side by side: what was read of each is not read again."""

import asyncio
import json
from typing import Any
from zlib import crc32

import pytest
from msgspec.structs import replace
from proxy.compaction import request_parser

from policies.dialects import DIALECTS
from proxy.kernel.beginnings import Beginnings, Filed, PackedRequest
from proxy.kernel.outgoing import rendered_body
from proxy.kernel.request_parser import RequestParser
from proxy.memory.cached import CachedStore
from proxy.memory.served import ServedHistories
from proxy.requests import ParsedRequest
from tests.kernel.test_planning import Bench, request
from tests.kernel.test_planning import store as store
from tests.kit.histories import Json, body_of
from tests.kit.talk import runs, says, system, user

ALIKE = [system("Be brief. " * 2_000), user("Look around."), says("Where?")]


async def parsed(parser: RequestParser, messages: list[Json], **more: Any) -> ParsedRequest:
    result = await parser.parse("openai_chat", body_of(messages), "tenant", **more)
    assert result is not None
    return result


async def test_many_that_begin_alike_are_each_continued() -> None:
    parser, talks = RequestParser(), [[*ALIKE, user(f"Task {i}")] for i in range(40)]
    for talk in talks:
        await parsed(parser, talk)
    for turn in range(3):
        for talk in talks:
            before = len(talk)
            talk += runs(f"ls {turn}", "a.py")
            assert (await parsed(parser, talk)).request.shared == before


async def test_a_client_that_writes_its_newest_messages_anew_is_continued_up_to_there() -> None:
    parser, talks = RequestParser(), [[*ALIKE, user(f"Task {i}")] for i in range(20)]
    for _ in range(3):
        for talk in talks:
            at = len(talk)
            talk += [*runs("ls", "a.py"), user("Go on.")]
            await parsed(parser, talk)
            talk[-1] = user("Go on now.")
            assert (await parsed(parser, talk)).request.shared == at + 2


async def test_branches_and_what_has_a_name_stay_apart() -> None:
    parser = RequestParser()
    stem = [*ALIKE, user("Task"), *runs("ls", "a.py"), says("Done."), user("More?")]
    left, right = [*stem, *runs("cat a", "a"), says("a")], [*stem, *runs("cat b", "b"), says("b")]
    for talk in (left, right):
        await parsed(parser, talk)
    for talk in (left, right):
        assert (await parsed(parser, [*talk, user("Next")])).request.shared == len(talk)
    assert (await parsed(parser, [*left, user("Next")], named="another")).request.shared == 0
    assert (await parsed(parser, [*left, user("Next")], restored=True)).request.shared == 0


async def test_x6_of_a_deleted_conversation_no_text_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_parser, "_UNPACKED_BYTES", 30_000)
    parser, keys = RequestParser(), {}
    for name in ("one", "two", "three", None):
        request = await parsed(parser, [user(f"The secret of {name}. " * 500), says("Yes."), user("On.")], named=name)
        keys[name] = request_parser.key_of("openai_chat", "tenant", name, request)
    if parser._packing is not None:
        await parser._packing
    shelves = [parser._requests._parsed.requests, parser._requests._packed.requests]
    assert all(shelves)  # some are packed, some are not
    for name in ("one", None):
        parser.forget("tenant", keys[name].conversation)
    assert {filed.key for shelf in shelves for filed in shelf.values()} == {keys["two"], keys["three"]}
    assert not parser._messages
    parser.forget("another", None)
    assert any(shelves)
    parser.forget("tenant", None)
    assert not any(shelves)
    assert not parser._requests._by_piece


async def test_what_was_used_least_recently_goes_first_and_what_is_continued_takes_no_room_twice() -> None:
    parser, beginnings = RequestParser(), Beginnings(100, 100)

    def found(request: ParsedRequest, kind: str = "kind") -> Filed | None:
        return beginnings.find(kind, request.request.body)[0]

    def is_filed(request: ParsedRequest) -> bool:
        filed = found(request)
        return filed is not None and filed.content is request

    first, other = [await parsed(parser, [*ALIKE, user(name)]) for name in ("first", "other")]
    longer = await parsed(parser, [*ALIKE, user("first"), says("ok"), user("go on")])
    beginnings.put("kind", first, 40, None, None)
    beginnings.put("kind", other, 40, found(first), first.conversation)
    beginnings.put("kind", longer, 60, found(longer), first.conversation)
    assert is_filed(other)
    assert not is_filed(first)
    beginnings.put("kind", first, 60, None, None)
    assert beginnings.find("kind", json.dumps({"model": "x"}).encode() * 10) == (None, False)
    assert is_filed(first)
    assert not is_filed(longer)
    assert found(longer, "other kind") is None


@pytest.fixture
def _no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """All requests but the newest are packed."""
    monkeypatch.setattr(request_parser, "_UNPACKED_BYTES", 1)


async def packed(parser: RequestParser) -> list[Filed]:
    """The packed requests, once none is to be packed."""
    while parser._packing is not None:
        await asyncio.wait([parser._packing])
    return [*parser._requests._packed.requests.values()]


@pytest.mark.usefixtures("_no_room")
async def test_what_is_unpacked_is_what_was_packed() -> None:
    parser, talk = (
        RequestParser(),
        [*ALIKE, user("Task"), *runs("ls", "a.py\nb.py\nc.py"), says("Done."), user("More?")],
    )
    before = await parsed(parser, talk)
    await parsed(parser, [system("Another."), user("Task")])
    (filed,) = await packed(parser)
    assert isinstance(filed.content, PackedRequest)
    assert filed.size < len(before.request.body)
    after = filed.content.unpacked(DIALECTS["openai_chat"])
    assert after.conversation == before.conversation
    assert replace(after.request, members={}) == replace(before.request, members={}, shared=0)


@pytest.mark.usefixtures("_no_room")
async def test_e1_conversations_that_were_packed_go_on_as_those_that_were_not(
    store: CachedStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def in_turn(count: int) -> list[tuple[object, ...]]:
        """What is sent of so many conversations in turn, and what it says of the prefix."""
        bench, sent = Bench(store), list[tuple[object, ...]]()
        for turn in range(6, 14):
            for number in range(count):
                body = request(turn).body.replace(b"waypost", b"waypost%d" % number)
                planned = await bench.plan(turn, body=body)
                sent.append((number, rendered_body(planned), planned.plan.edits, bench.send(planned)))
                assert turn == 6 or planned.context.received.request.shared
        assert bool(await packed(bench.planner._parser)) == (count > 1)
        return sent

    together = await in_turn(3)
    monkeypatch.setattr(request_parser, "_UNPACKED_BYTES", 2**30)
    store._served = ServedHistories()
    assert [each for each in together if each[0] == 0] == await in_turn(1)


@pytest.mark.usefixtures("_no_room")
async def test_two_requests_at_once_unpack_one_conversation() -> None:
    parser, talk = RequestParser(), [*ALIKE, user("Task"), says("Done.")]
    await parsed(parser, talk)
    await parsed(parser, [system("Another."), user("Task")])
    assert len(await packed(parser)) == 1
    branches = [parsed(parser, [*talk, user(f"Go on with {n}")]) for n in range(2)]
    assert [each.request.shared for each in await asyncio.gather(*branches)] == [len(talk)] * 2


@pytest.mark.usefixtures("_no_room")
async def test_e1_a_request_that_is_packed_while_another_continues_it_is_still_continued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parser, talk, longer = RequestParser(), [*ALIKE, user("Task")], [*ALIKE, user("Task"), says("ok"), user("Go on.")]
    await parsed(parser, talk)
    split = RequestParser._parsed

    async def slowly(self: RequestParser, *given: Any, **more: Any) -> Any:
        (filed,) = self._requests._parsed.requests.values()
        self._requests.pack(filed, PackedRequest.of(filed))
        return await split(self, *given, **more)

    monkeypatch.setattr(RequestParser, "_parsed", slowly)
    assert (await parsed(parser, longer)).request.shared == len(talk)
    assert len(parser._requests._parsed.requests) == 1
    assert not parser._requests._packed.requests


async def test_t6_among_many_requests_that_end_alike_little_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    parser, earlier, again = RequestParser(), Beginnings(2**40, 2**40), user("a" * 60)
    for count in range(1, 200):
        request = await parsed(parser, [user("a" * 10_000 + "b" + "a" * 10_000), *[again] * count])
        earlier.put("kind", request, 1, None, None)
    for filed in [*earlier._parsed.requests.values()]:
        earlier.pack(filed, PackedRequest.of(filed))
    body, lengths = body_of([user("a" * 20_001), *[again] * 250]), list[int]()

    def counted(view: memoryview) -> int:
        lengths.append(len(view))
        return crc32(view)

    monkeypatch.setattr("proxy.kernel.beginnings.crc32", counted)
    assert earlier.find("kind", body) == (None, False)
    assert len(lengths) == len(set(lengths)) > 100  # no checksum twice
    lengths.clear()
    monkeypatch.setattr("proxy.kernel.beginnings._COMPARED", 100_000)
    assert earlier.find("kind", body) == (None, False)
    assert 0 < sum(lengths) <= 100_000 + len(body)


async def test_x10_of_made_up_credentials_one_large_body_is_read_at_once_and_others_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parser, reading, most = RequestParser(), list[bool](), 0
    real, go_on = request_parser.in_thread, asyncio.Event()

    async def noted(work: Any, *parts: Any) -> Any:
        nonlocal most
        is_made_up = not parts[:1] or b"made up" in parts[0]
        reading.append(is_made_up)
        most = max(most, sum(reading))
        if is_made_up:
            await go_on.wait()
        result = await real(work, *parts)
        reading.remove(is_made_up)
        return result

    monkeypatch.setattr(request_parser, "in_thread", noted)
    talks = [[user(f"made up {at} " + "word " * 50_000)] for at in range(4)]
    made_up = [asyncio.create_task(parsed(parser, talk, is_accepted=False)) for talk in talks]
    async with asyncio.timeout(10):
        await parsed(parser, [user("word " * 20_000), says("yes"), user("on")])
        await parsed(parser, [user("word " * 20_000), says("first")], is_accepted=False)
        assert not any(task.done() for task in made_up)
        go_on.set()
        await asyncio.gather(*made_up)
    assert most == 1
