"""Which model writes: small siblings, what upstreams list, and what they refuse."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from policies.money.catalog import prices_for
from policies.presets import WritingOptions
from proxy.identity.credential import CredentialStates
from proxy.summaries.models import TABLE, siblings
from proxy.summaries.summarizer import Summarizer, SummarizerError
from tests.kit.responses import response
from tests.kit.summarizers import ASKING, Json, Make, Serve, body_of, message, proofs, text
from tests.kit.upstream import Asked, ScriptedUpstream, completion, json_answer

OWN, SMALL = "gpt-4o", "gpt-4o-mini"
GPT = replace(ASKING, model=OWN, owner="somebody")
CLAUDE = replace(ASKING, model="claude-opus-5-5", dialect="anthropic_messages", owner="somebody")
NO_MODEL = {"message": "The model `gpt-4o-mini` does not exist or you do not have access to it.", "type": "x"}
REFUSALS = {
    "404": ("404 Not Found", {"error": {**NO_MODEL, "code": "model_not_found"}}),
    "404-azure": ("404 Not Found", {"error": {"code": "DeploymentNotFound", "message": "no such deployment"}}),
    "403": ("403 Forbidden", {"error": {"message": "Project `p` does not have access to model `gpt-4o-mini`"}}),
    "400": ("400 Bad Request", {"error": {"message": "Invalid model name passed in model=gpt-4o-mini"}}),
    "401-gateway": ("401 Unauthorized", {"error": {"message": "key not allowed to access model gpt-4o-mini"}}),
}
ANSWERS = {
    "openai_chat": completion("ok"),
    "openai_responses": response([{"type": "message", "content": [{"type": "output_text", "text": "ok"}]}]),
    "anthropic_messages": message(text("ok")),
}


class Upstream:
    """Lists some models, and answers with those that it has."""

    def __init__(self, has: Sequence[str], listed: Sequence[str] | None = None, refusal: str = "404") -> None:
        self.has, self.listed, self.refusal = has, listed, refusal
        self.models: list[str] = []
        """Who was asked, in order."""
        self.lists: list[Asked] = []

    async def __call__(self, asked: Asked, writer: Any) -> None:
        if asked.line.startswith("GET"):
            self.lists.append(asked)
            listed = [{"id": name, "object": "model"} for name in self.listed or ()]
            missing = json_answer({"error": {"message": "no list"}}, status="404 Not Found")
            writer.write(missing if self.listed is None else json_answer({"object": "list", "data": listed}))
        else:
            model = json.loads(asked.body)["model"]
            self.models.append(model)
            dialect = {"messages": "anthropic_messages", "responses": "openai_responses"}
            answer = ANSWERS[dialect.get(asked.line.split()[1].rpartition("/")[2], "openai_chat")]
            status, body = REFUSALS[self.refusal]
            writer.write(
                json_answer(answer if model in self.has else body, status="200 OK" if model in self.has else status)
            )
        await writer.drain()


def first(summarizer: Summarizer, request: Any) -> str:
    """The model that is asked first."""
    model = summarizer.first(request)
    assert model is not None
    return model[0]


async def written(summarizer: Summarizer, request: Any = GPT) -> str:
    """Who wrote, after the list was asked for as the background does."""
    await summarizer.look_up(request)
    return (await summarizer.write(request)).model


# --- the table ---


@pytest.mark.parametrize("name", [name for names in dict(TABLE).values() for name in names])
def test_w3_every_sibling_is_listed_and_has_none_itself_that_is_dearer(name: str) -> None:
    prices = prices_for(name)
    assert prices.listed
    assert all(prices_for(each).input < prices.input for each in siblings(name, prices_for))


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("gpt-4o", ["gpt-4o-mini"]),
        ("gpt-4o-2024-08-06", ["gpt-4o-mini"]),
        ("gpt-5.4", ["gpt-5.4-mini"]),
        ("gpt-5.4-2026-03-05", ["gpt-5.4-mini"]),
        ("openai/gpt-5.4", ["openai/gpt-5.4-mini"]),
        ("gpt-6-sol", ["gpt-6-luna"]),
        ("o3", ["o4-mini"]),
        ("claude-opus-5-5", ["claude-haiku-5-5", "claude-haiku-4-5"]),
        ("claude-sonnet-4-20250514", ["claude-haiku-5-5", "claude-haiku-4-5"]),
        ("anthropic/claude-opus-5.5", ["anthropic/claude-haiku-5.5", "anthropic/claude-haiku-4.5"]),
        ("anthropic/claude-sonnet-4-5-20250929", ["anthropic/claude-haiku-5-5", "anthropic/claude-haiku-4-5"]),
        ("models/gemini-2.5-pro", ["models/gemini-2.5-flash"]),
        ("deepseek-reasoner", ["deepseek-chat"]),
    ],
)
def test_w3_a_sibling_is_spelt_as_the_model(model: str, names: list[str]) -> None:
    assert list(siblings(model, prices_for)) == names
    assert all(prices_for(name).input < prices_for(model).input for name in names)


@pytest.mark.parametrize(
    "model",
    [
        "m",
        "",
        "llama3.3:70b",
        "gpt-4o-mini",
        "gpt-5-nano",
        "claude-haiku-4-5",
        "ft:gpt-4o:mine",
        "my-gpt-4o",
        "gpt-4o\n",
    ],
)
def test_w3_small_and_unknown_models_write_themselves(model: str) -> None:
    assert siblings(model, prices_for) == ()


def test_w3_a_sibling_that_costs_no_less_is_not_asked() -> None:
    paid = {"gpt-4o": {"input": 0.01, "output": 0.01}}
    assert siblings("gpt-4o", lambda name: prices_for(name, paid)) == ()
    assert siblings("gpt-4o", prices_for) == (SMALL,)


# --- who is asked ---


async def test_w3_the_sibling_is_asked_and_its_price_counts(serve: Serve, make: Make) -> None:
    upstream = Upstream([OWN, SMALL], listed=[OWN, SMALL])
    summarizer = make(await serve(upstream))
    assert first(summarizer, GPT) == SMALL
    assert await written(summarizer) == await written(summarizer) == SMALL
    assert upstream.models == [SMALL, SMALL]
    assert len(upstream.lists) == 1


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_w3_a_refused_sibling_is_followed_by_the_model_itself_and_not_asked_again(
    serve: Serve, make: Make, refusal: str
) -> None:
    upstream = Upstream([OWN], refusal=refusal)
    summarizer = make(await serve(upstream))
    assert await written(summarizer) == OWN
    assert first(summarizer, GPT) == OWN
    assert await written(summarizer) == OWN
    assert upstream.models == [SMALL, OWN, OWN]
    assert first(summarizer, replace(GPT, owner="another")) == SMALL, "it is remembered of one credential"
    assert summarizer.may_ask(GPT), "the credential was not refused"


async def test_w3_what_the_upstream_does_not_list_is_not_asked(serve: Serve, make: Make) -> None:
    upstream = Upstream([OWN, SMALL], listed=[OWN, "text-embedding-3-small"])
    summarizer = make(await serve(upstream))
    assert await written(summarizer) == OWN
    assert (upstream.models, first(summarizer, GPT)) == ([OWN], OWN)


@pytest.mark.parametrize("listed", [["something-else"], [], None])
async def test_w3_a_list_of_other_models_says_nothing(serve: Serve, make: Make, listed: list[str] | None) -> None:
    upstream = Upstream([OWN, SMALL], listed=listed)
    summarizer = make(await serve(upstream))
    assert await written(summarizer) == SMALL
    assert len(upstream.lists) == 1
    await written(summarizer)
    assert len(upstream.lists) == 1, "it is asked for once"


async def test_w3_of_two_siblings_the_one_is_asked_that_is_listed_with_its_date(serve: Serve, make: Make) -> None:
    upstream = Upstream(["claude-haiku-4-5"], listed=["claude-opus-5-5", "claude-haiku-4-5-20251001"])
    summarizer = make(await serve(upstream))
    request = replace(CLAUDE, auth={"x-api-key": "client", "anthropic-version": "2023-06-02"})
    assert await written(summarizer, request) == "claude-haiku-4-5"
    (asked,) = upstream.lists
    assert asked.line == "GET /v1/models?limit=1000 HTTP/1.1"
    assert (proofs(asked), asked.one("anthropic-version")) == ({"x-api-key": "client"}, "2023-06-02")


@pytest.mark.parametrize("dialect", ANSWERS)
async def test_w3_in_every_api(serve: Serve, make: Make, dialect: str) -> None:
    model = "claude-sonnet-5" if dialect == "anthropic_messages" else "gpt-5.4"
    upstream = Upstream([model])
    summarizer = make(await serve(upstream))
    assert await written(summarizer, replace(GPT, dialect=dialect, model=model)) == model
    assert upstream.models[0] in siblings(model, prices_for)


async def test_w3_material_too_long_for_the_sibling_goes_to_the_model_itself(serve: Serve, make: Make) -> None:
    upstream = Upstream(["gpt-5.4", "gpt-5.4-mini"])
    summarizer = make(await serve(upstream))
    request = replace(GPT, model="gpt-5.4")
    assert await written(summarizer, replace(request, tokens=300_000)) == "gpt-5.4-mini"
    assert await written(summarizer, replace(request, tokens=380_000)) == "gpt-5.4"


@pytest.mark.parametrize(
    ("entry", "names"),
    [
        ({}, (SMALL, OWN)),
        ({"model": "same"}, (OWN,)),
        ({"model": "gpt-5-nano"}, ("gpt-5-nano",)),
    ],
)
async def test_w3_settings_and_presets_name_another(serve: Serve, make: Make, entry: Json, names: tuple[str]) -> None:
    summarizer = make(await serve(b""), entry)
    assert summarizer.models("openai_chat", OWN) == names
    preset = WritingOptions(models=(("openai", "same"),))
    assert summarizer.models("openai_chat", OWN, preset) == (names if entry.get("model") else (OWN,))


async def test_w3_nobody_hangs_on_a_list_that_does_not_come(
    serve: Serve, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.summaries.models._SECONDS", 0.2)
    answers = Upstream([SMALL])

    async def script(asked: Asked, writer: Any) -> None:
        await (asyncio.sleep(30) if asked.line.startswith("GET") else answers(asked, writer))

    async with asyncio.timeout(5):
        assert await written(make(await serve(script))) == SMALL


async def test_x1_a_list_without_end_is_given_up(serve: Serve, make: Make) -> None:
    answers = Upstream([SMALL], listed=[f"model-{n}-{'x' * 100}" for n in range(50_000)])
    assert await written(make(await serve(answers))) == SMALL


# --- refusals of the credential ---


def refusing(status: str, *headers: str) -> bytes:
    return json_answer({"error": {"message": "no"}}, *headers, status=status)


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden", "429 Too Many Requests"])
async def test_w3_after_a_refusal_nothing_is_asked_with_that_credential(serve: Serve, make: Make, status: str) -> None:
    upstream = await serve(refusing(status))
    summarizer = make(upstream)
    for _ in range(5):
        with pytest.raises(SummarizerError):
            await summarizer.write(GPT)
    assert len(upstream.seen) == 1
    assert not summarizer.may_ask(GPT)
    with pytest.raises(SummarizerError):
        await summarizer.write(replace(GPT, owner="another"))
    assert len(upstream.seen) == 2


async def test_w3_a_key_of_ours_that_is_refused_is_left_alone_for_ten_minutes(
    serve: Serve, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = await serve(refusing("401 Unauthorized"))
    summarizer = make(upstream, {"key_env": "KEY_OF_OURS", "model": "x"})
    with pytest.raises(SummarizerError):
        await summarizer.write(GPT)
    for owner in ("somebody", "another"):
        assert not summarizer.may_ask(replace(GPT, owner=owner))
    monkeypatch.setattr(summarizer._states, "_clock", lambda: 1e12)
    assert summarizer.may_ask(GPT)


def test_w3_what_is_remembered_of_a_credential() -> None:
    now = [100.0]
    states = CredentialStates(lambda: now[0])
    states.note("a", 200)
    assert states.is_accepted("a")
    for status in (401, 403):
        states.note("a", status)
        assert (states.is_accepted("a"), states.is_blocked("a")) == (False, True)
        now[0] += 1e9
        assert states.is_blocked("a"), "until it is accepted again"
        states.note("a", 500)
        states.note("a", 200)
        assert (states.is_accepted("a"), states.is_blocked("a")) == (True, False)
    states.note("a", 429)
    states.note("a", 200)
    assert states.is_blocked("a"), "an answer that was under way says nothing of the limit"
    now[0] += 61
    assert not states.is_blocked("a")
    for seconds, blocked in ((5.0, 5), (1e9, 86_400)):
        states.note("b", 429, seconds)
        now[0] += blocked - 1
        assert states.is_blocked("b")
        now[0] += 2
        assert not states.is_blocked("b")


async def test_w3_a_refusal_that_speaks_of_sizes_is_remembered_of_no_model(serve: Serve, make: Make) -> None:
    async def script(asked: Asked, writer: Any) -> None:
        if body_of(asked)["model"] == OWN:
            writer.write(json_answer(completion("ok")))
        else:
            said = "This model's maximum context length is 128000 tokens"
            writer.write(json_answer({"error": {"message": said}}, status="400 Bad Request"))
        await writer.drain()

    upstream: ScriptedUpstream = await serve(script)
    summarizer = make(upstream)
    assert (await summarizer.write(GPT)).model == OWN
    assert first(summarizer, GPT) == SMALL
