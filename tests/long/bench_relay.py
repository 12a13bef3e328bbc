"""The least that a relay in aiohttp does, as a process: `python -m tests.long.bench_relay UPSTREAM`."""

import asyncio
import sys

import aiohttp
from aiohttp import web

from proxy.event_loop import run_fast

NOT_FORWARDED = ("host", "content-length")


class Relay:
    def __init__(self, target: str, http: aiohttp.ClientSession) -> None:
        self._target = target
        self._http = http

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.content.read()  # of any size
        headers = {name: value for name, value in request.headers.items() if name.lower() not in NOT_FORWARDED}
        async with self._http.post(self._target + request.path_qs, data=body, headers=headers) as reply:
            kind = {"Content-Type": reply.headers["Content-Type"]}
            if "event-stream" not in kind["Content-Type"]:
                return web.Response(body=await reply.read(), status=reply.status, headers=kind)
            response = web.StreamResponse(status=reply.status, headers=kind)
            await response.prepare(request)
            async for piece in reply.content.iter_any():
                await response.write(piece)
            return response


async def main(upstream: str) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as http:
        runner = web.ServerRunner(web.Server(Relay(upstream.removesuffix("/v1"), http)))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    run_fast(main(sys.argv[1]))
