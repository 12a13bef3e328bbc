"""Prices come from the snapshot and yield to what a person configured; no name makes them fail."""

import math
from dataclasses import replace

import pytest
from genai_prices.data_snapshot import get_snapshot
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.money.caches import rule_for
from policies.money.catalog import check_overrides, prices_for
from policies.money.prices import CAUTIOUS, Prices
from tests import examples

TIER = ((272_000, 2.0),)
OUTPUT_TIER = ((272_000, 1.5),)


@pytest.mark.parametrize(
    "prices",
    [
        Prices("gpt-4o", 2.5, 10, 0.5, 1.0, False, (), 128_000, True),
        Prices("gpt-4.1", 2, 8, 0.25, 1.0, False, (), 1_000_000, True),
        Prices("gpt-5.4", 2.5, 15, 0.1, 1.0, False, TIER, 1_050_000, True, 1.0, OUTPUT_TIER, 922_000),
        Prices("claude-sonnet-5", 2, 10, 0.1, 1.25, True, (), 1_000_000, True, longer=1.6),
        Prices("claude-opus-5-5", 4, 20, 0.05, 1.25, True, (), 1_000_000, True, longer=1.6),
        Prices("claude-fable-5-1", 10, 50, 0.025, 1.25, True, (), 1_000_000, True, longer=1.6),
        Prices("gpt-6-sol", 2, 10, 0.1, 1.25, True, TIER, 1_050_000, True, 2.0, OUTPUT_TIER, 922_000),
        Prices("gpt-6.1-sol", 2, 10, 0.05, 1.25, True, TIER, 1_050_000, True, 2.0, OUTPUT_TIER, 922_000),
        Prices("gpt-6.2-sol", 2, 10, 0.05, 1.25, True, TIER, 1_050_000, True, 2.0, OUTPUT_TIER, 922_000),
        Prices("gpt-6.1-terra", 1, 5, 0.05, 1.25, True, TIER, 1_050_000, True, 2.0, OUTPUT_TIER, 922_000),
        Prices("claude-sonnet-5-5", 2, 10, 0.05, 1.25, True, (), 1_000_000, True, longer=1.6),
        Prices("claude-fable-5-2", 8, 40, 0.025, 1.25, True, (), 1_000_000, True, longer=1.6),
        Prices(
            "gemini-3-pro-preview",
            2,
            12,
            0.1,
            1.0,
            False,
            ((200_000, 2.0),),
            None,
            True,
            output_tiers=((200_000, 1.5),),
        ),
    ],
    ids=lambda prices: prices.model,
)
def test_prices_of_models_in_use(prices: Prices) -> None:
    assert prices_for(prices.model) == prices


def test_a_price_by_the_hour_counts_at_its_dearest() -> None:
    assert (prices_for("deepseek-chat").input, prices_for("deepseek-chat").output) == (0.27, 1.1)


def test_the_newest_of_dated_prices_counts() -> None:
    """GPT-5.6 cost 5 until August 2026 and 4 from then on."""
    assert prices_for("gpt-5.6").input == 4


def test_a_model_without_a_cache_price_gets_the_usual_one() -> None:
    assert (prices_for("gpt-5.4-pro").read, prices_for("gpt-5.4-pro").write) == (0.1, 1.0)


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("openai/gpt-4o", "gpt-4o"),
        ("azure/gpt-4o", "gpt-4o"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("gpt-4o-20240806", "gpt-4o"),
        ("GPT-4o", "gpt-4o"),
        ("gpt-6-sol-2026-09-09", "gpt-6-sol"),
        ("anthropic/claude-sonnet-5", "claude-sonnet-5"),
        ("openrouter/anthropic/claude-sonnet-5", "claude-sonnet-5"),
        ("vertex_ai/claude-sonnet-5", "claude-sonnet-5"),
        ("claude-sonnet-5-20260901", "claude-sonnet-5"),
        ("google/gemini-3-pro-preview", "gemini-3-pro-preview"),
        ("models/gemini-3-pro-preview", "gemini-3-pro-preview"),
        ("us.anthropic.claude-opus-5-5-20260901-v1:0", "claude-opus-5-5"),
        ("anthropic.claude-opus-5-5-v1:0", "claude-opus-5-5"),
        ("bedrock/eu.anthropic.claude-opus-5-5-20260901-v1:0", "claude-opus-5-5"),
        ("vertex_ai/claude-opus-5-5@20260901", "claude-opus-5-5"),
        ("anthropic/claude-opus-5.5", "claude-opus-5-5"),
        ("anthropic/claude-opus-5.5:beta", "claude-opus-5-5"),
        ("openai/gpt-6.1-sol", "gpt-6.1-sol"),
        ("gpt-6.1-sol-2026-08-01", "gpt-6.1-sol"),
        ("gpt-6-1-sol", "gpt-6.1-sol"),
        ("openrouter/openai/gpt-6.2-sol-2026-11-01", "gpt-6.2-sol"),
    ],
)
def test_vendors_and_dates_in_a_name_do_not_matter(name: str, same: str) -> None:
    assert prices_for(name).listed
    assert replace(prices_for(name), model="") == replace(prices_for(same), model="")


@pytest.mark.parametrize("name", ["", "/", "no-such-model", "openai/", "gpt-4o/", "x" * 1_000_000, "\ud800", "\0"])
def test_c4_an_unknown_model_has_assumed_prices_and_no_window(name: str) -> None:
    assert prices_for(name) == replace(CAUTIOUS, model=name)
    assert (CAUTIOUS.read, CAUTIOUS.write, CAUTIOUS.breakpoints, CAUTIOUS.listed) == (0.05, 1.25, False, False)


@pytest.mark.parametrize(
    ("name", "kin"),
    [
        ("us.anthropic.claude-opus-6-v1:0", "claude-opus-5-5"),
        ("claude-sonnet-6", "claude-sonnet-5-5"),
        ("claude-opus-5-2", "claude-opus-5"),
        ("claude-opus-1", "claude-opus-5-5"),  # none is below
        ("gpt-6.3-sol", "gpt-6.2-sol"),
        ("gpt-7", "gpt-6.2-sol"),
        ("gpt-7-mini", "gpt-5.4-mini"),
        ("grok-7", "grok-4.7"),
        ("x-ai/grok-7:free", "grok-4.7"),
        ("grok-4.5-something", "grok-4.5"),
        ("gemini-9-pro", "gemini-3.1-pro-preview"),
        ("opus", "claude-opus-5-5"),
    ],
)
def test_c4_an_unlisted_model_has_the_cache_and_prices_of_its_family_and_no_limit_of_it(name: str, kin: str) -> None:
    prices, same = prices_for(name), prices_for(kin)
    limits = {"window": None, "longest_prompt": None, "tiers": (), "output_tiers": ()}
    assert prices == replace(same, model=name, assumed=kin, listed=False, **limits)
    assert replace(rule_for(name, prices), joins_runs=True) == replace(rule_for(kin, same), joins_runs=True)


@pytest.mark.parametrize(
    "name",
    [
        "my-local-model",
        "llama3.2:3b",
        "qwen3:8b",
        "claude-new",
        "team-fast",
        "v1:0",
        "@",
        "our-fable",
        "Helsinki-NLP/opus-mt-en-de",
        "gpt-4o-opus-distill",
        "luna-7b",
    ],
)
def test_c4_a_name_of_no_family_is_not_taken_for_one(name: str) -> None:
    assert prices_for(name) == replace(CAUTIOUS, model=name)


def test_c4_a_name_of_absurd_length_is_not_looked_for() -> None:
    assert prices_for("gemini-3-pro-preview" + "x" * 50).listed
    assert not prices_for("gemini-3-pro-preview" + "x" * 5_000).listed


def test_a_claude_caches_at_marks_also_where_a_seller_names_no_cache_price() -> None:
    prices = prices_for("quicksilverpro/claude-opus-4-6")
    assert (prices.read, prices.write, prices.breakpoints) == (0.1, 1.0, True)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.one_of(
        st.text(st.characters()),
        st.tuples(
            st.sampled_from(["", "openai/", "claude", "models/", "openrouter/", "gpt-", "gemini", "mistral", "aws/"]),
            st.text(max_size=8),
        ).map("".join),
    )
)
def test_c4_no_name_makes_it_fail(name: str) -> None:
    prices = prices_for(name)
    assert prices.model == name
    assert prices.listed or prices.assumed or prices.input == Prices().input


def test_c4_every_model_of_the_snapshot_has_prices_that_can_be() -> None:
    for provider in get_snapshot().providers:
        for model in provider.models:
            prices = prices_for(f"{provider.id}/{model.id}")
            assert prices.input > 0
            assert all(math.isfinite(x) and x >= 0 for x in (prices.output, prices.read, prices.write))
            assert list(prices.tiers) == sorted(prices.tiers)
            assert prices.window is None or prices.window > 0


def test_an_override_wins_also_for_the_window() -> None:
    overrides = {"gpt-4o": {"read": 0.25, "window": 64_000, "tiers": [[32_000, 2]]}}
    prices = prices_for("gpt-4o", overrides)
    assert (prices.read, prices.window, prices.tiers, prices.input) == (0.25, 64_000, ((32_000, 2.0),), 2.5)
    assert prices_for("openai/gpt-4o", overrides).read == 0.25
    assert prices_for("gpt-4o-mini", overrides).read == prices_for("gpt-4o-mini").read


def test_an_override_of_the_whole_name_goes_before_that_of_the_bare_one() -> None:
    overrides: dict[str, dict[str, object]] = {"gpt-4o": {"read": 0.3}, "azure/gpt-4o": {"read": 0.4}}
    assert prices_for("azure/gpt-4o", overrides).read == 0.4
    assert prices_for("openai/gpt-4o", overrides).read == 0.3


def test_c4_an_unknown_model_becomes_known_by_its_price_and_not_by_its_window() -> None:
    assert prices_for("ours", {"ours": {"input": 3}}) == replace(CAUTIOUS, model="ours", input=3.0, listed=True)
    assert prices_for("ours", {"ours": {"window": 8_000}}) == replace(CAUTIOUS, model="ours", window=8_000)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("inptu", 1),
        ("model", "gpt-4"),
        ("input", "cheap"),
        ("input", True),
        ("input", -1),
        ("input", math.inf),
        ("read", math.nan),
        ("write", None),
        ("breakpoints", 1),
        ("window", 0),
        ("window", 1.5),
        ("tiers", 3),
        ("tiers", [["a", 2]]),
    ],
)
def test_c6_an_override_that_cannot_be_is_refused_by_model_and_field(field: str, value: object) -> None:
    overrides = {"gpt-4o": {field: value}}
    with pytest.raises(ValueError, match=rf"gpt-4o.*{field}"):
        prices_for("gpt-4o", overrides)
    with pytest.raises(ValueError, match=rf"gpt-4o.*{field}"):
        check_overrides(overrides)


def test_c6_overrides_that_can_be_pass() -> None:
    check_overrides({"a": {"input": 1}, "b": {"window": None, "tiers": []}})
