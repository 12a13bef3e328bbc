"""Flags, environment and file name the same settings; what cannot work is refused when it is loaded."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ByteSize, TypeAdapter

from policies.keep import patterns_of
from proxy.config import ConfigurationError, Settings
from proxy.config.settings import GROUPS
from proxy.config.units import duration, seconds, size
from proxy.console.options import default_in_words
from tests.console.test_cli import told
from tests.kit.settings import settings_with


def test_every_setting_says_what_it_means() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name


def test_help_shows_every_setting_with_its_default_in_its_group(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = told(capsys, "serve", "--help")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    sections = {
        name: " ".join(text.split()) for name, text in re.findall(r"^(\w+):\n(.*?)(?=^\w|\Z)", out, re.M | re.S)
    }
    assert [*sections] == [str(group.__doc__) for group in GROUPS] + ["Options"]
    for group in GROUPS:
        for name, field in group.model_fields.items():
            text = sections[str(group.__doc__)]
            assert f"--{name.replace('_', '-')}" in text
            assert " ".join(str(field.description).split()[:2]) in text
            assert f"default: {default_in_words(field)}]" in text or not default_in_words(field)
    for word in ("tuple", "dict[", "Settings(", "None", "factory", " str ", "ByteSize", "JSON", "<"):
        assert word not in out
    for words in ("--body-limit SIZE", "--record PATH", "[default: 64MiB]", "[default: 30d]", "-h, --help"):
        assert words in " ".join(out.split())


def test_flags_go_before_the_environment_and_that_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "narrows.toml"
    file.write_text('preset = "gentle"\nport = 1\nhost = "::1"\n[models."a/b"]\ninput = 2.5\n')
    monkeypatch.setenv("NARROWS_CONFIG", str(file))
    monkeypatch.setenv("NARROWS_PORT", "2")
    monkeypatch.setenv("NARROWS_HOST", "::2")
    settings = settings_with(["--host", "::3"])
    assert (settings.host, settings.port, settings.preset) == ("::3", 2, "gentle")
    assert settings.models == {"a/b": {"input": 2.5}}


def test_a_flag_is_turned_on_and_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NARROWS_SUMMARIES", "true")
    monkeypatch.setenv("NARROWS_ORIGINALS", "false")
    settings = settings_with(["--no-summaries", "--originals"])
    assert (settings.summaries, settings.originals, settings.calibrate) == (False, True, True)


def test_the_file_can_be_named_by_flag_too(tmp_path: Path) -> None:
    file = tmp_path / "narrows.toml"
    file.write_text('body_limit = "2MiB"\nmode = "observe"\nlow = 0.2\n')
    settings = settings_with(["--config", str(file), "--low", "0.3"])
    assert (settings.body_limit, settings.mode, settings.low) == (2 * 2**20, "observe", 0.3)


@pytest.mark.parametrize(
    ("arguments", "named", "advice"),
    [
        (["--low", "0.8", "--high", "0.6"], "low:", "must be below high"),
        (["--low", "0.6", "--high", "0.6"], "low:", "must be below high"),
        (["--high", "1.5"], "high:", "less than or equal to 1 "),
        (["--low", "0"], "low:", "greater than 0"),
        (["--window", "1000", "--reserve", "1000"], "reserve:", "lower it"),
        (["--window", "1000", "--high", "0.5", "--floor", "600"], "floor:", "lower it"),
        (["--reserve", "-1"], "reserve:", "(--reserve)"),
        (["--window", "0"], "window:", "greater than 0"),
        (["--unknown-window", "-5"], "unknown_window:", "--unknown-window"),
        (["--body-limit", "-5"], "body_limit:", "(--body-limit)"),
        (["--store-limit", "lots"], "store_limit: give a number of bytes, or a size such as 64MiB", "--store-limit"),
        (["--read-timeout", "0"], "read_timeout:", "greater than 0"),
        (["--grace", "nan"], "grace:", "give a duration"),
        (["--port", "70000"], "port:", "65535"),
        (["--preset", "nosuch"], "preset:", "choose one of"),
        (["--admin-token", ""], "admin_token:", "give one"),
        (["--metrics-token", ""], "metrics_token:", "give one"),
        (["--tenant", "a/b"], "tenant:", "give 1 to 64 letters"),
        (["--store", "narrows.db"], "store:", "sqlite:///narrows.db"),
        (["--upstream", "api.example.com/v1"], "upstream:", "whole URL"),
        (["--upstream", "ftp://api.example.com"], "upstream:", "whole URL"),
        (["--upstream", "https://key@api.example.com/v1"], "upstream:", "user and password"),
        (["--upstream", "https://api.example.com/v1?x=1"], "upstream:", "from ? or # on"),
        (["--anthropic-upstream", "api.example.com"], "anthropic_upstream:", "whole URL"),
        (["--ca-bundle", "/no/such.pem"], "ca_bundle:", "PEM"),
        (["--ca-bundle", "x" * 5_000], "ca_bundle:", "PEM"),
        (["--window", "9" * 400], "window:", "less than or equal to 1000000000"),
        (["--artifacts-limit", "9" * 400], "artifacts_limit:", "less than or equal to"),
        (["--floor", "9" * 5_000], "floor:", "as an integer"),
        (["--config", "/no/such.toml"], "config:", "name a TOML file"),
    ],
)
def test_c6_impossible_configuration_is_refused_with_the_field_named(
    arguments: list[str], named: str, advice: str
) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        settings_with(arguments)
    assert str(refusal.value).startswith(named)
    assert advice in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("pront = 1\n", "pront"),  # codespell:ignore pront
        ("[models.x\n", "config"),
        ('mode = "sideways"\n', "mode"),
        ("port = []\n", "port"),
        ("port = " + "9" * 5_000, "config: .* cannot be read as TOML: .*digits"),
        ("models = " + "[" * 3_000 + "]" * 3_000, "config: .* cannot be read as TOML: .*depth"),
        ("models = " + "{a=" * 500 + "1" + "}" * 500, "config: .* cannot be read as TOML: .*depth"),
        ('[tool_kinds]\n"" = "file"\n', "tool_kinds"),
        ('[presets."a\\n\\u001b"]\n', r"presets\.a\\n\\x1b: "),
    ],
)
def test_c6_a_file_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "narrows.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=f"^{named}"):
        settings_with(["--config", str(file)])


def test_c6_a_variable_that_cannot_be_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NARROWS_PRESETS", '{"a":' * 20_000)
    with pytest.raises(ConfigurationError, match=r"lists or tables inside each other|presets: it cannot be read"):
        settings_with()


def test_c6_all_faults_are_named_at_once() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        settings_with(["--port", "-1", "--upstream", "x"])
    assert {line.split(":")[0] for line in str(refusal.value).splitlines()} == {"port", "upstream"}


def test_x4_no_secret_is_shown_when_settings_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NARROWS_TENANT_SECRET", "s3cret")
    monkeypatch.setenv("NARROWS_METRICS_TOKEN", "s3cret")
    assert "s3cret" not in repr(settings_with())


def test_the_upstream_is_the_former_base_url() -> None:
    assert settings_with(["--upstream", "https://api.example.com/openai/v1/"]).upstream == (
        "https://api.example.com/openai/v1"
    )


@pytest.mark.parametrize("given", ["https://c.example/api", "https://c.example/api/", "https://c.example/api/v1/"])
def test_anthropics_upstream_is_a_base_url_as_its_clients_know_it(given: str) -> None:
    settings = settings_with(["--upstream", "https://api.example.com/v1", "--anthropic-upstream", given])
    assert settings.upstream_of("anthropic_messages") == "https://c.example/api/v1"
    assert settings.upstream_of("openai_chat") == settings.upstream_of("openai_responses") == settings.upstream
    alone = settings_with(["--upstream", "https://api.example.com/v1"])
    assert alone.upstream_of("anthropic_messages") == alone.upstream


@pytest.mark.parametrize(
    ("entry", "advice"),
    [
        ('base_url = "https://other.example/v1"', "name the variable"),
        ('key_env = "NOT_SET"', "empty or not set"),
        ('key_env = "KEY_OF_OURS"\nprovider = "anthropic"', "name one of Anthropic's"),
        ('key_env = "KEY_OF_OURS"\nprovider = "anthropic"\nmodel = "same"', "name one of Anthropic's"),
        ('provider = "mistral"', "openai"),
    ],
)
def test_c6_a_summarizer_that_cannot_be_asked_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, advice: str
) -> None:
    monkeypatch.setenv("KEY_OF_OURS", "k")
    file = tmp_path / "narrows.toml"
    file.write_text(f"[[summarizers]]\n{entry}\n")
    with pytest.raises(ConfigurationError, match=r"^summarizers\.0") as refusal:
        settings_with(["--config", str(file)])
    assert advice in str(refusal.value)


def test_w3_a_budget_is_set_part_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "narrows.toml"
    file.write_text("[summary_budget]\nconversation = 0.5\ntenant = 1\n")
    monkeypatch.setenv("NARROWS_SUMMARY_BUDGET", '{"tenant": 3}')
    budget = settings_with(["--config", str(file), "--summary-budget.day", "5"]).summary_budget
    assert (budget.conversation, budget.tenant, budget.day) == (0.5, 3.0, 5.0)
    file.write_text("[summary_budget]\ndays = 1\n")
    with pytest.raises(ConfigurationError, match="did you mean day"):
        settings_with(["--config", str(file)])
    for flags in (["--summary-budget.day", "-1"], ["--summary-allow", "sk-1"], ["--summary-credential", "any"]):
        with pytest.raises(ConfigurationError, match=r"^summary_"):
            settings_with(flags)


def test_the_store_is_in_the_users_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert settings_with().store == f"sqlite:///{tmp_path / 'state' / 'narrows' / 'narrows.db'}"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--aimm", "bill"], ["No such option: --aimm", "--aim)", "narrows serve --help"]),
        (["--summaries", "maybe"], ["unexpected extra argument(s) (maybe)", "narrows serve --help"]),
        (["--port"], ["Option '--port' requires an argument", "narrows serve --help"]),
        (["--calibrate", "--port"], ["Option '--port' requires an argument"]),
        (["--port", "x"], ["port: ", "a valid integer", "(--port)"]),
        (["--mode", "onn"], ["mode: ", "'on', 'off' or 'observe' (did you mean on?) (--mode)"]),
        (["--grace", "soon"], ["grace: give a duration such as 90s, 25m, 12h or 30d (--grace)"]),
        (["--calibrate=x"], ["Option '--calibrate' does not take a value", "narrows serve --help"]),
        (["--rules", "x"], ['rules: it cannot be read; write it as in the file, for example [{ model = "gpt-4*"']),
        (["--keys", "[" * 100_000], ["keys: it holds a value with hundreds of lists", "(--keys)"]),
        (["--summary-allow", "abc"], ["summary_allow.0: give the SHA-256", "(--summary-allow)"]),
        (["--store", "redis"], ["store: give a URL such as sqlite:///FILE or redis://HOST (--store)"]),
    ],
)
def test_flags_that_cannot_be_read_are_one_clear_line(
    capsys: pytest.CaptureFixture[str], flags: list[str], words: list[str]
) -> None:
    code, out, err = told(capsys, "serve", *flags)
    assert (code, out) == (2, "")
    assert [word for word in words if word not in err] == []
    assert err.startswith("narrows: ")
    assert err.count("\n") == 1


def test_lists_and_tables_in_flags_and_variables_are_as_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NARROWS_TRUSTED_PROXIES", "10.0.0.0/8, 10.1.2.3")
    monkeypatch.setenv("NARROWS_TOOL_KINDS", '{ "mcp__db__*" = "data" }')
    flags = ["--keep", "*.sql,read_file", "--keep", '["a,b"]', "--rules", '{ model = "x", mode = "off" }']
    settings = settings_with(
        [*flags, "--rules", '[{"model": "y", "mode": "off"}]', "--models", "{ a = { window = 9 } }"]
    )
    assert settings.trusted_proxies == ("10.0.0.0/8", "10.1.2.3")
    assert settings.tool_kinds == {"mcp__db__*": "data"}
    assert [*settings.keep] == [*patterns_of(("*.sql", "read_file", "a,b"))]
    assert [rule.model for rule in settings.rules] == ["x", "y"]
    assert settings.models == {"a": {"window": 9}}


@pytest.mark.parametrize("name", [name for name, field in Settings.model_fields.items() if field.examples])
def test_the_example_of_a_table_is_one_that_the_file_may_hold(tmp_path: Path, name: str) -> None:
    example = (Settings.model_fields[name].examples or [])[0]
    (tmp_path / "narrows.toml").write_text(f"{name} = {example}\n")
    value = getattr(settings_with(["--config", str(tmp_path / "narrows.toml")]), name)
    assert value
    assert value == getattr(settings_with([f"--{name.replace('_', '-')}", example]), name)


def test_a_variable_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NARROWS_RULES", "x")
    with pytest.raises(ConfigurationError) as refused:
        settings_with([])
    assert str(refused.value).startswith("rules: it cannot be read; write it as in the file, for example [{ model")
    assert str(refused.value).endswith("(NARROWS_RULES)")


# --- units of people ---


@given(st.integers(0, 10**7), st.sampled_from(["s", "ms"]))
def test_what_is_written_as_a_duration_is_read_as_it_was(number: int, unit: str) -> None:
    milliseconds = number * (1000 if unit == "s" else 1)
    assert round(seconds(duration(number, unit)) * 1000) == milliseconds
    assert round(seconds(str(number), unit) * 1000) == milliseconds


@given(st.integers(0, 2**60))
def test_what_is_written_as_a_size_is_read_as_it_was(number: int) -> None:
    assert TypeAdapter(ByteSize).validate_python(size(number)) == number


def test_durations_have_the_units_of_people_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NARROWS_SUMMARY_WAIT", "1.5s")
    (tmp_path / "narrows.toml").write_text(
        'summary_ttl = "30d"\ngrace = 7\n[[upstreams]]\nname = "a"\nurl = "http://h/v1"\nread_timeout = "1h"\n'
        '[[rules]]\nmodel = "x"\nsummary_ttl = "12h"\n[presets.mine]\nbase = "chat"\nsummary_ttl = "90m"\n'
    )
    settings = settings_with(["--config", str(tmp_path / "narrows.toml"), "--read-timeout", "25m"])
    assert (settings.summary_ttl, settings.grace, settings.summary_wait) == (30 * 86_400, 7, 1500)
    assert (settings.read_timeout, settings.upstreams[0].read_timeout) == (1500, 3600)
    assert settings.rules[0].summary_ttl == 43_200
    assert settings.presets["mine"].preset.writing.stale.ttl == 5400
