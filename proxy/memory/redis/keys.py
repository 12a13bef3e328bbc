"""What keys are called in Redis, and how commands and scripts are sent.

Laws
  The keys of a conversation share a hash tag, and so a slot of a cluster. A script touches one conversation, or one
  index.
  Names are digests: what a client writes cannot forge a key, and keys tell nothing.
  All keys but the secrets have the version of the schema in their names. Release 0.1 wrote keys without one: they are
  not read, and expire by themselves.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha1, sha256
from io import BytesIO
from struct import iter_unpack, pack
from typing import NamedTuple

from proxy.memory.records import TextKind
from proxy.memory.serialization import UnreadableRecordError

VERSION = "v2"
Argument = str | bytes | int | float
Command = tuple[Argument, ...]
TextIndex = tuple[str, str]
"""The keys of the texts of a bounded kind, and of the number of their bytes."""


class ConversationKeys(NamedTuple):
    """The keys of a conversation. Scripts know them by their place here: `steps` is KEYS[1]."""

    steps: str
    ages: str
    summaries: str
    leases: str
    spent: str
    abouts: str
    texts: str
    messages: str
    message_bytes: str
    snapshots: str
    owners: str
    bills: str
    bill_ids: str


class Keys:
    """All keys below one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = f"{prefix}:{VERSION}"
        self._secrets = f"{prefix}:secret"
        self.ready = f"{self._prefix}:ready"
        self.tenants = f"{self._prefix}:tenants"
        self.measured = f"{self._prefix}:measured"
        self.billed_tenants = f"{self._prefix}:billed"
        self.gateway_keys = f"{self._prefix}:keys"
        self.gateway_mark = f"{self._prefix}:{{{self.gateway_keys}}}:mark"
        self.tenants_of_0_1 = f"{prefix}:tenants"

    def conversation(self, tenant: bytes, name: bytes) -> ConversationKeys:
        tag = f"{self._prefix}:{{{_digest(tenant, name)}}}"
        return ConversationKeys(*(f"{tag}:{each}" for each in ConversationKeys._fields))

    def text_index(self, kind: TextKind, tenant: bytes, name: bytes) -> TextIndex:
        """Of the texts of a tenant, or of a conversation."""
        if kind.bounded_by == "conversation":
            keys = self.conversation(tenant, name)
            return keys.messages, keys.message_bytes
        tag = f"{self._prefix}:{{{_digest(tenant)}}}"
        return f"{tag}:{kind.name}s", f"{tag}:{kind.name}_bytes"

    def conversations(self, tenant: bytes) -> str:
        return f"{self._prefix}:{{{_digest(tenant)}}}:conversations"

    def events(self, tenant: bytes) -> str:
        return f"{self._prefix}:{{{_digest(tenant)}}}:events"

    def holders(self, tenant: bytes, field: bytes) -> str:
        """The conversations that have a text, which is named by its field."""
        return f"{self._prefix}:{{{_digest(tenant, b'text', field)}}}:holders"

    def purse(self, tenant: bytes, day: bytes) -> str:
        """What was taken on a day, for one tenant or for all."""
        return f"{self._prefix}:{{{_digest(tenant, b'purse', day)}}}:purse"

    def billed(self, tenant: bytes, what: str) -> str:
        return f"{self._prefix}:{{{_digest(tenant)}}}:billed_{what}"

    def billed_day(self, tenant: bytes, day: bytes) -> tuple[str, str]:
        """The sums of a day, and the ids of the bills that were added."""
        tag = f"{self._prefix}:{{{_digest(tenant, b'bills', day)}}}"
        return f"{tag}:bills", f"{tag}:ids"

    def secret(self, name: str) -> str:
        """A secret that all share; release 0.1 has the same."""
        return f"{self._secrets}:{name}"


def _digest(*names: bytes) -> str:
    """A digest of its own for each sequence of names."""
    return sha256(b"".join(b"%d:%s" % (len(name), name) for name in names)).hexdigest()[:32]


@dataclass(frozen=True)
class Script:
    """A script, known to the server by its digest once it has run there."""

    text: str

    @cached_property
    def digest(self) -> str:
        return sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def on(self, keys: Sequence[str], *arguments: Argument) -> "ScriptCommand":
        """The command that runs it where it is known."""
        command = ScriptCommand(("EVALSHA", self.digest, len(keys), *keys, *arguments))
        command.script = self
        return command


class ScriptCommand(Command):
    """EVALSHA, which remembers its script."""

    script: Script


def in_full(command: Command) -> Command:
    """The command, with its script in full for a server that does not know it."""
    return ("EVAL", command.script.text, *command[2:]) if isinstance(command, ScriptCommand) else command


_SEAL = 16  # characters


def unsealed(name: bytes, row: bytes) -> bytes:
    """The body of a row that a script has sealed. Raises UnreadableRecordError."""
    body = row[_SEAL:]
    if sha1(b"1" + name + body, usedforsecurity=False).hexdigest()[:_SEAL].encode() != row[:_SEAL]:
        raise UnreadableRecordError("its checksum is wrong")
    return body


def sealed(name: bytes, body: bytes) -> bytes:
    """A row as scripts seal and unseal it."""
    return sha1(b"1" + name + body, usedforsecurity=False).hexdigest()[:_SEAL].encode() + body


def framed(values: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Their lengths, and all of them."""
    return pack(f">{len(values)}i", *map(len, values)), b"".join(values)


def fields(lengths: bytes, values: bytes) -> Iterator[tuple[int, list[bytes | None]]]:
    """The answer of READ: the number of an anchor, and its five fields."""
    rest = BytesIO(values)
    for number, *sizes in iter_unpack(">6i", lengths):
        yield number, [None if size < 0 else rest.read(size) for size in sizes]
