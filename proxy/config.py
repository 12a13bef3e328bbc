"""Every setting of Narrows, with its default and its meaning: the only home of both.

Laws
  Flags, NARROWS_* environment variables and keys of the TOML file are the same names, and win in that order.
  What cannot work is refused while loading, with the setting named and what to do about it.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tomllib import TOMLDecodeError, load
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError
from pydantic_settings import (
    BaseSettings,
    CliApp,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from policies.context import FLOOR, HIGH, RESERVE
from policies.presets import PRESETS, Preset

Mode = Literal["on", "off", "observe"]
Recall = Literal["tools", "always", "never"]
Stale = Literal["regenerate", "trim", "fail"]

_UPSTREAMS = {"anthropic_messages": "anthropic_upstream"}
"""The settings that say where the requests of an API go; `upstream` for all others."""
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class ConfigurationError(ValueError):
    """The configuration cannot work; the text says which setting and what to do, one line each."""


def _default_store() -> str:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return f"sqlite:///{Path(state) / 'narrows' / 'narrows.db'}"


def refused(code: str, message: str) -> PydanticCustomError:
    """A refusal whose text reaches the reader as it is."""
    return PydanticCustomError("impossible_" + code, "{text}", {"text": message})


class TomlFile(PydanticBaseSettingsSource):
    """The file that the sources before this one (flags, environment) name in `config`."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Nothing by itself: the whole file is read at once."""
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        path = self.current_state.get("config")
        if not path:
            return {}
        try:
            with Path(path).open("rb") as file:
                return load(file)
        except OSError as error:
            raise ConfigurationError(f"config: cannot read {path} ({error.strerror}); name a TOML file") from error
        except TOMLDecodeError as error:
            raise ConfigurationError(f"config: {path} is not valid TOML: {error}") from error


def _whole_url(value: str) -> str:
    """The URL of an API, without its last slash. Raises what pydantic makes a refusal of."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or not value.isascii():
        raise refused("url", "give a whole URL such as https://api.openai.com/v1")
    if parts.username is not None or parts.password is not None:
        raise refused("url", "leave user and password out; credentials are sent in headers")
    if parts.query or parts.fragment or "?" in value or "#" in value:
        raise refused("url", "leave out everything from ? or # on")
    return value.rstrip("/")


class SummarizerSettings(BaseModel):
    """Who writes summaries: one entry of the list `summarizers`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    provider: Literal["openai", "anthropic"] | None = Field(
        default=None,
        description="whose API it speaks, with a key of its own; without one: whose conversations it is asked for",
    )
    model: str = Field(default="", description="the model to ask; empty for the one of the conversation")
    base_url: str | None = Field(default=None, description="another API than `upstream`, /v1 included")
    key_env: str = Field(
        default="", description="the environment variable that holds its key; empty for the client's own credential"
    )

    @field_validator("base_url")
    @classmethod
    def _reachable(cls, value: str | None) -> str | None:
        return None if value is None else _whole_url(value)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.base_url is not None and not self.key_env:
            raise refused("key_env", "key_env: name the variable with the key of base_url; clients' keys stay here")
        if self.provider == "anthropic" and self.key_env and not self.model:
            raise refused("anthropic", "model: name one of Anthropic's; not all conversations are with one of these")
        if self.key_env and not os.environ.get(self.key_env):
            raise refused("key_env", f"key_env: the environment variable {self.key_env} is empty or not set")
        return self


class Configured(BaseSettings):
    """Settings that flags, the environment and a file have a say in."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags stand before all of these."""
        return init_settings, env_settings, TomlFile(settings_cls)


class Settings(Configured):
    """What `narrows serve` can be told."""

    model_config = SettingsConfigDict(
        env_prefix="NARROWS_",
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        allow_inf_nan=False,
        cli_prog_name="narrows serve",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
    )

    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(default=8787, ge=0, le=65535, description="port to listen on; 0 picks a free one")
    upstream: str | None = Field(
        default=None,
        description="the client's former base_url, /v1 included, for example https://api.openai.com/v1",
    )
    anthropic_upstream: str | None = Field(
        default=None,
        description="where requests in Anthropic's API go, for example https://api.anthropic.com; else to `upstream`",
    )
    store: str = Field(
        default_factory=_default_store,
        pattern=r"^[a-z][a-z0-9+]*://",
        description="where decisions are remembered: sqlite:///FILE, or redis://HOST for several Narrows",
    )
    preset: str = Field(default="coding-agent", description="the list of policies to use, by name")
    config: Path | None = Field(default=None, description="a TOML file with these same settings")
    mode: Mode = Field(
        default="on",
        description="on compacts, observe only reports what would be saved, off relays bytes untouched",
    )

    recall: Recall = Field(
        default="tools",
        description="the recall tool: where the client brings tools, always, or never",
    )
    recall_rounds: int = Field(
        default=4, ge=1, le=16, description="how often recalls are answered within one reply, at most"
    )
    originals: bool = Field(default=False, description="keep hidden texts in the store, for people to look up")

    summarizers: tuple[SummarizerSettings, ...] = Field(
        default=(SummarizerSettings(),),
        min_length=1,
        description="who writes summaries, where the preset wants any: the next one is asked where one fails",
    )
    summary_tokens: int = Field(default=800, ge=100, le=20_000, description="tokens of a summary, at most")
    summary_timeout: float = Field(default=60, gt=0, le=3600, description="seconds for a summary, whoever is asked")
    summary_wait: int = Field(
        default=0, ge=0, le=600_000, description="milliseconds a request waits for a summary; 0: made in the background"
    )
    summary_comments: bool = Field(
        default=False, description="tell streaming clients that wait for a summary; errors then come in the stream"
    )
    summary_stale: Stale = Field(
        default="regenerate", description="what follows a stale summary: regenerate, trim or fail (an error)"
    )
    summary_ttl: float = Field(default=30 * 86_400, gt=0, description="seconds for which a summary counts")
    summary_same_model: bool = Field(
        default=False, description="a summary by a model that `summarizers` does not name any more is stale"
    )

    tenant: str | None = Field(
        default=None,
        pattern=_NAME,
        description="one tenant for all clients; else: local on loopback, or a hash of the credential",
    )
    tenant_secret: SecretStr | None = Field(
        default=None, min_length=1, description="the key of that hash; without it one is made and kept in the store"
    )

    window: int | None = Field(default=None, gt=0, description="use no more than this many tokens of any window")
    unknown_window: int = Field(default=128_000, gt=0, description="window of an unknown model, in tokens")
    reserve: int | None = Field(
        default=None, ge=0, description=f"tokens kept for the answer; else what the request allows, or {RESERVE:,}"
    )
    high: float = Field(default=HIGH, gt=0, le=1, description="share of the window at which room must be made")
    low: float | None = Field(
        default=None, gt=0, le=1, description="share of the window to come down to; else two thirds of high"
    )
    floor: int = Field(default=FLOOR, ge=0, description="tokens below which nothing is touched")
    cold_seconds: float | None = Field(
        default=None,
        gt=0,
        description="pause after which the provider's prompt cache counts as cold, in seconds; else by its model",
    )
    calibrate: bool = Field(default=True, description="learn from the provider's usage, for the hard marks")
    own_marks: bool = Field(default=True, description="set cache marks of our own where a slot is free")
    drop_bound_thinking: bool = Field(
        default=True,
        description="ask Anthropic to drop thoughts that an edit before them makes invalid, on models that check that",
    )
    text_protocol: bool = Field(
        default=False, description="edit sessions without tool calls too, where commands travel as text"
    )
    models: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description='prices and windows by model; [models."NAME"] in TOML'
    )

    body_limit: ByteSize = Field(
        default=ByteSize(64 * 2**20),
        gt=0,
        description="largest request body, decompressed; 64MiB is understood",
    )
    connect_timeout: float = Field(default=10, gt=0, description="seconds to connect to the upstream")
    read_timeout: float = Field(default=600, gt=0, description="seconds the upstream may be silent (no total limit)")
    header_timeout: float = Field(
        default=30,
        gt=0,
        description="seconds from connecting, or the reply before, to the end of a request's head",
    )
    body_timeout: float = Field(default=30, gt=0, description="seconds a client may be silent in a body")
    grace: float = Field(default=25, ge=0, description="seconds that running replies get to finish after SIGTERM")
    ca_bundle: Path | None = Field(default=None, description="PEM file to trust instead of the system's")

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least severe line logged"
    )
    log_format: Literal["auto", "json", "console"] = Field(
        default="auto", description="json lines, console for people, auto: console on a terminal"
    )
    metrics_token: SecretStr | None = Field(
        default=None, description="bearer token that opens /metrics to others than loopback"
    )
    admin_token: SecretStr | None = Field(
        default=None, description="bearer token that opens the pages of conversations where `tenant` is set"
    )

    @field_validator("preset")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in PRESETS:
            raise refused("preset", f"there is no preset {value!r}; choose one of {', '.join(sorted(PRESETS))}")
        return value

    @field_validator("upstream")
    @classmethod
    def _reachable(cls, value: str | None) -> str | None:
        return None if value is None else _whole_url(value)

    @field_validator("anthropic_upstream")
    @classmethod
    def _with_version(cls, value: str | None) -> str | None:
        """Clients of this API are told a base_url without /v1, and add it themselves."""
        return None if value is None else _whole_url(value).removesuffix("/v1") + "/v1"

    @field_validator("ca_bundle")
    @classmethod
    def _readable(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_file():
            raise refused("ca_bundle", f"there is no file {value}; give a PEM file")
        return value

    @model_validator(mode="after")
    def _marks_in_order(self) -> Self:
        if self.low is not None and self.low >= self.high:
            raise refused("low", f"low: {self.low} must be below high ({self.high}); lower it or raise high")
        window = self.window
        if window is not None and self.reserve is not None and self.reserve >= window:
            raise refused("reserve", f"reserve: {self.reserve} is the whole window ({window}) or more; lower it")
        if window is not None and self.floor >= window * self.high:
            raise refused("floor", f"floor: {self.floor} is not below the high mark of {window}; lower it")
        return self

    def upstream_of(self, dialect: str) -> str | None:
        """Where requests in this API go."""
        found: str | None = getattr(self, _UPSTREAMS.get(dialect, "upstream"))
        return found or self.upstream

    def preset_named(self, name: str = "") -> Preset:
        """The preset of that name; the one of the settings where none is given."""
        return PRESETS[name or self.preset]

    @property
    def overrides(self) -> Mapping[str, Mapping[str, object]]:
        """Prices and windows by model that stand over the known ones."""
        return self.models


def load_settings(arguments: Sequence[str] = ()) -> Settings:
    """Read flags, environment and file. Raises ConfigurationError; `--help` prints them all and leaves."""
    try:
        return CliApp.run(Settings, cli_args=list(arguments))
    except SettingsError as error:
        raise ConfigurationError(str(error)) from error
    except ValidationError as error:
        faults = error.errors(include_url=False)
        raise ConfigurationError("\n".join(_sentence(dict(fault)) for fault in faults)) from error


def _sentence(fault: Mapping[str, Any]) -> str:
    name = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return f"{name}: there is no such setting; see narrows serve --help"
    if not name:  # refused by a rule about several settings, which names them itself
        return str(fault["msg"])
    flag = "--" + name.replace("_", "-")
    return f"{name}: {fault['msg']} ({flag}, NARROWS_{name.upper()} or `{name}` in the file)"
