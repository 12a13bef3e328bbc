"""Conversations that begin alike go on side by side: what was read of each is not read again."""

import json
from typing import Any

from proxy.compaction.beginnings import Beginnings
from proxy.compaction.request_parser import RequestParser
from proxy.requests import ParsedRequest
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


async def test_what_was_used_least_recently_goes_first_and_what_is_continued_takes_no_room_twice() -> None:
    parser, beginnings = RequestParser(), Beginnings(100)
    first, other = [await parsed(parser, [*ALIKE, user(name)]) for name in ("first", "other")]
    longer = await parsed(parser, [*ALIKE, user("first"), says("ok"), user("go on")])
    beginnings.put("kind", first, 40, None)
    beginnings.put("kind", other, 40, first)
    beginnings.put("kind", longer, 60, beginnings.find("kind", longer.request.body))
    assert beginnings.find("kind", other.request.body) is other
    assert beginnings.find("kind", first.request.body) is not first
    beginnings.put("kind", first, 60, None)
    assert beginnings.find("kind", json.dumps({"model": "x"}).encode() * 10) is None
    assert beginnings.find("kind", longer.request.body) is first
    assert beginnings.find("other kind", longer.request.body) is None
