"""Every setting of Narrows, with its default and its meaning: the only home of both.

Laws
  Flags, NARROWS_* environment variables and keys of the TOML file are the same names, and win in that order.
  What cannot work is refused while loading, with the setting named and what to do about it; what stands in the file,
  with its line.
"""

import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ByteSize, Field, PlainValidator, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from policies.context import Aim
from policies.model.parameters import MOST
from policies.money.budget import FLOOR, HIGH, RESERVE
from policies.money.marks import OwnMarks
from policies.presets import PRESETS, Preset, StaleAction, StaleOptions
from policies.tools import ToolKind
from proxy.config import errors, shadows
from proxy.config.errors import refused, refused_at, unknown
from proxy.config.keep import KEEP, KeepPatterns
from proxy.config.keyring import Keyring, keyring_of
from proxy.config.presets import NAME, CustomPreset, custom_presets
from proxy.config.rules import FEWEST_TOKENS, Mode, Rule, unreached
from proxy.config.sources import PREFIX, loaded
from proxy.config.store_url import StoreUrl
from proxy.config.summarizers import Credential, SummarizerSettings, SummaryBudget
from proxy.config.team import TeamSettings, check_keys, check_upstreams

Recall = Literal["tools", "always", "never"]

_BYTES = 2**60
"""More than any store has."""

_DEFAULTS = {"store": "a file in the state directory", "summarizers": "the small sibling of the conversation's model"}
"""Words for defaults that follow from something else."""


def _default_store() -> str:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return f"sqlite:///{Path(state) / 'narrows' / 'narrows.db'}"


class Settings(TeamSettings):
    """Run the proxy.

    Every setting is an option here, a variable (NARROWS_PORT) and a key of the
    TOML file that --config names (port). They take precedence in that order.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        allow_inf_nan=False,
        cli_prog_name="narrows serve",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        cli_exit_on_error=False,
    )

    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(default=8787, ge=0, le=65535, description="port to listen on; 0 picks a free one")
    workers: int = Field(default=1, ge=1, le=64, description="processes that serve on this port (Linux)")
    store: StoreUrl = Field(
        default_factory=_default_store,
        description="where decisions are remembered: sqlite:///FILE, or redis://HOST for several Narrows",
    )
    store_limit: ByteSize | None = Field(
        default=None,
        gt=0,
        le=_BYTES,
        description="bytes stored of all tenants; whoever holds most gives up its oldest conversation first; "
        "else 16GiB for a file, and what Redis allows",
    )
    preset: str = Field(default="adaptive", description="the list of policies to use, by name")
    presets: Annotated[dict[str, CustomPreset], PlainValidator(custom_presets)] = Field(
        default_factory=dict, description="presets of your own, by name; [presets.NAME] in TOML"
    )
    request_presets: tuple[str, ...] = Field(
        default=(), description="presets that a request may choose with the header `x-narrows-preset`"
    )
    rules: tuple[Rule, ...] = Field(
        default=(),
        description="how requests to a path, with a key or to a model are served; the first that fits counts",
    )
    config: Path | None = Field(default=None, description="a TOML file with these same settings")
    mode: Mode = Field(
        default="on", description="on compacts, observe only reports what would be saved, off relays bytes untouched"
    )
    holdout: float = Field(
        default=0,
        ge=0,
        le=0.5,
        description="share of conversations that pass as the client wrote them, so that what the others save is "
        "measured: 0.05 is one in twenty",
    )

    recall: Recall = Field(
        default="tools", description="the recall tool: where the client brings tools, always, or never"
    )
    recall_rounds: int = Field(
        default=4, ge=1, le=16, description="how often recalls are answered within one reply, at most"
    )
    originals: bool = Field(default=False, description="keep hidden texts in the store, for people to look up")
    artifacts: bool = Field(
        default=False, description="keep every output of a tool in full in the store, for people (audits)"
    )
    artifacts_limit: ByteSize = Field(
        default=ByteSize(256 * 2**20),
        gt=0,
        le=_BYTES,
        description="bytes of artifacts kept of one tenant, and as many hidden by the compress API; oldest go first",
    )
    history: bool = Field(
        default=False, description="keep a log of all messages of a conversation in the store, for people"
    )
    history_limit: ByteSize = Field(
        default=ByteSize(16 * 2**20),
        gt=0,
        le=_BYTES,
        description="bytes kept of one conversation's log; the oldest go first, tools in use excepted",
    )
    record: Path | None = Field(default=None, description="a folder to record conversations in, for `narrows replay`")
    record_share: float = Field(default=1, ge=0, le=1, description="share of the conversations that are recorded")
    record_limit: ByteSize = Field(
        default=ByteSize(2**30), gt=0, le=_BYTES, description="bytes of recordings; the oldest go first"
    )
    record_redact: dict[str, str] = Field(default_factory=dict, description="what recordings leave out: RE2 by path")
    encryption_key_env: str = Field(
        default="",
        description="the environment variable with the keys that encrypt texts in the store, as ID:BASE64 (32 bytes), "
        "commas between; the first writes, all read",
    )

    summaries: bool = Field(
        default=True, description="whether any model is asked for summaries and digests, where the preset wants any"
    )
    summarizers: tuple[SummarizerSettings, ...] = Field(
        default=(SummarizerSettings(),),
        min_length=1,
        description="who writes summaries, where the preset wants any: the next one is asked where one fails",
    )
    summary_credential: Credential = Field(
        default="client-key",
        description="client-key asks with the client's credential where it is a plain API key, client-any with any",
    )
    summary_allow: tuple[Annotated[str, Field(pattern=r"^(\*|[0-9a-fA-F]{64})$")], ...] = Field(
        default=(),
        description="the SHA-256 of the credentials for which a key of the gateway's own is spent; * for all",
    )
    summary_budget: SummaryBudget = Field(
        default=SummaryBudget(), description="dollars that summaries may cost: conversation, tenant, day"
    )
    summary_tokens: int = Field(default=800, ge=100, le=20_000, description="tokens of a summary, at most")
    summary_timeout: float = Field(default=60, gt=0, le=3600, description="seconds for a summary, whoever is asked")
    summary_wait: int = Field(
        default=0, ge=0, le=600_000, description="milliseconds a request waits for a summary; 0: made in the background"
    )
    summary_comments: bool = Field(
        default=False, description="tell streaming clients that wait for a summary; errors then come in the stream"
    )
    summary_stale: StaleAction = Field(
        default="regenerate", description="what follows a stale summary: regenerate, trim or fail (an error)"
    )
    summary_ttl: float = Field(default=30 * 86_400, gt=0, description="seconds for which a summary counts")
    summary_same_model: bool = Field(
        default=False, description="a summary by a model that `summarizers` does not name any more is stale"
    )

    agree_share: float = shadows.SHARE
    agree_key_env: str = shadows.KEY_ENV
    agree_anthropic_key_env: str = shadows.ANTHROPIC_KEY_ENV
    agree_budget: float = shadows.BUDGET

    tenant: str | None = Field(
        default=None,
        pattern=NAME,
        description="one tenant for all clients; else: local on loopback, or a hash of the credential",
    )
    tenant_secret: SecretStr | None = Field(
        default=None, min_length=1, description="the key of that hash; without it one is made and kept in the store"
    )

    aim: Aim | None = Field(
        default=None,
        description="bill acts where it pays, context at the triggers and sizes that the preset names; else as the "
        "preset says",
    )
    context_tokens: int | None = Field(
        default=None, ge=FEWEST_TOKENS, le=MOST, description="keep prompts below so many tokens, whatever the window"
    )
    request_aim: bool = Field(
        default=False,
        description="a request may choose these two with the headers `x-narrows-aim` and `x-narrows-context-tokens`",
    )
    window: int | None = Field(
        default=None, gt=0, le=MOST, description="use no more than this many tokens of any window"
    )
    unknown_window: int = Field(default=128_000, gt=0, le=MOST, description="window of an unknown model, in tokens")
    reserve: int | None = Field(
        default=None,
        ge=0,
        le=MOST,
        description=f"tokens kept for the answer; else what the request allows, or {RESERVE:,} (an eighth of the "
        "window where that is less)",
    )
    high: float = Field(default=HIGH, gt=0, le=1, description="share of the window at which room must be made")
    low: float | None = Field(
        default=None, gt=0, le=1, description="share of the window to come down to; else two thirds of high"
    )
    floor: int | None = Field(
        default=None,
        ge=0,
        le=MOST,
        description=f"tokens below which nothing is touched; else {FLOOR:,} with the aim bill (a third of the high "
        "mark where that is less), none with the aim context",
    )
    cold_seconds: float | None = Field(
        default=None,
        gt=0,
        description="pause after which the provider's prompt cache counts as cold, in seconds; else by its model",
    )
    cold_process: bool = Field(
        default=True, description="plan large histories that are seen for the first time in a process of their own"
    )
    planning_timeout: float = Field(
        default=2,
        gt=0,
        le=600,
        description="seconds of work after which nothing new is planned; three times that with `cold_process`",
    )
    calibrate: bool = Field(default=True, description="learn from the provider's usage, for the hard marks")
    own_marks: OwnMarks = Field(
        default="auto",
        description="set cache marks of our own: auto (wherever the model's cache takes any), beside those of the "
        "client only, or never",
    )
    drop_bound_thinking: bool = Field(
        default=True,
        description="ask Anthropic to drop thoughts that an edit before them makes invalid, on models that check that",
    )
    text_protocol: bool = Field(
        default=False, description="edit sessions without tool calls too, where commands travel as text"
    )
    tool_kinds: dict[Annotated[str, Field(min_length=1)], ToolKind] = Field(
        default_factory=dict,
        description="what kind of output tools have, by name or by the beginning of names: `mcp__*`",
    )
    keep: KeepPatterns = KEEP
    models: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description='prices and windows by model; [models."NAME"] in TOML'
    )

    body_limit: ByteSize = Field(
        default=ByteSize(64 * 2**20), gt=0, description="largest request body, decompressed; 64MiB is understood"
    )
    requests_limit: int = Field(
        default=2048,
        ge=4,
        le=10**6,
        description="requests in flight at once in a process, 4 or more; one address gets half, one credential a third",
    )
    bytes_limit: ByteSize | None = Field(
        default=None,
        gt=0,
        le=_BYTES,
        description="bytes of bodies in flight at once in a process, shared likewise: "
        "three times `body_limit` or more, else eight times",
    )
    connect_timeout: float = Field(default=10, gt=0, description="seconds to connect to the upstream")
    read_timeout: float = Field(default=600, gt=0, description="seconds the upstream may be silent (no total limit)")
    header_timeout: float = Field(
        default=30, gt=0, description="seconds from connecting, or the reply before, to the end of a request's head"
    )
    body_timeout: float = Field(
        default=30, gt=0, description="seconds a client may be silent in a body, or slower than 1 KiB a second"
    )
    grace: float = Field(default=25, ge=0, description="seconds that running replies get to finish after SIGTERM")
    ca_bundle: Path | None = Field(default=None, description="PEM file to trust instead of the system's")

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least severe line logged"
    )
    log_format: Literal["auto", "json", "console"] = Field(
        default="auto", description="json lines, console for people, auto: console on a terminal"
    )
    metrics_token: SecretStr | None = Field(
        default=None, min_length=1, description="bearer token that opens /metrics to others than loopback"
    )
    admin_token: SecretStr | None = Field(
        default=None, min_length=1, description="bearer token for all figures, and for the conversations of a `tenant`"
    )

    @field_validator("encryption_key_env")
    @classmethod
    def _keys(cls, value: str) -> str:
        try:
            keyring_of(value)
        except ValueError as error:
            raise refused("keys", str(error)) from error
        return value

    @field_validator("ca_bundle")
    @classmethod
    def _readable(cls, value: Path | None) -> Path | None:
        if value is not None and not os.path.isfile(value):  # which takes any name
            raise refused("ca_bundle", f"there is no file {value}; give a PEM file")
        return value

    @model_validator(mode="after")
    def _presets_and_rules_count(self) -> Self:
        named: list[tuple[errors.Path, str | None]] = [(("preset",), self.preset)]
        named += ((("request_presets", at), name) for at, name in enumerate(self.request_presets))
        named += ((("rules", at, "preset"), rule.preset) for at, rule in enumerate(self.rules))
        presets = self.all_presets()
        strange = [(path, unknown("preset", name, presets)) for path, name in named if name and name not in presets]
        if strange:
            raise refused_at(strange)
        never = [
            (("rules", at), f"it never counts: rules.{above} fits all that it fits; move it up, or leave it out")
            for at, above in unreached(self.rules)
        ]
        if never:
            raise refused_at(never)
        return self

    @model_validator(mode="after")
    def _upstreams_and_keys_count(self) -> Self:
        check_upstreams(self, [rule.upstream for rule in self.rules], self.host)
        check_keys(self, self.all_presets())
        return self

    @model_validator(mode="after")
    def _shadows_are_paid(self) -> Self:
        share = 0 if any(row.has_key for row in self.upstreams) else self.agree_share
        shadows.check(share, self.agree_key_env, self.agree_anthropic_key_env, self.anthropic_upstream)
        return self

    @model_validator(mode="after")
    def _bodies_have_room(self) -> Self:
        limit, body = self.bytes_limit, self.body_limit
        if limit is not None and limit < 3 * body:  # of which one client gets a third
            raise refused_at([(("bytes_limit",), f"{limit} must be three times body_limit ({body}) or more; raise it")])
        return self

    @model_validator(mode="after")
    def _marks_in_order(self) -> Self:
        if self.low is not None and self.low >= self.high:
            raise refused_at([(("low",), f"{self.low} must be below high ({self.high}); lower it or raise high")])
        window = self.window
        if window is not None and self.reserve is not None and self.reserve >= window:
            raise refused_at([(("reserve",), f"{self.reserve} is the whole window ({window}) or more; lower it")])
        if window is not None and self.floor is not None and self.floor >= window * self.high:
            raise refused_at([(("floor",), f"{self.floor} is not below the high mark of {window}; lower it")])
        return self

    @property
    def keyring(self) -> Keyring | None:
        return keyring_of(self.encryption_key_env)

    @property
    def digest(self) -> str:
        """The same where two processes have the same settings but for where they are; no secret is in it."""
        values = repr([(name, value) for name, value in self if name not in ("config", "host", "port", "store")])
        return sha256(values.encode()).hexdigest()[:12]

    def all_presets(self) -> dict[str, Preset]:
        """Every preset by name: one's own before the built-in one of the same name."""
        return {**PRESETS, **{name: own.preset for name, own in self.presets.items()}}

    @property
    def stale(self) -> StaleOptions:
        return StaleOptions(self.summary_stale, self.summary_ttl, self.summary_same_model)

    @property
    def only_relays(self) -> bool:
        """Whether no request is ever looked at."""
        return all(mode == "off" for mode in (self.mode, *(rule.mode for rule in self.rules if rule.mode)))


def load_settings(arguments: Sequence[str] = ()) -> Settings:
    """Read flags, environment and file. Raises ConfigurationError; `--help` prints them all and leaves."""
    return loaded(Settings, arguments, _DEFAULTS)
