"""Definitions of tools that are deferred: what is sent in each API, what a search brings, what nobody notices."""

import pytest

from proxy.app import App
from proxy.lab.provider import Say
from tests.kit.apis import APIS
from tests.kit.deferring import ASK, TOOLS, accepted, finding, names_sent
from tests.kit.recalling import call
from tests.kit.speaking import speaking
from tests.kit.stage import Stage

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture
async def app(stage: Stage) -> App:
    return await stage.start(tools="defer", preset="lossless")


async def test_chat(stage: Stage, app: App) -> None:
    api = APIS["openai_chat"]
    stage.provider.answer = finding(
        "export the shipment", Say("I do.", [call("c1", "export_shipment", identifier="x")])
    )
    async with speaking(api, app.base_url) as speaker:
        await accepted(speaker)
        heard = await speaker.hear([ASK], False, tools=TOOLS, model="m")
        for r in stage.provider.requests:
            print(names_sent(r, api), r.violation)
        print(heard.raw, dict(heard.headers))
        print(stage.provider.requests[-1].body[-700:])
        again = await speaker.hear(
            [ASK, heard.message(), {"role": "tool", "tool_call_id": "c1", "content": "ok"}],
            False,
            tools=TOOLS,
            model="m",
        )
        for r in stage.provider.requests:
            print(names_sent(r, api), r.violation, r.usage)
        print(dict(again.headers))
        print(stage.provider.requests[-1].body[-700:])
    assert 0
