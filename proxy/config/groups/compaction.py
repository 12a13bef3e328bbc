"""The settings about what becomes of requests: presets, sizes, recall, and how that is measured; who writes summaries
and digests, for how much, and how long they count."""

import os
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainValidator, model_validator

from policies.context import Aim
from policies.model.parameters import MOST
from policies.money.caches import MarkLifetime, OwnMarks
from policies.money.prices import FLOOR, HIGH, RESERVE
from policies.presets import PRESETS, Preset, StaleAction, StaleOptions
from policies.tools import ToolKind
from policies.tools.deferral import ToolLists
from proxy.config.errors import Path, Table, check, refused_at, unknown
from proxy.config.presets import CustomPreset, custom_presets
from proxy.config.rules import FEWEST_TOKENS, KeepPatterns, Mode, Rule, unreached
from proxy.config.sources import Configured
from proxy.config.units import Milliseconds, Period, Seconds
from proxy.config.upstreams import Url

Recall = Literal["tools", "always", "never"]
Credential = Literal["client-key", "client-any"]


class CompactionGroup(Configured):
    """Compaction"""

    mode: Mode = Field(
        default="on", description="on compacts, observe only reports what it would save, off relays untouched"
    )
    preset: str = Field(default="adaptive", description="the list of policies to use, by name")
    presets: Annotated[dict[str, CustomPreset], PlainValidator(custom_presets)] = Field(
        default_factory=dict, description="presets of your own, by name", examples=['{ mine = { base = "chat" } }']
    )
    request_presets: tuple[str, ...] = Field(
        default=(), description="presets that a request may choose with the header `x-narrows-preset`"
    )
    rules: tuple[Rule, ...] = Field(
        default=(),
        description="preset, mode or upstream by path, key or model; the first rule that fits counts",
        examples=['[{ model = "gpt-4*", mode = "off" }]'],
    )
    aim: Aim | None = Field(
        default=None,
        description="bill acts where it pays, context at the preset's triggers and sizes, steady on new text alone; "
        "default: the preset's aim",
    )
    context_tokens: int | None = Field(
        default=None, ge=FEWEST_TOKENS, le=MOST, description="keep prompts below this many tokens, whatever the window"
    )
    request_aim: bool = Field(
        default=False,
        description="let a request choose these two with the headers `x-narrows-aim` and `x-narrows-context-tokens`",
    )
    recall: Recall = Field(
        default="tools",
        description="when to add the recall tool: tools, where the client brings tools; always; or never",
    )
    recall_rounds: int = Field(
        default=4, ge=1, le=16, description="how often Narrows answers recalls within one reply, at most"
    )
    keep: KeepPatterns = Field(
        default=(),
        description="what Narrows never edits: tools and paths, as read_file, mcp__db__* or *.sql, and texts, as "
        "text:ACME-42",
    )
    tools: ToolLists | None = Field(
        default=None,
        description="keep definitions of tools, or defer them until the model looks for them; default: the preset's",
    )
    tool_kinds: dict[Annotated[str, Field(min_length=1)], ToolKind] = Field(
        default_factory=dict,
        description="what kind of output tools have, by name or by prefix: `mcp__*`",
        examples=['{ "mcp__db__*" = "data" }'],
    )
    text_protocol: bool = Field(
        default=False, description="edit sessions without tool calls too, where commands travel as text"
    )
    own_marks: OwnMarks = Field(
        default="auto",
        description="where Narrows sets cache marks: auto, wherever the model's cache takes any; beside, only "
        "beside the client's; or never",
    )
    mark_lifetime: MarkLifetime = Field(
        default="own",
        description="cache marks that live an hour where the pauses of their conversation pay for it: own, those of "
        "Narrows, where the client sets none; auto, the client's as well (12 hours at OpenAI); or usual, none",
    )
    drop_bound_thinking: bool = Field(
        default=True,
        description="ask Anthropic to drop thoughts that an earlier edit makes invalid, on models that check them",
    )
    models: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="prices and windows by model",
        examples=['{ "my-model" = { window = 32_000 } }'],
    )
    window: int | None = Field(default=None, gt=0, le=MOST, description="use at most this many tokens of any window")
    unknown_window: int = Field(
        default=128_000,
        gt=0,
        le=MOST,
        description="tokens of which shares are taken where a model's window is unknown; it is no limit",
    )
    reserve: int | None = Field(
        default=None,
        ge=0,
        le=MOST,
        description=f"tokens reserved for the answer; default: what the request allows, or {RESERVE:,} (an eighth of "
        "the window where that is less)",
    )
    high: float = Field(default=HIGH, gt=0, le=1, description="share of the window at which Narrows makes room")
    low: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="share of the window that it then comes down to; default: two thirds of high",
    )
    floor: int | None = Field(
        default=None,
        ge=0,
        le=MOST,
        description=f"tokens below which Narrows edits nothing; default: {FLOOR:,} (a third of the high mark "
        "where that is less), none with the aim context",
    )
    cold_seconds: Period | None = Field(
        default=None, description="pause after which the provider's prompt cache counts as expired; default: by model"
    )
    keep_warm: Seconds = Field(
        default=0,
        ge=0,
        le=86_400,
        description="how long a prompt that waits for a person or a tool is kept in the provider's cache, by pings "
        "that its client pays for (15m, say); 0: not at all",
    )
    keep_warm_budget: float = Field(
        default=5.0, ge=0, description="dollars that this may cost one tenant on a day (UTC)"
    )
    keep_warm_credential: Credential = Field(
        default="client-key",
        description="client-key keeps warm only what a plain API key asked for; client-any whatever did",
    )
    cold_process: bool = Field(default=True, description="plan large new histories in a process of their own")
    calibrate: bool = Field(default=True, description="calibrate token counts by the provider's usage")
    holdout: float = Field(
        default=0,
        ge=0,
        le=0.5,
        description="share of conversations that pass untouched, so that the savings on the others can be measured: "
        "0.05 is one in twenty",
    )
    agree_share: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of shortened requests to send again, to see if the model does the same",
    )
    agree_key_env: str = Field(
        default="", description="the environment variable with the key that pays for that; never a client's credential"
    )
    agree_anthropic_key_env: str = Field(default="", description="the same for `anthropic_upstream`")
    agree_budget: float = Field(default=5.0, ge=0, description="dollars that these requests may cost on a day (UTC)")

    @model_validator(mode="after")
    def _presets_and_rules_count(self) -> Self:
        names: list[tuple[Path, str | None]] = [(("preset",), self.preset)]
        names += ((("request_presets", at), name) for at, name in enumerate(self.request_presets))
        names += ((("rules", at, "preset"), rule.preset) for at, rule in enumerate(self.rules))
        presets = self.all_presets()
        check((path, unknown("preset", name, presets)) for path, name in names if name and name not in presets)
        check(
            (("rules", at), f"it never counts: rules.{above} fits all that it fits; move it up, or leave it out")
            for at, above in unreached(self.rules)
        )
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

    def all_presets(self) -> dict[str, Preset]:
        """Every preset by name: one's own before the built-in one of the same name."""
        return {**PRESETS, **{name: own.preset for name, own in self.presets.items()}}

    @property
    def only_relays(self) -> bool:
        """True where no request is ever looked at."""
        return {self.mode, *(rule.mode for rule in self.rules if rule.mode)} == {"off"}


# --- who is asked for summaries, and what they may cost ---

SAME = "same"


class SummarizerSettings(Table):
    """Who writes summaries: one entry of the list `summarizers`."""

    provider: Literal["openai", "anthropic"] | None = Field(
        default=None,
        description="whose API it speaks, with a key of its own; without one: whose conversations it is asked for",
    )
    model: str = Field(
        default="",
        description='the model to ask; empty for the small sibling of the conversation\'s model, "same" for that model',
    )
    base_url: Url | None = Field(default=None, description="another API than `upstream`, /v1 included")
    key_env: str = Field(
        default="", description="the environment variable that holds its key; empty for the client's own credential"
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.base_url is not None and not self.key_env:
            raise refused_at([(("key_env",), "name the variable with the key of base_url; clients' keys stay here")])
        if self.provider == "anthropic" and self.key_env and self.model in ("", SAME):
            raise refused_at([(("model",), "name one of Anthropic's; not all conversations are with one of these")])
        if self.key_env and not os.environ.get(self.key_env):
            raise refused_at([(("key_env",), f"the environment variable {self.key_env} is empty or not set")])
        return self


class SummaryBudget(Table):
    """Dollars that summaries and digests may cost."""

    conversation: float = Field(default=2.0, ge=0, description="for one conversation, as long as it is remembered")
    tenant: float = Field(default=10.0, ge=0, description="for one tenant on a day (UTC)")
    day: float = Field(default=50.0, ge=0, description="for all tenants together on a day (UTC)")


class SummariesGroup(Configured):
    """Summaries"""

    summaries: bool = Field(default=True, description="let presets ask a model for summaries and digests")
    summarizers: tuple[SummarizerSettings, ...] = Field(
        default=(SummarizerSettings(),),
        min_length=1,
        description="the models that write summaries; when one fails, Narrows asks the next",
        examples=['[{ model = "gpt-5.4-mini" }]'],
        json_schema_extra={"default": "the small sibling of the conversation's model"},
    )
    summary_credential: Credential = Field(
        default="client-key",
        description="client-key uses the client's credential only if it is a plain API key; client-any uses any",
    )
    summary_allow: tuple[Annotated[str, Field(pattern=r"^(\*|[0-9a-fA-F]{64})$")], ...] = Field(
        default=(), description="the SHA-256 of the credentials for which Narrows spends a key of its own; * for all"
    )
    summary_budget: SummaryBudget = Field(
        default=SummaryBudget(),
        description="dollars that summaries may cost: conversation, tenant, day",
        examples=["{ day = 5.0 }"],
    )
    summary_tokens: int = Field(default=800, ge=100, le=20_000, description="tokens of a summary, at most")
    summary_timeout: Period = Field(default=60, le=3600, description="how long writing a summary may take")
    summary_wait: Milliseconds = Field(
        default=0,
        ge=0,
        le=600_000,
        description="how long a request waits for a summary (a bare number: milliseconds); 0: not at all",
    )
    summary_comments: bool = Field(
        default=False, description="tell streaming clients that they wait for a summary; errors then come in the stream"
    )
    summary_stale: StaleAction = Field(
        default="regenerate",
        description="what to do when a summary is stale: regenerate it, trim (make none), or fail (an error)",
    )
    summary_ttl: Period = Field(default=30 * 86_400, description="how long a summary may be used")
    summary_same_model: bool = Field(
        default=False, description="treat summaries by models that `summarizers` no longer names as stale"
    )

    @property
    def stale(self) -> StaleOptions:
        return StaleOptions(self.summary_stale, self.summary_ttl, self.summary_same_model)
