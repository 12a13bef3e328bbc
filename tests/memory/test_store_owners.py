"""Who has sent what, and how much all of it may be: what every back end promises."""

from dataclasses import replace

from proxy.memory import ARTIFACTS, MESSAGES, ORIGINALS, TEXT_KINDS, Key, Store, StoredText
from tests.memory.test_store import KEY, RECORD, every_back_end, stores_made  # noqa: F401 - fixtures
from tests.memory.test_store_summaries import SUMMARY


async def test_x12_it_is_known_who_has_sent_a_conversation_until_it_goes(store: Store) -> None:
    other = Key(KEY.tenant, "other")
    for key, owner in ((KEY, "me"), (KEY, "me"), (KEY, "you"), (other, "me"), (Key("elsewhere", "chat"), "me")):
        await store.own(key, owner)
    assert set(await store.owners(KEY)) == {"me", "you"}
    assert set(await store.conversations(KEY.tenant, "me")) == {KEY.conversation, "other"}
    assert list(await store.conversations(KEY.tenant, "nobody")) == []
    assert await store.disown(KEY, "you") == 1
    assert await store.disown(KEY, "you") == 1
    assert await store.delete(KEY) == 1
    assert set(await store.owners(KEY)) == set()
    assert list(await store.conversations(KEY.tenant, "me")) == ["other"]


async def test_x12_single_texts_and_summaries_go_and_others_stay(store: Store) -> None:
    for kind in TEXT_KINDS.values():
        await store.put_texts(KEY, kind, [StoredText(name, name * 1_000, {}) for name in "abc"], 10_000)
        await store.delete_texts(KEY, kind, ["a", "c", "never"])
        assert [text.name for text in await store.list_texts(KEY, kind)] == ["b"]
        assert await store.texts(KEY, kind, ["a", "b", "c"]) == {"b": "b" * 1_000}
    for kind in (ORIGINALS, ARTIFACTS):
        assert list(await store.conversations_with(KEY.tenant, kind, "a")) == []
        assert list(await store.conversations_with(KEY.tenant, kind, "b")) == [KEY.conversation]
    await store.put_texts(KEY, MESSAGES, [StoredText("d", "d" * 1_000, {})], 2_500)  # what went counts no more
    assert [text.name for text in await store.list_texts(KEY, MESSAGES)] == ["b", "d"]
    records = [replace(SUMMARY, id=id, conversation=KEY.conversation) for id in ("s1", "s2", "s3")]
    records[2] = replace(records[2], first="elsewhere")
    for record in records:
        await store.put_summary(KEY, record)
    await store.delete_summaries(KEY, ["s1", "s3", "never"])
    assert [record.id for record in await store.summaries(KEY)] == ["s2"]
    assert [record.id for record in (await store.memory(KEY, [SUMMARY.first, "elsewhere"])).summaries] == ["s2"]


async def test_x11_whoever_holds_most_gives_up_the_oldest_first(store: Store) -> None:
    large, small = [Key("large", f"c{i:02}") for i in range(40)], [Key("small", f"c{i}") for i in range(3)]
    for key in (*large[:20], *small, *large[20:]):
        await store.put_texts(key, ORIGINALS, [StoredText("a", key.conversation * 5_000, {})])
        await store.remember([(key, RECORD)])
    looked = await store.trim(550_000)
    assert looked is not None
    size, trimmed = looked
    assert size <= 550_000
    left = [key for key in (*large, *small) if await store.list_texts(key, ORIGINALS)]
    assert len(left) == 43 - trimmed < 43
    assert left == [*large[trimmed:], *small]
    again = await store.trim(550_000)
    assert again is None or again[1] == 0  # replicas share what one of them has looked at
