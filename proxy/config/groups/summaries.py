"""The settings about summaries and digests: who writes them, for how much, and how long they count."""

from typing import Annotated

from pydantic import Field

from policies.presets import StaleAction, StaleOptions
from proxy.config.sources import Configured
from proxy.config.summarizers import Credential, SummarizerSettings, SummaryBudget
from proxy.config.units import Milliseconds, Seconds


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
