"""The table of cache facts: which row is a model's, how long it keeps, and what it asks for."""

import json
from typing import Any

import pytest

from policies.model.rawjson import items, members
from policies.money.caches import ANTHROPIC, DAY, HOUR, MINUTE, OPENAI, PREFIX, CacheRequest, rule_for
from policies.money.catalog import prices_for
from policies.money.prices import Prices


@pytest.mark.parametrize(
    ("model", "least", "step"),
    [
        ("claude-opus-5-5", 512, 1),
        ("anthropic/claude-fable-5-1", 512, 1),
        ("claude-opus-4-7", 2_048, 1),
        ("claude-opus-4-6", 4_096, 1),
        ("openrouter/anthropic/claude-haiku-4.5", 4_096, 1),
        ("claude-3-5-haiku-latest", 2_048, 1),
        ("claude-sonnet-5", 1_024, 1),
        ("gpt-5.6-sol", 1_024, 1),
        ("gpt-5.4", 1_024, 128),
        ("gpt-4o", 1_024, 128),
        ("gemini-2.5-pro", 2_048, 1),
        ("gemini-3.1-pro-preview", 4_096, 1),
        ("deepseek-chat", 64, 64),
        ("somebody/else", 1_024, 128),
    ],
)
def test_each_model_has_its_row(model: str, least: int, step: int) -> None:
    rule = rule_for(model, prices_for(model))
    assert (rule.least, rule.step) == (least, step)


def test_a_configured_kind_of_cache_finds_the_row_of_that_kind() -> None:
    marked, plain = Prices(breakpoints=True), Prices()
    assert rule_for("Claude-Sonnet-5", marked) == ANTHROPIC
    assert rule_for("gpt-5.6", marked) == OPENAI
    assert rule_for("claude-sonnet-5", plain) == rule_for("m", plain) == PREFIX


def asks(marked: bool = True, apart: tuple[str, ...] = (), **fields: Any) -> CacheRequest:
    """A request with these fields, of which some stand before its messages."""
    body = json.dumps({"model": "m", **fields}).encode()
    at = members(body)
    messages = items(body, *at["messages"]) if "messages" in at else []
    bearing = [(start, end) for start, end in messages if b"cache_control" in body[start:end]]
    return CacheRequest.of(body, [at[key] for key in apart], messages, bearing, marked)


LONG = {"type": "ephemeral", "ttl": "1h"}
PART = {"type": "text", "text": "x", "cache_control": LONG}
SAID = {"type": "text", "text": json.dumps(PART)}
IN_MEMORY = {"type": "x", "cache_control": {}, "prompt_cache_retention": "in_memory"}
USE = {"type": "tool_use", "id": "a", "name": "write", "input": {"body": [PART]}}
USED = {"role": "assistant", "content": [USE, USE]}


@pytest.mark.parametrize(
    ("model", "request_", "seconds"),
    [
        ("claude-sonnet-5", asks(), 5 * MINUTE),
        ("claude-sonnet-5", asks(messages=[{"role": "user", "content": [PART]}]), HOUR),
        ("claude-sonnet-5", asks(cache_control=LONG), HOUR),
        ("claude-sonnet-5", asks(messages=[{"role": "user", "content": [SAID]}]), 5 * MINUTE),
        ("claude-sonnet-5", asks(apart=("system",), system=[PART]), 5 * MINUTE),
        ("claude-sonnet-5", asks(messages=[USED, USED]), 5 * MINUTE),
        ("claude-sonnet-5", asks(messages=[{**USED, "content": [USE, {**USE, "cache_control": LONG}]}]), HOUR),
        ("claude-sonnet-5", asks(apart=("system",), system=[PART], messages=[USED], cache_control=LONG), HOUR),
        ("gpt-5.6-sol", asks(), 30 * MINUTE),
        ("gpt-6.2-sol", asks(), 30 * MINUTE),
        ("gpt-6.2-sol", asks(prompt_cache_retention="24h"), 30 * MINUTE),
        ("gpt-5.6-sol", asks(prompt_cache_options={"ttl": "12h"}), 12 * HOUR),
        ("gpt-5.4", asks(messages=[{"role": "user", "content": [IN_MEMORY]}]), DAY),
        ("gpt-5.4", asks(), DAY),
        ("gpt-5.4", asks(prompt_cache_retention="in_memory"), HOUR),
        ("gpt-4o", asks(), HOUR),
        ("gpt-4o", asks(prompt_cache_retention="24h"), DAY),
    ],
)
def test_how_long_an_entry_lives_follows_from_the_model_and_what_the_request_asks_for(
    model: str, request_: CacheRequest, seconds: float
) -> None:
    assert rule_for(model, prices_for(model)).lifetime(request_) == seconds


@pytest.mark.parametrize(
    ("model", "request_", "read", "write", "breakpoints"),
    [
        ("claude-sonnet-5", asks(), 0.1, 1.25, True),
        ("claude-sonnet-5", asks(messages=[{"content": [PART]}]), 0.1, 2.0, True),
        ("claude-sonnet-5", asks(marked=False), 1.0, 1.0, False),
        ("gpt-5.6-sol", asks(marked=False), 0.1, 1.25, True),
        ("gpt-5.6-sol", asks(marked=False, prompt_cache_options={"mode": "explicit"}), 1.0, 1.0, False),
        ("gpt-5.6-sol", asks(marked=True, prompt_cache_options={"mode": "explicit"}), 0.1, 1.25, True),
        ("gpt-5.4", asks(marked=False), 0.1, 1.0, False),
    ],
)
def test_what_the_cache_costs_a_request_follows_from_its_marks(
    model: str, request_: CacheRequest, read: float, write: float, breakpoints: bool
) -> None:
    listed = prices_for(model)
    charged = rule_for(model, listed).charged(listed, request_)
    assert (charged.read, charged.write, charged.breakpoints) == (read, write, breakpoints)
    assert (charged.input, charged.window, charged.tiers) == (listed.input, listed.window, listed.tiers)


@pytest.mark.parametrize(
    ("model", "fields", "longer", "takes"),
    [
        ("claude-sonnet-5", {}, 2.0, True),
        ("claude-sonnet-5", {"cache_control": LONG}, 2.0, False),
        ("gpt-5.6-sol", {"prompt_cache_options": {"ttl": "12h"}}, 2.5, True),
        ("gpt-5.4", {"prompt_cache_retention": "24h"}, 1.0, True),
    ],
)
def test_where_marks_ask_for_a_longer_time_each_by_itself_none_of_ours_is_added(
    model: str, fields: dict[str, Any], longer: float, takes: bool
) -> None:
    listed = prices_for(model)
    assert listed.write * listed.longer == pytest.approx(longer)
    assert rule_for(model, listed).takes_marks(asks(**fields)) == takes
