"""Who is let in with which key, what it may ask, and what becomes of the key."""

import json
import re
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any

import anthropic
import openai
import pytest

from proxy.addons.access.keys import digest_of, is_sound, new_key
from proxy.config import KeyRow, Settings
from proxy.config.rules import KEY_SHAPE
from proxy.errors import ApiError
from proxy.identity.credential import is_allowed
from proxy.identity.who import check_path
from proxy.kernel.wire.downstream import ID_HEADER
from tests.kit.running import Running, Start

BODY: Any = {"model": "gpt-5.4", "messages": [{"role": "user", "content": "hi"}]}
ALICE, BOB = new_key(), new_key()
CHAT, MESSAGES = "/chat/completions", "/messages"


def keys(**rows: dict[str, Any]) -> list[dict[str, Any]]:
    of = {"alice": ALICE, "bob": BOB}
    return [{"name": name, "sha256": digest_of(of[name]), **row} for name, row in rows.items()]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def ask(
    setup: Running, headers: dict[str, str], body: Any = BODY, path: str = CHAT, method: str = "POST"
) -> tuple[int, Any, Any]:
    """The status, the headers and the error, if any."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode() if body else None
    head = {"Content-Type": "application/json", **headers}
    async with setup.client.request(method, setup.url + path, data=data, headers=head) as reply:
        content = await reply.json(content_type=None)
        return reply.status, reply.headers, content.get("error") if isinstance(content, dict) else None


def test_a_key_is_told_from_what_looks_like_one() -> None:
    made = [new_key() for _ in range(200)]
    assert len(set(made)) == 200
    assert all(is_sound(key) and KEY_SHAPE.fullmatch(key) for key in made)
    for at in range(4, len(ALICE)):
        assert not is_sound(ALICE[:at] + ("1" if ALICE[at] != "1" else "2") + ALICE[at + 1 :])
    assert not any(is_sound(other) for other in (ALICE[:-1], ALICE + "1", ALICE.upper(), "", "nrw_"))


@pytest.mark.parametrize("header", ["Authorization", "api-key", "x-api-key", "x-narrows-key"])
async def test_x4_a_key_is_read_where_clients_put_one_and_never_goes_upstream(narrows: Start, header: str) -> None:
    setup = await narrows(auth="keys", keys=keys(alice={}))
    value = f"Bearer {ALICE}" if header == "Authorization" else ALICE
    for path, method in ((CHAT, "POST"), ("/models", "GET"), ("/embeddings", "POST")):
        head = {header: value, "x-copy": f"key={ALICE}", "x-other": "stays"}
        assert (await ask(setup, head, BODY if method == "POST" else None, path, method))[0] == 200
        received = setup.upstream.seen[-1]
        assert (ALICE in str(received.headers), received.one("x-other")) == (False, "stays")
    client_request = setup.compaction.seen[0].client_request
    assert (client_request.sender.tenant, ALICE in repr(client_request)) == ("alice", False)


@pytest.mark.parametrize("query", ["?api_key={}", "?key=%6erw_{:.40}"])
async def test_x4_a_key_in_the_url_goes_nowhere(narrows: Start, query: str) -> None:
    setup = await narrows(auth="both", keys=keys(alice={}))
    path = CHAT + query.format(ALICE if "api_key" in query else ALICE[4:])
    for head in (bearer("sk-own"), {**bearer("sk-own"), "x-narrows-key": ALICE}):
        status, _, error = await ask(setup, head, path=path)
        assert (status, error["code"], ALICE in str(error)) == (401, "invalid_api_key", False)
    basic = b64encode(f"{ALICE}:".encode()).decode()
    status, _, error = await ask(setup, {"Authorization": f"Basic {basic}"})
    assert (status, error["code"]) == (401, "invalid_api_key")
    assert not setup.upstream.seen


async def test_x4_beside_a_key_the_clients_own_credential_goes_upstream(narrows: Start) -> None:
    setup = await narrows(auth="both", keys=keys(alice={"tenant": "team"}))
    for own in ("sk-one", "sk-two"):
        assert (await ask(setup, {"x-narrows-key": ALICE, **bearer(own)}))[0] == 200
        assert setup.upstream.seen[-1].one("Authorization") == f"Bearer {own}"
    first, second = (noted.client_request for noted in setup.compaction.seen)
    assert first.sender == second.sender
    assert first.sender.tenant == "team"
    assert first.proof.auth == {"Authorization": "Bearer sk-one"}
    await ask(setup, {"x-narrows-key": ALICE, **bearer("sk-ant-oat01-sign-in")})
    await ask(setup, bearer(ALICE))
    signed_in, alone = (noted.client_request for noted in setup.compaction.seen[2:])
    assert [first.proof.is_plain_key, signed_in.proof.is_plain_key, alone.proof.is_plain_key] == [True, False, True]
    assert alone.proof.auth == {}
    assert is_allowed(alone.sender.credential, ())
    assert not is_allowed("sk-one", ())


@pytest.mark.parametrize("auth", ["keys", "both"])
@pytest.mark.parametrize(
    ("headers", "words"),
    [
        (bearer(new_key()), "unknown here"),
        (bearer(ALICE[:-1]), "mistyped"),
        (bearer("nrw_"), "mistyped"),
        ({"x-narrows-key": "sk-something"}, "mistyped"),
        (bearer(BOB), "expired at 2026-01-31T12:00:00+00:00"),
        ({}, "send a key of this gateway"),
        (bearer("sk-own"), "send a key of this gateway"),
    ],
    ids=["unknown", "cut", "empty", "other", "expired", "none", "foreign"],
)
async def test_who_has_no_key_that_counts_is_refused_in_the_words_of_the_api(
    narrows: Start, auth: str, headers: dict[str, str], words: str
) -> None:
    setup = await narrows(auth=auth, keys=keys(alice={}, bob={"expires": "2026-01-31T13:00:00+01:00"}))
    is_let_in = auth == "both" and "send a key" in words
    for path, kind in ((CHAT, "invalid_request_error"), (MESSAGES, "authentication_error"), ("/models", "")):
        status, head, error = await ask(setup, headers, path=path)
        assert status == (200 if is_let_in else 401)
        if not is_let_in:
            assert words in error["message"]
            assert kind in ("", error["type"])
            assert (error.get("code") or error["details"]["error_code"]) == "invalid_api_key"
            assert (head["x-should-retry"], head["WWW-Authenticate"]) == ("false", "Bearer")
            assert not any(key in str(error) for key in headers.values())
    assert len(setup.upstream.seen) == (3 if is_let_in else 0)


async def test_a_new_key_of_the_same_name_has_what_the_old_one_had(narrows: Start) -> None:
    owners = []
    for key in (ALICE, BOB):
        row = {"name": "alice", "sha256": digest_of(key)}
        setup = await narrows(auth="keys", keys=[row], tenant_secret="s")
        assert (await ask(setup, bearer(key)))[0] == 200
        owners.append(setup.compaction.seen[0].client_request.sender.owner)
    assert len(set(owners)) == 1


async def test_a_page_of_our_own_knows_a_key_and_refuses_a_wrong_one(narrows: Start) -> None:
    setup = await narrows(auth="both", keys=keys(alice={}), real=True)
    page = setup.url.removesuffix("/v1") + "/narrows/usage"
    statuses = []
    for headers in (bearer(ALICE), bearer(new_key()), bearer("sk-own"), {}):
        async with setup.client.get(page, headers={**headers, "X-Forwarded-For": "203.0.113.9"}) as reply:
            statuses.append(reply.status)
    assert statuses == [200, 401, 200, 403]


async def test_pages_for_supervisors_need_no_key(narrows: Start) -> None:
    setup = await narrows(auth="keys", keys=keys(alice={}))
    for page in ("/healthz", "/readyz"):
        async with setup.client.get(setup.url.removesuffix("/v1") + page, headers=bearer("nrw_wrong")) as reply:
            assert reply.status == 200


async def test_both_sdks_raise_what_they_have_for_it_and_ask_once(narrows: Start) -> None:
    setup = await narrows(auth="keys", keys=keys(alice={"models": ["gpt-5*"]}))
    base = setup.url.removesuffix("/v1")
    messages: Any = BODY["messages"]
    refused: list[type[Exception]] = []
    for key in (new_key(), ALICE):
        async with (
            openai.AsyncOpenAI(base_url=setup.url, api_key=key) as one,
            anthropic.AsyncAnthropic(base_url=base, api_key=key) as other,
        ):
            for asking in (
                one.chat.completions.create(model="o3", messages=messages),
                other.messages.create(model="claude-sonnet-5", messages=messages, max_tokens=9),
            ):
                with pytest.raises(Exception, match=r"No access|may use") as error:
                    await asking
                refused.append(error.type)
    assert refused[:2] == [openai.AuthenticationError, anthropic.AuthenticationError]
    assert refused[2:] == [openai.PermissionDeniedError, anthropic.PermissionDeniedError]
    assert not setup.upstream.seen


@pytest.mark.parametrize(
    ("body", "path", "status"),
    [
        (b'{"model": "gpt-5.4-mini"}', CHAT, 200),
        (b'{"model": "o3"}', CHAT, 403),
        (b'{"model": "gpt-5.4", "model": "o3"}', CHAT, 403),
        (b'{"model": "gpt-5.4", "Model": "o3"}', CHAT, 403),
        (b'{"messages": []}', CHAT, 403),
        (b"no json", CHAT, 403),
        (b'{"model": "gpt-5.4-embed"}', "/embeddings", 200),
        (b'{"model": "o3"}', "/embeddings", 403),
        (b'{"requests": [{"params": {"model": "gpt-5.4"}}]}', "/messages/batches", 403),
        (b"", "/files", 200),
    ],
)
async def test_a_key_asks_its_models_and_no_others(narrows: Start, body: bytes, path: str, status: int) -> None:
    setup = await narrows(auth="keys", keys=keys(alice={"models": ["gpt-5*"]}))
    answered, _, error = await ask(setup, bearer(ALICE), body, path, "POST" if body else "GET")
    assert answered == status
    if status == 403:
        assert "gpt-5*" in error["message"]
        assert not setup.upstream.seen
    else:
        assert setup.upstream.seen[-1].body == body


@pytest.mark.parametrize(("deployment", "status"), [("gpt-5.4", 200), ("o3", 403)])
@pytest.mark.parametrize("call", ["chat/completions", "embeddings"])
async def test_a_key_asks_no_other_model_by_path(narrows: Start, deployment: str, status: int, call: str) -> None:
    setup = await narrows(auth="keys", keys=keys(alice={"models": ["gpt-5*"]}))
    url = f"{setup.url.removesuffix('/v1')}/openai/deployments/{deployment}/{call}"
    async with setup.client.post(url, json={"model": "gpt-5.4", "messages": []}, headers=bearer(ALICE)) as reply:
        assert (reply.status, len(setup.upstream.seen)) == (status, int(status == 200))


OTHERS = {
    "OpenRouter": ({"models": ["gpt-5", "claude-opus-5-5"]}, 403),
    "OpenRouter, capitals": ({"Models": ["claude-opus-5-5"]}, 403),
    "OpenRouter, whatever it likes": ({"route": "fallback"}, 403),
    "OpenRouter, a preset": ({"preset": "dear"}, 403),
    "OpenRouter, its router": ({"plugins": [{"id": "auto-router", "allowed_models": ["anthropic/*"]}]}, 403),
    "LiteLLM, names": ({"fallbacks": ["claude-opus-5-5"]}, 403),
    "LiteLLM, objects": ({"fallbacks": [{"model": "claude-opus-5-5", "messages": [{"content": "hi"}]}]}, 403),
    "LiteLLM, by name": ({"fallbacks": [{"gpt-5": ["claude-opus-5-5"]}]}, 403),
    "LiteLLM, long prompts": ({"context_window_fallbacks": [{"gpt-5": ["claude-opus-5-5"]}]}, 403),
    "LiteLLM, several at once": ({"model": "gpt-5,claude-opus-5-5"}, 403),
    "Vercel": ({"providerOptions": {"gateway": {"models": ["claude-opus-5-5"]}}}, 403),
    "orq.ai": ({"orq": {"fallbacks": [{"model": "claude-opus-5-5"}]}}, 403),
    "LiteLLM, a configuration": ({"user_config": {"model_list": [{"model_name": "gpt-5"}]}}, 403),
    "Anthropic, an advisor": (
        {"tools": [{"type": "advisor_20260301", "name": "advisor", "model": "claude-opus-5-5"}]},
        403,
    ),
    "Responses, images": ({"tools": [{"type": "image_generation", "model": "gpt-image-2"}]}, 403),
    "in a body of its own": ({"extra_body": {"model": "claude-opus-5-5"}}, 403),
    "not readable": ({"fallbacks": 5}, 403),
    "too long": ({"fallbacks": ["gpt-5"] * 2_000}, 403),
    "its own ones": ({"models": ["gpt-5", "gpt-5.4"], "fallbacks": [{"gpt-5": ["gpt-5.4"]}, {"model": "gpt-5"}]}, 200),
    "none": ({"models": None, "fallbacks": [], "route": None, "providerOptions": {"openai": {"store": False}}}, 200),
    "a tool of the provider": ({"tools": [{"type": "advisor_20260301", "name": "advisor", "model": "gpt-5.4"}]}, 200),
    "arguments of a tool": (
        {"tools": [{"type": "function", "name": "f", "parameters": {"properties": {"model": {"type": "string"}}}}]},
        200,
    ),
    "words of the tools": ({"tools": [{"type": "function", "function": {"name": "f", "models": ["x"]}}]}, 200),
}


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize("name", OTHERS)
async def test_x10_a_key_asks_no_other_model_by_fields_that_route_elsewhere(
    narrows: Start, name: str, path: str
) -> None:
    setup = await narrows(auth="keys", keys=keys(alice={"models": ["gpt-5*"]}))
    fields, status = OTHERS[name]
    body = {"model": "gpt-5", "messages": [{"role": "user", "content": "hi"}], **fields}
    async with setup.client.post(f"{setup.url}/{path}", json=body, headers=bearer(ALICE)) as reply:
        assert reply.status == status
        assert ("model_not_allowed" in await reply.text()) == (status == 403)
    assert len(setup.upstream.seen) == (status == 200)


async def test_x10_a_key_asks_no_other_model_by_headers_that_route_elsewhere(narrows: Start) -> None:
    body = {"model": "gpt-5", "messages": [{"role": "user", "content": "hi"}]}
    setup = await narrows(auth="keys", keys=keys(alice={"models": ["gpt-5*"]}))
    for path in ("chat/completions", "completions"):
        headers = {**bearer(ALICE), "X-Portkey-Config": "pc-dear"}
        async with setup.client.post(f"{setup.url}/{path}", json=body, headers=headers) as reply:
            assert reply.status == 403
    assert not setup.upstream.seen


async def test_where_no_keys_are_taken_one_of_another_gateway_passes(narrows: Start) -> None:
    setup = await narrows(trusted_proxies=["127.0.0.1"])
    assert (await ask(setup, bearer(ALICE)))[0] == 200
    assert setup.upstream.seen[0].one("Authorization") == f"Bearer {ALICE}"
    assert setup.compaction.seen[0].client_request.proof.auth == bearer(ALICE)


async def test_a_key_lessens_the_mode_and_adds_presets(narrows: Start) -> None:
    rows = keys(alice={"mode": "observe", "presets": ["chat", "deep"]}, bob={})
    setup = await narrows(auth="keys", keys=rows, request_presets=["gentle"])
    for headers in ({}, {"x-narrows": "on", "x-narrows-preset": "chat"}, {"x-narrows": "off"}):
        assert (await ask(setup, {**bearer(ALICE), **headers}))[0] == 200
    served = [noted.client_request.options[:2] for noted in setup.compaction.seen]
    assert served == [("observe", ""), ("observe", "chat"), ("off", "")]
    assert (await ask(setup, {**bearer(BOB), "x-narrows-preset": "gentle"}))[0] == 200
    assert (await ask(setup, {**bearer(BOB), "x-narrows-preset": "chat"}))[0] == 400


async def test_a_rule_names_a_client_by_its_key(narrows: Start) -> None:
    rules = [{"key_sha256": digest_of(ALICE), "mode": "off"}]
    setup = await narrows(auth="keys", keys=keys(alice={}, bob={}), rules=rules)
    for key in (ALICE, BOB):
        assert (await ask(setup, bearer(key)))[0] == 200
    assert [noted.client_request.options.mode for noted in setup.compaction.seen] == ["off", "on"]


@pytest.mark.parametrize(
    ("method", "rest", "passes"),
    [
        ("GET", "/models", True),
        ("GET", "/models/gpt-5.4?x=1", True),
        ("POST", "/embeddings", True),
        ("POST", "/audio/transcriptions", True),
        ("GET", "/responses/resp_0123456789abcdef0123", True),
        ("POST", "/responses/resp_0123456789abcdef0123/cancel", True),
        ("GET", "/responses/", False),
        ("GET", "/files", False),
        ("GET", "/chat/completions", False),
        ("DELETE", "/models/ft:gpt-5:me", False),
        ("POST", "/batches", False),
        ("POST", "/embeddings/../files", False),
        ("GET", "/organization/admin_api_keys", False),
    ],
)
def test_x5_what_others_have_in_a_shared_account_is_for_no_key(method: str, rest: str, passes: bool) -> None:
    if passes:
        check_path(method, rest)
    else:
        with pytest.raises(ApiError, match="share one account"):
            check_path(method, rest)


# --- behind another gateway ---

PEOPLE = ["X-OpenWebUI-User-Id", "x-litellm-user_api_key_user_id"]


@pytest.mark.parametrize("trusted", ["127.0.0.0/8", "10.0.0.0/8"])
@pytest.mark.parametrize("auth", ["passthrough", "keys"])
async def test_x5_a_trusted_gateway_says_who_asks_and_nobody_else_does(narrows: Start, trusted: str, auth: str) -> None:
    more: Any = {"auth": auth, "keys": keys(alice={})} if auth == "keys" else {}
    setup = await narrows(trusted_proxies=[trusted], tenant_headers=PEOPLE, tenant_secret="s", **more)
    credential = bearer(ALICE if auth == "keys" else "sk-shared")
    ids = []
    for head in (
        {PEOPLE[0]: "ann", "x-request-id": "from-litellm"},
        {PEOPLE[1].upper(): "ben@example.com", PEOPLE[0]: " ", "x-request-id": 129 * "x"},
        {PEOPLE[0]: "ann", "X-Forwarded-For": "10.0.0.1"},
        {},
    ):
        status, answer, _ = await ask(setup, {**credential, **head})
        assert status == 200
        ids.append(answer[ID_HEADER])
    assert [each == "from-litellm" for each in ids] == [trusted.startswith("127"), False, False, False]
    assert max(map(len, ids)) == 36
    one, other, elsewhere, nobody = [noted.client_request for noted in setup.compaction.seen]
    base = "alice" if auth == "keys" else "local"
    assert nobody.sender.tenant == base
    assert ("/ann" in elsewhere.sender.tenant) == trusted.startswith("127"), "no header makes anybody trusted"
    if trusted.startswith("127"):
        assert one.sender.tenant == f"{base}/ann"
        assert other.sender.tenant.startswith(f"{base}/~")
        assert "ben" not in repr(other)
        assert len({each.sender.owner for each in (one, other, nobody)}) == 3
    else:
        assert {(each.sender.tenant, each.sender.owner) for each in (one, other)} == {(base, nobody.sender.owner)}
    passed_on = {name.lower() for asked in setup.upstream.seen for name, _ in asked.headers}
    assert passed_on.isdisjoint(map(str.lower, PEOPLE))


# --- what the settings refuse ---


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"keys": keys(alice={})}, "they do not count while `auth` is passthrough"),
        ({"auth": "keys", "keys": [*keys(alice={}), *keys(alice={})]}, "there is a key 'alice' above"),
        ({"auth": "keys", "keys": [*keys(alice={}), {**keys(alice={})[0], "name": "b"}]}, "has the same key"),
        ({"auth": "keys", "keys": keys(alice={"presets": ["chta"]})}, "did you mean chat?"),
        ({"auth": "keys", "keys": keys(alice={"upstreams": ["azure"]})}, "there is no upstream 'azure'"),
        ({"auth": "keys", "keys": keys(alice={"expires": "2026-01-31T12:00:00"})}, "timezone"),
        ({"auth": "keys", "keys": [{"name": "local", "sha256": 64 * "a"}]}, "local is the tenant of this machine"),
        ({"trusted_proxies": ["10.0.0.1/8"]}, "is no network"),
        ({"trusted_proxies": ["10.0.0.1"], "tenant_headers": ["Authorization"]}, "no header that names a person"),
        ({"tenant_headers": ["x-user"]}, "name networks in `trusted_proxies`"),
    ],
)
def test_what_cannot_be_meant_is_refused_when_it_is_loaded(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        Settings(upstream="http://127.0.0.1:1", **settings)


def test_a_key_ends_at_its_time_and_not_before() -> None:
    until = datetime(2027, 1, 31, tzinfo=UTC)
    row = KeyRow(name="a", sha256=64 * "a", expires=until)
    assert [row.has_expired(until + timedelta(seconds=s)) for s in (-1, 0, 1)] == [False, True, True]
