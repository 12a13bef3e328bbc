"""Presets of one's own: what TOML says becomes a preset, and what cannot work is refused with its path and its line."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policies.context import Exceptions
from policies.model.parameters import MOST, Size, Trigger, Window, parameter, parameters_of
from policies.presets import POLICIES, PRESETS, SMALL_WINDOW, Preset, StaleOptions, WritingOptions, described
from policies.rules.base import ConfiguredPolicy, policy
from policies.rules.clip import Clip
from proxy.config import ConfigurationError, Settings
from proxy.config.presets import CustomPreset
from proxy.config.sources import line_of
from proxy.console.output import WIDE
from proxy.console.presets import describe
from tests.console.test_cli import SHIPPED, told
from tests.docs.preset_tables import parameter_table
from tests.kit.settings import settings_with

MINE = """\
preset = "mine"
request_presets = ["mine", "chat"]
[presets.mine]
base = "agent-summary"
about = "what it is for"
first_sight = true
system = ["[memo]*", "Be brief."]
aim = "context"
summary_prompt = "Summarize the conversation for the next step."
summary_model = "gpt-4o-mini"
summary_tokens = 900
summary_stale = "trim"
summary_ttl = 3600
[[presets.mine.policies]]
policy = "clip"
over = { chars = 400 }
[[presets.mine.policies]]
policy = "summarize"
keep = { messages = 8 }
when = [
  { tokens = 100_000 },
  { share = 0.5, turns = 9 },
]
[presets.other]
base = "mine"
first_sight = false
summary_model = { openai = "a", anthropic = "b" }
summary_ttl = 60
summary_same_model = false
[presets.chatty]
base = "adaptive"
aim = "bill"
[presets.bare]
[[presets.bare.policies]]
policy = "abridge"
keep_share = 0.3
"""
ENTRY = '[presets.mine]\n[[presets.mine.policies]]\npolicy = "{policy}"\n{said}\n'
BASED = '[presets.mine]\nbase = "chat"\n{said}\n'


def based(parameters: str) -> str:
    return BASED.format(said=parameters)


def entry(policy: str, parameters: str = "") -> str:
    return ENTRY.format(policy=policy, said=parameters)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "narrows.toml"
    made.write_text(MINE)
    return made


@pytest.fixture
def settings(file: Path) -> Settings:
    return settings_with(["--config", str(file)])


def policies_of(preset: Preset) -> dict[str, ConfiguredPolicy]:
    return {policy.name: policy for policy in preset.configured}


def test_what_is_said_counts_and_the_rest_is_as_in_the_base(settings: Settings) -> None:
    mine, base = settings.all_presets()[settings.preset], PRESETS["agent-summary"]
    made = policies_of(mine)
    assert list(made) == ["clip", "summarize"]
    changed: dict[str, Any] = {
        "keep": Window(messages=8),
        "when": (Trigger(tokens=100_000), Trigger(share=0.5, turns=9)),
    }
    assert made["summarize"] == replace(policies_of(base)["summarize"], **changed)
    assert mine.about == "what it is for"
    assert mine.exceptions == Exceptions(first_sight=True, system=("[memo]*", "Be brief."))
    told = "Summarize the conversation for the next step."
    assert mine.writing == WritingOptions(told, (("", "gpt-4o-mini"),), 900, StaleOptions("trim", 3_600.0))


def test_what_neither_says_is_as_the_policy_usually_is(settings: Settings) -> None:
    clip = policies_of(settings.all_presets()["mine"])["clip"]
    changed: dict[str, Any] = {"over": Size(chars=400)}
    assert clip == replace(POLICIES["clip"], **changed)
    bare = settings.all_presets()["bare"]
    shared: dict[str, Any] = {"keep_share": 0.3}
    assert policies_of(bare)["abridge"] == replace(POLICIES["abridge"], **shared)
    assert (bare.exceptions, bare.writing, bare.aim) == (Exceptions(), WritingOptions(), "bill")


def test_a_preset_may_start_from_one_that_stands_above_it(settings: Settings) -> None:
    mine, other = settings.all_presets()["mine"], settings.all_presets()["other"]
    assert described(other.policies) == described(mine.policies)
    assert other.exceptions == Exceptions(first_sight=False, system=mine.exceptions.system)
    assert dict(other.writing.models) == {"openai": "a", "anthropic": "b"}
    assert (other.writing.prompt, other.writing.tokens) == (mine.writing.prompt, 900)
    assert (mine.aim, other.aim) == ("context", "context")
    assert other.writing.stale == StaleOptions("trim", 60.0, same_model=False)
    chatty = settings.all_presets()["chatty"]
    in_chats = [each.aim_for(is_chat=True, window=SMALL_WINDOW) for each in (chatty, PRESETS["adaptive"])]
    assert (chatty.aim, *in_chats) == ("bill", "bill", "context")


def test_w1_its_aim_is_that_of_the_base_in_chats_too_unless_it_names_one(file: Path) -> None:
    for line, aims in {
        "": ("bill", "bill", "context"),
        'aim = "bill"': 3 * ("bill",),
        'aim = "context"': 3 * ("context",),
    }.items():
        file.write_text(f'preset = "mine"\n[presets.mine]\nbase = "adaptive"\n{line}\n')
        mine = settings_with(["--config", str(file)]).all_presets()["mine"]
        in_chats = (mine.aim_for(is_chat=True, window=window) for window in (SMALL_WINDOW + 1, SMALL_WINDOW))
        assert (mine.aim_for(is_chat=False, window=SMALL_WINDOW), *in_chats) == aims


def test_those_that_come_with_narrows_are_found_as_before(settings: Settings) -> None:
    assert settings.all_presets()["chat"] is PRESETS["chat"]
    assert settings_with().all_presets()["coding-agent"] is PRESETS["coding-agent"]


def test_presets_that_were_made_are_taken_as_they_are(settings: Settings) -> None:
    again = Settings(presets=dict(settings.presets), preset="other")
    assert again.all_presets()[again.preset] is settings.all_presets()["other"]


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_has_usual_parameters_which_are_taken_again(name: str, tmp_path: Path) -> None:
    usual = POLICIES[name]
    file = tmp_path / "narrows.toml"
    file.write_text(entry(name))
    made = settings_with(["--config", str(file)]).all_presets()["mine"]
    assert described(made.policies) == described((usual,))


@pytest.mark.parametrize("preset", PRESETS)
def test_c6_what_comes_with_narrows_can_work(preset: str) -> None:
    for name, configured in policies_of(PRESETS[preset]).items():
        assert list(configured.conflicts()) == [], name


@pytest.mark.parametrize(
    ("text", "place", "line", "advice"),
    [
        ('port = 1\npreset = "gentel"\n', "preset", 2, "did you mean gentle?"),
        ('request_presets = [\n  "chat",\n  "caht",\n]\n', "request_presets.1", 3, "did you mean chat?"),
        ("\nprot = 1\n", "prot", 2, "did you mean port?"),
        ('[tool_kinds]\n"mcp__*" = "data"\nx = "fil"\n', "tool_kinds.x", 3, "'file', 'search'"),
        ("low = 0.5\nhigh = 0.5\n", "low", 1, "must be below high"),
        ("presets = 5\n", "presets", 1, "give a table"),
        ("[presets]\nmine = 5\n", "presets.mine", 2, "give a table"),
        ('[presets.chat]\nbase = "gentle"\n', "presets.chat", 1, "choose another name"),
        ('[presets."a b"]\nbase = "chat"\n', "presets.a b", 1, "give 1 to 64 letters"),
        ('[presets.all]\nbase = "chat"\n', "presets.all", 1, "choose another name"),
        ('[presets.mine]\nabout = "x"\n', "presets.mine", 1, "give a `base`"),
        ('[presets.mine]\nbase = "mine"\n', "presets.mine.base", 2, "there is no preset 'mine'"),
        (based("sytem = ['x']"), "presets.mine.sytem", 3, "did you mean system?"),  # codespell:ignore sytem
        (based("system = ['']"), "presets.mine.system.0", 3, "at least 1 character"),
        (based("policies = []"), "presets.mine.policies", 3, "give one at least"),
        (based("policies = ['clip']"), "presets.mine.policies.0", 3, "name its `policy`"),
        (based("first_sight = 1"), "presets.mine.first_sight", 3, "a valid boolean"),
        (based("summary_tokens = 5"), "presets.mine.summary_tokens", 3, "greater than or equal to 100"),
        (based("summary_model = 5"), "presets.mine.summary_model", 3, "name a model"),
        (based("summary_model = {}"), "presets.mine.summary_model", 3, "name a model"),
        (
            based("summary_model.opnai = 'x'"),
            "presets.mine.summary_model.opnai",
            3,
            "'openai' or 'anthropic'",
        ),
        (entry("clop", ""), "presets.mine.policies.0.policy", 3, "did you mean clip?"),
        (entry("clip", "kep = 1"), "presets.mine.policies.0.kep", 4, "did you mean keep?"),
        (entry("clip", "keep = '6'"), "presets.mine.policies.0.keep", 4, "a number (turns)"),
        (entry("clip", "keep = true"), "presets.mine.policies.0.keep", 4, "turns, messages, share"),
        (entry("clip", "over = 1.5"), "presets.mine.policies.0.over", 4, "a number (tokens)"),
        (entry("clip", "keep = -1"), "presets.mine.policies.0.keep", 4, "greater than or equal to 0"),
        (entry("clip", "keep = {}"), "presets.mine.policies.0.keep", 4, "it says nothing"),
        (entry("clip", "over.chars = 0"), "presets.mine.policies.0.over", 4, "it says nothing"),
        (entry("clip", "keep.share = 1.0"), "presets.mine.policies.0.keep", 4, "ever be edited"),
        (entry("clip", f"keep = {10**300}"), "presets.mine.policies.0.keep", 4, "1000000000"),
        (entry("abridge", "keep_share = 1.0"), "presets.mine.policies.0.keep_share", 4, "a lower share"),
        (entry("digest", "max_chars = 99"), "presets.mine.policies.0.max_chars", 4, "give 100 at least"),
        (entry("digest", "source_chars = 799"), "presets.mine.policies.0.source_chars", 4, "lower `max_chars`"),
        (entry("digest", "max_chars = 1500"), "presets.mine.policies.0.max_chars", 4, "1500 characters"),
        (entry("digest", "over.bytes = 800"), "presets.mine.policies.0.max_chars", 2, "800 bytes"),
        # codespell:ignore-next-line
        (entry("clip", "keep.mesages = 1"), "presets.mine.policies.0.keep.mesages", 4, "messages?"),
        (entry("clip", "keep.share = 1.5"), "presets.mine.policies.0.keep.share", 4, "less than or equal to 1 "),
        (entry("clip", "when = 5"), "presets.mine.policies.0.when", 4, "give a list"),
        (entry("trim", "keep.messages = 2"), "presets.mine.policies.0.keep", 4, "a valid integer"),
        (entry("abridge", "keep_share = nan"), "presets.mine.policies.0.keep_share", 4, "finite number"),
        (entry("summarize", "as_system = 1"), "presets.mine.policies.0.as_system", 4, "a valid boolean"),
        (entry("summarize", "frame = 'x'"), "presets.mine.policies.0.frame", 4, "agent_summary"),
        (entry("summarize", "when = []"), "presets.mine.policies.0.when", 4, "give one at least"),
        (entry("summarize", "keep_after = 7"), "presets.mine.policies.0.keep_after", 4, "when_after?"),
        (
            entry("summarize", "when_after = [{ turns = 4 }]"),
            "presets.mine.policies.0.when_after.0",
            4,
            "`keep` covers 4 turns",
        ),
        (
            entry("clip", 2 * '[[presets.mine.policies]]\npolicy = "trim"\n'),
            "presets.mine.policies.2",
            6,
            "as policies.1",
        ),
        (entry("summarize", "when = [{ tokens = 0 }]"), "presets.mine.policies.0.when.0", 4, "nothing"),
        (
            entry("summarize", "when = [\n  { tokens = 1 },\n  { tokns = 2 },\n]"),
            "presets.mine.policies.0.when.1.tokns",
            6,
            "did you mean tokens?",
        ),
        (
            entry("summarize", "keep.messages = 9\nwhen = [{ tokens = 1 }, { messages = 8 }]"),
            "presets.mine.policies.0.when.1",
            5,
            "`keep` covers 9 messages",
        ),
    ],
)
def test_c6_what_cannot_work_is_refused_with_its_path_and_its_line(
    tmp_path: Path, text: str, place: str, line: int, advice: str
) -> None:
    file = tmp_path / "narrows.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as refusal:
        settings_with(["--config", str(file)])
    (told,) = str(refusal.value).splitlines()
    assert told.startswith(f"{place}: ")
    assert advice in told
    assert told.endswith(f" ({file}, line {line})")


def test_a_window_and_a_trigger_of_other_measures_are_not_compared() -> None:
    def conflicts(**changed: Any) -> list[Any]:
        return [path for path, _ in replace(POLICIES["summarize"], **changed).conflicts()]

    wide = Window(messages=9)
    assert conflicts(keep=wide, when=(Trigger(tokens=1), Trigger(messages=3, tokens=1))) == []
    assert conflicts(keep=9, when=(Trigger(messages=3),)) == []
    assert conflicts(keep=wide, when=(Trigger(messages=9),)) == [("when", 0)]
    assert conflicts(keep=wide, when=(Trigger(messages=10),), when_after=(Trigger(messages=9),)) == [("when_after", 0)]
    assert conflicts(keep=9, when=(Trigger(messages=3),), when_after=(Trigger(messages=3), Trigger(turns=10))) == []
    assert conflicts(keep=Window(share=0.5), when=(Trigger(share=0.5),)) == [("when", 0)]


def test_a_line_is_told_only_of_what_the_file_has_a_say_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    file.write_text("floor = 1\n")
    for words in (["--floor", "-2"], ["--floor=-2"]):
        with pytest.raises(ConfigurationError, match=r"\(--floor\)$"):
            settings_with(["--config", str(file), *words])
    monkeypatch.setenv("NARROWS_CONFIG", str(file))
    monkeypatch.setenv("NARROWS_PRESETS", '{"mine": {"base": "caht"}}')
    with pytest.raises(ConfigurationError, match=r"^presets\.mine\.base: .*\(NARROWS_PRESETS\)$"):
        settings_with()


def test_lines_are_those_where_a_value_stands() -> None:
    text = 'a = """\n[b]\n"""\r\n[[c]]\nx = 1\n[[c]] # more\nd.e = [[1,\n 2], [3,\n 4]]\nf = { g = [\n 5 ] }\n'
    places = [("a",), ("c",), ("c", 1), ("c", 1, "d"), ("c", 1, "d", "e", 1, 1), ("c", 1, "f", "g", 0), ("c", 1, "z")]
    assert [line_of(text, place) for place in places] == [1, 4, 6, 7, 9, 11, 6]
    assert line_of(text, ("z",)) == 0


# --- narrows presets ---


@pytest.mark.parametrize("kind", [*map(type, POLICIES.values()), Size, Window, Trigger])
def test_every_parameter_states_its_unit_its_bounds_and_its_meaning(kind: type) -> None:
    for stated in parameters_of(kind):
        assert all((stated.unit, stated.meaning)), stated.name
        assert 0 <= stated.minimum <= MOST, stated.name
        assert 0 < (stated.below or 1) <= 1, stated.name


def test_every_policy_says_what_it_does() -> None:
    assert all(policy.summary.endswith(".") for policy in POLICIES.values())


@policy
class Cut(Clip):
    """A policy with one parameter more than another one."""

    longest_name: int = parameter("letters", "the longest name that stays", minimum=2, default=7)


def test_a_new_parameter_needs_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Cut(over=1, keep=1, keep_writes=1)
    monkeypatch.setitem(POLICIES, "cut", usual)  # type: ignore[arg-type]  # a mapping for all others
    file = tmp_path / "narrows.toml"

    def preset(parameters: str) -> CustomPreset:
        file.write_text(entry("cut", parameters))
        return settings_with(["--config", str(file)]).presets["mine"]

    assert preset("").preset.policies == (usual,)
    assert preset("longest_name = 9").preset.policies == (replace(usual, longest_name=9),)
    with pytest.raises(ConfigurationError, match=r"longest_name: 1 letters are too few; give 2 at least .*line 4\)"):
        preset("longest_name = 1")
    with pytest.raises(ConfigurationError, match=r"did you mean longest_name\?"):
        preset("longst_name = 1")
    described_policy = describe("mine", {"mine": preset("longest_name = 9")}).policies[0]
    shown = {each.name: (each.value, each.means) for each in described_policy.parameters}
    assert shown["longest_name"] == ("9 letters", "the longest name that stays")
    assert (
        "| `cut` | `longest_name` | letters, 2 or more | 7 letters | the longest name that stays |" in parameter_table()
    )
    assert described((usual,)) != described((replace(usual, longest_name=9),))


def test_all_presets_are_listed_ones_own_marked_as_such(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    code, out, err = told(capsys, "presets", "--config", str(file))
    assert (code, err) == (0, "")
    lines = {line.split(" ")[0]: line for line in out.splitlines()}
    assert lines.keys() >= {*PRESETS, "mine", "other", "bare"}
    assert "(yours, from agent-summary) what it is for" in lines["mine"]
    assert "(yours" not in lines["chat"]
    assert max(map(len, out.splitlines())) <= WIDE


def test_m10_a_preset_says_what_it_does_with_its_exceptions_in_the_open(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    monkeypatch.setenv("NARROWS_CONFIG", str(file))
    code, out, err = told(capsys, "presets", "mine")
    assert (code, err) == (0, "")
    assert "exception to the laws: results are cut before the model has seen them whole" in out
    assert "system text that is [memo]*" in out
    assert "summaries are written by gpt-4o-mini, unless" in out
    assert "a stale summary: trim; each counts for 1h" in " ".join(out.split())
    assert "aim: context\n" in out
    _, chatty, _ = told(capsys, "presets", "chatty")
    base = "bill; context in chats without tools, in windows up to 32,768 tokens"
    assert f"aim: bill (base: {base})\n  bill: it acts where that pays\n" in chatty
    assert "of the base it leaves out trim" in out
    assert "8 messages (base: 6 messages)" in out
    assert "(the base has none of it)" in out


def test_m10_a_preset_as_json(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    _, out, _ = told(capsys, "presets", "mine", "--config", str(file), "--json")
    found = json.loads(out)
    assert (found["own"], found["base"], found["left_out_of_base"]) == (True, "agent-summary", ["trim"])
    assert [(layer["policy"], layer["not_in_base"]) for layer in found["policies"]] == [
        ("clip", True),
        ("summarize", False),
    ]
    said = {each["name"]: (each["value"], each["base"]) for each in found["policies"][1]["parameters"]}
    assert said["keep"] == ("8 messages", "6 messages")
    assert said["when"] == ("from 100,000 tokens on or from 50% of the window and 9 turns on", "from 120,000 tokens on")
    assert said["verbatim_tokens"] == ("2,000 tokens", None)
    everything = json.loads(told(capsys, "presets", "--json")[1])
    assert [each["name"] for each in everything] == list(PRESETS)


@pytest.mark.parametrize("preset", PRESETS)
def test_who_writes_is_said_where_a_model_is_asked(preset: str) -> None:
    asks = {"adaptive", "rolling", "chat", "agent-summary", "harness", "deep", "tool-digest"}
    assert bool(describe(preset, {}).writer) == (preset in asks)


def test_a_preset_that_is_not_there(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    for words in (
        ["presets", "mien"],
        ["explain", SHIPPED, "--preset", "mien"],
        ["replay", SHIPPED, "--preset", "mien"],
    ):
        code, out, err = told(capsys, *words, "--config", str(file))
        assert (code, out) == (2, "")
        assert "there is no preset 'mien' (did you mean mine?)" in err


def test_dry_runs_and_replays_take_a_preset_of_ones_own(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    file.write_text(entry("clip", "over = 20\nkeep = 1\nkeep_writes = 1"))
    words = ("--preset", "mine", "--config", str(file), "--json")
    code, out, _ = told(capsys, "explain", SHIPPED, "--prices", "gpt-4o", *words)
    assert (code, json.loads(out)["preset"]) == (0, "mine")
    assert {edit["policy"] for edit in json.loads(out)["edits"]} == {"clip"}
    code, out, _ = told(capsys, "replay", SHIPPED, "--prices", "gpt-4o", *words)
    assert (code, [row["preset"] for row in json.loads(out)["sessions"]]) == (0, ["mine"])


def test_a_name_of_ones_own_is_no_style(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    file.write_text(based("about = '[red]x[/b]\\u001b[31m:smile:'".replace("'", '"')))
    code, out, _ = told(capsys, "presets", "mine", "--config", str(file))
    assert code == 0
    assert "[red]x[/b]?[31m:smile:" in out


def test_a_preset_of_ones_own_names_its_base() -> None:
    gentle = CustomPreset(PRESETS["gentle"], "coding-agent")
    assert describe("x", {"x": gentle}).left_out_of_base == ("abridge", "recap")
