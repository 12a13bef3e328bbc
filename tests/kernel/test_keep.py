"""V9: what is to stay as it is, said by a setting, a rule and a request."""

import json
from typing import Any

import pytest

from proxy.config import ConfigurationError, Settings
from proxy.identity.who import Identity
from proxy.kernel.receive import options_of
from proxy.requests import RequestOptions
from tests.kit.running import Start
from tests.kit.settings import settings_with
from tests.kit.stage import Stage, ends, moved, working
from tests.kit.wire import APIS

KEEP = "x-narrows-keep"
NOBODY = Identity("", "t", "o")
OPTIONS = RequestOptions("on", keep=("*.sql", "bash"))


@pytest.mark.parametrize(("model", "expected"), [("a", ("*.sql", "bash", "read_file")), ("b", ("*.sql", "bash"))])
def test_a_request_adds_to_what_its_rule_says(model: str, expected: tuple[str, ...]) -> None:
    rules: Any = ({"model": "a", "keep": ["read_file", "bash", " bash"]},)
    assert options_of(OPTIONS, Settings(rules=rules), "openai_chat", NOBODY, model).keep == expected


async def test_a_header_is_read_in_every_api_and_goes_no_further(narrows: Start) -> None:
    setup = await narrows(keep=("*.py",))
    for api in APIS:
        url = setup.url.removesuffix("/v1") + api.path
        headers = [(KEEP, " read_file , ,*.sql"), (KEEP, "text:für ACME")]
        async with setup.client.post(url, data=api.body, headers=headers):
            pass
    assert {noted.client_request.options.keep for noted in setup.compaction.seen} == {
        ("*.sql", "read_file", "text:für ACME")
    }
    forwarded = {name.lower() for request in setup.upstream.seen for name, _ in request.headers}
    assert not [name for name in forwarded if name.startswith("x-narrows")]


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        ("text:abc", "'text:abc' is too short; a text needs 4 characters or more"),
        ("a" * 257, "has 257 characters; give at most 256"),
        (",".join(f"a{i}" for i in range(33)), "33 patterns are too many; give at most 32"),
    ],
)
async def test_patterns_that_cannot_be_meant_are_refused(narrows: Start, value: str, advice: str) -> None:
    setup = await narrows()
    for api in APIS:
        async with setup.client.post(
            setup.url.removesuffix("/v1") + api.path, data=api.body, headers={KEEP: value}
        ) as reply:
            assert reply.status == 400
            message = (await reply.json())["error"]["message"]
            assert message.startswith("The header x-narrows-keep: ")
            assert advice in message
    with pytest.raises(ConfigurationError, match="keep"):
        settings_with([f"--keep={json.dumps(value.split(','))}"])
    assert setup.upstream.seen == []


@pytest.mark.usefixtures("patient")
async def test_v9_s1_what_is_named_in_mid_conversation_comes_back_and_stays_in_every_replica(stage: Stage) -> None:
    session = working(10)
    first, second = await stage.start(), await stage.start()
    keep = (KEEP, "bash")
    before = [await stage.ask(first, session[:end]) for end in ends(session)[:6]]
    results = [m["content"] for m in session[: ends(session)[5]] if m["role"] == "tool"]
    assert any(text not in sent_texts(before[-1]) for text in results)
    after = [await stage.ask(first, session[:end], keep) for end in ends(session)[6:]]
    assert [exchange.prefix for exchange in after] == [
        "checkpoint:config",
        "extended",
        "extended",
        "extended",
        "extended",
    ]
    elsewhere = [await stage.ask(second, session[:end], keep) for end in ends(session)[6:]]
    assert [exchange.sent for exchange in elsewhere] == [exchange.sent for exchange in after]
    for exchange, end in zip(after, ends(session)[6:], strict=True):
        assert {m["content"] for m in session[:end] if m["role"] == "tool"} <= sent_texts(exchange)
    without = await stage.ask(first, session[: ends(session)[-1]])
    assert without.prefix == "checkpoint:config"
    assert len(without.sent) < len(after[-1].sent)
    assert moved([*before, *after, without]) == []


@pytest.mark.usefixtures("patient")
async def test_v9_s1_with_a_wiped_store_what_was_named_all_along_is_sent_the_same(stage: Stage) -> None:
    session = working(9)
    app = await stage.start(keep=("*.py", "text:passed"))
    grown = await stage.grow(app, session)
    stage.path = stage.path.with_name("empty.db")
    again = await stage.ask(await stage.start(keep=("text:passed", "*.py", "*.py")), session[: ends(session)[-1]])
    assert again.sent == grown[-1].sent
    assert len(again.sent) < len(again.given)
    assert moved(grown) == []


def sent_texts(exchange: Any) -> set[str]:
    return {message["content"] for message in exchange.messages if message["role"] == "tool"}
