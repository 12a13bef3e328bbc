"""The list `upstreams`: which APIs requests may go to, and what belongs to each of them.

Laws
  The first row that fits a request counts. Those of the settings `anthropic_upstream` and `upstream` stand last.
  No key stands in a file: a row names the variable or the file that has it.
"""

import os
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator

from policies.dialects import DIALECTS
from policies.model.parameters import MOST
from policies.money.caches import OwnMarks
from policies.money.catalog import check_overrides
from proxy.config.errors import Path as Place
from proxy.config.errors import Table, check, refused, refused_at
from proxy.config.presets import NAME
from proxy.config.routes import CREDENTIALS
from proxy.config.units import Period

# --- addresses of APIs: what cannot be one, and what is probably not meant ---

_BASES: Mapping[str, str] = {
    "api.openai.com": "/v1",
    "api.anthropic.com": "/v1",
    "openrouter.ai": "/api/v1",
    "api.groq.com": "/openai/v1",
    "api.mistral.ai": "/v1",
    "api.together.xyz": "/v1",
    "api.x.ai": "/v1",
    "localhost:11434": "/v1",  # Ollama
    "127.0.0.1:11434": "/v1",
    "localhost:1234": "/v1",  # LM Studio
    "127.0.0.1:1234": "/v1",
}
"""Below which path the API is, where a host has only one."""
_ENDPOINTS = (*(api.http.path for api in DIALECTS.values()), "/completions", "/embeddings")
_BARE = re.compile(
    r"(localhost|[a-z0-9-]{1,40}(\.[a-z0-9-]{1,40}){1,5}|[a-z0-9-]{1,40}(?=:))(:\d{1,5})?(/[\w./-]{0,40})?"
)
"""An address without a scheme, and nothing that might be a key: whoever reads the error sees it."""
_LOCAL = re.compile(r"localhost|[\d.]+|[^.]+")
"""Hosts that hardly speak TLS: this machine, addresses, and names without a domain."""
_VERSION = re.compile(r"/v\d")


def whole_url(value: str) -> str:
    """The URL of an API, without its last slash. Raises what pydantic makes a refusal of."""
    value = value.strip()
    if _BARE.fullmatch(value):
        scheme = "http" if _LOCAL.fullmatch(value.partition("/")[0].partition(":")[0]) else "https"
        url = f"{scheme}://{value}".rstrip("/")
        raise refused("url", f"give a whole URL, with its scheme: {usual_address(url) or url}")
    try:
        parts = urlsplit(value)
        is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of brackets, or of the port
        is_whole = False
    if not is_whole or not value.isascii() or not value.isprintable() or " " in value:
        raise refused("url", "give a whole URL such as https://api.openai.com/v1")
    if parts.username is not None or parts.password is not None:
        raise refused("url", "leave user and password out; credentials are sent in headers")
    if parts.query or parts.fragment or "?" in value or "#" in value:
        raise refused("url", "leave out everything from ? or # on")
    value = value.rstrip("/")
    if end := next((each for each in _ENDPOINTS if value.endswith(each)), ""):
        raise refused("url", f"leave out {end} at its end: clients add that")
    if value.endswith("/v1/v1"):
        raise refused("url", "leave out one of the two /v1 at its end")
    return value


Url = Annotated[str, AfterValidator(whole_url)]


def usual_address(url: str) -> str:
    """Where the API of this host is, if that is known and is elsewhere; else ""."""
    parts = urlsplit(url)
    base = _BASES.get(parts.netloc.lower().removesuffix(":443"))
    return f"{parts.scheme}://{parts.netloc}{base}" if base not in (None, parts.path) else ""


def names_no_version(url: str) -> bool:
    """True where nothing in its path is a version such as /v1, as in the address of nearly every API."""
    return _VERSION.search(urlsplit(url).path) is None


def is_local(url: str) -> bool:
    """True where a URL is of this machine, or of a network of one's own: by its address, or a name without a domain."""
    host = (urlsplit(url).hostname or "").removesuffix(".")
    try:
        return ip_address(host).is_private  # of loopback, too
    except ValueError:
        return "." not in host or host.endswith((".local", ".localhost", ".internal", ".lan"))


# --- the rows ---

# clients of Anthropic's API are told a base_url without /v1, and add it themselves
VersionedUrl = Annotated[Url, AfterValidator(lambda url: url.removesuffix("/v1") + "/v1")]
AUTH_HEADERS: Mapping[str, tuple[str, str]] = {
    "bearer": ("Authorization", "Bearer "),
    **{name: (name, "") for name in CREDENTIALS if name != "Authorization"},
}
"""The header for a key, and what stands in it before the key."""
if TYPE_CHECKING:
    Api = str
    Auth = str
else:
    Api = Literal[tuple(api.label for api in DIALECTS.values())]
    Auth = Literal["passthrough", *AUTH_HEADERS]
MODEL = "{model}"
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_PLACEHOLDER = "narrows-model-here"
_RESERVED = re.compile(
    r"connection|keep-alive|proxy-.*|te|trailer|transfer-encoding|upgrade|content-.*|host|expect|x-narrows.*"
)
"""Headers that no row may set: they belong to a connection or a body, or are ours."""


def _is_there(file: Path) -> Path:
    if not os.path.isfile(file):  # which takes any name
        raise refused("ca", f"there is no file {file}; give a PEM file")
    return file


PemFile = Annotated[Path, AfterValidator(_is_there)]


class UpstreamRow(Table):
    """An API that requests may go to: one entry of the list `upstreams`."""

    name: Annotated[str, Field(pattern=NAME)] = Field(description="its name in rules, keys, metrics and on the page")
    url: str = Field(
        description="the base_url of its clients, for example https://api.openai.com/v1; {model} in its path: the "
        "model that is asked"
    )
    apis: tuple[Api, ...] = Field(default=(), description="chat, responses or messages: what it speaks; else all")
    models: tuple[str, ...] = Field(default=(), description="the models it serves: names, or patterns with *; else all")
    auth: Auth = Field(default="passthrough", description="the header for a key of the gateway's own")
    key_env: str = Field(default="", description="the environment variable with that key")
    key_file: Path | None = Field(default=None, description="or the file with it, read again where it changes")
    headers: dict[str, str] = Field(default_factory=dict, description="headers in the place of the client's")
    query: dict[str, str] = Field(default_factory=dict, description="parameters in the place of the client's")
    ca: PemFile | None = Field(default=None, description="PEM file to trust instead of `ca_bundle`")
    connect_timeout: Period | None = Field(default=None, description="else as the settings say")
    read_timeout: Period | None = Field(default=None, description="else as the settings say")
    own_marks: OwnMarks | None = Field(default=None, description="else as the settings say")
    window: Annotated[int, Field(gt=0, le=MOST)] | None = Field(
        default=None, description="use no more than this many tokens of its windows"
    )
    overrides: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="prices and windows by model, before those of `models`"
    )
    look_up_models: bool = Field(
        default=False,
        description="ask it for its models: the windows and prices that it lists count before the catalog",
    )

    local: bool | None = Field(
        default=None,
        description="whether its models are your own: without prices, and it is asked for their windows; else by its "
        "address",
    )

    @field_validator("url")
    @classmethod
    def _whole(cls, value: str) -> str:
        before, has_model, after = value.partition(MODEL)
        if has_model and ("/" not in before.partition("://")[2] or MODEL in after):
            raise refused("url", f"write {MODEL} once, as a part of the path")
        url = whole_url(value.replace(MODEL, _PLACEHOLDER, 1))
        if "{" in url or "}" in url:
            raise refused("url", f"only {MODEL} may stand in braces")
        return url.replace(_PLACEHOLDER, MODEL, 1) if has_model else url

    @property
    def is_local(self) -> bool:
        return is_local(self.url) if self.local is None else self.local

    @field_validator("headers")
    @classmethod
    def _sendable(cls, value: dict[str, str]) -> dict[str, str]:
        faults: list[tuple[Place, str]] = []
        for name, content in value.items():
            if not _TOKEN.fullmatch(name):
                faults.append(((name,), "it is no name of a header"))
            elif _RESERVED.fullmatch(name.lower()):
                faults.append(((name,), "Narrows sets or drops this header itself; leave it out"))
            elif not (content.isascii() and content.isprintable()):
                faults.append(((name,), "its value has characters that no header can hold"))
        check(faults)
        return value

    @field_validator("overrides")
    @classmethod
    def _priced(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        try:
            check_overrides(value)
        except ValueError as error:
            raise refused("overrides", str(error)) from error
        return value

    @model_validator(mode="after")
    def _has_one_key(self) -> Self:
        if self.key_env and self.key_file:
            raise refused_at([(("key_file",), "leave it out, or leave key_env out: one key is enough")])
        if self.has_key and self.auth == "passthrough":
            *names, last = (f'"{name}"' for name in AUTH_HEADERS)
            reason = f"say in which header the key goes: {', '.join(names)} or {last}"
            raise refused_at([(("auth",), reason)])
        if self.auth != "passthrough" and not self.has_key:
            raise refused_at(
                [(("key_env",), f"name the variable, or in key_file the file, with the key for {self.auth}")]
            )
        if self.has_key:
            try:
                key_in(self)
            except ValueError as error:
                raise refused_at([(("key_env" if self.key_env else "key_file",), str(error))]) from error
            own = [name for name in self.headers if name.lower() in map(str.lower, CREDENTIALS)]
            if own:
                raise refused_at([(("headers", own[0]), "the key stands there; leave the header or the key out")])
        return self

    @property
    def has_key(self) -> bool:
        return bool(self.key_env or self.key_file)

    def fits(self, dialect: str, model: str | None) -> bool:
        """True where it serves requests in this API to this model; None where no model is known."""
        speaks = not self.apis or DIALECTS[dialect].label in self.apis
        return speaks and (model is None or not self.models or any(fnmatchcase(model, each) for each in self.models))

    def covers(self, other: "UpstreamRow") -> bool:
        """True where it fits all that the other fits. What a rule or a key names by its name is another matter."""
        speaks = not self.apis or (bool(other.apis) and set(other.apis) <= set(self.apis))
        return speaks and (not self.models or (bool(other.models) and set(other.models) <= set(self.models)))


def key_in(row: UpstreamRow) -> str:
    """The key that a row names. Raises ValueError, which does not show it."""
    if row.key_file is None:
        key, where = os.environ.get(row.key_env, "").strip(), f"the environment variable {row.key_env}"
    else:
        where = f"the file {row.key_file}"
        try:
            key = row.key_file.read_bytes().decode("ascii").strip()
        except OSError as error:
            raise ValueError(f"cannot read {where} ({error.strerror})") from error
        except UnicodeDecodeError:
            raise ValueError(f"{where} holds something that is no key") from None
    if not key:
        raise ValueError(f"{where} is empty or not set" if row.key_env else f"{where} is empty")
    if not (key.isascii() and key.isprintable()):
        raise ValueError(f"{where} holds something that is no key; put the key alone into it")
    return key


def spoken_at(row: UpstreamRow) -> set[str]:
    """The APIs that an upstream is likely to speak: those of its row, but for those that its provider does not have."""
    host = f".{urlsplit(row.url).hostname}"
    spoken = {api.label for api in DIALECTS.values() if not host.endswith(api.http.missing_at)}
    return spoken.intersection(row.apis or spoken)


def is_public(host: str) -> bool:
    """True where an address to listen on can be reached from other machines; a name counts as one that can."""
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"
