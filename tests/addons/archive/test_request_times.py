"""When requests came, and their replies began and ended: in recordings, in logs, and as the lab reads them."""

import json
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from proxy.addons.archive.request_times import RequestMoments, time_fields
from proxy.app import App
from proxy.console.export import read_session
from proxy.console.read_store import StoreSettings
from proxy.lab.replay.recorded import Session, load, session_of
from proxy.lab.replay.times import RequestTimes, schedule, times_of
from proxy.memory import MESSAGES, Key
from tests.addons.archive.test_logged_requests import files_below
from tests.addons.pages.test_conversations import opened
from tests.kit.histories import Json
from tests.kit.stage import Stage, ends, working

HERE = ("x-narrows-conversation", "it")
SESSION = working(5, 20)
ENDS = ends(SESSION)[:4]
EDITED = [*SESSION[: ENDS[0]], {"role": "assistant", "content": "No."}, {"role": "user", "content": "Go on."}]

pytestmark = pytest.mark.usefixtures("patient")


async def asked(
    stage: Stage, app: App, messages: Sequence[Json], *headers: tuple[str, str], **fields: Any
) -> tuple[float, float]:
    """The time before a request, and that after its reply."""
    began = time.time()
    await stage.ask(app, messages, HERE, *headers, **fields)
    return began, time.time()


def placed(session: Session, spans: Sequence[tuple[float, float] | None]) -> Iterator[bool]:
    """Whether each row of a session lies within what its client saw."""
    assert session.started_at is not None
    for row, span in zip(session.times, spans, strict=True):
        if span is not None:
            moments = [session.started_at + each for each in row if each is not None]
            yield len(moments) == 3 and moments == sorted(moments)
            yield all(span[0] - 0.002 <= each <= span[1] + 0.002 for each in moments)


async def test_p1_a_recording_has_the_times_of_its_requests(stage: Stage, tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    app = await stage.start(record=folder, record_redact={"times": "", "started_at": ""})
    await asked(stage, app, SESSION[: ENDS[0]])
    fields = {"times": "of a client", "started_at": []}
    spans = [await asked(stage, app, SESSION[:end], **fields) for end in ENDS]  # the first was sent again
    spans_of_branch = [spans[0], await asked(stage, app, EDITED)]
    await app.close(1)
    assert [file.read_bytes().count(b'"times"') for file in files_below(folder)] == [1, 1]
    branch, whole = sorted(map(load, files_below(folder)), key=lambda session: len(session.messages))
    assert all(placed(whole, spans))
    assert all(placed(branch, spans_of_branch))


async def test_p1_times_are_in_a_recording_also_after_a_restart(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "recordings"
    monkeypatch.setenv("RECORD_KEYS", "a:" + "A" * 43 + "=")
    monkeypatch.setenv("NARROWS_ENCRYPTION_KEY_ENV", "RECORD_KEYS")
    spans: list[tuple[float, float] | None] = [None]  # it was sent before anything was recorded
    for some in (ENDS[1:2], ENDS[2:], ()):
        app = await stage.start(record=folder, encryption_key_env="RECORD_KEYS")
        spans += [await asked(stage, app, SESSION[:end]) for end in some]
        if not some:  # and a branch that was not seen before
            spans = [None, None, await asked(stage, app, [*EDITED, *EDITED[-2:]])]
        await app.close(1)
        (file,) = files_below(folder)
        session = load(file)
        assert all(placed(session, spans))
    assert session.times[:2] == (RequestTimes(0.0),) * 2  # without a pause


async def test_p1_replicas_with_one_folder_record_the_times_of_all(stage: Stage, tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    apps = [await stage.start(record=folder) for _ in range(2)]
    spans = [await asked(stage, apps[at % 2], SESSION[:end]) for at, end in enumerate(ENDS)]
    for app in apps:  # which writes what it has
        await app.close(1)
    (file,) = files_below(folder)
    assert all(placed(load(file), spans))


async def test_p1_a_recording_that_a_person_has_changed_stops_none(stage: Stage, tmp_path: Path) -> None:
    folder, spans = tmp_path / "recordings", []
    for end in ENDS[:2]:
        app = await stage.start(record=folder)
        spans = [None, await asked(stage, app, SESSION[:end])]
        await app.close(1)
        (file,) = files_below(folder)
        if end == ENDS[0]:
            file.write_text(json.dumps(json.loads(file.read_bytes()) | {"times": [["soon"]]}))
    assert all(placed(load(file), spans))


async def test_p1_a_logged_conversation_has_the_times_of_its_requests(stage: Stage) -> None:
    app = await stage.start(history=True)
    await asked(stage, app, SESSION[: ENDS[0]])
    spans = [await asked(stage, app, SESSION[:end]) for end in ENDS[:2]]
    await asked(stage, app, EDITED)
    spans += [await asked(stage, app, SESSION[:end]) for end in ENDS[2:]]
    again = await asked(stage, app, SESSION[: ENDS[0]])  # another branch begins
    await app.close(1)
    store = StoreSettings(store=f"sqlite:///{stage.path}")
    async with opened(store.store) as rows:
        texts = await rows.list_texts(Key("local", "it"), MESSAGES)
    last = next(text.name for text in texts if text.about["index"] == ENDS[-1] - 1)
    for branch, expected in ((last, spans), ("", [again])):
        content = await read_session(store, "it", branch=branch)
        assert all(placed(session_of(content, "it", "it"), expected))


def test_p1_rows_are_in_order_whatever_clocks_were_set_to() -> None:
    moments = {1: RequestMoments(1000.0, 1002.0, 1001.0), 3: RequestMoments(999.0, None, 1004.0), 9: RequestMoments(1)}
    fields = time_fields(moments, 5)
    assert fields == {"started_at": 1000.0, "times": [None, [0, 2, 2], None, [0, None, 4], None]}
    times = times_of(fields["times"], 5)
    assert all(one.sent <= other.sent for one, other in pairwise(times))
    assert schedule(times_of([None, 3, None, [5, None, 9], None], 5), 5) == [0, 0, 0, 2, 2]
    assert times_of([None, None], 2) == ()
    assert time_fields({}, 2) == {}
