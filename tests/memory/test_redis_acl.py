"""A user of Redis with no more rights than the README of deploy/ names."""

import re
from pathlib import Path

from policies.model.memory import StepRecord
from policies.model.summary_record import SummaryCost
from proxy.config import KeyRow
from proxy.memory import Event, Key, Purse, open_store
from tests.kit.paths import ROOT
from tests.kit.redis_servers import Server
from tests.kit.stored_texts import original, put_originals
from tests.memory.test_store_bills import bill

KEY = Key("t", "c")
README = (ROOT / "deploy" / "README.md").read_text(encoding="utf-8")


async def test_x2_the_rights_that_the_readme_names_are_enough(tmp_path: Path) -> None:
    named = re.search(r"An ACL needs `~PREFIX:\* ([^`]+)`", README)
    assert named is not None
    server = Server(tmp_path / "redis")
    server.start()
    try:
        server.do("ACL", "SETUSER", "narrows", "on", ">secret", "~narrows:*", *named[1].split())
        store = open_store(f"unix://narrows:secret@/{server.path.lstrip('/')}", patience=5.0)
        await store.open()
        await store.remember([(KEY, StepRecord("a"))])
        lease = await store.lease(KEY, "summary", 10)
        assert lease is not None
        await store.release(KEY, lease)
        await store.spend(KEY, "compaction", SummaryCost(1))
        assert await store.take(Purse("t", "c"), 1.0, 1.0)
        assert await store.take(Purse(day="2026-01-31"), 1.0, 1.0)
        await store.note("t", Event(1.0, "c", "summary.made", {}))
        assert [event.name for _, event in await store.events("t", None, 10)] == ["summary.made"]
        await put_originals(store, KEY, {"123456": "text"})
        assert await original(store, "t", "123456", None)
        assert await store.ready()
        assert await store.add_key(KeyRow(name="alice", sha256=64 * "a"))
        assert await store.key_rows()
        assert await store.delete_key("alice")
        await store.own(KEY, "somebody")
        assert list(await store.conversations("t", "somebody")) == ["c"]
        await store.add_bills([bill(1, tenant="t", conversation="c")])
        assert await store.day_rows("2000-01-01")
        assert await store.conversation_rows()
        assert await store.trim(10**9)
        assert await store.delete(KEY) == 1
        assert await store.sweep(0) == 0
        assert len(await store.secret("tenant")) == 32
        await store.close()
    finally:
        server.kill()
