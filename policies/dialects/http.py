"""How an API is spoken over HTTP, beside its JSON: paths, headers, and the list of models. Data; what most have is the
default."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Model = dict[str, object]


@dataclass(frozen=True, kw_only=True)
class ModelListing:
    """How an API lists models."""

    entry: Callable[[str, str], Model] = lambda id_, owner: {
        "id": id_,
        "object": "model",
        "created": 0,
        "owned_by": owner,
    }
    """What a model has in any case, by its id and the name of its upstream."""
    page: Callable[[Sequence[Model], Mapping[str, str]], Mapping[str, object]] = lambda models, query: {
        "object": "list",
        "data": models,
    }
    """The list, by the parameters of the request."""
    paging: Sequence[str] = ()
    """Parameters that choose a page."""
    whole: str = ""
    """The parameter with which all models come at once."""


@dataclass(frozen=True, kw_only=True)
class Http:
    """Paths, headers, and the list of models."""

    # --- paths below the base URL, and where they are mistaken ---

    path: str
    """Where requests are posted to."""
    counting_path: str = ""
    """Where their tokens are counted."""
    counting_implies: bytes = b""
    """A JSON member that a body to be counted cannot have, though the request that is sent later has it."""
    compact_path: str = ""
    """Where the provider itself makes a history shorter, for the price of an answer."""
    stored_path: str = ""
    """The pattern of the paths at which stored replies are fetched, by an id that only who made them can know. The
    model may go on with one without its client."""
    adds_version: bool = False
    """Whether its clients add /v1 to the base_url that they are given."""
    missing_at: tuple[str, ...] = ()
    """How the names of hosts end that do not speak it, though their provider speaks others."""

    # --- headers ---

    credentials: Sequence[str] = ("Authorization",)
    """Where clients' credentials stand."""
    key: tuple[str, str] = ("Authorization", "Bearer ")
    """The header of an API key, and what stands in it before the key."""
    accounts: Sequence[str] = ()
    """Headers that say for which account of the credential's a request is."""
    version: Mapping[str, str] = field(default_factory=dict)
    """The header that every request has to bring, and none of another API does, with the value that is sent where no
    client says one."""
    betas: Sequence[str] = ()
    """Headers that change how a body is read."""
    sign_in_beta: tuple[str, str] = ("", "")
    """The one of them without which no sign-in of a person counts, and how the word in it begins."""
    rate: str = "x-ratelimit-{what}-{of}"
    """The header of the `limit`, what is `remaining` or its `reset`, of requests or tokens."""
    rate_reset: Literal["duration", "instant"] = "duration"
    """How that header gives a time."""

    models: ModelListing = ModelListing()

    def auth(self, key: str) -> Mapping[str, str]:
        """The headers of a request with this key."""
        name, before = self.key
        return {name: before + key, **self.version}
