"""The lines that are about more than one part, over each API: summaries, a store in trouble, and being left alone."""

import pytest

from policies.presets import PRESETS, Preset
from proxy.lab.provider import Received, Say
from tests.kit.apis import Api, text_of, told
from tests.kit.histories import requests
from tests.kit.prefixes import ask, grow, moved, sent
from tests.kit.rolling import PLAIN, PRICED, RULES, material_of, notes_of, work, writes
from tests.kit.running import compaction_of
from tests.kit.stage import Stage, working

SETTINGS = {"preset": "plain", "summary_tokens": 100, "summarizers": [{"model": "scribe"}], "models": PRICED}
pytestmark = pytest.mark.usefixtures("patient")


async def test_m3_m5_a_summary_is_adopted_and_what_people_wrote_goes_along(
    stage: Stage, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policies.planning.folding.SMALLEST", 1)
    monkeypatch.setitem(PRESETS, "plain", Preset(PLAIN))
    asked: list[Received] = []

    def written(received: Received) -> Say:
        asked.append(received)
        return writes(received)

    app = await stage.start(**SETTINGS)
    stage.provider.answer = lambda received: written(received) if received.model == "scribe" else None
    grown = []
    for messages in requests(work(21))[10:]:
        grown.append(await ask(stage, app, api, messages))
        await compaction_of(app).maker.settled()
    assert {exchange.status for exchange in grown} == {200}
    words = [exchange.headers.get("x-narrows-summary") for exchange in grown]
    assert "adopted" in words
    assert {received.dialect for received in asked} == {api.dialect}
    assert moved(api, grown) == []
    first = grown[words.index("adopted")]
    assert first.prefix == "checkpoint:summary"
    texts = [text_of(message) for message in sent(api, first)]
    (summary,) = (text for text in texts if text.startswith("<narrows_summary>"))
    assert notes_of(material_of(asked[0])) in summary
    for rule in RULES:
        assert any(rule in text for text in texts)
    assert texts[1] == "Do the work."


async def test_f_without_its_store_the_same_bytes_are_sent(stage: Stage, api: Api, free_port: int) -> None:
    sound = await ask(stage, await stage.start(store="sqlite://"), api, working(lines=16)[:-1])
    app = await stage.start(store=f"redis://127.0.0.1:{free_port}/0")
    troubled = await grow(stage, app, api, working(3)) + [await ask(stage, app, api, working(lines=16)[:-1])]
    assert {exchange.status for exchange in troubled} == {200}
    assert sound.mode == "compacted"
    assert troubled[-1].sent == sound.sent


async def test_t9_who_wants_none_of_it_is_left_alone(stage: Stage, api: Api) -> None:
    app = await stage.start()
    off = await ask(stage, app, api, working(lines=16)[:-1], ("x-narrows", "off"))
    assert (off.mode, off.sent) == ("bypassed", off.given)
    observed = await ask(stage, app, api, working(lines=16)[:-1], ("x-narrows", "observe"))
    assert observed.sent == observed.given
    assert int(observed.headers["x-narrows-tokens-after"]) < int(observed.headers["x-narrows-tokens-before"])
    assert len(told(stage.provider.requests[-1])) == len(working()) - 1
