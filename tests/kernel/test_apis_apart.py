"""What is known of a conversation in one API does no harm to the same conversation in another."""

import json
from pathlib import Path

import pytest

from policies.presets import PRESETS, Preset
from proxy.app import App
from proxy.lab.provider import Received, Say
from tests.kit.apis import APIS, Api, entries, plays, wants
from tests.kit.apis import told as told_of
from tests.kit.histories import Json
from tests.kit.recalling import KEEPING, hiding
from tests.kit.speaking import post
from tests.kit.stage import Exchange, Stage

pytestmark = pytest.mark.usefixtures("patient")

PAIRS = [(one, other) for one in APIS.values() for other in APIS.values() if one is not other]


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda api: api.dialect)
@pytest.mark.parametrize("named", [True, False], ids=["an id of the client's", "no id"])
async def test_v1_an_exchange_had_in_one_api_is_not_put_back_in_another(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: Api, other: Api, named: bool
) -> None:
    monkeypatch.setitem(PRESETS, "keeping", Preset(KEEPING))
    app = await stage.start(preset="keeping")
    fresh = await stage.start(preset="keeping", store=f"sqlite:///{tmp_path}/fresh.db")

    async def ask(narrows: App, api: Api, said: list[Json]) -> Exchange:
        headers = [("x-narrows-conversation", "c")] if named else []
        exchange = await post(stage, narrows, api, json.dumps(api.body(said)).encode(), *headers)
        assert exchange.status == 200
        return exchange

    stage.provider.answer = plays(wants("Look. "), Say("Seen."))
    first = await ask(app, one, hiding())
    stage.provider.answer = None
    said = [*hiding(), {"role": "assistant", "content": "Look. Seen."}, {"role": "user", "content": "And then?"}]
    back = await ask(app, one, said)
    assert recalls(stage.provider.requests[-1])
    following = await ask(app, other, said)
    assert not recalls(stage.provider.requests[-1])
    assert (following.headers["x-narrows-conversation"] == first.headers["x-narrows-conversation"]) == named
    assert following.prefix in ("client-changed", "checkpoint:replayed", "checkpoint:config")
    assert entries(other, following.sent) == entries(other, (await ask(fresh, other, said)).sent)
    assert (await ask(app, one, said)).sent == back.sent


def recalls(received: Received) -> list[Json]:
    """The calls of our tool in the history that the provider got."""
    calls = [call for message in told_of(received) for call in message.get("tool_calls") or ()]
    return [call for call in calls if call["function"]["name"] == "narrows_recall"]
