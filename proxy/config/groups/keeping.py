"""The settings about texts that stay in the store or in files, for people."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from platformdirs import user_state_path
from pydantic import AfterValidator, ByteSize, Field, field_validator

from proxy.config.errors import refused
from proxy.config.keyring import Keyring, keyring_of
from proxy.config.sources import Configured
from proxy.config.units import Size

# --- URLs of stores: what cannot be one, and what is probably meant. What Redis wants of its own is checked there ---

REDIS = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
_SHAPES: Mapping[str, str] = {
    "unix": "write unix:///PATH/OF/SOCKET",
    **{f"{each}+sentinel": f"write {each}+sentinel://HOST:PORT,HOST:PORT/SERVICE" for each in ("redis", "rediss")},
    **{f"{each}+cluster": f"write {each}+cluster://HOST:PORT,HOST:PORT" for each in ("redis", "rediss")},
    **{each: f"write {each}://HOST:PORT/DB" for each in ("redis", "rediss")},
}
"""Examples of the URL of a Redis."""
_URL = "give a URL such as sqlite:///FILE or redis://HOST"
_FILE = re.compile(r"[^:@?#]*[./][^:@?#]*")
"""A path in the place of a URL: nothing that may hold a password, as whoever reads the error sees it."""


def whole_store_url(value: str) -> str:
    """The URL. Raises what pydantic makes a refusal of; no message repeats what may be a password."""
    scheme, colon, rest = value.partition(":")
    if not colon:
        what = f"a file is written sqlite:///{value}" if _FILE.fullmatch(value) else _URL
        raise refused("store", what)
    if scheme in _SHAPES:
        if not rest.startswith("//") or rest.rstrip("/") == "":
            raise refused("store", f"it names no server: {_SHAPES[scheme]}")
    elif scheme != "sqlite":
        what = f"there is no store {scheme}://" if re.fullmatch("[a-z0-9+]{1,20}", scheme) else "this is no store"
        raise refused("store", f"{what}; {_URL}")
    else:
        _check_file(rest.partition("?")[0])
    return value


def _check_file(place: str) -> None:
    """Refuse what names no file. `place`: what stands between `sqlite:` and a question mark."""
    if place in ("//", "///", "///:memory:"):
        return  # in memory
    path = place[3:] if place.startswith("///") else ""
    if not path or "\0" in path:
        bare = place.removeprefix("//").replace("\0", "")
        raise refused("store", f"it names no file: write sqlite:///{bare if _FILE.fullmatch(bare) else 'FILE'}")
    if os.path.isdir(os.path.expanduser(path)):
        raise refused("store", f"{path} is a folder: name a file in it, sqlite:///{path.rstrip('/')}/narrows.db")


StoreUrl = Annotated[str, AfterValidator(whole_store_url)]


# --- the settings about what outlives a process ---


def default_store() -> str:
    """The URL of the store where none is set: a file in the user's state directory."""
    return f"sqlite:///{user_state_path('narrows', appauthor=False) / 'narrows.db'}"


class StoreGroup(Configured):
    """Store"""

    store: StoreUrl = Field(
        default_factory=default_store,
        description="where Narrows stores its decisions: sqlite:///FILE, or redis://HOST for several Narrows",
        json_schema_extra={"default": "narrows.db in the state directory"},
    )
    store_limit: Size | None = Field(
        default=None,
        description="bytes in the store, of all tenants; above it Narrows deletes the oldest conversation of the "
        "largest tenant; default: 16GiB in a file, what Redis allows in Redis",
    )


class KeepingGroup(Configured):
    """Keeping"""

    originals: bool = Field(default=False, description="store the texts that Narrows left out, for people to look up")
    artifacts: bool = Field(default=False, description="store every output of a tool in full, for people (audits)")
    artifacts_limit: Size = Field(
        default=ByteSize(256 * 2**20),
        description="bytes of artifacts of one tenant, and as many of texts for the compress API; Narrows deletes "
        "the oldest first",
    )
    history: bool = Field(default=False, description="store a log of all messages of a conversation, for people")
    history_limit: Size = Field(
        default=ByteSize(16 * 2**20),
        description="bytes of one conversation's log; Narrows deletes the oldest first, but not tools in use",
    )
    record: Path | None = Field(
        default=None, description="the folder in which to record conversations, for `narrows replay`"
    )
    record_share: float = Field(default=1, ge=0, le=1, description="share of the conversations to record")
    record_limit: Size = Field(
        default=ByteSize(2**30), description="bytes of recordings; Narrows deletes the oldest first"
    )
    record_redact: dict[str, str] = Field(
        default_factory=dict,
        description="what to leave out of recordings: RE2 by path",
        examples=['{ "metadata" = "" }'],
    )
    encryption_key_env: str = Field(
        default="",
        description="the environment variable with the keys that encrypt texts in the store, as ID:BASE64 (32 "
        "bytes), with commas between; the first encrypts, all decrypt",
    )

    @field_validator("encryption_key_env")
    @classmethod
    def _keys(cls, value: str) -> str:
        try:
            keyring_of(value)
        except ValueError as error:
            raise refused("keys", str(error)) from error
        return value

    @property
    def keyring(self) -> Keyring | None:
        return keyring_of(self.encryption_key_env)
