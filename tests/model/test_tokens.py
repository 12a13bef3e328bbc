"""Counts are tiktoken's, without a download; calibration keeps C3 on recorded sessions and vocabularies."""

import base64
import json
import random
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiktoken
import toktok  # type: ignore[import-untyped]  # the wheel carries no type hints
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken_ext import openai_public  # type: ignore[import-untyped]  # likewise

from policies.model.tokens import HIGHEST, LOWEST, UNSEEN, Calibration, Counter, encoding_for, pieces, well_formed
from tests import examples
from tests.kit.paths import TRANSCRIPTS
from tests.kit.vocabularies import ENCODINGS, unpack

SESSIONS = TRANSCRIPTS


@pytest.fixture(scope="session")
def tiktokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tiktoken.Encoding]]:
    """tiktoken's own encodings, from the vocabularies in the bpe-openai wheel: it checks their hashes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(unpack(tmp_path_factory.mktemp("vocabularies"))))
        yield {name: tiktoken.Encoding(**getattr(openai_public, name)()) for name in ENCODINGS}


@pytest.fixture(scope="session")
def counters() -> dict[str, Counter]:
    return {name: Counter(name) for name in ENCODINGS}


CODE = st.sampled_from(
    [
        "def f(x):\n\treturn x['a']\n",
        "</div>",
        "    ",
        "\r\n\r\n",
        "::",
        "!=",
        "0x1f",
        "// ---- ",
        "\\n",
        "#\n",
    ]
)
WORDS = st.sampled_from(["hello", " World", "don't", "IT'S", "naïve", "Straße", "<|endoftext|>", "camelCaseURL", "ſ"])
CJK = st.text(st.characters(min_codepoint=0x3040, max_codepoint=0x9FFF), max_size=8)
EMOJI = st.sampled_from(["👩‍👩‍👧", "🏳️‍🌈", "😀", "e\u0301", "한국어", "\u200d", "ไทย", "עברית"])
BLANKS = st.text(st.sampled_from(" \t\n\r\u00a0\u3000"), max_size=12)
DIGITS = st.text(st.sampled_from("0123456789.,٣"), max_size=12)
ASSIGNED = st.text(st.characters(exclude_categories=["Cn", "Cs"]), max_size=12)
"""What every release of Unicode in use calls the same: the two counters need not follow the same one."""
PIECES = st.one_of(ASSIGNED, CODE, WORDS, CJK, EMOJI, BLANKS, DIGITS)
TEXTS = st.lists(PIECES, max_size=12).map("".join)


@pytest.mark.parametrize("name", ENCODINGS)
@settings(max_examples=examples(600), deadline=None)
@given(text=TEXTS)
def test_counts_are_those_of_tiktoken(
    tiktokens: dict[str, tiktoken.Encoding], counters: dict[str, Counter], name: str, text: str
) -> None:
    assert counters[name](text) == len(tiktokens[name].encode_ordinary(text))


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("character", ["a", "A", " ", "\n", "\t", "1", "-", "=", "漢", "é", "😀", "\0", "\u0301"])
def test_x9_a_long_run_of_one_character_counts_like_tiktoken(
    tiktokens: dict[str, tiktoken.Encoding], counters: dict[str, Counter], name: str, character: str
) -> None:
    text = character * 20_000
    assert counters[name](text) == len(tiktokens[name].encode_ordinary(text))


@pytest.mark.parametrize("character", ["a", "-", "漢", "😀"])
def test_x9_a_megabyte_without_a_space_is_counted(counters: dict[str, Counter], character: str) -> None:
    """What would be quadratic never ends here; the counts grow with the text."""
    count = counters["o200k_base"]
    assert 9.9 < count(character * 1_000_000) / count(character * 100_000) < 10.1


def test_x9_a_megabyte_of_base64_counts_like_tiktoken(
    tiktokens: dict[str, tiktoken.Encoding], counters: dict[str, Counter]
) -> None:
    text = base64.b64encode(random.Random(7).randbytes(750_000)).decode()
    assert counters["o200k_base"](text) == len(tiktokens["o200k_base"].encode_ordinary(text))


@settings(max_examples=examples(3_000))
@given(
    text=st.lists(
        st.sampled_from([*"aZ9é漢 \n\t\r.,'’-_/\\([=#\u0301\xa0", "'s", "'LL", " the", "://", "123", "\r\n"])
    ).map("".join),
    size=st.integers(1, 4),
    name=st.sampled_from(ENCODINGS),
)
def test_pieces_have_as_many_tokens_as_the_whole(counters: dict[str, Counter], text: str, size: int, name: str) -> None:
    parts = list(pieces(text, size))
    assert "".join(parts) == text
    assert sum(map(counters[name], parts)) == counters[name](text)


def test_no_long_text_is_counted_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """toktok keeps memory for the longest text that it was given."""
    lengths, real = [], toktok.truncate
    monkeypatch.setattr(toktok, "truncate", lambda text, *more: lengths.append(len(text)) or real(text, *more))
    assert Counter()("a word, " * 200_000) == 600_001
    assert max(lengths) < 300_000


@given(text=st.text(st.characters(), max_size=30))
def test_lone_surrogates_are_counted(counters: dict[str, Counter], text: str) -> None:
    count = counters["o200k_base"]
    assert count(text) == count(well_formed(text))


def test_a_surrogate_pair_counts_as_its_character_and_a_lone_one_as_a_replacement(
    counters: dict[str, Counter],
) -> None:
    count = counters["o200k_base"]
    assert count("a\ud83d\ude00b") == count("a😀b")
    assert count("a\ud800") == count("a\ufffd")


@pytest.mark.parametrize(
    ("model", "encoding"),
    [
        ("gpt-4o", "o200k_base"),
        ("gpt-4o-2024-08-06", "o200k_base"),
        ("openai/gpt-4o", "o200k_base"),
        ("gpt-5.4", "o200k_base"),
        ("gpt-6-sol", "o200k_base"),
        ("gpt-oss-120b", "o200k_base"),
        ("gpt-4", "cl100k_base"),
        ("GPT-4-turbo", "cl100k_base"),
        ("openai/gpt-4-0613", "cl100k_base"),
        ("openrouter/openai/gpt-3.5-turbo", "cl100k_base"),
        ("text-davinci-003", "o200k_base"),
        ("gpt2", "o200k_base"),
        ("anthropic/claude-sonnet-5", "o200k_base"),
        ("models/gemini-3-pro-preview", "o200k_base"),
        ("", "o200k_base"),
    ],
)
def test_a_model_has_the_encoding_of_its_name(model: str, encoding: str) -> None:
    assert encoding_for(model) == encoding


@given(model=st.text(st.characters()))
def test_c4_any_model_name_has_an_encoding(model: str) -> None:
    assert encoding_for(model) in ENCODINGS


def test_an_encoding_that_is_not_compiled_in_is_refused_by_name() -> None:
    with pytest.raises(KeyError, match="p50k_base"):
        Counter("p50k_base")


# Calibration


def errors(pairs: list[tuple[int, int]], calibration: Calibration) -> list[float]:
    """How far each estimate was from the report, learning one report after each request."""
    off = []
    for plain, reported in pairs:
        off.append(abs(calibration.estimate(plain) - reported) / reported)
        calibration = calibration.learn(plain, reported)
    return off


def recorded(usage: Path, count: Counter) -> list[tuple[int, int]]:
    """(plain tokens, reported prompt tokens) of each request of a recorded session."""
    session = json.loads(usage.with_name(usage.name.replace(".usage", "")).read_text())
    reports = [call["prompt_tokens"] for call in json.loads(usage.read_text())]
    plain = count(json.dumps(session["tools"])) if session.get("tools") else 0
    requests = []
    for message in session["messages"]:
        if message["role"] == "assistant":
            requests.append(plain)
        plain += 4 + count(message.get("content") or "")
        for call in message.get("tool_calls") or ():
            plain += count(call["function"]["name"]) + count(call["function"]["arguments"])
    return list(zip(requests, reports, strict=True))


def test_c3_estimates_on_recorded_sessions(counters: dict[str, Counter]) -> None:
    """Request k is the history before assistant message k, and the k-th entry of the usage file its report.

    Every recorded session has exactly as many entries as assistant messages; `strict=True` insists. The first
    requests, which are estimated before anything was reported, are counted in.
    """
    usages = sorted(SESSIONS.glob("*.usage.json"))
    if not usages:
        pytest.skip(f"the recorded sessions are not there: {SESSIONS}")
    of_all: list[float] = []
    for usage in usages:
        off = errors(recorded(usage, counters["o200k_base"]), Calibration())
        within_c3(usage.stem, off)
        of_all += off
    within_c3("all", of_all)


def within_c3(name: str, off: list[float]) -> None:
    print(f"{name:50} median {statistics.median(off):.4f} p95 {statistics.quantiles(off, n=20)[-1]:.4f}")
    assert statistics.median(off) <= 0.02, name
    assert sum(error <= 0.10 for error in off) >= 0.95 * len(off), name


CHINESE = [
    "请把这个函数改成异步的，",
    "并且保留原来的错误处理。",
    "测试在第三十七行失败了：",
    "找不到模块。",
    "為什麼快取沒有命中？",
]
JAPANESE = [
    "このファイルを読んでから、",
    "テストをもう一度実行してください。",
    "エラーの原因は設定ファイルです。",
    "ありがとう。",
]
KOREAN = [
    "이 함수를 비동기로 바꿔 주세요. ",
    "캐시가 맞지 않는 이유가 무엇인가요? ",
    "설정 파일을 먼저 읽으십시오. ",
]


@pytest.mark.parametrize("vocabulary", ["cl100k_base", "qwen3.5"])
@pytest.mark.parametrize("sentences", [CHINESE, JAPANESE, KOREAN], ids=["chinese", "japanese", "korean"])
def test_c3_cjk_text_within_a_quarter_after_one_reply(
    counters: dict[str, Counter], sentences: list[str], vocabulary: str
) -> None:
    """The provider counts with another real vocabulary; messages of 1 to 60 sentences."""
    rng = random.Random(3)
    text, pairs = "", []
    for _ in range(20):
        text += "".join(rng.choices(sentences, k=rng.randrange(1, 60)))
        pairs.append((counters["o200k_base"](text), toktok.batch_count([text], vocabulary)[0]))
    assert max(errors(pairs, Calibration())[1:]) <= 0.25


def test_a_new_conversation_begins_with_what_its_model_taught() -> None:
    learned = Calibration().learn(1_000, 1_400).learn(21_000, 25_400)
    assert learned.ratio == pytest.approx(1.2)
    assert Calibration(learned.ratio).estimate(10_000) == 12_000


def test_what_the_provider_adds_once_is_not_taken_for_a_ratio() -> None:
    """3,000 tokens of its own instructions: after growth the ratio is that of the text, so a shorter request,
    as after a checkpoint, is estimated right too."""
    learned = Calibration().learn(2_000, 5_000).learn(40_000, 43_000)
    assert learned.estimate(10_000) == 13_000


@pytest.mark.parametrize("reported", [0, -1, -(10**9), 1_000_000, 10**18, 4_999])
def test_c3_a_report_that_cannot_be_true_changes_nothing(reported: int) -> None:
    learned = Calibration().learn(9_000, 9_900)
    assert learned.learn(10_000, reported) == learned


@given(
    reports=st.lists(st.tuples(st.integers(-(10**7), 10**7), st.integers(-(10**9), 10**9)), max_size=20),
    plain=st.integers(-(10**7), 10**7),
)
def test_c3_no_report_moves_an_estimate_out_of_its_bounds(reports: list[tuple[int, int]], plain: int) -> None:
    calibration = Calibration()
    for report in reports:
        calibration = calibration.learn(*report)
        assert LOWEST <= calibration.ratio <= HIGHEST
    there = max(plain, 0)
    assert int(LOWEST * there) <= calibration.estimate(plain) <= HIGHEST * there + UNSEEN


@given(
    growth=st.lists(st.integers(1, 20_000), min_size=2, max_size=20),
    ratio=st.floats(0.6, 2.5),
    added=st.integers(0, 5_000),
    wild=st.integers(0, 10**9),
)
def test_c3_one_wild_report_is_forgotten_with_the_next(growth: list[int], ratio: float, added: int, wild: int) -> None:
    calibration, plain = Calibration(), 1_000
    for step in growth:
        plain += step
        calibration = calibration.learn(plain, round(ratio * plain) + added)
    calibration = calibration.learn(plain + 1, wild).learn(plain + 2, round(ratio * (plain + 2)) + added)
    report = round(ratio * (plain + 3)) + added
    assert abs(calibration.estimate(plain + 3) - report) <= 5
