"""What each release wrote into its store, kept for the releases that come after it.

A golden store is a folder of tests/memory/golden, named after the release that wrote it:

  sessions.json.gz  two conversations: the requests of a coding agent, and a chat with a rolling summary
  sqlite.db.gz      an SQLite file after the first half of both
  redis.json.gz     a Redis database after the same: a name, a type and a value for each key
  sent.json         what that release then sent upstream in the second half: a digest of each body, and the prefix

`python -m tests.memory.golden_store RELEASE` writes one, and refuses to write over one that is there.
"""

import asyncio
import base64
import gzip
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import redis

from proxy.lab.provider import Received, Say
from proxy.lab.sessions import load
from tests.kit.redis_servers import Park
from tests.kit.rolling import writes
from tests.kit.stage import Exchange, Stage, ends, moved, staged

GOLDEN = Path(__file__).with_name("golden")
SQLITE, REDIS, SESSIONS, SENT = "sqlite.db.gz", "redis.json.gz", "sessions.json.gz", "sent.json"
FOR_EVER = "36500d"
"""Seconds pass between the release that wrote it and the one that reads it: nothing is too old here."""
MODELS = {
    "m": {"input": 2.0, "output": 10.0, "read": 0.1, "write": 1.0, "window": 100_000},
    "scribe": {"input": 0.001, "output": 0.001, "window": 100_000},
}
Json = dict[str, Any]


def chat() -> list[Json]:
    """Sixteen questions about a journey: long answers at first, so that a summary comes, and short ones behind it."""
    answer = "day {} of the journey leads from the harbour over the pass to the lake, past farms, inns and a chapel; "
    turns = [
        [
            {"role": "user", "content": f"What should we do on day {day}?"},
            {"role": "assistant", "content": f"{day}. " + answer.format(day) * (40 if day < 6 else 5)},
        ]
        for day in range(1, 17)
    ]
    return [message for turn in turns for message in turn]


def new_sessions() -> list[Json]:
    """The two conversations, each with the settings that it runs under and the request at which the store is kept."""
    agent = load("long_day")
    common = {"cold_seconds": 1e9, "models": MODELS, "floor": None}
    rolling = {
        "preset": "chat",
        "aim": "context",
        "context_tokens": 6_000,
        "summarizers": [{"model": "scribe"}],
        "summary_wait": 10_000,
        "summary_ttl": 1e10,
    }
    return [
        {
            "messages": agent["messages"],
            "tools": agent["tools"],
            "stored": 40,
            "settings": {**common, "preset": "coding-agent"},
        },
        {"messages": chat(), "tools": None, "stored": 10, "settings": {**common, **rolling}},
    ]


async def sent(stage: Stage, store: str, session: Json, first: int, last: int | None) -> list[list[str]]:
    """The requests of a session from `first` to before `last`: a digest of each body that went upstream, and what
    became of its prefix."""
    app = await stage.start(store=store, **session["settings"])
    rows, exchanges = [], list[Exchange]()
    for end in ends(session["messages"])[first:last]:
        exchange = await stage.ask(app, session["messages"][:end], tools=session["tools"])
        asked = next(r for r in reversed(stage.provider.requests) if r.json["model"] == "m")
        rows.append([sha256(asked.body).hexdigest()[:16], exchange.prefix])
        exchanges.append(exchange)
    assert moved(exchanges) == []
    await app.close(5)
    return rows


def answer(received: Received) -> Say | None:
    """The summarizer writes the same notes each time."""
    return writes(received) if received.json["model"] == "scribe" else None


@asynccontextmanager
async def writing_stage(folder: Path) -> AsyncIterator[Stage]:
    """The strict provider, with the summarizer behind it."""
    async with staged(folder / "unused.db", MODELS) as stage:
        stage.provider.answer = answer
        yield stage


def dumped(url: str) -> list[list[Any]]:
    """Every key of a Redis database: its name, its type, its value, bytes as base64."""
    with redis.Redis.from_url(url) as client:
        read: dict[str, Callable[[bytes], Any]] = {
            "hash": client.hgetall,
            "string": client.get,
            "set": client.smembers,
            "zset": partial(client.zrange, start=0, end=-1, withscores=True),
            "stream": client.xrange,
        }
        kinds = {key: client.type(key).decode() for key in sorted(client.scan_iter())}
        return [[_text(key), kind, _text(read[kind](key))] for key, kind in kinds.items()]


def restored(url: str, rows: Sequence[Sequence[Any]]) -> None:
    """The opposite of `dumped`."""
    with redis.Redis.from_url(url) as client:
        write: dict[str, Callable[[bytes, Any], Any]] = {
            "hash": lambda name, content: client.hset(name, mapping=dict(content)),
            "string": client.set,
            "set": lambda name, members: client.sadd(name, *members),
            "zset": lambda name, members: client.zadd(name, dict(members)),
            "stream": lambda name, entries: [client.xadd(name, dict(fields), id=number) for number, fields in entries],
        }
        for key, kind, value in rows:
            write[kind](base64.b64decode(key), _bytes(value))


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return [[_text(name), _text(each)] for name, each in value.items()]
    if isinstance(value, set | list | tuple):
        return [_text(each) for each in (sorted(value) if isinstance(value, set) else value)]
    return value


def _bytes(value: Any) -> Any:
    if isinstance(value, str):
        return base64.b64decode(value)
    return [_bytes(each) for each in value] if isinstance(value, list) else value


def packed(value: Any) -> bytes:
    return gzip.compress(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(), mtime=0)


def unpacked(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


async def written(park: Park, work: Path) -> dict[str, bytes]:
    """The files: both stores after the first half of each session, and what is sent in the second half, which is the
    same with either."""
    sessions, server, file = new_sessions(), park.server(), work / "narrows.db"
    urls = [f"sqlite:///{file}?ttl={FOR_EVER}", f"{server.url}?ttl={FOR_EVER}"]
    async with writing_stage(work) as stage:
        for session in sessions:
            halves = [await sent(stage, url, session, 0, session["stored"]) for url in urls]
            assert halves[0] == halves[1]
        stores = {SQLITE: gzip.compress(file.read_bytes(), mtime=0), REDIS: packed(dumped(server.url))}
        rest = [[await sent(stage, url, each, each["stored"], None) for each in sessions] for url in urls]
        assert rest[0] == rest[1]
    return {**stores, SESSIONS: packed(sessions), SENT: json.dumps(rest[0], indent=1).encode() + b"\n"}


def main(release: str) -> None:
    folder = GOLDEN / release
    if folder.exists():
        sys.exit(f"{folder} is there: what a release wrote is not written again")
    with tempfile.TemporaryDirectory() as name, closing(Park(Path(name))) as park:
        files = asyncio.run(written(park, Path(name)))
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


if __name__ == "__main__":
    main(*sys.argv[1:])
