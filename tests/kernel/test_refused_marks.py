"""T5: cache marks of ours that an upstream does not know. It gets the request once more without them, and the client
hears of the second answer alone."""

from typing import Any

import pytest

from proxy.app import App
from tests.kit.apis import APIS, Api
from tests.kit.prefixes import ask, grow, marks, moved
from tests.kit.speaking import speaking
from tests.kit.stage import MODELS, Stage, ends, working

pytestmark = pytest.mark.usefixtures("patient")
SESSION = working(12)
MARKED: dict[str, Any] = {**MODELS["claude-marked"]}
TAKING = {"openai_chat": "claude-marked", "anthropic_messages": "claude-marked", "openai_responses": "gpt-6-marked"}
"""A model whose cache takes the marks of the API."""
BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


async def started(stage: Stage, **settings: Any) -> App:
    return await stage.start(models={**MODELS, "gpt-6-marked": MARKED}, **settings)


def received(stage: Stage) -> list[tuple[int, bool]]:
    """How many marks each request had that the provider received, and whether it was refused."""
    return [(marks(each.body), each.violation is not None) for each in stage.provider.requests]


@BOTH
async def test_t5_a_400_that_names_our_mark_is_asked_once_more_without_it(stage: Stage, api: Api, stream: bool) -> None:
    model = TAKING[api.dialect]
    stage.provider.unmarkable = {model}
    app = await started(stage)
    async with speaking(api, app.base_url) as speaker:
        heard = [await speaker.hear(SESSION[:end], stream, model=model) for end in ends(SESSION)]
    refused, kept = [n for n, violated in received(stage) if violated], [n for n, bad in received(stage) if not bad]
    assert len(refused) == 1
    assert refused[0] > 0
    assert kept == [0] * len(heard)
    warnings = [each.headers.get("x-narrows-warning") for each in heard]
    assert warnings.count("marks-refused") == 1
    assert {each.headers["x-narrows-mode"] for each in heard} <= {"untouched", "compacted"}
    assert b"narrows_marks_refused_total 1.0" in app.telemetry.metrics.page()


async def test_t5_what_is_sent_next_extends_what_was_sent_without_the_mark(stage: Stage, api: Api) -> None:
    model = TAKING[api.dialect]
    stage.provider.unmarkable = {model}
    app = await started(stage)
    grown = await grow(stage, app, api, SESSION, model=model)
    assert {exchange.status for exchange in grown} == {200}
    assert moved(api, grown) == []
    wiped = await started(stage, store=f"sqlite:///{stage.path}-other")
    assert (await ask(stage, wiped, api, SESSION[: ends(SESSION)[-1]], model=model)).status == 200


async def test_t5_any_other_400_is_never_asked_again(stage: Stage) -> None:
    api, app = APIS["anthropic_messages"], await started(stage)
    wrong = await ask(stage, app, api, SESSION[:-1], model="claude-marked", temperature="warm")
    assert (wrong.status, len(stage.provider.requests)) == (400, 1)
    assert marks(wrong.sent) > 0
    assert b"temperature" in wrong.reply


async def test_t5_where_the_second_answer_is_no_better_it_is_the_clients(stage: Stage) -> None:
    """The client's own mark is refused, too: nothing is learned of ours."""
    api, app = APIS["anthropic_messages"], await started(stage)
    stage.provider.unmarkable = {"claude-marked"}
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    for asked in (2, 4):
        refused = await ask(stage, app, api, SESSION[:-1], model="claude-marked", system=system)
        assert (refused.status, len(stage.provider.requests)) == (400, asked)
        assert b"cache_control" in refused.reply
        assert marks(refused.sent) == 1


async def test_t5_the_second_request_has_a_name_of_its_own(stage: Stage) -> None:
    api, app = APIS["anthropic_messages"], await started(stage)
    stage.provider.unmarkable = {"claude-marked"}
    exchange = await ask(stage, app, api, SESSION[:-1], ("Idempotency-Key", "one"), model="claude-marked")
    assert exchange.status == 200
    first, second = (each.headers["Idempotency-Key"] for each in stage.provider.requests)
    assert first == "one" != second
