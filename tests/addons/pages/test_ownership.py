"""Who deletes what: conversations go by the credential that sent them, in a tenant of several as on one machine."""

import asyncio

import pytest

from proxy.app import App
from proxy.memory import Key
from tests.addons.pages.test_conversations import opened
from tests.kit.histories import Json
from tests.kit.stage import Stage, working
from tests.kit.visiting import BEHIND, NOBODY, bearer, conversation_page, page

SESSION = working(4, 20)[:7]
OTHER: list[Json] = [{"role": "user", "content": "What else?"}]

pytestmark = pytest.mark.usefixtures("patient")


async def sent(stage: Stage, app: App, name: str, key: str, *headers: tuple[str, str]) -> None:
    """A conversation of this key, once its log can be read."""
    mine = (("x-narrows-conversation", name), ("Authorization", f"Bearer {key}"), *headers)
    await stage.ask(app, SESSION if name == "shared" else OTHER, *mine)
    for _ in range(500):
        if (await page(stage, app, f"conversations/{name}/history", *mine)).status == 200:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it was never written")


async def reads(stage: Stage, app: App, name: str, *headers: tuple[str, str]) -> bool:
    return (await page(stage, app, f"conversations/{name}/history", *headers)).status == 200


@pytest.mark.parametrize("away", [False, True], ids=["on this machine", "elsewhere in the tenant"])
async def test_x12_a_conversation_is_deleted_by_who_sent_it_and_nobody_else(stage: Stage, url: str, away: bool) -> None:
    settings = {"store": url, "history": True, "tenant_secret": "s", **({"tenant": "team"} if away else {})}
    app, behind = await stage.start(**settings), (BEHIND,) if away else ()
    mine, theirs = ((*behind, ("Authorization", f"Bearer {key}")) for key in ("mine", "theirs"))
    await sent(stage, app, "a", "mine", *behind)
    await sent(stage, app, "b", "theirs", *behind)
    await app.close(0)
    app = await stage.start(**settings)  # after a restart, and so in another worker or replica
    foreign = await conversation_page(stage, app, "DELETE", "/a", *theirs)
    assert foreign.status == 404
    assert foreign.body == (await conversation_page(stage, app, "DELETE", "/never", *theirs)).body
    stranger = (*behind, ("Authorization", "Bearer made up"))
    assert (await conversation_page(stage, app, "DELETE", "", *stranger)).json == {"deleted": 0}
    assert await reads(stage, app, "a", *mine)
    assert not await reads(stage, app, "a", *theirs)
    assert (await conversation_page(stage, app, "DELETE", "", *theirs)).json == {"deleted": 1}
    assert [await reads(stage, app, "a", *mine), await reads(stage, app, "b", *theirs)] == [True, False]
    assert (await conversation_page(stage, app, "DELETE", "/a", *mine)).status == 204
    assert (await conversation_page(stage, app, "DELETE", "/a", *mine)).status == 404
    assert not await reads(stage, app, "a", NOBODY)


async def test_x12_of_what_several_have_sent_each_deletes_its_own(stage: Stage, url: str) -> None:
    app = await stage.start(store=url, history=True, originals=True)
    for key in ("mine", "theirs"):
        await sent(stage, app, "shared", key)
    mine, theirs = (("Authorization", f"Bearer {key}") for key in ("mine", "theirs"))
    async with opened(url) as store:
        for _ in range(500):  # it is written behind the request
            if len(await store.owners(Key("local", "shared"))) == 2:
                break
            await asyncio.sleep(0.01)
    both = len((await page(stage, app, "conversations/shared/history", NOBODY)).body)
    assert (await conversation_page(stage, app, "DELETE", "/shared", mine)).status == 204
    assert [await reads(stage, app, "shared", mine), await reads(stage, app, "shared", theirs)] == [False, True]
    assert len((await page(stage, app, "conversations/shared/history", NOBODY)).body) < both
    assert (await conversation_page(stage, app, "DELETE", "", theirs)).json == {"deleted": 1}
    assert not await reads(stage, app, "shared", NOBODY)


async def test_x12_who_shows_no_credential_on_this_machine_deletes_all_of_it(stage: Stage) -> None:
    app = await stage.start(history=True, tenant_secret="s")
    for name in ("a", "b"):
        await sent(stage, app, name, name)
    await sent(stage, app, "c", "away", BEHIND)
    assert (await conversation_page(stage, app, "DELETE", "", NOBODY)).json == {"deleted": 2}
    assert await reads(stage, app, "c", *bearer("away"))


async def test_x12_a_name_too_long_for_a_header_is_asked_for_by_itself_or_by_its_digest(stage: Stage) -> None:
    app, name = await stage.start(history=True), "n" * 300
    digest = (await stage.ask(app, OTHER, prompt_cache_key=name)).headers["x-narrows-conversation"]
    assert len(digest) == 64
    for _ in range(500):
        if await reads(stage, app, digest):
            break
        await asyncio.sleep(0.01)
    assert (await conversation_page(stage, app, "GET", f"/history?id={name}")).status == 200
    assert (await conversation_page(stage, app, "DELETE", f"?id={name}")).status == 204
    assert not await reads(stage, app, digest)
