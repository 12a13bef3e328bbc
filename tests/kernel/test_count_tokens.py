"""Requests that only ask for their tokens: planned as if they were sent, and nothing comes of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from policies.dialects import DIALECTS
from policies.presets import PRESETS, Preset
from proxy.app import App
from proxy.lab.provider import Say
from tests.kit.apis import plays, wants
from tests.kit.forms import FORMS
from tests.kit.histories import TOOLS, Json, requests
from tests.kit.rolling import PLAIN, PRICED, work
from tests.kit.running import compaction_of
from tests.kit.stage import Stage, ends, working

pytestmark = pytest.mark.usefixtures("patient")

COUNTS = {"anthropic_messages": "/messages/count_tokens", "openai_responses": "/responses/input_tokens"}
ASKS: dict[str, Json] = {
    "anthropic_messages": {"path": "/messages", "max_tokens": 8_192},
    "openai_responses": {"path": "/responses", "store": False},
}
EACH = pytest.mark.parametrize("dialect", COUNTS)
TOLD = ("mode", "prefix", "edits", "tokens-before", "tokens-after")
SESSION = working(5)
NEAR: dict[str, tuple[list[Json], int, Json]] = {
    "anthropic_messages": (SESSION, 8_000, {"max_tokens": 1_000}),
    "openai_responses": (working(5, 120), 18_000, {"max_output_tokens": 32_000}),
}
"""A session, a window that it comes near to, and what is left of that for the answer."""


async def ask(stage: Stage, app: App, dialect: str, said: Sequence[Json], count: bool = False, **more: Any) -> Json:
    """What a request with this history, or one for its tokens, is answered; what was sent, and what the headers say."""
    fields = {"model": "m", **FORMS[dialect]({"model": "m", "messages": said, "tools": TOOLS})}
    asks = {} if count else {key: value for key, value in ASKS[dialect].items() if key != "path"}
    path = COUNTS[dialect] if count else ASKS[dialect]["path"]
    headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"} if "anthropic" in dialect else {}
    headers |= {"Content-Type": "application/json", **more.pop("headers", {})}
    body = json.dumps({**fields, **asks, **more}, indent=1).encode()
    async with stage.client.post(app.base_url + path, data=body, headers=headers) as reply:
        assert reply.status == 200, await reply.text()
        told = {name: reply.headers.get(f"x-narrows-{name}") for name in TOLD}
        return {"reply": await reply.json(), "told": told, "sent": stage.provider.requests[-1].body, "given": body}


def prompt(dialect: str, body: bytes) -> tuple[bytes, ...]:
    """The bytes of a request that make its prompt."""
    request = DIALECTS[dialect].split(body)
    assert request is not None
    return (request.tool_list, request.instructions, *(request.raw(i) for i in range(len(request.spans))))


@EACH
async def test_t8_a_count_is_that_of_what_would_be_sent(stage: Stage, tmp_path: Path, dialect: str) -> None:
    """Before each request of a session, and in nothing does it differ from the same session without counts. What the
    request leaves for the answer, and its count cannot say, decides how much of the window is left."""
    session, window, more = NEAR[dialect]
    app = await stage.start(window=window)
    other = await stage.start(window=window, store=f"sqlite:///{tmp_path}/other.db")
    seen = set()
    for end in ends(session):
        said = session[:end]
        counted = await ask(stage, app, dialect, said, count=True)
        asked = await ask(stage, app, dialect, said, **more)
        billed = stage.provider.requests[-1].usage
        plain = await ask(stage, other, dialect, said, **more)
        assert asked["sent"] == plain["sent"]
        assert asked["told"] == plain["told"]
        if end > ends(session)[0] or dialect != "openai_responses":  # nothing has said yet that it stores nothing
            assert prompt(dialect, counted["sent"]) == prompt(dialect, asked["sent"])
            assert counted["told"] == asked["told"]
            assert billed is not None
            assert counted["reply"]["input_tokens"] == billed.prompt
        assert json.loads(counted["sent"]).keys() == json.loads(counted["given"]).keys()
        seen.add(asked["told"]["mode"])
    assert seen == {"untouched", "compacted"}
    assert figures(app) == figures(other)


@EACH
async def test_t8_a_count_where_something_was_recalled_or_edited(stage: Stage, dialect: str) -> None:
    app, said = await stage.start(), SESSION[:-1]
    stage.provider.answer = plays(wants("I look. "), Say("Seen."))
    reply = (await ask(stage, app, dialect, said))["reply"]
    native = reply.get("output") or [{"role": "assistant", "content": reply["content"]}]
    said = [*said, {"role": "assistant", "native": native}, {"role": "user", "content": "And then?"}]
    edited = [{**said[i], "content": f"{said[i]['content']}!"} if i == 3 else said[i] for i in range(len(said))]
    for history in (said, edited):
        counted = await ask(stage, app, dialect, history, count=True)
        asked = await ask(stage, app, dialect, history)
        assert counted["told"] == asked["told"]
        billed = stage.provider.requests[-1].usage
        assert billed is not None
        assert counted["reply"]["input_tokens"] == billed.prompt


def figures(app: App) -> list[str]:
    """What is counted of requests that were sent."""
    names = ("narrows_prefix_total", "narrows_edits_total", "narrows_prompt_tokens_")
    return [line for line in app.telemetry.metrics.page().decode().splitlines() if line.startswith(names)]


async def test_t8_the_official_clients_count(stage: Stage) -> None:
    """What they are told is what the provider would bill for the shortened prompt."""
    url = (await stage.start()).base_url
    asked: Json = {"model": "m", "messages": SESSION[:-1], "tools": TOOLS}
    async with anthropic.AsyncAnthropic(base_url=url.removesuffix("/v1"), api_key="k") as client:
        counted = await client.messages.count_tokens(**FORMS["anthropic_messages"](asked))
        reply = await client.messages.create(**FORMS["anthropic_messages"](asked), max_tokens=8_192)
        usage = reply.usage
        cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
        assert counted.input_tokens == usage.input_tokens + cached
    async with openai.AsyncOpenAI(base_url=url, api_key="k") as other:
        found = await other.responses.input_tokens.count(**FORMS["openai_responses"](asked))
        answer = await other.responses.create(**FORMS["openai_responses"](asked))
        assert answer.usage is not None
        assert found.input_tokens == answer.usage.input_tokens


@EACH
@pytest.mark.parametrize("count", [True, False])
async def test_t8_nothing_is_remembered_of_a_count(stage: Stage, dialect: str, count: bool) -> None:
    said = [SESSION[:end] for end in ends(SESSION)]
    first = await stage.start()
    await ask(stage, first, dialect, said[-2], count=count)
    await first.close()
    told = (await ask(stage, await stage.start(), dialect, said[-1]))["told"]
    assert (told["prefix"] == "checkpoint:replayed") == count


@EACH
@pytest.mark.parametrize(("asked", "mode"), [("off", "bypassed"), ("observe", "observed")])
async def test_t9_a_count_of_what_is_not_touched_is_not_touched(
    stage: Stage, dialect: str, asked: str, mode: str
) -> None:
    app = await stage.start()
    counted = await ask(stage, app, dialect, SESSION[:-1], count=True, headers={"x-narrows": asked})
    assert counted["told"]["mode"] == mode
    assert counted["sent"] == counted["given"]


@EACH
async def test_m7_a_count_wants_no_summary(stage: Stage, monkeypatch: pytest.MonkeyPatch, dialect: str) -> None:
    monkeypatch.setattr("policies.planning.folding.SMALLEST", 1)
    monkeypatch.setitem(PRESETS, "plain", Preset(PLAIN))
    app = await stage.start(preset="plain", models=PRICED, summary_tokens=100, summarizers=[{"model": "scribe"}])
    for count in (True, False):
        stage.provider.requests.clear()
        await ask(stage, app, dialect, requests(work(21))[-1], count=count)
        await compaction_of(app).maker.settled()
        assert len(stage.provider.requests) == (1 if count else 2)
