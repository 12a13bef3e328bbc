"""The settings about summaries and digests: who writes them, for how much, and how long they count."""

import os
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from policies.presets import StaleAction, StaleOptions
from proxy.config.errors import Table, refused_at
from proxy.config.sources import Configured
from proxy.config.units import Milliseconds, Seconds
from proxy.config.upstreams import Url

# --- who is asked for summaries, and what they may cost ---

Credential = Literal["client-key", "client-any"]
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
        default=(),
        description="the SHA-256 of the credentials for which Narrows spends a key of its own; * for all",
    )
    summary_budget: SummaryBudget = Field(
        default=SummaryBudget(),
        description="dollars that summaries may cost: conversation, tenant, day",
        examples=["{ day = 5.0 }"],
    )
    summary_tokens: int = Field(default=800, ge=100, le=20_000, description="tokens of a summary, at most")
    summary_timeout: Seconds = Field(default=60, gt=0, le=3600, description="how long writing a summary may take")
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
    summary_ttl: Seconds = Field(default=30 * 86_400, gt=0, description="how long a summary may be used")
    summary_same_model: bool = Field(
        default=False, description="treat summaries by models that `summarizers` no longer names as stale"
    )

    @property
    def stale(self) -> StaleOptions:
        return StaleOptions(self.summary_stale, self.summary_ttl, self.summary_same_model)
