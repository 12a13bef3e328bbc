"""What is assumed of models that are not listed, and what a reply says of it; windows of models at local addresses."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from policies.compact import compact
from policies.money.prices import CAUTIOUS
from proxy.config.upstreams import is_local as is_local_address
from tests.kit.histories import TOOLS
from tests.kit.running import Start
from tests.kit.talk import runs, user
from tests.kit.upstream import CHAT, REQUEST, Asked, completion, json_answer

PRICES = "x-narrows-prices"
KEY = {"Authorization": "Bearer sk-secret-of-the-client"}
VLLM = {"object": "list", "data": [{"id": "mine", "object": "model", "owned_by": "vllm", "max_model_len": 32_768}]}
LLAMA = {"object": "list", "data": [{"id": "/models/m.gguf", "owned_by": "llamacpp", "meta": {"n_ctx_train": 131_072}}]}
PROPS = {"default_generation_settings": {"n_ctx": 16_384, "params": {}}, "total_slots": 1}
NAMES = {"object": "list", "data": [{"id": "mine", "object": "model"}, {"id": "other", "object": "model"}]}
SHOWN = {
    "details": {"family": "qwen3"},
    "model_info": {"general.architecture": "qwen3", "qwen3.context_length": 40_960},
}
CHOSEN = {**SHOWN, "parameters": 'num_ctx                        8192\nstop                           "<|im_end|>"'}
PRICED = {
    "data": [{"id": "mine", "context_length": 131_072, "pricing": {"prompt": "0.000001", "completion": "0.000002"}}]
}


class ModelServer:
    """A server with chats, and what it says of itself by path."""

    def __init__(self, said: Mapping[str, Any], hangs: bool = False) -> None:
        self.said, self.hangs, self.asked = said, hangs, list[Asked]()

    async def __call__(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        path = asked.line.split()[1]
        if path.endswith(CHAT):
            writer.write(json_answer(completion()))
            return
        self.asked.append(asked)
        if self.hangs:
            await asyncio.sleep(60)
        answer = self.said.get(path)
        writer.write(json_answer(answer) if answer is not None else json_answer({}, status="404 Not Found"))


@pytest.fixture
def _local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.config.upstreams.is_local", is_local_address)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("gpt-6.2-sol", None),
        ("us.anthropic.claude-opus-5-5-20260901-v1:0", None),
        ("us.anthropic.claude-opus-6-v1:0", "assumed from claude-opus-5-5"),
        ("gpt-6.3-sol", "assumed from gpt-6.2-sol"),
        ("grok-7", "assumed from grok-4.7"),
        ("my-local-model", "assumed"),
    ],
)
async def test_a_reply_says_where_the_prices_of_an_unlisted_model_are_from(
    narrows: Start, model: str, said: str | None
) -> None:
    setup = await narrows(json_answer(completion()), real=True)
    async with setup.client.post(setup.url + CHAT, json={**REQUEST, "model": model}) as reply:
        assert (reply.status, reply.headers.get(PRICES)) == (200, said)


@pytest.mark.parametrize(
    ("said", "window", "questions"),
    [
        ({"/v1/models": VLLM}, 32_768, 1),
        ({"/v1/models": LLAMA, "/props": PROPS}, 16_384, 2),
        ({"/v1/models": LLAMA}, 131_072, 3),
        ({"/v1/models": NAMES, "/api/show": SHOWN}, 40_960, 3),
        ({"/v1/models": NAMES, "/api/show": CHOSEN}, 8_192, 3),
        ({"/v1/models": PRICED}, None, 3),
        ({}, None, 3),
    ],
    ids=["vllm", "llama-cpp", "llama-cpp-trained", "ollama", "ollama-chosen", "a gateway", "nothing"],
)
@pytest.mark.usefixtures("_local")
async def test_a_local_server_is_asked_once_for_the_window_and_sees_no_key(
    narrows: Start, said: Mapping[str, Any], window: int | None, questions: int
) -> None:
    server = ModelServer(said)
    setup = await narrows(server, real=True)
    for _ in range(2):
        async with setup.client.post(setup.url + CHAT, json={**REQUEST, "model": "mine"}, headers=KEY) as reply:
            assert (reply.status, reply.headers[PRICES]) == (200, "none")
    assert len(server.asked) == questions
    assert not any(b"sk-secret" in asked.head for asked in server.asked)
    prices = setup.app.services.price_book.prices("mine", "default")
    assert (prices.window, prices.is_local, prices.listed, prices.input) == (window, True, False, 0.0)
    assert [json.loads(asked.body) for asked in server.asked if asked.body] == [{"model": "mine"}] * (questions == 3)


@pytest.mark.usefixtures("_local")
async def test_a_local_server_that_hangs_holds_one_request_up_for_two_seconds(
    narrows: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.upstreams.model_lookup._LOCAL_SECONDS", 0.2)
    server = ModelServer({}, hangs=True)
    setup = await narrows(server, real=True)
    for model in ("mine", "mine", "another"):
        async with setup.client.post(setup.url + CHAT, json={**REQUEST, "model": model}) as reply:
            assert (reply.status, reply.headers[PRICES]) == (200, "none")
    assert len(server.asked) == 1


@pytest.mark.usefixtures("_local")
async def test_a_name_of_a_family_has_no_price_at_a_local_address(narrows: Start) -> None:
    setup = await narrows(ModelServer({"/v1/models": VLLM}), real=True)
    prices = setup.app.services.price_book.prices("claude-opus-9-tuned", "default")
    assert (prices.is_local, prices.assumed, prices.input) == (True, "", 0.0)


@pytest.mark.usefixtures("_local")
async def test_a_listed_model_at_a_local_address_costs_what_is_listed_and_nobody_is_asked(narrows: Start) -> None:
    """A local address may be a gateway."""
    server = ModelServer({"/v1/models": VLLM})
    setup = await narrows(server, real=True)
    async with setup.client.post(setup.url + CHAT, json={**REQUEST, "model": "gpt-4o"}) as reply:
        assert (reply.status, reply.headers.get(PRICES)) == (200, None)
    assert not server.asked


@pytest.mark.parametrize(
    ("url", "is_local"),
    [
        ("http://localhost:11434/v1", True),
        ("http://127.0.0.1:8080/v1", True),
        ("http://[::1]:8080/v1", True),
        ("http://192.168.1.20:8000/v1", True),
        ("http://10.1.2.3/v1", True),
        ("http://ollama:11434/v1", True),
        ("http://studio.local:1234/v1", True),
        ("http://host.docker.internal:1234/v1", True),
        ("https://api.openai.com/v1", False),
        ("https://8.8.8.8/v1", False),
    ],
)
def test_a_local_address_is_of_this_machine_or_a_network_of_ones_own(url: str, is_local: bool) -> None:
    assert is_local_address(url) is is_local


def test_a_local_model_is_compacted_for_its_size_unless_a_person_says_otherwise() -> None:
    messages = [user("go"), *runs("ls", "a\n" * 50)]
    body = json.dumps({"model": "mine", "messages": messages, "tools": list(TOOLS)}).encode()
    local = replace(CAUTIOUS, input=0.0, output=0.0, is_local=True)
    assert compact(body, prices=CAUTIOUS).settings.aim == "bill"
    assert compact(body, prices=local).settings.aim == "context"
    assert compact(body, prices=local, aim="bill").settings.aim == "bill"
