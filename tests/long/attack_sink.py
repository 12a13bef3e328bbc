"""The upstream of the attack and the soak: it knows no made-up key, says which bytes it received, and waits or fails
where a request asks for that.

`python -m tests.long.attack_sink` prints its address.
"""

import asyncio
from hashlib import sha256

from aiohttp import web

from proxy.event_loop import run_fast
from proxy.lab.load.sink import Sink

RECEIVED = "x-received-sha256"
"""The header of a reply with the digest of what was received, decoded."""
HOLD = "x-hold"
"""The header of a request that is answered after so many seconds."""
FAULT = "x-fault"
"""The header of a request that is not answered as it should be: with a status, or by `cut` in the middle."""
MADE_UP = "sk-made-up"
"""Keys that begin like this are nobody's."""
_REFUSAL = {"error": {"message": "Incorrect API key provided.", "type": "invalid_request_error", "code": "invalid_key"}}
_HEADERS = ("Authorization", "x-api-key")


class AttackSink(Sink):
    async def respond(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        received = {RECEIVED: sha256(body).hexdigest()}
        await asyncio.sleep(float(request.headers.get(HOLD, 0)))
        fault = request.headers.get(FAULT, "")
        if any(MADE_UP in request.headers.get(name, "") for name in _HEADERS):
            return web.json_response(_REFUSAL, status=401, headers=received)
        if fault.isdecimal():
            return web.json_response(_REFUSAL, status=int(fault), headers=received)
        if fault == "cut":
            return await self._cut(request)
        response = await super().respond(request, body)
        if not response.prepared:
            response.headers.update(received)
        return response

    async def _cut(self, request: web.BaseRequest) -> web.StreamResponse:
        """The beginning of a stream, and no more."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(self._answers["/chat/completions"][1][0])
        if request.transport is not None:
            request.transport.abort()
        return response


async def serve() -> None:
    """Listen on loopback until this is cancelled."""
    runner = web.ServerRunner(web.Server(AttackSink()), shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    run_fast(serve())
