"""A small body that holds too much is relayed as it came, in each API, and nobody waits for it."""

import gzip
import json
from typing import Any

import pytest

from policies.dialects import splitting
from tests.kit.running import Start
from tests.kit.upstream import post, says, whole
from tests.kit.wire import EACH, Api

MANY = 1_000_000


def bomb(api: Api, key: str, value: bytes) -> bytes:
    """A request of the API with one member put at its end."""
    request = {name: value for name, value in api.request.items() if name != key}
    return json.dumps(request).encode()[:-1] + b',"' + key.encode() + b'":' + value + b"}"


def bombs(api: Api) -> dict[str, bytes]:
    history = "input" if api.dialect == "openai_responses" else "messages"
    many = b",".join([b"{}"] * MANY)
    return {
        "messages": bomb(api, history, b"[" + many + b"]"),
        "parts": bomb(api, history, b'[{"role":"user","content":[' + many + b"]}]"),
        "calls": bomb(api, history, b'[{"role":"assistant","tool_calls":[' + many + b"]}]"),
        "tools": bomb(api, "tools", b"[" + many + b"]"),
        "parameters": bomb(api, "x", b"1," + b",".join(b'"%d":1' % n for n in range(MANY // 10))),
    }


@EACH
@pytest.mark.parametrize("what", ["messages", "parts", "calls", "tools", "parameters"])
async def test_t6_a_bomb_is_relayed_untouched_and_nothing_of_it_is_listed(
    narrows: Start, monkeypatch: pytest.MonkeyPatch, api: Api, what: str
) -> None:
    def listed(*args: Any) -> None:
        raise AssertionError("the body is looked through in full")

    monkeypatch.setattr(splitting, "members", listed)
    monkeypatch.setattr(splitting, "items", listed)
    if what == "parameters":  # else the members are few, and the decoder passes over what is in them
        monkeypatch.setattr("proxy.kernel.receive.members", listed)
    rules = [{"model": "none", "mode": "off"}]  # so that the model is asked for before anything else
    setup = await narrows(says(whole(b'{"the upstream":"answers"}')), real=True, rules=rules)
    packed = gzip.compress(bombs(api)[what], mtime=0)
    reply = await setup.raw(post(packed, "Content-Encoding: gzip", target=api.path), seconds=30)
    head, _, body = reply.partition(b"\r\n\r\n")
    assert body == b'{"the upstream":"answers"}'
    assert [asked.body for asked in setup.upstream.seen] == [packed]
    headers = head.lower().split(b"\r\n")
    assert b"x-narrows-mode: untouched" in headers
    assert b"x-narrows-prefix: bypassed" in headers
    assert b"x-narrows-warning: too-many-" + what.encode() in headers
    assert b'narrows_too_many_total{what="%s"} 1.0' % what.encode() in setup.app.telemetry.metrics.page()


@EACH
async def test_t6_one_below_the_limit_is_worked_on(narrows: Start, monkeypatch: pytest.MonkeyPatch, api: Api) -> None:
    monkeypatch.setattr(splitting, "LIMITS", {**splitting.LIMITS, "messages": 3})
    setup = await narrows(real=True)
    history = "input" if api.dialect == "openai_responses" else "messages"
    for count, warned in ((3, False), (4, True)):
        request = {**api.request, history: [{"role": "user", "content": "hi"}] * count}
        reply = await setup.raw(post(json.dumps(request).encode(), target=api.path))
        assert (b"x-narrows-warning: too-many-messages" in reply.lower()) is warned
        assert (b"x-narrows-prefix: bypassed" in reply.lower()) is warned
