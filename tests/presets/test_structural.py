"""The preset `structural`: two structural layers and their three numbers, on the eighteen messages of the figure."""

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from policies.compact import Compacted
from policies.dialects import DIALECTS
from policies.model.edits import Replace
from policies.model.parameters import Size, Window
from policies.presets import PRESETS, Preset
from policies.recall import original
from policies.text.stubs import refs_named
from proxy.lab.replay.environment import Options
from proxy.lab.replay.runs import replay_all
from tests.kit.figure import (
    GO_ON,
    MESSAGES,
    NO_FLOOR,
    changed,
    characters,
    compacted,
    going_on,
    sent,
    texts_of,
)

PRESET = PRESETS["structural"]
READS, WRITES, LAST_READ = {3, 5, 7}, {8, 10}, 17


def tuned(policy: str, **parameters: Any) -> Preset:
    """The preset with other parameters of one policy."""
    changed = [replace(each, **parameters) if each.name == policy else each for each in PRESET.configured]
    return replace(PRESET, policies=tuple(changed))


def only(policy: str) -> Preset:
    """Of the preset, this one policy."""
    return replace(PRESET, policies=tuple(each for each in PRESET.configured if each.name == policy))


@cache
def all_layers() -> Compacted:
    return compacted(PRESET, budget=NO_FLOOR)


def test_the_transcript_is_the_one_of_the_figure() -> None:
    assert [message["role"][0] for message in MESSAGES] == list("u" + "at" * 6 + "a" + "u" + "at" + "a")
    tools = [call["function"]["name"] for message in MESSAGES for call in message.get("tool_calls", ())]
    assert tools == ["read_file", "read_file", "bash", "edit_file", "write_file", "bash", "read_file"]
    assert sum(len(MESSAGES[at - 1]["content"]) for at in READS) == pytest.approx(24_000, abs=200)
    patch, rewrite = (list(texts_of(MESSAGES[at - 1]))[1:] for at in sorted(WRITES))
    assert sum(map(len, patch)) == pytest.approx(2_600, abs=100)
    assert len(rewrite[-1]) == pytest.approx(14_300, abs=50)
    acknowledged = [MESSAGES[at - 1]["content"] for at in (9, 11)]
    prose = [message["content"] for message in MESSAGES if message["role"] != "tool"]
    assert all(0 < len(text) < 100 for text in (*prose, *acknowledged))


def test_the_three_bars_of_the_figure() -> None:
    raw = characters(MESSAGES)
    offloaded = characters(sent(compacted(only("offload"), budget=NO_FLOOR))[:18])
    clipped = characters(sent(all_layers())[:18])
    assert raw == pytest.approx(48_700, abs=100)
    assert offloaded == pytest.approx(18_800, abs=100)
    assert clipped == pytest.approx(2_500, abs=100)


def test_outputs_and_arguments_go_and_nothing_else() -> None:
    assert changed(compacted(only("offload"), budget=NO_FLOOR)) == READS | {LAST_READ}
    assert changed(all_layers()) == READS | WRITES | {LAST_READ}


@pytest.mark.parametrize(
    ("policy", "parameters", "whole"),
    [
        ("offload", {"over": Size(chars=6_000)}, {7}),  # the traceback has 5,427
        ("clip", {"over": Size(chars=3_000)}, {8}),  # the patch has 2,251
        ("clip", {"keep_writes": Window(messages=12)}, WRITES),
    ],
    ids=["max_tool_output_chars", "max_tool_input_chars", "keep_recent_messages"],
)
def test_each_of_the_three_numbers_counts(policy: str, parameters: dict[str, Any], whole: set[int]) -> None:
    assert changed(all_layers()) - changed(compacted(tuned(policy, **parameters), budget=NO_FLOOR)) == whole


def test_a_lower_number_takes_more() -> None:
    """Of the patch 239 characters were kept: what it replaced."""
    path, old, new = list(texts_of(sent(all_layers())[7]))[1:]
    assert (path, len(old)) == ("commonpot/ledger.py", 239)
    tighter = compacted(tuned("clip", over=Size(chars=200)), budget=NO_FLOOR)
    assert refs_named(list(texts_of(sent(tighter)[7]))[2]) == refs_named(new) != set()


def test_six_messages_are_messages_and_not_turns() -> None:
    """When 15 have been said, the newest six begin at the whole file written, and when 17, behind it."""
    assert changed(compacted(PRESET, MESSAGES[:15], budget=NO_FLOOR)) == READS
    assert changed(compacted(PRESET, MESSAGES[:17], budget=NO_FLOOR)) == READS | WRITES
    for window, whole in ((Window(messages=7), set()), (Window(messages=8), WRITES), (Window(turns=6), WRITES)):
        chosen = tuned("clip", keep_writes=window)
        assert changed(compacted(chosen, MESSAGES[:17], budget=NO_FLOOR)) == (READS | WRITES) - whole


def test_a_result_is_whole_until_it_is_answered() -> None:
    whole = compacted(PRESET, MESSAGES[:17], budget=NO_FLOOR)
    assert sent(whole)[16] == MESSAGES[16]
    assert LAST_READ in changed(compacted(PRESET, (*MESSAGES, GO_ON), budget=NO_FLOOR))


def test_r1_every_hidden_text_can_be_recalled() -> None:
    found = all_layers()
    hidden = [edit for edit in found.plan.edits if isinstance(edit, Replace)]
    assert len(hidden) == len(found.plan.edits) == len(READS | WRITES | {LAST_READ})
    for edit in hidden:
        (ref,) = refs_named(edit.text)
        assert original(found.conversation, ref) == found.conversation.blocks[found.conversation.index[edit.at]].text
    assert found.tool is not None


def test_v4_clipped_arguments_are_json_with_the_same_keys_and_types() -> None:
    for at in WRITES:
        (before,), (after,) = (messages[at - 1]["tool_calls"] for messages in (MESSAGES, sent(all_layers())))
        old, new = (json.loads(call["function"]["arguments"]) for call in (before, after))
        assert list(old) == list(new)
        assert all(type(value) is type(new[key]) for key, value in old.items())
        assert new["path"] == old["path"]
        assert after["id"] == before["id"]
    request = DIALECTS["openai_chat"].split(all_layers().body)
    assert request is not None


async def test_no_model_is_ever_asked_and_what_is_needed_again_is_recalled() -> None:
    """The bill without a cache; the model recalls all that it uses and does not see."""
    session = going_on()
    assert not PRESET.summarizes
    assert (all_layers().plan.wants, PRESET.writing) == ((), Preset(()).writing)
    options = Options(("gpt-5.4",), cache="none", preset="structural", refetch=1.0)
    (report,) = await replay_all([session], options)
    assert report.requests == len(session.turns)
    assert report.faults == report.summaries.calls == 0
    assert report.recalls.calls > 0
    assert report.model_calls.recall_rounds == report.recalls.rounds > 0
    assert report.input_bill.ratio < 1
