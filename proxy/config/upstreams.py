"""The list `upstreams`: which APIs requests may go to, and what belongs to each of them.

Laws
  The first row that fits a request counts. Those of the settings `anthropic_upstream` and `upstream` stand last.
  No key stands in a file: a row names the variable or the file that has it.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from policies.model.parameters import MOST
from policies.money.marks import OwnMarks
from proxy.config.errors import Table
from proxy.config.presets import NAME
from proxy.config.summarizers import Url

# clients of Anthropic's API are told a base_url without /v1, and add it themselves
VersionedUrl = Annotated[Url, AfterValidator(lambda url: url.removesuffix("/v1") + "/v1")]
Api = Literal["chat", "responses", "messages"]
APIS: Mapping[str, Api] = {
    "openai_chat": "chat",
    "openai_responses": "responses",
    "anthropic_messages": "messages",
}
"""The names of the APIs in a row, by dialect."""
Auth = Literal["passthrough", "bearer", "api-key", "x-api-key"]


class UpstreamRow(Table):
    """An API that requests may go to: one entry of the list `upstreams`."""

    name: Annotated[str, Field(pattern=NAME)] = Field(description="its name in rules, keys, metrics and on the page")
    url: str = Field(description="the base_url of its clients, for example https://api.openai.com/v1")
    apis: tuple[Api, ...] = Field(default=(), description="chat, responses or messages: what it speaks; else all")
    models: tuple[str, ...] = Field(default=(), description="the models it serves: names, or patterns with *; else all")
    auth: Auth = Field(default="passthrough", description="the header for a key of the gateway's own")
    key_env: str = Field(default="", description="the environment variable with that key")
    key_file: Path | None = Field(default=None, description="or the file with it, read again where it changes")
    headers: dict[str, str] = Field(default_factory=dict, description="headers in the place of the client's")
    query: dict[str, str] = Field(default_factory=dict, description="parameters in the place of the client's")
    ca: Path | None = Field(default=None, description="PEM file to trust instead of `ca_bundle`")
    connect_timeout: Annotated[float, Field(gt=0)] | None = Field(default=None, description="else as the settings say")
    read_timeout: Annotated[float, Field(gt=0)] | None = Field(default=None, description="else as the settings say")
    own_marks: OwnMarks | None = Field(default=None, description="else as the settings say")
    look_up_models: bool = Field(default=False, description="ask it for the windows and prices of its models")
    window: Annotated[int, Field(gt=0, le=MOST)] | None = Field(
        default=None, description="use no more than this many tokens of its windows"
    )
    overrides: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="prices and windows by model, before those of `models`"
    )

    @property
    def has_key(self) -> bool:
        """Whether a key of the gateway's own is sent in the place of the client's."""
        return bool(self.key_env or self.key_file)

    def fits(self, dialect: str, model: str | None) -> bool:
        """Whether it serves requests in this API to this model; None where no model is known."""
        speaks = not self.apis or APIS[dialect] in self.apis
        return speaks and (model is None or not self.models or any(fnmatchcase(model, each) for each in self.models))
