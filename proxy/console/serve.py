"""`narrows serve`: one process, or several workers and their parent."""

import asyncio
import gc
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from itertools import chain
from shlex import quote
from textwrap import wrap
from urllib.parse import urlsplit

from policies.dialects import DIALECTS
from policies.presets import WritingOptions
from policies.rules.summarize import Summarize
from proxy.app import App, base_url
from proxy.config import ConfigurationError, Mode, Settings, SummarizerSettings
from proxy.config.clients import CLIENTS, DEFAULT_ADDRESS
from proxy.config.groups.compaction import SAME
from proxy.config.upstreams import is_public, spoken_at
from proxy.console.check import notices
from proxy.drawing.figures import bill_in_words
from proxy.event_loop import run_fast, terminal_is_gone
from proxy.generation import check_fixed, check_settings
from proxy.memory import StoreTrouble, open_store, public_url
from proxy.memory.opening import shared_secret
from proxy.telemetry import Telemetry
from proxy.usage.report import UsageQuery, read_usage
from proxy.warmup import load, trim_now_and_then, tune, warm_up
from proxy.workers.listening import listening_sockets
from proxy.workers.supervisor import Supervisor
from proxy.workers.worker import Team, Worker

_FIXED = ("host", "port", "workers")


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
        """The digest of the settings that count now. Raises ConfigurationError: those before go on then."""
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
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError):  # on Windows Ctrl-C ends it at once
            loop.add_signal_handler(number, lambda: (hurry if stop.is_set() else stop).set())
    with suppress(NotImplementedError, AttributeError):
        loop.add_signal_handler(signal.SIGHUP, lambda: (stop.set if terminal_is_gone() else reloader.want)())
    announce(settings, app.base_url, app.telemetry)
    await _work_until(stop, reloader.follow())
    await _finish(app, hurry)


async def _work_until(stop: asyncio.Event, *works: Coroutine[None, None, None]) -> None:
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
        supervisor.supervise(settings, lambda: announce(settings, url, telemetry))


async def _work(settings: Settings, worker: Worker, read: Callable[[], Settings]) -> None:
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


# --- What `narrows serve` says to people: the greeting once everything listens, and what the day came to at the end.

_COLUMNS, _INDENT = 80, " " * 13
_PATIENCE = 1.0
"""Seconds that printing may wait for whoever reads it."""
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - nothing is bound here
_MODES: Mapping[Mode, str] = {
    "on": "",
    "observe": "observe: requests pass untouched, and what would be saved is reported",
    "off": "off: every request passes untouched",
}


def announce(settings: Settings, base_url: str, telemetry: Telemetry) -> None:
    """Say on the terminal, and of what a person should know later in the log, that everything listens."""
    say(greeting(settings, base_url))
    for name, text in notices(settings).items():
        telemetry.log.info(name, says=text)


def greeting(settings: Settings, base_url: str) -> str:
    """Printed once everything listens, for 80 columns: lines to paste, and what is done with requests."""
    bind = urlsplit(base_url)
    everywhere = bind.hostname in _WILDCARDS
    address = f"http://127.0.0.1:{bind.port}" if everywhere else base_url.removesuffix("/v1")
    lines = [f"Narrows is up at {address}/v1", "Paste this into the shell where your client starts:", ""]
    apis = {api for row in settings.upstream_rows for api in spoken_at(row)}
    for client in ("openai", "anthropic"):
        spoken = {api.label for api in DIALECTS.values() if api.provider == client}
        lines += [f"  {line}" for line in CLIENTS[client].lines(address, {}) if apis & spoken]
    lines += [""] if lines[3:] else []
    url = "" if address == DEFAULT_ADDRESS else f" --url {quote(f'{address}/v1')}"
    there = "this machine's name in place of 127.0.0.1" if everywhere else "this address"
    others = f"other machines use {there}, or the address of the https front before it"
    rows = {
        "Codex": f'eval "$(narrows env codex{url})"' if "responses" in apis else "",
        "elsewhere": others if is_public(settings.host) else "",
        "keys": _keys_greeting(settings),
        "upstream": " and ".join(filter(None, dict.fromkeys(map(settings.upstream_of, DIALECTS)))),
        "mode": _MODES[settings.mode],
        "summaries": _summaries_greeting(settings),
        "roles": _roles_greeting(settings),
    }
    if settings.upstreams:
        rows["upstream"] = ", ".join(f"{row.name} ({row.url})" for row in settings.upstream_rows)
    if not settings.only_relays:
        rows |= {"page": f"{address}/narrows/ shows what is saved", "preset": settings.preset}
        rows |= {"store": public_url(settings.store), **_measures_greeting(settings)}
    row = partial(wrap, width=_COLUMNS, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False)
    for name, text in rows.items():
        lines += row(text, initial_indent=f"  {name}:".ljust(len(_INDENT)))
    return "\n".join(lines)


def _keys_greeting(settings: Settings) -> str:
    if settings.auth == "keys":
        return "clients show keys of this gateway as their API keys; `narrows keys` makes them"
    if settings.auth == "both":
        return "clients show their own API keys, or keys of this gateway"
    if any(row.has_key for row in settings.upstream_rows):
        return "clients here need none where the upstream has a key of the gateway's own"
    return "your clients' API keys stay as they are, and go on to the upstream"


def _measures_greeting(settings: Settings) -> dict[str, str]:
    """Holdout, recordings, shadow requests, pings and deferred tools, where there are any."""
    rows, keys = {}, " and ".join(filter(None, (settings.agree_key_env, settings.agree_anthropic_key_env)))
    if settings.holdout:
        rows["holdout"] = f"{settings.holdout:.1%} of the conversations pass as their clients wrote them"
    if settings.record is not None:
        how = "sealed" if settings.encryption_key_env else "as plain text"
        rows["recording"] = f"{settings.record_share:.0%} of the conversations are written to {settings.record}, {how}"
    if settings.agree_share:
        how = f"with the key in {keys}, for at most ${settings.agree_budget:g} a day"
        rows["agreement"] = f"{settings.agree_share:.1%} of shortened requests are asked again {how}"
    return rows | notices(settings)


def _roles_greeting(settings: Settings) -> str:
    """Which presets send system text in the middle of a history, which some templates refuse."""
    policies = [(name, policy) for name in _presets_of(settings) for policy in settings.all_presets()[name].policies]
    names = [name for name, policy in policies if isinstance(policy, Summarize) and policy.as_system]
    if not names or not settings.summaries:
        return ""
    where = "`as_system = false` puts them elsewhere"
    return f"{', '.join(names)}: summaries are system text; templates of Gemma, Mistral and Qwen refuse that; {where}"


def _presets_of(settings: Settings) -> list[str]:
    ruled = (rule.preset for rule in settings.rules if rule.preset)
    return list(dict.fromkeys((settings.preset, *ruled, *settings.request_presets)))


def _summaries_greeting(settings: Settings) -> str:
    """Which models would be asked for summaries, and who pays."""
    if not settings.summaries or "on" not in (settings.mode, *(rule.mode for rule in settings.rules)):
        return "no model is asked"
    presets, names = settings.all_presets(), _presets_of(settings)
    wanting = [each for each in map(presets.__getitem__, names) if each.summarizes or each.digests is not None]
    if not wanting:
        return f"no model is asked, as preset {' or '.join(names)} wants none"
    writers = (_writer(each, preset.writing, settings) for preset in wanting for each in settings.summarizers)
    return f"asked of {', then '.join(dict.fromkeys(writers))}; --no-summaries turns them off"


def _writer(entry: SummarizerSettings, writing: WritingOptions, settings: Settings) -> str:
    """The model of an entry of `summarizers`, where it is asked and with whose key."""
    names = dict.fromkeys((entry.model,) if entry.model else [name for _, name in writing.models])
    words = ["the model of each conversation" if name == SAME else name for name in names]
    model = " or ".join(words) or "the small sibling of each conversation's model (gpt-5.4 -> gpt-5.4-mini)"
    where = f" at {entry.base_url}" if entry.base_url else ""
    if not entry.key_env:
        keyed = [] if where else [row.name for row in settings.upstream_rows if row.has_key]
        ours = f"with the gateway's own key at {', '.join(keyed)}" if keyed else ""
        kind = "API key" if settings.summary_credential == "client-key" else "credential"
        theirs = f"with the client's own {kind}" if len(keyed) < len(settings.upstream_rows) else ""
        return ", ".join(filter(None, (f"{model}{where}", ours, f"else {theirs}" if ours and theirs else theirs)))
    is_spent = settings.summary_allow or not is_public(settings.host)
    return f"{model}{where}, with the key in {entry.key_env}{'' if is_spent else ' for nobody (see summary_allow)'}"


async def print_day(settings: Settings) -> None:
    """The bill of today, of all who share the store; nothing where nothing was billed. Raises StoreTrouble."""
    store = open_store(settings.store, keyring=settings.keyring)
    try:
        await store.open()
        report = await read_usage(store, UsageQuery.read("day", "1d", time.time()))
    finally:
        await store.close()
    sums = report.total.sums
    if sums.requests:
        first, second = bill_in_words(sums)
        command = f"narrows usage --config {settings.config}" if settings.config else "narrows usage"
        say(f"Today ({report.until}, UTC): {first}\n  {second}; `{command}` says more")


def say(text: str) -> None:
    """Print it. Serving goes on where that fails: a full disk, a closed pipe, a terminal that has not all letters; or
    would hang: a pipe that nobody reads may be full, and a terminal be stopped by Ctrl-S."""
    with suppress(OSError, ValueError):  # not a file of the system, or one that Windows cannot wait for
        if not select.select([], [sys.stdout], [], _PATIENCE)[1]:
            return
    try:
        encoding = sys.stdout.encoding
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - else its text is tried again at the end
