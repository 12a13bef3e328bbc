"""An upstream for `make judges`: its reply is the request that it received. To a person's "recall REF PART" it calls
the recall tool, so that what the model would get back can be read as well."""

import asyncio
import json
from typing import Any

import orjson
from aiohttp import web

from policies.tools import RECALL
from proxy.event_loop import run_fast

ASKS = "recall "


async def echo(request: web.BaseRequest) -> web.Response:
    body = await request.read()
    last = orjson.loads(body)["messages"][-1]
    message: dict[str, Any] = {"role": "assistant", "content": body.decode()}
    if last["role"] == "user" and last["content"].startswith(ASKS):
        ref, _, part = last["content"].removeprefix(ASKS).partition(" ")
        call = {"name": RECALL, "arguments": json.dumps({"ref": ref, "part": part})}
        message |= {"content": None, "tool_calls": [{"id": "recall_1", "type": "function", "function": call}]}
    ends = "tool_calls" if "tool_calls" in message else "stop"
    choice = {"index": 0, "message": message, "finish_reason": ends}
    return web.json_response({"id": "echo", "object": "chat.completion", "choices": [choice]})


async def serve() -> None:
    runner = web.ServerRunner(web.Server(echo))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    run_fast(serve())
