"""Conversations that begin alike go on side by side: what was read of each is not read again."""

import asyncio
import json
from typing import Any
from zlib import crc32

import pytest
from msgspec.structs import replace

from policies.dialects import DIALECTS
from proxy.kernel import understand
from proxy.kernel.prepare import rendered_body
from proxy.kernel.understand import RequestParser
from proxy.memory import Key
from proxy.memory.cached import CachedStore
from proxy.memory.conversation import Branch, Conversations, LiveConversation, PackedRequest, ParsedRequest, weight_of
from tests.kernel.test_planning import Bench, request
from tests.kernel.test_planning import store as store
from tests.kit.histories import Json, body_of
from tests.kit.talk import runs, says, system, user

ALIKE = [system("Be brief. " * 2_000), user("Look around."), says("Where?")]


def parser_of(most: int = 2**40, most_awake: int = 2**40) -> RequestParser:
    return RequestParser(Conversations(most, most_awake))


def shelves(conversations: Conversations) -> tuple[list[LiveConversation], list[LiveConversation]]:
    """The conversations as they are used, and those that rest."""
    return [*conversations._awake.by_key.values()], [*conversations._resting.by_key.values()]


async def settled(conversations: Conversations) -> list[LiveConversation]:
    """The conversations that rest, once no more are to."""
    while conversations._packing is not None:
        await asyncio.wait([conversations._packing])
    return shelves(conversations)[1]


async def parsed(parser: RequestParser, messages: list[Json], **more: Any) -> ParsedRequest:
    result = await parser.parse("openai_chat", body_of(messages), "tenant", **more)
    assert result is not None
    return result


async def test_many_that_begin_alike_are_each_continued() -> None:
    parser, talks = parser_of(), [[*ALIKE, user(f"Task {i}")] for i in range(40)]
    for talk in talks:
        await parsed(parser, talk)
    for turn in range(3):
        for talk in talks:
            before = len(talk)
            talk += runs(f"ls {turn}", "a.py")
            assert (await parsed(parser, talk)).request.shared == before


async def test_a_client_that_writes_its_newest_messages_anew_is_continued_up_to_there() -> None:
    parser, talks = parser_of(), [[*ALIKE, user(f"Task {i}")] for i in range(20)]
    for _ in range(3):
        for talk in talks:
            at = len(talk)
            talk += [*runs("ls", "a.py"), user("Go on.")]
            await parsed(parser, talk)
            talk[-1] = user("Go on now.")
            assert (await parsed(parser, talk)).request.shared == at + 2


async def test_branches_and_what_has_a_name_stay_apart() -> None:
    parser = parser_of()
    stem = [*ALIKE, user("Task"), *runs("ls", "a.py"), says("Done."), user("More?")]
    left, right = [*stem, *runs("cat a", "a"), says("a")], [*stem, *runs("cat b", "b"), says("b")]
    for talk in (left, right):
        await parsed(parser, talk)
    for talk in (left, right):
        assert (await parsed(parser, [*talk, user("Next")])).request.shared == len(talk)
    assert (await parsed(parser, [*left, user("Next")], named="another")).request.shared == 0
    assert (await parsed(parser, [*left, user("Next")], restored=True)).request.shared == 0


async def test_x6_of_a_deleted_conversation_nothing_stays() -> None:
    conversations, keys = Conversations(2**40, 60_000), dict[str | None, Key]()
    parser = RequestParser(conversations)
    for name in ("one", "two", "three", None):
        request = await parsed(parser, [user(f"The secret of {name}. " * 500), says("Yes."), user("On.")], named=name)
        keys[name] = request.key
    await settled(conversations)
    assert all(shelves(conversations))  # some are packed, some are not
    for key in (keys["one"], keys[None]):
        conversations.forget("tenant", key.conversation)
    assert {live.key for shelf in shelves(conversations) for live in shelf} == {keys["two"], keys["three"]}
    conversations.forget("another", None)
    assert any(shelves(conversations))
    conversations.forget("tenant", None)
    assert shelves(conversations) == ([], [])
    assert not conversations._index._by_piece
    assert conversations._awake.size == conversations._resting.size == 0


async def test_what_was_used_least_recently_goes_first_and_what_is_continued_takes_no_room_twice() -> None:
    first, other = [await parsed(parser_of(), [*ALIKE, user(name)], named=name) for name in ("first", "other")]
    longer = await parsed(parser_of(), [*ALIKE, user("first"), says("ok"), user("go on")], named="first")
    conversations = Conversations(10 * longer.size, 2**40)

    def found(request: ParsedRequest, kind: str = "kind") -> Branch | None:
        return conversations.find(kind, request.request.body)[0]

    def is_there(request: ParsedRequest) -> bool:
        branch = found(request)
        return branch is not None and branch.content is request

    conversations.put("kind", first, None, None)
    conversations.put("kind", other, found(first), first.conversation)
    assert is_there(first)
    assert is_there(other)
    conversations.put("kind", longer, found(longer), first.conversation)
    assert conversations.of(first.key).branches == [found(longer)]
    assert conversations.find("kind", json.dumps({"model": "x"}).encode() * 10) == (None, False)
    for number in range(8):
        conversations.put("other", replace(first, key=Key("tenant", f"{number}")), None, None)
        conversations.of(longer.key)
    assert not is_there(other)
    assert is_there(longer)
    assert found(longer, "a third kind") is None


async def test_e1_no_conversation_takes_all_the_room_and_all_together_no_more_than_there_is() -> None:
    most = 40 * (await parsed(parser_of(), [*ALIKE, user("Task 0")])).size
    parser = RequestParser(conversations := Conversations(most, 2**40))
    beside = await parsed(parser, [user("Task"), says("Done.")], named="beside")
    for number in range(40):
        await parsed(parser, [*ALIKE, user(f"Task {number}")], named="shared")
    assert 5 < len(conversations.of(Key("tenant", "shared")).branches) <= 10
    assert conversations.of(beside.key).branches
    for number in range(60):
        await parsed(parser, [*ALIKE, user(f"Task {number}")], named=f"{number}")
    awake, resting = shelves(conversations)
    assert 20 < len(awake + resting) < 40
    assert conversations._awake.size == sum(weight_of(live) for live in awake) <= most


async def test_what_is_unpacked_is_what_was_packed() -> None:
    parser, talk = (
        parser_of(2**40, 1),
        [*ALIKE, user("Task"), *runs("ls", "a.py\nb.py\nc.py"), says("Done."), user("So?")],
    )
    before = await parsed(parser, talk)
    weight = parser._conversations.of(before.key).weight
    await parsed(parser, [system("Another."), user("Task")])
    (live,) = await settled(parser._conversations)
    (branch,) = live.branches
    assert isinstance(branch.content, PackedRequest)
    assert live.weight < weight / 4
    after = branch.content.unpacked(DIALECTS["openai_chat"], live.key)
    assert (after.conversation, after.key) == (before.conversation, before.key)
    assert replace(after.request, members={}) == replace(before.request, members={}, shared=0)


async def test_e1_conversations_that_were_packed_go_on_as_those_that_were_not(store: CachedStore) -> None:
    async def in_turn(count: int, most_awake: int) -> list[tuple[object, ...]]:
        """What is sent of so many conversations in turn, and what it says of the prefix."""
        store.conversations = Conversations(2**40, most_awake)
        bench, sent = Bench(store), list[tuple[object, ...]]()
        for turn in range(6, 14):
            for number in range(count):
                body = request(turn).body.replace(b"waypost", b"waypost%d" % number)
                planned = await bench.plan(turn, body=body, conversation=f"{number}")
                sent.append((number, rendered_body(planned), planned.plan.edits, bench.send(planned)))
                assert turn == 6 or planned.context.received.request.shared
        assert bool(await settled(store.conversations)) == (count > 1)
        return sent

    together = await in_turn(3, 1)
    assert [each for each in together if each[0] == 0] == await in_turn(1, 2**40)


async def test_two_requests_at_once_unpack_one_conversation() -> None:
    parser, talk = parser_of(2**40, 1), [*ALIKE, user("Task"), says("Done.")]
    await parsed(parser, talk)
    await parsed(parser, [system("Another."), user("Task")])
    assert len(await settled(parser._conversations)) == 1
    branches = [parsed(parser, [*talk, user(f"Go on with {n}")]) for n in range(2)]
    assert [each.request.shared for each in await asyncio.gather(*branches)] == [len(talk)] * 2


async def test_e1_a_request_that_is_packed_while_another_continues_it_is_still_continued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parser, talk = RequestParser(conversations := Conversations(2**40, 2**40)), [*ALIKE, user("Task")]
    first, split = await parsed(parser, talk), RequestParser._parsed

    async def slowly(self: RequestParser, *given: Any) -> Any:
        (branch,) = conversations.of(first.key).branches
        branch.content = branch.packed()
        return await split(self, *given)

    monkeypatch.setattr(RequestParser, "_parsed", slowly)
    assert (await parsed(parser, [*talk, says("ok"), user("Go on.")])).request.shared == len(talk)
    (branch,) = conversations.of(first.key).branches
    assert isinstance(branch.content, ParsedRequest)


async def test_t6_among_many_requests_that_end_alike_little_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    parser, earlier, again = parser_of(), Conversations(2**40, 2**40), user("a" * 60)
    for count in range(1, 200):
        request = await parsed(parser, [user("a" * 10_000 + "b" + "a" * 10_000), *[again] * count])
        earlier.put("kind", request, None, None)
    for branch in [branch for live in shelves(earlier)[0] for branch in live.branches]:
        branch.content = branch.packed()
    body, lengths = body_of([user("a" * 20_001), *[again] * 250]), list[int]()

    def counted(view: memoryview) -> int:
        lengths.append(len(view))
        return crc32(view)

    monkeypatch.setattr("proxy.memory.conversation.crc32", counted)
    assert earlier.find("kind", body) == (None, False)
    assert len(lengths) == len(set(lengths)) > 100  # no checksum twice
    lengths.clear()
    monkeypatch.setattr("proxy.memory.conversation._COMPARED", 100_000)
    assert earlier.find("kind", body) == (None, False)
    assert 0 < sum(lengths) <= 100_000 + len(body)


async def test_x10_of_made_up_credentials_one_large_body_is_read_at_once_and_others_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parser, reading, most = parser_of(), list[bool](), 0
    real, go_on = understand.in_thread, asyncio.Event()

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

    monkeypatch.setattr(understand, "in_thread", noted)
    talks = [[user(f"made up {at} " + "word " * 50_000)] for at in range(4)]
    made_up = [asyncio.create_task(parsed(parser, talk, is_accepted=False)) for talk in talks]
    async with asyncio.timeout(10):
        await parsed(parser, [user("word " * 20_000), says("yes"), user("on")])
        await parsed(parser, [user("word " * 20_000), says("first")], is_accepted=False)
        assert not any(task.done() for task in made_up)
        go_on.set()
        await asyncio.gather(*made_up)
    assert most == 1
