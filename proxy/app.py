"""A running Narrows: its listening socket, what lasts, and the generation of objects that serves requests now."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import Self

from aiohttp import web

from proxy.config import ConfigurationError, Settings
from proxy.event_loop import lateness
from proxy.generation import Generation, Lasting, check_fixed
from proxy.identity.credential import CredentialStates
from proxy.kernel.addons import Addon
from proxy.kernel.admission import Admission, Pressure, open_files
from proxy.kernel.gateway import Gateway
from proxy.kernel.prepare import Prepare
from proxy.kernel.services import Services
from proxy.kernel.wire.downstream import Listener
from proxy.telemetry import Telemetry
from proxy.workers.listening import BACKLOG, cannot_listen
from proxy.workers.worker import Worker

_CLOSING_SECONDS = 1.0
_LOOK = 0.005
"""Seconds between two looks at the event loop."""
_FIXED = ("host", "port", "workers", "log_level", "log_format")


class App:
    """One Narrows that listens. Leaving it as a context ends it at once; `close` gives what runs its time."""

    def __init__(self, generation: Generation, lasting: Lasting) -> None:
        self._lasting = lasting
        self.telemetry = lasting.telemetry
        self.base_url = ""
        self._generation = generation
        self._leaving = lasting.leaving
        self._one_at_a_time = asyncio.Lock()
        self._is_closing = False
        self._parts = AsyncExitStack()
        self.controls = lasting.controls
        self._listener = Listener(generation.gateway, generation.settings, lasting.admission)
        self._runner = web.ServerRunner(self._listener, shutdown_timeout=_CLOSING_SECONDS)
        _report(self)

    @classmethod
    async def start(
        cls,
        settings: Settings,
        watch: Callable[[Prepare], Prepare] | None = None,
        patience: float | None = None,
        worker: Worker | None = None,
        beside: Sequence[Addon] = (),
        clock: Callable[[], float] = time.time,
    ) -> Self:
        """Make everything and listen; for `watch`, `patience`, `worker`, `beside` and `clock` see `Lasting`. Raises
        ConfigurationError where it cannot be."""
        async with AsyncExitStack() as parts:
            telemetry = Telemetry(settings.log_level, settings.log_format)
            parts.callback(telemetry.close)  # the last of all
            telemetry.start()
            admission = Admission(settings, telemetry, CredentialStates(), open_files(settings.requests_limit))
            lasting = Lasting(
                telemetry=telemetry,
                admission=admission,
                worker=worker,
                watch=watch,
                patience=patience,
                beside=beside,
                clock=clock,
            )
            app = cls(await Generation.open(settings, lasting), lasting)
            if patience is None:
                watching = asyncio.create_task(_watch_loop(telemetry, admission.pressure))
                parts.callback(watching.cancel)
            app._parts = parts.pop_all()
        if worker is None:
            await _listen(app)
        else:
            app.controls.scrape = worker.scrape
            await app._runner.setup()
            for listening in worker.team.listening[worker.number]:
                await web.SockSite(app._runner, listening, backlog=BACKLOG).start()
            worker.join(telemetry, app._generation.services.forgets)
        return app

    @property
    def settings(self) -> Settings:
        return self._generation.settings

    @property
    def gateway(self) -> Gateway:
        return self._generation.gateway

    @property
    def services(self) -> Services:
        return self._generation.services

    async def reload(self, settings: Settings) -> None:
        """Serve new requests under these settings; those that run end as they began. Raises ConfigurationError where
        they cannot work, and then nothing has changed."""
        async with self._one_at_a_time:
            before = self._generation
            check_fixed(before.settings, settings, _FIXED)
            if self._is_closing:
                raise ConfigurationError("Narrows is shutting down")
            if before.is_volatile:
                raise ConfigurationError("store: it is in memory, which a reload would empty; restart Narrows")
            generation = await Generation.open(settings, self._lasting, before)
            if self._is_closing:
                await generation.close()
                raise ConfigurationError("Narrows is shutting down")
            self._generation = generation
            self._lasting.admission.apply(settings)
            self._listener.apply(settings, generation.gateway)
            _report(self)
            before.leave()
            self._leaving[before] = asyncio.create_task(self._leave(before))

    async def stop_listening(self) -> None:
        """Accept no connection any more, and end those on which nothing runs."""
        for site in list(self._runner.sites):
            await site.stop()
        self._listener.pre_shutdown()

    async def drain(self, grace: float) -> None:
        """Not ready from now on; what runs has `grace` seconds to finish, then it ends, and its clients are told."""
        self._is_closing, self.controls.ready = True, False
        generations = (self._generation, *self._leaving)
        self._generation.leave()
        await asyncio.gather(*(each.gateway.drain(grace) for each in generations))

    async def close(self, grace: float | None = None) -> None:
        """Let what runs finish within the grace time, then let go of everything."""
        await self.drain(self.settings.grace if grace is None else grace)
        await self._runner.cleanup()
        async with self._one_at_a_time:  # a reload that has begun ends first
            await asyncio.gather(*self._leaving.values())
            await self._generation.close()
            await self._parts.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close(0)

    async def _leave(self, generation: Generation) -> None:
        await generation.gateway.finished()
        try:
            await generation.close()
        except Exception as error:  # nobody waits for this, and what serves now goes on
            self.telemetry.log.error("unexpected", error=type(error).__name__, exc_info=error)
        finally:
            del self._leaving[generation]


def _report(app: App) -> None:
    metrics = app.telemetry.metrics
    metrics.build.clear()
    metrics.build.labels(version("narrows"), app.settings.digest).set(1)
    metrics.running.set_function(lambda: sum(each.gateway.running for each in (app._generation, *app._leaving)))


async def _listen(app: App) -> None:
    host, port = app.settings.host, app.settings.port
    await app._runner.setup()
    site = web.TCPSite(app._runner, host, port, backlog=BACKLOG)
    try:
        await site.start()
    except (OSError, UnicodeError) as error:
        await app.close(0)
        # a thread asks who listens there: it may be this very process
        raise await asyncio.to_thread(cannot_listen, host, port, error) from error
    app.base_url = base_url(host, site.port)


def base_url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


async def _watch_loop(telemetry: Telemetry, pressure: Pressure) -> None:
    """Measure the stops of the event loop, by how late this wakes."""
    async for late in lateness(_LOOK):
        pressure.note_late(late, _LOOK)
        telemetry.metrics.observe("event_loop_lag_seconds", max(0.0, late))
