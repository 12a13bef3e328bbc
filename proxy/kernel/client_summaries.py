"""Conversations that their client compacts itself: it asks the model for a summary of its history, and begins a new
history with that.

Laws
  A request that asks for such a summary goes as the client wrote it, because the summary is to be made from all of it;
  only where that would not fit is room made.
  The history after it is the same conversation: where its client names it, by that; elsewhere where it begins with the
  words (not the white space) of an answer that its tenant was given to such a request. An edited summary names nothing.
  Digests alone are kept, with the conversation before, and written before the client has all of the summary.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from operator import methodcaller

from policies.model.memory import StepRecord
from proxy.memory import CLIENT_SUMMARIES, Key, StoredText, StoreTrouble
from proxy.memory.cached import CachedStore

_CLAUDE = "Your task is to create a detailed summary of "
_CODEX = "You are performing a CONTEXT CHECKPOINT COMPACTION"
ASKS = (
    ("CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.", _CLAUDE),
    (f"{_CLAUDE}the conversation", _CLAUDE),
    (_CODEX, _CODEX),
)
"""How the newest message begins, and what follows near that, where Claude Code or Codex asks for a summary."""
TRIGGER = '"compaction_trigger"'
"""The item by which Codex asks the provider for one."""
WITHIN = 1_000
"""Characters at the beginning of a message or item."""
TAKES_OVER = (
    ("This session is being continued from a previous conversation", "Summary:"),  # Claude Code
    ("Another language model started to solve this problem", "with your own analysis:"),  # Codex
)
"""How the message with a summary begins, and the end of what stands before that."""
BEFORE_SUMMARY = "before a summary"
"""The anchor of the last step before one: the lifetime of its marks is that of the history behind."""
_FEWEST = 40
"""Words of a summary by which it is looked for. One with fewer could be another's by chance."""


@dataclass(eq=False)
class ClientSummaries:
    store: CachedStore

    async def note(self, key: Key, answer: str, newest: StepRecord | None) -> None:
        """The answer to a request for a summary; Claude Code takes over what stands in it as the summary. `newest`: the
        last step before it."""
        words = (answer.partition("<summary>")[2].partition("</summary>")[0] or answer).split()
        if len(words) >= _FEWEST:
            text = StoredText(_digest(words[:_FEWEST]), f"{len(words)} {_digest(words)}", {})
            with suppress(StoreTrouble):
                await self.store.ask("put_texts", methodcaller("put_texts", key, CLIENT_SUMMARIES, [text]))
                if newest is not None:
                    record = replace(newest, anchor=BEFORE_SUMMARY, edits=())
                    await self.store.ask("claim", methodcaller("claim", key, record, supersedes=True))

    async def continued(self, key: Key, text: str) -> Key:
        """The conversation of its tenant that this text begins with a summary of; `key` where there is none, or the
        store does not answer."""
        words = text.split()
        name = _digest(words[:_FEWEST])
        with suppress(StoreTrouble):
            finding = methodcaller("conversations_with", key.tenant, CLIENT_SUMMARIES, name)
            for conversation in await self.store.ask("find", finding):
                before = Key(key.tenant, conversation)
                texts = await self.store.ask("texts", methodcaller("texts", before, CLIENT_SUMMARIES, [name]))
                count, _, digest = texts.get(name, "").partition(" ")
                if count and _digest(words[: int(count)]) == digest:
                    return before
        return key


def _digest(words: Sequence[str]) -> str:
    """Clients change the white space of a summary."""
    return sha256(" ".join(words).encode("utf-8", "surrogatepass")).hexdigest()
