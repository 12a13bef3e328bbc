"""The settings about texts that stay in the store or in files, for people."""

from pathlib import Path

from pydantic import ByteSize, Field, field_validator

from proxy.config.errors import refused
from proxy.config.groups.store import MOST_BYTES
from proxy.config.keyring import Keyring, keyring_of
from proxy.config.sources import Configured


class KeepingGroup(Configured):
    """Keeping"""

    originals: bool = Field(default=False, description="store the texts that Narrows left out, for people to look up")
    artifacts: bool = Field(default=False, description="store every output of a tool in full, for people (audits)")
    artifacts_limit: ByteSize = Field(
        default=ByteSize(256 * 2**20),
        gt=0,
        le=MOST_BYTES,
        description="bytes of artifacts of one tenant, and as many of texts for the compress API; Narrows deletes "
        "the oldest first",
    )
    history: bool = Field(default=False, description="store a log of all messages of a conversation, for people")
    history_limit: ByteSize = Field(
        default=ByteSize(16 * 2**20),
        gt=0,
        le=MOST_BYTES,
        description="bytes of one conversation's log; Narrows deletes the oldest first, but not tools in use",
    )
    record: Path | None = Field(
        default=None, description="the folder in which to record conversations, for `narrows replay`"
    )
    record_share: float = Field(default=1, ge=0, le=1, description="share of the conversations to record")
    record_limit: ByteSize = Field(
        default=ByteSize(2**30),
        gt=0,
        le=MOST_BYTES,
        description="bytes of recordings; Narrows deletes the oldest first",
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
