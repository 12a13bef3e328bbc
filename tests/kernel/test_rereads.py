"""N3 over each API: an answer that says a file is unchanged reaches the provider with the text it points at."""

import pytest

from policies.presets import PRESETS, Preset
from policies.rules.offload import Offload
from proxy.app import App
from proxy.lab.provider import Received
from tests.kit.apis import Api, extends, told
from tests.kit.histories import Json
from tests.kit.recalling import CAREFUL, call, runs
from tests.kit.speaking import Speaker, speaking
from tests.kit.stage import Stage

pytestmark = pytest.mark.usefixtures("patient")
UNCHANGED = "Wasted call — file unchanged since your last Read. Refer to that earlier tool_result instead."
CODE = "".join(f"{n}\tvalue_{n} = {n * 7919 % 1000}  # \u00e9 {n}\n" for n in range(1, 300))
OTHER = "".join(f"{n}\trow_{n} = {n * 104729 % 1009}\n" for n in range(1, 300))


@pytest.fixture
async def app(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> App:
    """A Narrows that hides files two turns after they were read."""
    monkeypatch.setitem(PRESETS, "keeping", Preset((Offload(over=40, keep=1, keep_files=2, relevant_tokens=5),)))
    return await stage.start(preset="keeping")


def reads(**files: str) -> list[Json]:
    """One message that reads files, and what the tool answers for each."""
    calls = [call(name, "Read", file_path=f"src/{name}.py") for name in files]
    asks: Json = {"role": "assistant", "content": None, "tool_calls": calls}
    return [asks, *({"role": "tool", "tool_call_id": name, "content": text} for name, text in files.items())]


HISTORY: list[Json] = [
    {"role": "system", "content": CAREFUL},
    {"role": "user", "content": "Go on."},
    *reads(a=CODE, b=OTHER),
    *runs("make 1", "ok"),
    *runs("make 2", "ok"),
    *runs("make 3", "ok"),
]


def results(received: Received) -> list[str]:
    """The outputs as they were sent."""
    return [message["content"] for message in told(received) if message["role"] == "tool"]


async def test_n3_a_hidden_text_stands_behind_the_answer_and_later_requests_extend_that(
    stage: Stage, speaker: Speaker
) -> None:
    await speaker.ask(HISTORY)
    await speaker.ask([*HISTORY, *reads(a=UNCHANGED, b=UNCHANGED)])
    third = await speaker.ask([*HISTORY, *reads(a=UNCHANGED, b=UNCHANGED), *runs("make 4", "ok")])
    before, now, later = stage.provider.requests
    assert not {CODE, OTHER} & {*results(before)}
    assert [text.partition("\n")[0] for text in results(now)[-2:]] == [UNCHANGED] * 2
    expected = zip(results(now)[-2:], (CODE, OTHER), strict=True)
    assert [text.endswith(f"word for word]\n{code}") for text, code in expected] == [True, True]
    assert [request.violation for request in stage.provider.requests] == [None] * 3
    assert extends(before, now)
    assert extends(now, later)
    assert third.prefix == "extended"


@pytest.mark.parametrize("change", ["restart", "wiped store", "replica"])
async def test_s1_the_text_is_sent_alike_elsewhere_and_later(stage: Stage, app: App, api: Api, change: str) -> None:
    asking = [*HISTORY, *reads(a=UNCHANGED, b=UNCHANGED)]
    async with speaking(api, app.base_url) as speaker:
        await speaker.ask(asking)
    if change != "replica":
        await app.close(1)
    if change == "wiped store":
        for file in stage.path.parent.glob("narrows.db*"):
            file.unlink()
    async with speaking(api, (await stage.start(preset="keeping")).base_url) as speaker:
        heard = await speaker.ask([*asking, *runs("make 4", "ok")])
    now, later = stage.provider.requests
    assert results(now)[-1].endswith(OTHER)
    assert extends(now, later)
    assert heard.prefix == ("checkpoint:replayed" if change == "wiped store" else "extended")


async def test_r7_without_recall_the_text_stands_there_as_well(stage: Stage, app: App, api: Api) -> None:
    own = await stage.start(preset="keeping", recall="never")
    async with speaking(api, own.base_url) as speaker:
        await speaker.hear([*HISTORY, *reads(a=UNCHANGED)])
    (received,) = stage.provider.requests
    assert results(received)[-1] == f"{UNCHANGED}\n[narrows: that earlier result, word for word]\n{CODE}"


async def test_n3_modes_that_change_nothing_leave_the_answer_as_it_is(stage: Stage, app: App, api: Api) -> None:
    for mode in ("off", "observe"):
        async with speaking(api, app.base_url) as speaker:
            await speaker.ask([*HISTORY, *reads(a=UNCHANGED)], extra_headers={"x-narrows": mode})
        assert results(stage.provider.requests[-1])[-1] == UNCHANGED
