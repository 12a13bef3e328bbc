"""Names of conversations that clients send in headers of their own, as recorded; and the protocol of Claude Code."""

import json
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.kit.histories import Json
from tests.kit.running import Start
from tests.kit.stage import Stage, ends, working
from tests.kit.upstream import whole
from tests.kit.wire import APIS

SESSION, AGENT = "0c6b2a2e-5a0e-4b33-9d59-3a1f8f9b7d11", "a4f0c2d19e7b"
CLAUDE = {
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
    "anthropic-version": "2023-06-01",
    "X-Claude-Code-Session-Id": SESSION,
    "x-app": "cli",
    "user-agent": "claude-cli/2.1.142 (external, cli)",
}
OPEN_WEBUI = {
    "X-OpenWebUI-User-Name": "Ada",
    "X-OpenWebUI-User-Id": "3f1c",
    "X-OpenWebUI-User-Email": "ada@example.org",
    "X-OpenWebUI-User-Role": "user",
    "X-OpenWebUI-Chat-Id": "5f1b7c3e",
}
OPENCODE = {"x-session-affinity": "ses_df7d464e4ffe", "x-session-id": "ses_df7d464e4ffe"}
CODEX = {"session-id": "01a2082b-653e", "thread-id": "01a2082b-653e", "originator": "codex_exec"}
NAMED: dict[str, tuple[dict[str, str], Json, str | None]] = {
    "Claude Code": (CLAUDE, {}, SESSION),
    "a sub-agent of Claude Code": (CLAUDE | {"x-claude-code-agent-id": AGENT}, {}, f"{SESSION}:{AGENT}"),
    "Open WebUI": (OPEN_WEBUI, {}, "5f1b7c3e"),
    "opencode": (OPENCODE, {}, "ses_df7d464e4ffe"),
    "Codex, in its body": (CODEX, {"prompt_cache_key": "01a2082b-653e"}, "01a2082b-653e"),
    "a person, who counts more": (CLAUDE | {"x-narrows-conversation": "mine"}, {}, "mine"),
    "a session that is no name": ({"x-claude-code-session-id": "s" * 201}, {}, None),
}


@pytest.mark.parametrize(("headers", "fields", "name"), NAMED.values(), ids=NAMED)
async def test_a_session_that_a_client_names_is_the_conversation(
    narrows: Start, headers: dict[str, str], fields: Json, name: str | None
) -> None:
    setup = await narrows(real=True)
    async with setup.client.post(
        setup.url + "/chat/completions", json=APIS[0].request | fields, headers=headers
    ) as reply:
        assert reply.status == 200
        found = reply.headers["x-narrows-conversation"]
    assert found == name if name else found not in (SESSION, "s" * 201)


async def test_s5_histories_that_share_a_session_are_apart(stage: Stage, tmp_path: Path) -> None:
    app, alone = await stage.start(), await stage.start(store=f"sqlite:///{tmp_path}/alone.db")
    one = working(12, lines=16)
    other = [one[0], {"role": "user", "content": "Make a title."}, *working(12, lines=20)[2:]]
    turns = [
        history[:end]
        for pair in zip_longest(ends(one), ends(other))
        for history, end in zip((one, other), pair, strict=True)
    ]
    apart = [(await stage.ask(alone, turn)).sent for turn in turns]
    together = [await stage.ask(app, turn, ("x-claude-code-session-id", SESSION)) for turn in turns]
    assert [each.sent for each in together] == apart
    assert {each.headers["x-narrows-conversation"] for each in together} == {SESSION}
    assert sum(bool(each.headers["x-narrows-edits"]) for each in together) > 4


async def test_t1_what_claude_code_wants_of_a_gateway_arrives_untouched(narrows: Start) -> None:
    answer = b'{"data": [{"type": "model", "id": "claude-opus-5-5", "display_name": "Opus"}], "has_more": false}'
    setup = await narrows(whole(answer, "Content-Type: application/json"), real=True)
    api = next(each for each in APIS if each.path.endswith("/messages"))
    body = json.dumps(api.request).encode()
    asked = [
        ("POST", "/messages?beta=true"),
        ("POST", "/messages/count_tokens?beta=true"),
        ("GET", "/models?limit=1000"),
    ]
    for method, target in asked:
        data = body if method == "POST" else None
        async with setup.client.request(method, setup.url + target, data=data, headers=CLAUDE) as reply:
            assert await reply.read() == answer
        seen = setup.upstream.seen[-1]
        assert seen.line == f"{method} /v1{target} HTTP/1.1"
        assert {name: seen.one(name) for name in CLAUDE} == CLAUDE


async def test_of_open_webui_the_provider_learns_no_person(narrows: Start) -> None:
    people = [name for name in OPEN_WEBUI if "-User-" in name]
    answer = b'{"any": "thing"}'
    setup = await narrows(
        whole(answer, "Content-Type: application/json"), real=True, trusted_proxies=["127.0.0.1"], tenant_headers=people
    )
    async with setup.client.post(
        setup.url + "/chat/completions", json=APIS[0].request, headers=OPEN_WEBUI | {"Authorization": "Bearer k"}
    ) as reply:
        assert reply.headers["x-narrows-conversation"] == OPEN_WEBUI["X-OpenWebUI-Chat-Id"]
    sent = {name.lower() for name, _ in setup.upstream.seen[-1].headers}
    assert sent.isdisjoint(name.lower() for name in people)
    assert "x-openwebui-chat-id" in sent
