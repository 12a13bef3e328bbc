"""N1 as a client meets it: where more actions than the preset allows needed what was hidden, the replies say so."""

from random import Random

import pytest

from proxy.lab.generators.code import Project
from tests.kernel.test_sight_cases import CLIENTS, COUNT, REWRITTEN, ROOT, TOOLS, numbered, session, turn, work
from tests.kit.apis import Api
from tests.kit.histories import Json
from tests.kit.prefixes import ask, ends, grow
from tests.kit.stage import Stage

PROJECT = Project(Random("warning"), repetition=0.0)
FILES = {f"{ROOT}/{file.path}": file.text.rstrip() for file in (PROJECT.file(2_400, COUNT) for _ in range(6))}
READS = turn(*(("Read", {"file_path": path}, numbered(text)) for path, text in FILES.items()))


def edits_of(path: str) -> list[Json]:
    """Two edits of lines in the middle of a file, which was read long before."""
    messages = list[Json]()
    for old in sorted(FILES[path].split("\n")[20:90], key=len)[-2:]:
        edit = {"file_path": path, "old_string": old.strip(), "new_string": f"{old.strip()}  # checked"}
        messages += turn(("Edit", edit, "Done."))
    return messages


@REWRITTEN
async def test_n1_replies_warn_of_sessions_that_need_what_is_hidden(
    stage: Stage, api: Api, model: str, capfd: pytest.CaptureFixture[str]
) -> None:
    app = await stage.start(preset=None, models=None, floor=None, log_level="warning", log_format="json")
    messages = session(READS, work(90), *map(edits_of, FILES), work(2))
    named = ("x-narrows-conversation", "the same")
    exchanges = await grow(stage, app, api, messages, named, model=model, tools=TOOLS)
    exchanges.append(await ask(stage, app, api, messages, named, model=model, tools=TOOLS))
    warnings = [exchange.headers.get("x-narrows-warning", "") for exchange in exchanges]
    hidden = sum("sight" in each for each in warnings)
    assert warnings[:91] == [""] * 91  # nothing was needed that was hidden
    assert hidden >= 2
    assert "sight" in warnings[-1]
    assert b'narrows_actions_total{sight="hidden"}' in app.telemetry.metrics.page()
    assert "out_of_sight" in capfd.readouterr().err
    again = [await ask(stage, app, api, session(work(1))[:end], named, model=model, tools=TOOLS) for end in (2, 4)]
    assert ["x-narrows-warning" in exchange.headers for exchange in again] == [False, False]


@CLIENTS
async def test_n1_where_nothing_is_hidden_from_the_model_or_no_share_is_stated_nothing_warns(
    stage: Stage, api: Api, model: str
) -> None:
    messages = session(READS, work(90), *map(edits_of, FILES))
    for settings in ({"mode": "observe"}, {"preset": "eager"}):
        app = await stage.start(**{"preset": None, "models": None, "floor": None, **settings})
        exchanges = [
            await ask(stage, app, api, messages[:end], model=model, tools=TOOLS) for end in ends(messages)[-9:]
        ]
        assert not any("sight" in exchange.headers.get("x-narrows-warning", "") for exchange in exchanges)
        assert b"narrows_actions_total{" not in app.telemetry.metrics.page()
