"""Flags, environment and file name the same settings; what cannot work is refused when it is loaded."""

from pathlib import Path

import pytest

from proxy.config import ConfigurationError, Settings, load_settings


def test_every_setting_says_what_it_means() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name


def test_help_shows_every_setting_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        load_settings(["--help"])
    shown = " ".join(capsys.readouterr().out.replace("\n", " ").split())
    assert leaving.value.code == 0
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in shown
        assert " ".join(str(field.description).split()[:2]) in shown
    assert shown.count("(default") == len(Settings.model_fields) + 2  # a budget has three


def test_flags_go_before_the_environment_and_that_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "narrows.toml"
    file.write_text('preset = "gentle"\nport = 1\nhost = "::1"\n[models."a/b"]\ninput = 2.5\n')
    monkeypatch.setenv("NARROWS_CONFIG", str(file))
    monkeypatch.setenv("NARROWS_PORT", "2")
    monkeypatch.setenv("NARROWS_HOST", "::2")
    settings = load_settings(["--host", "::3"])
    assert (settings.host, settings.port, settings.preset) == ("::3", 2, "gentle")
    assert settings.models == {"a/b": {"input": 2.5}}


def test_the_file_can_be_named_by_flag_too(tmp_path: Path) -> None:
    file = tmp_path / "narrows.toml"
    file.write_text('body_limit = "2MiB"\nmode = "observe"\nlow = 0.2\n')
    settings = load_settings(["--config", str(file), "--low", "0.3"])
    assert (settings.body_limit, settings.mode, settings.low) == (2 * 2**20, "observe", 0.3)


@pytest.mark.parametrize(
    ("arguments", "named", "advice"),
    [
        (["--low", "0.8", "--high", "0.6"], "low:", "must be below high"),
        (["--low", "0.6", "--high", "0.6"], "low:", "must be below high"),
        (["--high", "1.5"], "high:", "less than or equal to 1"),
        (["--low", "0"], "low:", "greater than 0"),
        (["--window", "1000", "--reserve", "1000"], "reserve:", "lower it"),
        (["--window", "1000", "--high", "0.5", "--floor", "600"], "floor:", "lower it"),
        (["--reserve", "-1"], "reserve:", "--reserve, NARROWS_RESERVE"),
        (["--window", "0"], "window:", "greater than 0"),
        (["--unknown-window", "-5"], "unknown_window:", "--unknown-window"),
        (["--body-limit", "-5"], "body_limit:", "NARROWS_BODY_LIMIT"),
        (["--store-limit", "lots"], "store_limit: give a number of bytes, or a size such as 64MiB", "--store-limit"),
        (["--read-timeout", "0"], "read_timeout:", "greater than 0"),
        (["--grace", "nan"], "grace:", "finite"),
        (["--port", "70000"], "port:", "65535"),
        (["--preset", "nosuch"], "preset:", "choose one of"),
        (["--admin-token", ""], "admin_token:", "give one"),
        (["--metrics-token", ""], "metrics_token:", "give one"),
        (["--tenant", "a/b"], "tenant:", "pattern"),
        (["--store", "narrows.db"], "store:", "sqlite:///narrows.db"),
        (["--upstream", "api.example.com/v1"], "upstream:", "whole URL"),
        (["--upstream", "ftp://api.example.com"], "upstream:", "whole URL"),
        (["--upstream", "https://key@api.example.com/v1"], "upstream:", "user and password"),
        (["--upstream", "https://api.example.com/v1?x=1"], "upstream:", "from ? or # on"),
        (["--anthropic-upstream", "api.example.com"], "anthropic_upstream:", "whole URL"),
        (["--ca-bundle", "/no/such.pem"], "ca_bundle:", "PEM"),
        (["--ca-bundle", "x" * 5_000], "ca_bundle:", "PEM"),
        (["--window", "9" * 400], "window:", "1000000000"),
        (["--artifacts-limit", "9" * 400], "artifacts_limit:", "less than"),
        (["--floor", "9" * 5_000], "floor:", "integer"),
        (["--config", "/no/such.toml"], "config:", "name a TOML file"),
    ],
)
def test_c6_impossible_configuration_is_refused_with_the_field_named(
    arguments: list[str], named: str, advice: str
) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        load_settings(arguments)
    assert str(refusal.value).startswith(named)
    assert advice in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("pront = 1\n", "pront"),  # codespell:ignore pront
        ("[models.x\n", "config"),
        ('mode = "sideways"\n', "mode"),
        ("port = []\n", "port"),
        ("port = " + "9" * 5_000, "config: .* a number of thousands of digits"),
        ("models = " + "[" * 3_000 + "]" * 3_000, "config: .* lists or tables inside each other"),
        ("models = " + "{a=" * 500 + "1" + "}" * 500, "config: .* lists or tables inside each other"),
        ('[tool_kinds]\n"" = "file"\n', "tool_kinds"),
        ('[presets."a\\n\\u001b"]\n', r"presets\.a\\n\\x1b: "),
    ],
)
def test_c6_a_file_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "narrows.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=f"^{named}"):
        load_settings(["--config", str(file)])


def test_c6_a_variable_that_cannot_be_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NARROWS_PRESETS", '{"a":' * 20_000)
    with pytest.raises(ConfigurationError, match="lists or tables inside each other"):
        load_settings()


def test_c6_all_faults_are_named_at_once() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        load_settings(["--port", "-1", "--upstream", "x"])
    assert {line.split(":")[0] for line in str(refusal.value).splitlines()} == {"port", "upstream"}


def test_x4_no_secret_is_shown_when_settings_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NARROWS_TENANT_SECRET", "s3cret")
    monkeypatch.setenv("NARROWS_METRICS_TOKEN", "s3cret")
    assert "s3cret" not in repr(load_settings())


def test_the_upstream_is_the_former_base_url() -> None:
    assert load_settings(["--upstream", "https://api.example.com/openai/v1/"]).upstream == (
        "https://api.example.com/openai/v1"
    )


@pytest.mark.parametrize("given", ["https://c.example/api", "https://c.example/api/", "https://c.example/api/v1/"])
def test_anthropics_upstream_is_a_base_url_as_its_clients_know_it(given: str) -> None:
    settings = load_settings(["--upstream", "https://api.example.com/v1", "--anthropic-upstream", given])
    assert settings.upstream_of("anthropic_messages") == "https://c.example/api/v1"
    assert settings.upstream_of("openai_chat") == settings.upstream_of("openai_responses") == settings.upstream
    alone = load_settings(["--upstream", "https://api.example.com/v1"])
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
        load_settings(["--config", str(file)])
    assert advice in str(refusal.value)


def test_w3_a_budget_is_set_part_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "narrows.toml"
    file.write_text("[summary_budget]\nconversation = 0.5\ntenant = 1\n")
    monkeypatch.setenv("NARROWS_SUMMARY_BUDGET", '{"tenant": 3}')
    budget = load_settings(["--config", str(file), "--summary-budget.day", "5"]).summary_budget
    assert (budget.conversation, budget.tenant, budget.day) == (0.5, 3.0, 5.0)
    file.write_text("[summary_budget]\ndays = 1\n")
    with pytest.raises(ConfigurationError, match="did you mean day"):
        load_settings(["--config", str(file)])
    for flags in (["--summary-budget.day", "-1"], ["--summary-allow", "sk-1"], ["--summary-credential", "any"]):
        with pytest.raises(ConfigurationError, match=r"^summary_"):
            load_settings(flags)


def test_the_store_is_in_the_users_state_directory(tmp_path: Path) -> None:
    assert load_settings().store == f"sqlite:///{tmp_path / 'state' / 'narrows' / 'narrows.db'}"


def test_the_help_has_words_for_people(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        load_settings(["--help"])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    for word in ("tuple", "dict[", "Settings(", "None", "factory", " str ", "ByteSize"):
        assert word not in shown
    assert "--body-limit SIZE" in shown
    assert "--record FOLDER" in shown
    assert "(default: 64MiB)" in shown


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--aimm", "bill"], ["--aimm bill", "did you mean --aim?", "narrows serve --help"]),
        (["--summaries", "maybe"], ["unrecognized arguments: maybe", "narrows serve --help"]),
        (["--port"], ["argument --port: expected one argument"]),
        (["--summary-allow", "abc"], ["summary_allow.0: give the SHA-256", "NARROWS_SUMMARY_ALLOW"]),
        (["--store", "redis"], ["store: give a URL such as sqlite:///FILE or redis://HOST", "NARROWS_STORE"]),
    ],
)
def test_flags_that_cannot_be_read_are_one_clear_line(flags: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load_settings(flags)
    assert [word for word in words if word not in str(refused.value)] == []
    assert "\n" not in str(refused.value)


def test_a_variable_that_is_no_json_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NARROWS_RULES", "x")
    with pytest.raises(ConfigurationError) as refused:
        load_settings([])
    assert str(refused.value) == "rules: give JSON (NARROWS_RULES)"
