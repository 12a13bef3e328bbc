"""Who is asked for summaries, and what they may cost."""

import os
from typing import Literal, Self

from pydantic import Field, model_validator

from proxy.config.addresses import Url
from proxy.config.errors import Table, refused_at

Credential = Literal["client-key", "client-any"]
SAME = "same"
"""In the place of a model's name: the model of the conversation."""


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
