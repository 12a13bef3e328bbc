"""V6 where thoughts are bound to the prompt before them: an agent that thinks goes on, whatever is shortened."""

import json
from typing import Any

import pytest

from policies.presets import PRESETS, Preset
from proxy.app import App
from proxy.lab.provider import Answer, Received, Say
from tests.kit.apis import APIS, answered, plays, wants
from tests.kit.histories import Json
from tests.kit.recalling import KEEPING, REPORT, TOOLS, call
from tests.kit.speaking import Heard, Speaker, speaking
from tests.kit.stage import MODELS, Stage

pytestmark = pytest.mark.usefixtures("patient")

MODEL = "claude-opus-5-5"
BETA = "thinking-binding-controls-2026-08-01"
API = APIS["anthropic_messages"]


async def narrows(stage: Stage, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> App:
    """One that shortens as soon as it may, at prices at which it pays."""
    monkeypatch.setitem(PRESETS, "keeping", Preset(KEEPING))
    return await stage.start(models={**MODELS, MODEL: MODELS["m"]}, preset="keeping", **settings)


def thinks(number: int) -> Say:
    """A model that thinks and calls a tool."""
    return Say(f"Step {number}. ", [call(f"c{number}", "bash", command=f"make {number}")], thinking=(f"{number}?",))


def ponders(turn: Any) -> Any:
    """The same turn, thought about."""

    def answer(received: Received) -> Answer:
        said = turn(received)
        return Say(said.content, said.calls, thinking=("Where was that?",))

    return answer


async def worked(speaker: Speaker, steps: int, **fields: Any) -> list[Heard]:
    """An agent that lets the model call its tool, and answers with long outputs."""
    said: list[Json] = [{"role": "system", "content": "Be careful."}, {"role": "user", "content": "Go on."}]
    heard = []
    for _ in range(steps):
        heard.append(await speaker.ask(said, tools=TOOLS, model=MODEL, **API.thinks, **fields))
        said += answered(heard[-1].message(), f"{REPORT} of step {len(heard)}")
    return heard


def dropped(heard: Heard) -> list[Any]:
    return list(json.loads(heard.raw).get("input_transformations") or ())


async def test_v6_a_loop_with_cuts_and_recalls_is_never_refused(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [thinks(1), thinks(2), thinks(3), ponders(wants()), thinks(4), thinks(5), thinks(6)]
    stage.provider.answer = plays(*turns)
    app = await narrows(stage, monkeypatch)
    async with speaking(API, app.base_url) as speaker:
        heard = await worked(speaker, 6)
        requests = list(stage.provider.requests)
    assert [request.violation for request in requests] == [None] * 7
    assert all(request.headers["anthropic-beta"] == BETA for request in requests)
    assert "tail-cut" in {each.prefix for each in heard}
    assert dropped(heard[-1])


@pytest.mark.parametrize("given", ["other-2026-01-01", f"other-2026-01-01, {BETA}"])
async def test_v6_betas_of_the_clients_own_stay(stage: Stage, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    stage.provider.answer = plays(thinks(1))
    app = await narrows(stage, monkeypatch)
    async with speaking(API, app.base_url) as speaker:
        await worked(speaker, 1, extra_headers={"anthropic-beta": given})
    (request,) = stage.provider.requests
    assert sorted(request.headers["anthropic-beta"].split(", ")) == ["other-2026-01-01", BETA]


async def test_v6_left_out_where_the_configuration_says_so(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.provider.answer = plays(*map(thinks, range(6)))
    app = await narrows(stage, monkeypatch, drop_bound_thinking=False)
    async with speaking(API, app.base_url) as speaker:
        with pytest.raises(Exception, match="bound to a different conversation"):
            await worked(speaker, 6)
    assert "anthropic-beta" not in stage.provider.requests[-1].headers
