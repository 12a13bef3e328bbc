"""Summarisers before servers that say what they are told to, and short ways to write down what these say."""

import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from proxy.config import Settings
from proxy.summaries.summarizer import ModelRequest, Summarizer
from tests.kit.upstream import Asked, Script, ScriptedUpstream, says

Json = dict[str, Any]
PRICES = {"m": {"input": 2.0, "output": 8.0, "read": 0.1, "write": 1.25}, "c": {"input": 10.0, "output": 50.0}}
ASKING = ModelRequest(
    instructions="Write notes.", text="what was said", most=800, model="m", auth={"Authorization": "Bearer client"}
)
PROOFS = ("authorization", "api-key", "x-api-key", "openai-organization", "openai-project")
Serve = Callable[..., Awaitable[ScriptedUpstream]]
Make = Callable[..., Summarizer]


def serving(stack: AsyncExitStack) -> Serve:
    """Starts servers that run until the stack is closed."""

    async def start(script: Script | bytes) -> ScriptedUpstream:
        made = ScriptedUpstream(says(script) if isinstance(script, bytes) else script)
        return await stack.enter_async_context(made)

    return start


def making(stack: AsyncExitStack) -> Make:
    """Makes summarisers that are closed with the stack."""

    def made(upstream: ScriptedUpstream, *entries: Json, **settings: Any) -> Summarizer:
        chosen = {"upstream": upstream.url, "models": PRICES, "summary_timeout": 30, **settings}
        summarizer = Summarizer(Settings(**chosen, **({"summarizers": entries} if entries else {})))
        stack.push_async_callback(summarizer.close)
        return summarizer

    return made


def other(server: ScriptedUpstream, **entry: Any) -> Json:
    return {"base_url": server.url, "key_env": "KEY_OF_OURS", **entry}


def claude(server: ScriptedUpstream, **entry: Any) -> Json:
    return other(server, provider="anthropic", model="c", **entry)


def message(*blocks: Json, stop: str = "end_turn") -> Json:
    usage = {
        "input_tokens": 100,
        "cache_creation_input_tokens": 20,
        "cache_read_input_tokens": 30,
        "output_tokens": 7,
    }
    head = {"id": "m1", "type": "message", "role": "assistant", "model": "c"}
    return {**head, "content": list(blocks), "stop_reason": stop, "usage": usage}


def text(said: str) -> Json:
    return {"type": "text", "text": said}


def body_of(asked: Asked) -> Json:
    found: Json = json.loads(asked.body)
    return found


def proofs(asked: Asked) -> dict[str, str]:
    return {name.lower(): value for name, value in asked.headers if name.lower() in PROOFS}
