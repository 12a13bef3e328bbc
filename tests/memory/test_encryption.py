"""X6: what is at rest is encrypted, in either back end: nobody else can read it, and nothing is read as another."""

import sqlite3
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis

from policies.model.edits import Insert, RecallRound, Replace
from policies.model.memory import StepRecord
from policies.model.summary_record import SummaryRecord
from proxy.config import ConfigurationError, Settings
from proxy.config.keyring import Keyring, SealedError, keyring_of
from proxy.console.audit import read_audit
from proxy.console.read_store import StoreSettings, settings_of
from proxy.memory import ARTIFACTS, MESSAGES, Key, Store, StoredText, open_store, serialization
from proxy.memory.serialization import Codec, place
from tests.kit.histories import TOOLS
from tests.kit.settings import settings_with
from tests.kit.stage import Stage, working
from tests.kit.stored_texts import original, put_originals
from tests.memory.test_store_summaries import SUMMARY

OLD, NEW = (f"{name}:{b64encode(name[0].encode() * 32).decode()}" for name in ("old", "new"))
WORDS = "a person's very own words"
KEY, OTHER = Key("tenant", "conversation"), Key("tenant", "another")
STEP = StepRecord("anchor", (Replace("a1", WORDS, "offload"),), "paid")
INSERT = Insert("anchor", "reply", (RecallRound(1, (f'{{"arguments":"{WORDS}"}}',)),), "openai_chat")
RECORD = replace(SUMMARY, first="anchor", content=WORDS)
LEAF = StoredText("aa11", WORDS, {"tool": WORDS})
LIMIT = 2**30

Opened = Callable[..., Awaitable[Store]]


def ring(*entries: str) -> Keyring | None:
    return Keyring.parse(",".join(entries)) if entries else None


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/narrows.db"
    return f"{request.getfixturevalue('redis_url')}?prefix={uuid4().hex}"


@pytest.fixture
async def opened(url: str) -> AsyncIterator[Opened]:
    """Opens the one store of the test with these keys."""
    made: list[Store] = []

    async def one(*entries: str) -> Store:
        store = open_store(url, patience=10, keyring=ring(*entries))
        made.append(store)
        await store.open()
        return store

    yield one
    for store in made:
        await store.close()


async def fill(store: Store, key: Key = KEY) -> None:
    """Everything that holds a text."""
    await store.remember([(key, STEP)])
    await store.insert(key, INSERT)
    await store.put_summary(key, RECORD)
    await put_originals(store, key, {"1": WORDS})
    await store.put_texts(key, ARTIFACTS, [LEAF], LIMIT)
    await store.put_texts(key, MESSAGES, [LEAF], LIMIT)


async def told(store: Store, key: Key = KEY) -> Mapping[str, Any]:
    """Of all of it what can be read."""
    memory = await store.memory(key, ["anchor"])
    return {
        "step": memory.steps.get("anchor"),
        "insert": memory.inserts.get("anchor", ()),
        "summaries": memory.summaries,
        "original": (await original(store, key.tenant, "1", None)).get(key.conversation),
        "artifact": await store.texts(key, ARTIFACTS, ["aa11"]),
        "message": await store.texts(key, MESSAGES, ["aa11"]),
        "lists": [await store.list_texts(key, ARTIFACTS), await store.list_texts(key, MESSAGES)],
    }


WHOLE = {
    "step": STEP,
    "insert": (INSERT,),
    "summaries": (RECORD,),
    "original": WORDS,
    "artifact": {"aa11": WORDS},
    "message": {"aa11": WORDS},
    "lists": [[replace(LEAF, text="")]] * 2,
}
NOTHING = {
    "step": None,
    "insert": (),
    "summaries": (),
    "original": None,
    "artifact": {},
    "message": {},
    "lists": [[], []],
}


def at_rest(url: str) -> bytes:
    """All that the back end holds."""
    if url.startswith("sqlite"):
        file = Path(url.removeprefix("sqlite:///"))
        return b"".join(path.read_bytes() for path in file.parent.glob(file.name + "*"))
    where, _, prefix = url.partition("?prefix=")
    with redis.Redis.from_url(where) as client:
        return b"".join(client.dump(name) or b"" for name in client.keys(f"{prefix}:*"))


# --- at rest ---


async def test_x6_what_holds_a_text_is_encrypted_and_comes_back(opened: Opened, url: str) -> None:
    store = await opened(OLD)
    await fill(store)
    assert (await told(store), store.misses) == (WHOLE, 0)
    assert list(await store.summaries(KEY)) == [RECORD]
    assert await store.claim(KEY, STEP) == STEP
    await store.close()
    assert WORDS.encode() not in at_rest(url)
    assert (await told(await opened(OLD))) == WHOLE


async def test_x6_without_keys_it_would_be_there_to_read(opened: Opened, url: str) -> None:
    store = await opened()
    await fill(store)
    await store.close()
    assert WORDS.encode() in at_rest(url)


@pytest.mark.parametrize("keys", [(), (NEW,), (f"old:{NEW.partition(':')[2]}",)], ids=["none", "another", "same id"])
async def test_x6_without_its_key_all_of_it_is_a_counted_miss(opened: Opened, keys: tuple[str, ...]) -> None:
    await fill(await opened(OLD))
    store = await opened(*keys)
    assert (await told(store), store.misses) == (NOTHING, 8)
    await fill(store)  # and the next writer is the first
    assert {name: found for name, found in (await told(store)).items() if name != "lists"} == {
        name: found for name, found in WHOLE.items() if name != "lists"
    }


async def test_x6_what_was_plain_is_read_and_encrypted_when_it_is_written_next(opened: Opened, url: str) -> None:
    await fill(await opened())
    store = await opened(OLD)
    assert (await told(store), store.misses) == (WHOLE, 0)
    await fill(store)
    plain = await opened()
    found = await told(plain)
    assert {name for name, value in found.items() if value == NOTHING[name]} == set(WHOLE) - {"lists"}
    assert (await told(store), store.misses) == (WHOLE, 0)


async def test_x6_keys_are_rotated(opened: Opened) -> None:
    await fill(await opened(OLD))
    both = await opened(NEW, OLD)
    assert (await told(both), both.misses) == (WHOLE, 0)
    await both.remember([(KEY, STEP)])
    await put_originals(both, KEY, {"1": "another", "2": WORDS})
    new = await opened(NEW)
    found = await told(new)
    assert (found["step"], found["original"]) == (STEP, WORDS)  # what was first stays, sealed anew
    assert (found["insert"], found["summaries"], found["artifact"]) == ((), (), {})
    assert (await told(both)) == WHOLE


async def test_x6_first_writer_wins_with_keys_too(opened: Opened) -> None:
    one, other = await opened(OLD), await opened(NEW, OLD)
    second = replace(STEP, edits=())
    assert [await one.claim(KEY, STEP), await other.claim(KEY, second), await one.claim(KEY, second)] == [
        STEP,
        STEP,
        second,  # it does not have the key of the one that sealed it anew: to it that is a miss, and it is the first
    ]


# --- in another place ---

_MOVES = {
    "decision": "UPDATE step SET decision = (SELECT decision FROM step WHERE conversation = ?1)"
    " WHERE conversation = ?2",
    "insert": "UPDATE recall SET content = (SELECT content FROM recall WHERE conversation = ?1)"
    " WHERE conversation = ?2",
    "summary": "UPDATE summary SET content = (SELECT content FROM summary WHERE conversation = ?1)"
    " WHERE conversation = ?2",
    "original": "UPDATE text SET content = (SELECT content FROM text WHERE conversation = ?1 AND kind = 'original')"
    " WHERE conversation = ?2 AND kind = 'original'",
    "text": "UPDATE text SET content = (SELECT content FROM text WHERE conversation = ?1 AND kind = 'message')"
    " WHERE conversation = ?2 AND kind <> 'original'",
}


async def test_x6_a_record_that_was_moved_to_another_conversation_or_kind_is_a_miss(tmp_path: Path) -> None:
    file = tmp_path / "narrows.db"
    store = open_store(f"sqlite:///{file}", patience=10, keyring=ring(OLD))
    await store.open()
    try:
        for key in (KEY, OTHER):
            await fill(store, key)
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            for statement in _MOVES.values():
                connection.execute(statement, (b"conversation", b"another"))
            connection.execute(
                "UPDATE text SET content = (SELECT content FROM text WHERE conversation = ? AND kind = 'message')"
                " WHERE kind = 'artifact'",
                (b"conversation",),
            )
        assert await told(store, OTHER) == NOTHING | {"lists": WHOLE["lists"]}
        assert await told(store) == WHOLE | {"artifact": {}}
    finally:
        await store.close()


def test_x6_a_place_cannot_be_forged_by_a_name() -> None:
    places = [
        place("step", b"a", b"b", b"c"),
        place("step", b"a", b"", b"b", b"c"),
        place("step", b"a1:b", b"c"),
        place("step", b"a", b"1:b", b"c"),
        place("steps", b"a", b"b", b"c"),
    ]
    assert len(set(places)) == len(places)


def test_x7_every_flipped_bit_and_every_cut_is_a_counted_miss_and_never_another_text() -> None:
    codec = Codec(ring(OLD))
    sealed = codec.seal(b"here", serialization.packed("text", b"n", "text"))
    read = partial(serialization.record_of, "text", b"n")
    flipped = (
        sealed[:at] + bytes([sealed[at] ^ 1 << bit]) + sealed[at + 1 :] for at in range(len(sealed)) for bit in range(8)
    )
    damaged = [*flipped, *(sealed[:end] for end in range(len(sealed))), sealed + b"\0"]
    assert [codec.open(b"here", read, each) for each in damaged] == [None] * len(damaged)
    assert codec.misses == len(damaged)
    assert codec.open(b"there", read, sealed) is None
    assert codec.open(b"here", read, sealed) == "text"


def test_x6_the_same_text_is_never_sealed_the_same_way_twice() -> None:
    keys = ring(OLD)
    assert keys is not None
    sealed = [keys.seal(b"here", b"text") for _ in range(100)]
    assert len({each[5:17] for each in sealed}) == len(set(sealed)) == 100
    with pytest.raises(SealedError):
        keys.open(b"here", b"")


# --- settings ---


@pytest.mark.parametrize(
    ("said", "wish"),
    [
        ("", "empty or not set"),
        ("k", "a key is 32 bytes"),
        ("k:", "a key is 32 bytes"),
        ("k:c2hvcnQ=", "a key is 32 bytes"),
        ("k:" + "!" * 44, "a key is 32 bytes"),
        (f"{OLD},", "an id of its own"),
        (f"{OLD},{OLD}", "an id of its own"),
        ("a b:" + OLD[4:], "an id of its own"),
        (OLD[3:], "an id of its own"),
    ],
)
def test_x6_a_malformed_key_is_refused_at_load_and_not_told(
    monkeypatch: pytest.MonkeyPatch, said: str, wish: str
) -> None:
    monkeypatch.setenv("STORE_KEYS", said)
    with pytest.raises(ConfigurationError) as raised:
        settings_with(["--encryption-key-env", "STORE_KEYS"])
    assert "encryption_key_env" in str(raised.value)
    assert wish in str(raised.value)
    assert "openssl rand -base64 32" in str(raised.value)
    assert OLD[4:] not in str(raised.value)


def test_x6_keys_are_read_from_the_variable_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_KEYS", f" {NEW} , {OLD}\n")
    found = Settings(encryption_key_env="STORE_KEYS").keyring
    assert found is not None
    assert found.open(b"p", Keyring.parse(OLD).seal(b"p", b"text")) == b"text"
    assert found.is_newest(Keyring.parse(NEW).seal(b"p", b"text"))
    assert keyring_of("") is None
    assert Settings().keyring is None


# --- the whole program ---


async def test_x6_a_served_session_leaves_no_text_at_rest_and_goes_on_after_a_restart(
    stage: Stage, patient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORE_KEYS", OLD)
    session = working(5, 60)
    kept = {"originals": True, "artifacts": True, "history": True}
    plain = await stage.grow(await stage.start(store="sqlite://"), session, tools=TOOLS)
    app = await stage.start(encryption_key_env="STORE_KEYS", **kept)
    half = len(plain) // 2
    turns = [m for m, message in enumerate(session) if message["role"] == "assistant"]
    sealed = [await stage.ask(app, session[:end], tools=TOOLS) for end in turns[:half]]
    await app.close()
    for words in (b"parse_line", b"rename the parser", b"chars omitted", b"careful"):
        assert words not in at_rest(f"sqlite:///{stage.path}")
    again = await stage.start(encryption_key_env="STORE_KEYS", **kept)
    sealed += [await stage.ask(again, session[:end], tools=TOOLS) for end in turns[half:]]
    assert [exchange.sent for exchange in sealed] == [exchange.sent for exchange in plain]
    assert [exchange.prefix for exchange in sealed] == [exchange.prefix for exchange in plain]
    assert all(old.status == new.status == 200 for old, new in pairwise(sealed))
    await again.close()
    other = await stage.start(**kept)  # the key is lost: all is planned from replay
    assert (await stage.ask(other, session[: turns[-1]], tools=TOOLS)).sent == plain[-1].sent


async def test_x6_an_audit_needs_the_keys_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/narrows.db"
    store = open_store(url, patience=10, keyring=ring(OLD))
    await store.open()
    await store.put_summary(KEY, RECORD)
    await store.close()

    async def found() -> list[SummaryRecord]:
        audit = await read_audit(settings_of(StoreSettings, url, None), "conversation", "tenant")
        return [each.record for each in audit.summaries]

    assert await found() == []
    monkeypatch.setenv("NARROWS_ENCRYPTION_KEY_ENV", "STORE_KEYS")
    with pytest.raises(ValueError, match=r"encryption_key_env.*STORE_KEYS"):
        await found()
    monkeypatch.setenv("STORE_KEYS", OLD)
    assert await found() == [RECORD]
