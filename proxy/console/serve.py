"""`narrows serve`: one process, or several workers and their parent."""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from itertools import chain

from proxy.app import App, base_url
from proxy.config import ConfigurationError, Settings
from proxy.console.greeting import greeting, print_day, say
from proxy.event_loop import run_fast, terminal_is_gone
from proxy.generation import check_fixed, check_settings
from proxy.memory import StoreTrouble
from proxy.memory.opening import shared_secret
from proxy.telemetry import Telemetry
from proxy.warmup import load, trim_now_and_then, tune, warm_up
from proxy.workers.listening import listening_sockets
from proxy.workers.supervisor import Supervisor
from proxy.workers.worker import Team, Worker

_FIXED = ("host", "port", "workers")
"""Settings of several workers that a reload does not change."""


def serve(settings: Settings, read: Callable[[], Settings]) -> None:
    """Run until SIGTERM or SIGINT; a second one does not wait for what runs. `read`: reads the settings anew."""
    tune()  # workers are forked from here
    if settings.workers > 1:
        _serve_with_workers(settings, read)
    else:
        run_fast(_serve(settings, read))
    if sys.stdout.isatty() and not settings.only_relays:
        with suppress(StoreTrouble):  # it was logged when it began
            asyncio.run(print_day(settings))


class Reloader:
    """Has an app serve under the settings as they are now, each time these are to be read anew."""

    def __init__(self, app: App, read: Callable[[], Settings]) -> None:
        self._app = app
        self._read = read
        self._one_at_a_time = asyncio.Lock()
        self._wanted = asyncio.Event()
        self.want = self._wanted.set
        """Ask for a reload; whoever asks before it begins gets the same one."""

    async def follow(self) -> None:
        """Reload whenever it is wanted."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await self.reload()
            except ConfigurationError:
                continue  # it was logged, and what there is goes on
            except Exception as error:
                self._app.telemetry.log.error("not_reloaded", reason=type(error).__name__, exc_info=error)

    async def reload(self) -> str:
        """The digest of the settings that count now. Raises ConfigurationError where they cannot work: those before go
        on then."""
        log = self._app.telemetry.log
        async with self._one_at_a_time:
            try:
                await self._app.reload(await asyncio.to_thread(self._read))
            except ConfigurationError as error:
                for line in str(error).splitlines():
                    log.error("not_reloaded", reason=line)
                raise
            log.info("reloaded", settings=self._app.settings.digest)
            return self._app.settings.digest


async def _serve(settings: Settings, read: Callable[[], Settings]) -> None:
    app = await App.start(settings)
    reloader = Reloader(app, read)
    app.controls.reload = reloader.reload
    stop, hurry = asyncio.Event(), asyncio.Event()

    def signalled() -> None:
        (hurry if stop.is_set() else stop).set()

    def hung_up() -> None:
        (stop.set if terminal_is_gone() else reloader.want)()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError):  # on Windows Ctrl-C ends it at once
            loop.add_signal_handler(number, signalled)
    with suppress(NotImplementedError, AttributeError):
        loop.add_signal_handler(signal.SIGHUP, hung_up)
    say(greeting(settings, app.base_url))
    await _work_until(stop, reloader.follow())
    await _finish(app, hurry)


async def _work_until(stop: asyncio.Event, *works: Coroutine[None, None, None]) -> None:
    """Do these beside what there always is to do."""
    tasks = [asyncio.create_task(work) for work in (warm_up(), trim_now_and_then(), *works)]
    await stop.wait()
    for task in tasks:
        task.cancel()


async def _finish(app: App, hurry: asyncio.Event) -> None:
    """Let what runs finish within the grace time, or until it is hurried."""
    app.telemetry.log.info("stopping", grace=app.settings.grace)
    waits = [asyncio.ensure_future(app.drain(app.settings.grace)), asyncio.ensure_future(hurry.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    await app.close(0)


def _serve_with_workers(settings: Settings, read: Callable[[], Settings]) -> None:
    if sys.platform != "linux":
        message = "workers: several need Linux; set it to 1, or start several Narrows behind a balancer"
        raise ConfigurationError(message)
    telemetry = Telemetry(settings.log_level, settings.log_format)
    with ExitStack() as stack:
        sockets = listening_sockets(settings.host, settings.port, settings.workers)
        for each in chain(*sockets):
            stack.enter_context(each)
        url = base_url(settings.host, sockets[0][0].getsockname()[1])
        secret: bytes | None = None

        def gather(latest: Settings) -> Team:
            nonlocal secret
            check_fixed(settings, latest, _FIXED)
            secret = asyncio.run(shared_secret(latest, telemetry, secret))
            load()
            gc.freeze()  # what is there before the fork is in memory once, as long as no collector looks at it
            return Team(sockets, secret)

        def work(latest: Settings, worker: Worker) -> None:
            run_fast(_work(latest, worker, read))

        supervisor = Supervisor(telemetry.log, gather, read, work)
        supervisor.supervise(settings, lambda: say(greeting(settings, url)))


async def _work(settings: Settings, worker: Worker, read: Callable[[], Settings]) -> None:
    """The life of a worker."""
    app = await App.start(settings, worker=worker)

    async def order_reload() -> str:
        latest = await asyncio.to_thread(read)
        check_fixed(settings, latest, _FIXED)
        await check_settings(latest)
        os.kill(os.getppid(), signal.SIGHUP)
        return ""

    app.controls.reload = order_reload
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop.set)
    await _work_until(worker.stop)
    if worker.retires:
        await app.stop_listening()
    await _finish(app, worker.hurry)
