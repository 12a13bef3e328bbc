"""What keys are called, and commands: a script, or what Redis knows itself.

Laws
  The keys of a conversation share a hash tag, and so a slot of a cluster.
  Names are digests: what a client writes cannot forge a key, and keys tell nothing.
  All keys but the secrets have the version of the schema in their names. Release 0.1 wrote keys without one: they are
  not read, and expire by themselves.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from hashlib import sha1, sha256
from typing import Self

from proxy.store import TextKind

VERSION = "v2"
Argument = str | bytes | int | float
Command = tuple[Argument, ...]
TextIndex = tuple[str, str]
"""The keys of the texts of a bounded kind, and of the number of their bytes."""


@dataclass(frozen=True, slots=True)
class ConversationKeys:
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

    @property
    def all(self) -> tuple[str, ...]:
        return astuple(self)


class Keys:
    """All keys below one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = f"{prefix}:{VERSION}"
        self._secrets = f"{prefix}:secret"
        self.ready = f"{self._prefix}:ready"
        self.tenants = f"{self._prefix}:tenants"
        self.tenants_of_0_1 = f"{prefix}:tenants"

    def conversation(self, tenant: bytes, name: bytes) -> ConversationKeys:
        tag = f"{self._prefix}:{{{_digest(tenant, name)}}}"
        return ConversationKeys(*(f"{tag}:{each}" for each in ConversationKeys.__slots__))

    def text_index(self, kind: TextKind, tenant: bytes, name: bytes) -> TextIndex:
        """Of the texts of a tenant, or of a conversation."""
        if kind.bounded_by == "conversation":
            keys = self.conversation(tenant, name)
            return keys.messages, keys.message_bytes
        tag = f"{self._prefix}:{{{_digest(tenant)}}}"
        return f"{tag}:{kind.name}s", f"{tag}:{kind.name}_bytes"

    def conversations(self, tenant: bytes) -> str:
        """The conversations of a tenant."""
        return f"{self._prefix}:{{{_digest(tenant)}}}:conversations"

    def events(self, tenant: bytes) -> str:
        """The events of a tenant."""
        return f"{self._prefix}:{{{_digest(tenant)}}}:events"

    def holders(self, tenant: bytes, field: bytes) -> str:
        """The conversations that have a text, which is named by its field."""
        return f"{self._prefix}:{{{_digest(tenant, b'text', field)}}}:holders"

    def secret(self, name: str) -> str:
        """A secret that all share; release 0.1 has the same."""
        return f"{self._secrets}:{name}"


def _digest(*names: bytes) -> str:
    """One for each sequence of names, whatever stands in them."""
    return sha256(b"".join(b"%d:%s" % (len(name), name) for name in names)).hexdigest()[:32]


@dataclass(frozen=True)
class Script:
    """A script, known to the server by its digest once it has run there."""

    text: str

    @cached_property
    def digest(self) -> str:
        """As Redis names it."""
        return sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def on(self, keys: Sequence[str], *arguments: Argument) -> "ScriptCommand":
        """The command that runs it where it is known."""
        return ScriptCommand.of(self, keys, arguments)


class ScriptCommand(Command):
    """EVALSHA, which remembers its script."""

    script: Script

    @classmethod
    def of(cls, script: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> Self:
        command = cls(("EVALSHA", script.digest, len(keys), *keys, *arguments))
        command.script = script
        return command


def in_full(command: Command) -> Command:
    """The command, with its script in full for a server that does not know it."""
    return ("EVAL", command.script.text, *command[2:]) if isinstance(command, ScriptCommand) else command


def keys_of(command: Command) -> Sequence[Argument]:
    """The keys that a command of ours touches."""
    return command[3 : 3 + int(command[2])] if isinstance(command, ScriptCommand) else command[1:2]
