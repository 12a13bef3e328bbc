"""Windows and prices that upstreams list themselves: each list's shape, what is absurd, and what follows for plans,
bills and charges."""

import asyncio
import gzip
import json
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.model.parameters import MOST
from policies.money.catalog import check_overrides, prices_for
from proxy.addons.access.keys import digest_of, new_key
from proxy.config import Settings
from proxy.upstreams import model_lookup
from proxy.upstreams.model_lookup import overrides_in
from proxy.upstreams.price_book import PriceBook
from tests.kit.running import Start
from tests.kit.stage import Stage, ends, moved, working
from tests.kit.upstream import REQUEST, Asked, ScriptedUpstream, completion, json_answer, whole

CLAUDE = {"id": "claude-x", "type": "model", "display_name": "X", "max_input_tokens": 200_000, "max_tokens": 64_000}
VLLM = {"id": "qwen-3", "object": "model", "owned_by": "vllm", "root": "/models/qwen-3", "max_model_len": 32_768}
OLLAMA = {"id": "llama3.2:latest", "object": "model", "created": 1, "owned_by": "library"}
ROUTED: dict[str, Any] = {
    "id": "maker/large",
    "canonical_slug": "maker/large-20260901",
    "context_length": 131_072,
    "pricing": {
        "prompt": "0.000005",
        "completion": "0.000025",
        "request": "0",
        "input_cache_read": "0.0000005",
        "input_cache_write": "0.00000625",
    },
    "top_provider": {"context_length": 131_072, "max_completion_tokens": 32_000},
}
DEPLOYED: dict[str, Any] = {
    "model_name": "team/chat",
    "litellm_params": {"model": "openai/gpt-x"},
    "model_info": {
        "id": "e889",
        "max_tokens": 4_096,
        "max_input_tokens": 65_536,
        "input_cost_per_token": 2e-06,
        "output_cost_per_token": 8e-06,
        "cache_read_input_token_cost": 5e-07,
        "cache_creation_input_token_cost": None,
    },
}
LARGE = {"window": 131_072, "input": 5.0, "output": 25.0, "read": 0.1, "write": 1.25}
CHAT = {"window": 65_536, "input": 2.0, "output": 8.0, "read": 0.25}
INFO = "/v1/model/info"


class Lists:
    """An upstream that lists what it is told, and passes chats on to another one or answers them itself."""

    def __init__(self, *models: Any, info: Any = None, chats: str = "") -> None:
        self.models, self.info, self.chats = models, info, chats
        self.asked: list[str] = []

    async def __call__(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        method, target, _ = asked.line.split()
        if method == "POST":
            writer.write(await self._chat(asked))
            return
        self.asked.append(target)
        if target == INFO and self.info is None:
            writer.write(json_answer({"detail": "Not Found"}, status="404 Not Found"))
            return
        data = {"object": "list", "data": self.info if target == INFO else self.models}
        writer.write(whole(gzip.compress(json.dumps(data).encode()), "Content-Encoding: gzip"))

    async def _chat(self, asked: Asked) -> bytes:
        if not self.chats:
            return json_answer(completion())
        headers = {"Content-Type": "application/json", "Authorization": "Bearer k"}
        async with (
            aiohttp.ClientSession() as client,
            client.post(f"{self.chats}/chat/completions", data=asked.body, headers=headers) as reply,
        ):
            return whole(await reply.read(), "Content-Type: application/json", status=f"{reply.status} OK")

    def _beginnings(self) -> int:
        return sum(path.partition("?")[0] == "/v1/models" for path in self.asked)

    async def listed_anew(self) -> None:
        """Until a look-up that began after now is over: the next one has begun. One that finds nothing asks at two
        paths."""
        before = self._beginnings()
        async with asyncio.timeout(5):
            while self._beginnings() < before + 2:  # noqa: ASYNC110 - a test waits for all sorts of ends
                await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("models", "listed"),
    [
        ([VLLM, OLLAMA], {"qwen-3": {"window": 32_768}}),
        ([CLAUDE], {"claude-x": {"window": 200_000}}),
        ([ROUTED], {"maker/large": LARGE}),
        ([DEPLOYED], {"team/chat": CHAT}),
        ([OLLAMA, None, "x", {"id": 7, "max_model_len": 9}, {"max_model_len": 9}, {**VLLM, "id": "x" * 257}], {}),
    ],
)
def test_each_list_is_read(models: list[Any], listed: Mapping[str, Any]) -> None:
    assert overrides_in({"object": "list", "data": models}) == listed
    assert overrides_in(models) == listed
    check_overrides(listed)


def test_of_deployments_of_one_model_the_smallest_window_and_the_highest_prices_count() -> None:
    cheap = {"max_input_tokens": 9_000, "input_cost_per_token": 1e-06, "output_cost_per_token": 9e-06}
    for models in ([DEPLOYED, {**DEPLOYED, "model_info": cheap}], [{**DEPLOYED, "model_info": cheap}, DEPLOYED]):
        assert overrides_in(models) == {"team/chat": {**CHAT, "window": 9_000}}


ABSURD = [-1, 0, MOST + 1, 10**400, 0.5, True, "", "NaN", "-0.1", "Infinity", "1e999999", "0.0100001", "nine", [], {}]


@pytest.mark.parametrize("value", ABSURD)
def test_an_absurd_value_is_left_out_and_the_others_count(value: Any) -> None:
    routed: Any = {**ROUTED, "context_length": value, "pricing": {**ROUTED["pricing"], "input_cache_read": value}}
    without = {name: LARGE[name] for name in ("input", "output", "write")}
    assert overrides_in([routed]) == {"maker/large": without}
    routed = {**ROUTED, "pricing": {**ROUTED["pricing"], "prompt": value}}
    assert overrides_in([routed]) == {"maker/large": {"window": 131_072}}


_JSON = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_NAMES = "id model_name max_model_len context_length pricing prompt completion input_cache_read model_info"
_INFO = "max_input_tokens input_cost_per_token cache_creation_input_token_cost"
_MEMBERS = st.sampled_from(f"{_NAMES} {_INFO}".split())
_NESTED = st.recursive(_JSON, lambda inner: st.dictionaries(_MEMBERS, inner, max_size=6), max_leaves=12)


@given(st.lists(_NESTED, max_size=4))
def test_whatever_is_listed_gives_prices_that_can_be(models: list[Any]) -> None:
    try:
        listed = overrides_in(models)
    except msgspec.DecodeError:
        return
    for name in listed:
        assert prices_for(name, listed).input > 0


def test_what_the_settings_name_is_theirs_whoever_stands_before_it() -> None:
    rows: Any = [{"name": "own", "url": "http://127.0.0.1:9/v1", "overrides": {"a": {"window": 1_000}}}]
    rows[0]["look_up_models"] = True
    settings = Settings(upstreams=rows, models={"b": {"input": 7.0}}, upstream="http://127.0.0.1:9")
    book, own = PriceBook(settings), settings.upstream_rows[0]
    assert book.prices("c", "own").window is None
    listed = {name: {"window": 5_000, "input": 3.0} for name in ("a", "maker/a", "maker/b", "c")}
    assert book.take_list(own, listed)
    assert not book.take_list(own, listed)
    assert [book.prices(name, "own").window for name in ("a", "maker/a", "c")] == [1_000, 1_000, 5_000]
    assert (book.prices("maker/b", "own").input, book.prices("maker/b", "own").window) == (7.0, None)
    assert book.prices("c", "default").window is None
    rows[0]["overrides"] = {}
    after = PriceBook(Settings(upstreams=rows, upstream="http://127.0.0.1:9"), book)
    assert [after.prices(name, "own").window for name in ("a", "maker/b", "c")] == [5_000, 5_000, 5_000]
    rows[0]["url"] = "http://127.0.0.1:10/v1"
    elsewhere = PriceBook(Settings(upstreams=rows, upstream="http://127.0.0.1:9"), after)
    assert elsewhere.prices("c", "own").window is None


async def test_it_is_asked_with_the_key_of_the_row_and_its_price_is_in_bill_and_charge(
    narrows: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPSTREAM_KEY", "up-key")
    key, lists = new_key(), Lists(OLLAMA, info=[{**DEPLOYED, "model_name": "unlisted-model"}])
    async with ScriptedUpstream(lists) as neighbour:
        row = {"name": "lite", "url": neighbour.url, "auth": "bearer", "key_env": "UPSTREAM_KEY"}
        keys = [
            {"name": "alice", "sha256": digest_of(key), "usd_per_day": 0.000_02}
        ]  # one request costs that at the listed price alone
        setup = await narrows(real=True, upstreams=[{**row, "look_up_models": True}], auth="keys", keys=keys)
        assert [(each.line.split()[1], each.one("authorization")) for each in neighbour.seen] == [
            ("/v1/models", "Bearer up-key"),
            (INFO, "Bearer up-key"),
        ]
        body, headers = {**REQUEST, "model": "unlisted-model"}, {"Authorization": f"Bearer {key}"}
        for status in (200, 429):
            async with setup.client.post(f"{setup.url}/chat/completions", json=body, headers=headers) as reply:
                assert reply.status == status
                await reply.read()
    paid = {sample.labels["kind"]: sample.value for sample in samples(setup.app, "cost_usd") if sample.value}
    assert sum(paid.values()) == pytest.approx((9 * 2.0 + 1 * 8.0) / 1e6)


def samples(app: Any, name: str) -> list[Any]:
    families = {family.name: family for family in app.telemetry.metrics.collect()}
    return [each for each in families[f"narrows_{name}"].samples if each.name.endswith("_total")]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (json_answer({"error": "no"}, status="401 Unauthorized"), "it answered 401"),
        (json_answer({"object": "list", "data": [OLLAMA]}), "it lists neither windows nor prices"),
        (whole(b"<html>"), "it sent something that is no list, or more than 8388608 bytes"),
        (whole(b"[" + b" " * 2**23 + b"]"), "it sent something that is no list, or more than 8388608 bytes"),
        (whole(gzip.compress(b"[" + b" " * 2**23 + b"]"), "Content-Encoding: gzip"), "no list"),
        (b"", "closed the connection"),
    ],
)
async def test_a_look_up_that_fails_is_logged_once_and_the_catalog_counts(
    narrows: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: bytes, reason: str
) -> None:
    monkeypatch.setattr(model_lookup, "_SOON", 0.01)
    monkeypatch.setattr(model_lookup, "_AGAIN", 0.01)
    asked: list[str] = []

    async def script(request: Asked, writer: asyncio.StreamWriter) -> None:
        asked.append(request.line)
        writer.write(answer)
        if not answer:
            writer.close()

    async with ScriptedUpstream(script) as other:
        row = {"name": "other", "url": other.url, "look_up_models": True, "models": ["x"]}
        setup = await narrows(real=True, upstreams=[row], log_level="info", log_format="json")
        async with asyncio.timeout(5):
            while len(asked) < 6:  # noqa: ASYNC110 - a test waits for all sorts of ends
                await asyncio.sleep(0.005)
        async with setup.client.post(f"{setup.url}/chat/completions", json=REQUEST) as reply:
            assert reply.status == 200
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if "looked_up" in line]
    assert [(line["event"], line["upstream"]) for line in lines] == [("models_not_looked_up", "other")]
    assert reason in lines[0]["reason"]


def priced(window: int) -> dict[str, Any]:
    """A model at whose prices short histories are compacted."""
    pricing = {"prompt": "0.000001", "completion": "0.000001", "input_cache_read": "0.0000005"}
    return {"id": "m", "context_length": window, "pricing": pricing}


@pytest.mark.usefixtures("patient")
async def test_another_window_counts_at_once_and_nothing_moves_undeclared(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_lookup, "_AGAIN", 0.02)
    session = working(10)
    lists = Lists(priced(100_000), chats=stage.upstream)
    async with ScriptedUpstream(lists) as router:
        row = {"name": "router", "url": router.url, "look_up_models": True}
        app = await stage.start(upstreams=[row], upstream=None, models=None)
        exchanges = [await stage.ask(app, session[:end]) for end in ends(session)[:6]]
        assert not [each for each in exchanges if each.prefix.startswith("checkpoint:")]
        lists.models = (priced(3_000),)
        await lists.listed_anew()
        exchanges += [await stage.ask(app, session[:end]) for end in ends(session)[6:9]]
        assert exchanges[6].prefix == "checkpoint:window"
        lists.models = ()  # says nothing for a while: what was listed before counts on
        await lists.listed_anew()
        exchanges.append(await stage.ask(app, session[: ends(session)[9]]))
        assert exchanges[-1].prefix == "checkpoint:window"
        lists.models = (priced(100_000),)
        await lists.listed_anew()
        exchanges.append(await stage.ask(app, session[: ends(session)[10]]))
        assert not exchanges[-1].prefix.startswith("checkpoint:window")
        assert moved(exchanges) == []
        await stage.stack.aclose()


async def test_a_reload_asks_first_and_an_upstream_of_anthropics_api_for_all_of_its_list(
    narrows: Start,
) -> None:
    lists = Lists(CLAUDE)
    async with ScriptedUpstream(lists) as claude:
        row: Any = {"name": "claude", "url": claude.url, "apis": ["messages"]}
        setup = await narrows(real=True, upstreams=[row])
        assert lists.asked == []
        values = {**setup.app.settings.model_dump(exclude_unset=True), "upstreams": [{**row, "look_up_models": True}]}
        await setup.app.reload(Settings(**values))
        assert lists.asked == ["/v1/models?limit=1000"]
        assert claude.seen[0].one("anthropic-version") == "2023-06-01"
        assert setup.app.services.price_book.prices("claude-x", "claude").window == 200_000
