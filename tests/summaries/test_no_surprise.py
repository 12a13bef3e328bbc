"""Who pays for a summary, through the whole program: the official SDKs before it, the strict provider behind it."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import anthropic
import openai
import pytest

from proxy.app import App
from proxy.config import Settings
from proxy.console.serve import greeting
from proxy.lab.provider import Received, Send
from tests.kit.histories import Json
from tests.kit.rolling import (  # noqa: F401 - one is a fixture
    PRICED,
    Office,
    is_asked_for_a_summary,
    office_of_a_test,
    summary_header,
    work,
    writes_summaries,
)
from tests.kit.running import compaction_of
from tests.kit.stage import Stage, ends

pytestmark = pytest.mark.usefixtures("patient")

WORK = work(12)
SESSION = [WORK[:end] for end in ends(WORK)]
MESSAGES = {"model": "claude-opus-5-5", "max_tokens": 100, "system": "You are careful."}
SMALL = {"claude-haiku-5-5", "claude-haiku-4-5", "gpt-4o-mini"}
CHEAP = {name: {"input": 1, "output": 1, "read": 0.9, "window": 100_000} for name in ("claude-opus-5-5", "gpt-4o")}
"""To rewrite costs little, so that a summary pays at once; its siblings cost a tenth of it."""
MODELS = {**PRICED, **CHEAP, **{name: {"input": 0.001, "output": 0.001, "window": 100_000} for name in SMALL}}
OAUTH = {"anthropic-beta": "claude-code-20250219,oauth-2025-04-20"}


def claude_messages(turns: int) -> list[Json]:
    """A chat in Anthropic's form."""
    chat: list[Json] = []
    for turn in range(turns):
        chat.append({"role": "user", "content": f"Now step {turn}. " + "First this, and then that. " * 60})
        chat.append({"role": "assistant", "content": f"step {turn} is done. " * 40})
    return [*chat, {"role": "user", "content": "And now?"}]


def unwrapped(text: str) -> str:
    """All on one line, as if no column were aligned."""
    return " ".join(text.split())


async def asked_by_narrows(stage: Stage) -> list[Received]:
    """What the provider was asked that the client did not ask."""
    return [each for each in stage.provider.requests if each.headers.get("User-Agent") == "narrows"]


async def talk(stage: Stage, app: App, client: anthropic.AsyncAnthropic, turns: int = 10) -> list[str]:
    """A chat through Anthropic's SDK; what the replies say of summaries."""
    said = []
    for turn in range(2, turns):
        raw = await client.messages.with_raw_response.create(**MESSAGES, messages=claude_messages(turn))  # type: ignore[arg-type]
        said.append(raw.headers.get("x-narrows-summary", ""))
        await compaction_of(app).maker.settled()
    return said


@pytest.fixture
def claude(stage: Stage) -> Stage:
    """It writes summaries in Anthropic's API."""
    stage.provider.answer = writes_summaries
    return stage


def before(app: App, **options: Any) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=app.base_url.removesuffix("/v1"), max_retries=0, **options)


SETTINGS: Json = {"preset": "plain", "aim": "context", "summary_tokens": 100, "models": MODELS}


async def test_w3_claude_code_makes_no_call_that_it_did_not_make(office: Office, claude: Stage) -> None:
    app = await claude.start(**SETTINGS)
    async with before(app, auth_token="sk-ant-oat01-abc", default_headers=OAUTH) as client:
        said = await talk(claude, app, client)
    assert said == [""] * 8
    assert await asked_by_narrows(claude) == []
    count = app.telemetry.metrics.registry.get_sample_value
    assert count("narrows_summaries_total", {"outcome": "no_credential"}) == 8


async def test_w3_nor_does_it_pay_for_a_summary_for_people(office: Office, claude: Stage) -> None:
    app = await claude.start(**SETTINGS)
    url = app.base_url.removesuffix("/v1") + "/narrows/conversations/c/summary"
    async with before(app, auth_token="sk-ant-oat01-abc", default_headers=OAUTH) as client:
        body = {**MESSAGES, "messages": claude_messages(2)}
        with pytest.raises(anthropic.PermissionDeniedError, match="plain API key"):
            await client.post(url, body=body, cast_to=object)
    assert await asked_by_narrows(claude) == []


async def test_w3_claude_code_may_where_the_settings_say_so(office: Office, claude: Stage) -> None:
    app = await claude.start(**SETTINGS, summary_credential="client-any")
    async with before(app, auth_token="sk-ant-oat01-abc", default_headers=OAUTH) as client:
        assert "adopted" in await talk(claude, app, client)
    assert {each.headers["anthropic-beta"] for each in await asked_by_narrows(claude)} == {"oauth-2025-04-20"}


async def test_w3_a_plain_key_is_asked_with_of_the_small_sibling(office: Office, claude: Stage) -> None:
    app = await claude.start(**SETTINGS)
    async with before(app, api_key="sk-ant-api03-abc") as client:
        assert "adopted" in await talk(claude, app, client)
    asked = await asked_by_narrows(claude)
    assert {each.credential for each in asked} == {claude.provider.requests[0].credential} == {"sk-ant-api03-abc"}
    assert {each.model for each in asked if each.path == "/v1/messages"} == {"claude-haiku-5-5"}


async def test_w3_a_key_of_ours_writes_for_who_signs_in(
    office: Office, claude: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_OURS", "ours")
    entry = {"provider": "anthropic", "model": "claude-haiku-4-5", "key_env": "KEY_OF_OURS"}
    app = await claude.start(**SETTINGS, summarizers=[{}, entry])
    async with before(app, auth_token="sk-ant-oat01-abc", default_headers=OAUTH) as client:
        assert "adopted" in await talk(claude, app, client)
    assert {each.credential for each in await asked_by_narrows(claude)} == {"ours"}


@pytest.mark.parametrize(
    "settings", [{"summaries": False}, {"mode": "observe"}, {"mode": "off"}], ids=["no summaries", "observe", "off"]
)
async def test_w3_turned_off_no_model_is_asked(office: Office, settings: Mapping[str, Any]) -> None:
    desk = await office.desk(summarizers=[{}], models=MODELS, **settings)
    grown = [await desk.ask(messages, model="gpt-4o") for messages in SESSION]
    await office.settled()
    assert {summary_header(each) for each in grown} == {""}
    assert await asked_by_narrows(office.stage) == []
    async with desk.client.sdk.with_options(max_retries=0) as client:
        url = desk.app.base_url.removesuffix("/v1") + "/narrows/conversations/c/summary"
        body: Any = {"model": "gpt-4o", "messages": SESSION[3]}
        if settings == {"summaries": False}:
            with pytest.raises(openai.NotFoundError, match="summaries"):
                await client.post(url, body=body, cast_to=object)
            assert await asked_by_narrows(office.stage) == []


async def test_w3_the_sibling_writes_for_the_openai_sdk(office: Office) -> None:
    desk = await office.desk(summarizers=None, models=MODELS)
    grown = await office.adopted(desk, SESSION, model="gpt-4o")
    assert summary_header(grown[-1]) == "adopted"
    assert {each.model for each in await asked_by_narrows(office.stage) if each.model} == {"gpt-4o-mini"}


@pytest.mark.parametrize("status", [401, 403, 429])
async def test_w3_after_a_refusal_of_the_client_nothing_is_asked_until_it_is_accepted(
    office: Office, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal comes for a chat request of the client's; after 429 the pause ends by itself."""
    desk = await office.desk(summarizers=[{}], models=MODELS)
    refused = [False]

    def agent(received: Received) -> Send | None:
        body = json.dumps({"error": {"message": "no"}}).encode()
        return Send(status, body) if refused[0] else None

    office.scribe.agent = agent
    refused[0] = True
    asks = SESSION[:6]
    for messages in asks:
        with pytest.raises(openai.APIStatusError):
            await desk.ask(messages, model="gpt-4o")
        await office.settled()
    calls = office.scribe.calls
    for messages in SESSION[6:10]:
        with pytest.raises(openai.APIStatusError):
            await desk.ask(messages, model="gpt-4o")
        await office.settled()
    assert office.scribe.calls == calls
    refused[0] = False
    if status == 429:
        await desk.ask(SESSION[10], model="gpt-4o")
        await office.settled()
        assert office.scribe.calls == calls, "the limit is not over because one request came through"
        return
    await desk.ask(SESSION[10], model="gpt-4o")
    await desk.ask(SESSION[11], model="gpt-4o")
    await office.settled()
    assert office.scribe.calls > calls


async def test_w3_a_summary_for_people_beyond_the_budget_is_429(office: Office) -> None:
    desk = await office.desk(summary_budget={"day": 0.0})
    url = desk.app.base_url.removesuffix("/v1") + "/narrows/conversations/c/summary"
    with pytest.raises(openai.RateLimitError) as error:
        await desk.client.sdk.with_options(max_retries=0).post(
            url, body={"model": "m", "messages": SESSION[3]}, cast_to=object
        )
    assert error.value.code == "summarizer_budget"
    assert office.scribe.calls == 0


async def test_w3_sixty_conversations_on_the_gateways_key_stay_within_the_budget(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of sixty conversations wants a summary at once; there is money for a few."""
    monkeypatch.setenv("KEY_OF_OURS", "ours")
    entry = {"model": "scribe", "base_url": office.stage.upstream, "key_env": "KEY_OF_OURS"}
    limit = 5_000 * PRICED["scribe"]["input"] / 1e6  # of five thousand tokens: sixty summaries have thirteen thousand
    desk = await office.desk(summarizers=[entry], summary_budget={"tenant": limit})
    await desk.ask(SESSION[2])

    async def chat(name: str) -> None:
        for messages in SESSION[3:8]:
            await desk.ask(messages, extra_headers={"x-narrows-conversation": name})

    await asyncio.gather(*(chat(f"c{at}") for at in range(60)))
    await office.settled()
    assert 0 < office.scribe.calls < 60
    assert 0 < desk.count("cost_usd", kind="summary") <= limit
    assert desk.count("summaries", outcome="budget") > 0
    events = [event.name for event in await office.events()]
    assert "summary.budget" in events


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"preset": "coding-agent"}, "no model is asked, as preset coding-agent wants none"),
        ({"summaries": False}, "no model is asked"),
        ({"mode": "off"}, "no model is asked"),
        ({"mode": "observe"}, "no model is asked"),
        ({}, "gpt-5.4 -> gpt-5.4-mini), with the client's own API key; --no-summaries turns them off"),
        ({"summary_credential": "client-any"}, "with the client's own credential; --no-summaries turns them off"),
        ({"preset": "coding-agent", "request_presets": ["chat"]}, "asked of the small sibling"),
        ({"preset": "coding-agent", "rules": [{"model": "x", "preset": "chat"}]}, "asked of the small sibling"),
        ({"mode": "observe", "rules": [{"model": "x", "mode": "on"}]}, "asked of the small sibling"),
        (
            {"host": "0.0.0.0", "summarizers": [{"model": "x", "key_env": "KEY_OF_OURS"}]},  # noqa: S104
            "with the key in KEY_OF_OURS for nobody (see summary_allow)",
        ),
        (
            {"summarizers": [{"model": "same"}]},
            "asked of the model of each conversation, with the client's own API key",
        ),
        (
            {"summarizers": [{"model": "x", "base_url": "http://127.0.0.1:2/v1", "key_env": "KEY_OF_OURS"}, {}]},
            "asked of x at http://127.0.0.1:2/v1, with the key in KEY_OF_OURS, then the small sibling",
        ),
    ],
)
async def test_w3_the_greeting_says_who_would_be_asked_and_who_pays(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, settings: Mapping[str, Any], words: str
) -> None:
    monkeypatch.setenv("KEY_OF_OURS", "sk-secret")
    app = await stage.start(**{"preset": "chat", **settings})
    text = greeting(app.settings, app.base_url)
    assert words in unwrapped(text).partition(" summaries: ")[2]
    assert "sk-secret" not in text


def test_w3_the_greeting_says_that_the_key_of_an_upstream_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_OURS", "sk-secret")
    row = {"name": "ours", "url": "http://u/v1", "auth": "bearer", "key_env": "KEY_OF_OURS"}
    text = greeting(Settings(upstreams=[row], auth="keys"), "http://127.0.0.1:8787/v1")  # type: ignore[list-item]
    assert "with the gateway's own key at ours; --no-summaries" in unwrapped(text)
    text = greeting(Settings(upstreams=[row], upstream="http://v/v1"), "http://127.0.0.1:8787/v1")  # type: ignore[list-item]
    assert "with the gateway's own key at ours, else with the client's own API key; --no-summaries" in unwrapped(text)
    assert "sk-secret" not in text


def test_the_greeting_names_the_page_and_what_is_held_out() -> None:
    settings = Settings(upstream="http://u/v1", holdout=0.05)
    text = greeting(settings, "http://127.0.0.1:8787/v1")
    assert "holdout: 5.0% of the conversations pass as their clients wrote them" in unwrapped(text)
    assert "page: http://127.0.0.1:8787/narrows/ shows what is saved" in unwrapped(text)
    relaying = greeting(settings.model_copy(update={"mode": "off"}), "http://127.0.0.1:8787/v1")
    assert "holdout" not in relaying
    assert "saved" not in relaying
