"""A provider's prompt cache, as arithmetic: what it sees of a request, and how much it reads and writes.

Laws
  Nothing is read that an earlier request of the same owner did not write: a hit is a digest seen before.
  cached + written <= prompt. What stands after the last boundary is plain input.
  An entry has expired once its lifetime has passed since it was last used; what stands before a prefix that is used is
  used, too. Without a clock none expires.
How each provider's cache matches is in policies.money.caches.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise, takewhile
from math import inf
from typing import NamedTuple

from cachetools import LRUCache

from policies.money.caches import CacheRule
from policies.money.prices import Usage
from proxy.lab.provider import jsontext
from proxy.lab.provider.api import Api
from proxy.lab.provider.prompt import (
    FRAME,
    LONGER,
    LONGER_TTLS,
    Count,
    Json,
    PromptBlock,
    PromptMessage,
    PromptPiece,
    ProviderPrompt,
    marks_of,
)  # fmt: skip

# --- from a request to its blocks ---


class _ReadMessage(NamedTuple):
    role: str
    joins: bool
    blocks: tuple[PromptBlock, ...]


class PromptReader:
    """Reads requests. Each message is taken apart and counted once, then looked up by the digest of its JSON."""

    def __init__(self, count: Count, api: Api, capacity: int = 64_000_000) -> None:
        self._count = count
        self._api = api
        self._read_before: LRUCache[bytes, tuple[_ReadMessage, ...]] = LRUCache(
            capacity, lambda messages: sum(len(block.text) for message in messages for block in message.blocks)
        )

    def __call__(self, body: Json) -> ProviderPrompt:
        tools = [tool for tool in body.get("tools") or () if not tool.get("defer_loading")]
        blocks = [block for tool in tools for block in self._read(tool, "tools")[0].blocks]
        roles, ends = list[str](), list[int]()
        joinable = ""
        for entry in self._api.entries(body):
            for role, joins, new in self._read(entry, joinable):
                if role != joinable:
                    roles.append(role)
                    ends.append(0)
                blocks += new
                ends[-1] = len(blocks)
                joinable = role if joins else ""
        leading = next((i for i, role in enumerate(roles) if role not in ("system", "developer")), len(roles))
        # OpenAI may place a breakpoint after the leading system messages (taken as one), each user message and each
        # group of tool messages (taken as one); never after an assistant message
        endings = [
            ends[i]
            for i, (role, after) in enumerate(pairwise([*roles, ""]))
            if i == leading - 1 or role == "user" or (role == "tool" and after != "tool")
        ]
        top_mark = marks_of(body) if self._api.has_top_mark else frozenset()
        marked = next((i for i in reversed(range(len(blocks))) if blocks[i].markable), None) if top_mark else None
        if marked is not None:
            blocks[marked] = replace(blocks[marked], marks=blocks[marked].marks | top_mark)
        options = body.get("prompt_cache_options") or {}
        return ProviderPrompt(
            blocks=tuple(blocks),
            endings=tuple(endings),
            opening=ends[leading - 1] if leading else 0,
            implicit=options.get("mode") != "explicit",
            longer=options.get("ttl") in LONGER_TTLS,
            retention=jsontext.write({"prompt_cache_retention": body.get("prompt_cache_retention")}),
        )

    def _read(self, value: Json, before: str) -> tuple[_ReadMessage, ...]:
        """A tool (where `before` is "tools"), or an entry that follows a message of the role `before`."""
        raw = jsontext.write(value)
        key = sha256(before.encode() + b"\0" + raw).digest()
        messages = self._read_before.get(key)
        if messages is not None:
            return messages
        if before == "tools":
            messages = (_ReadMessage("", False, (self._block(["tool"], self._api.tool(value), 0),)),)
        else:
            messages = ()
            for message in self._api.messages(value):
                blocks = self._message(message, framed=message.role != before)
                messages += (_ReadMessage(message.role, message.joins, blocks),)
                before = message.role if message.joins else ""
        with suppress(ValueError):  # heavier than all that may be stored
            self._read_before[key] = messages
        return messages

    def _message(self, message: PromptMessage, framed: bool) -> tuple[PromptBlock, ...]:
        """The first block carries what frames the message, the last one a mark on the message as a whole."""
        first, *others = message.pieces or (PromptPiece("text"),)
        if framed or message.extras:
            counted = (jsontext.write(message.extras).decode(),) if message.extras else ()
            first = replace(first, beside=[first.beside, message.extras], counted=first.counted + counted)
        *pieces, last = first, *others
        pieces.append(replace(last, marks=last.marks | message.marks))
        blocks = list[PromptBlock]()
        for piece in pieces:
            head = [message.role, message.call_id, piece.kind, piece.beside]
            lead = (FRAME if framed and not blocks else 0) + piece.tokens + sum(map(self._count, piece.counted))
            blocks.append(self._block(head, replace(piece, run="result") if message.role == "tool" else piece, lead))
        return tuple(blocks)

    def _block(self, head: list[object], piece: PromptPiece, lead: int) -> PromptBlock:
        before = jsontext.write(head)
        return PromptBlock(
            digest=sha256(before + b"\0" + piece.text.encode("utf-8", "surrogatepass")).digest(),
            head=before,
            text=piece.text,
            lead=lead,
            tokens=lead + self._count(piece.text),
            run=piece.run,
            marks=piece.marks,
            markable=piece.markable and (piece.kind != "text" or bool(piece.text)),
        )


# --- what is read and written ---

CONTINUATIONS = 32
"""How many continuations of one prefix are remembered, for a comparison within the differing block."""
NODE_WEIGHT = 200
"""The weight of a prefix beside the text of its continuations, in characters."""


def lookups(prompt: ProviderPrompt, rule: CacheRule) -> list[int]:
    """The prefixes, in blocks, at which an earlier entry is looked for; the longest first."""
    ends, positions = set[int](), prompt.positions if rule.joins_runs else range(len(prompt.blocks) + 1)
    for mark in prompt.marked(rule.mark)[-rule.reads :]:
        least = positions[mark] - rule.lookback
        ends |= {mark, *(end for end in range(1, mark) if positions[end] > least)}
    if rule.endings and prompt.implicit:
        ends |= {prompt.opening, *prompt.endings[-rule.endings :]}
    return sorted(ends - {0}, reverse=True)


def writes(prompt: ProviderPrompt, rule: CacheRule) -> list[int]:
    """The prefixes, in blocks, that the request writes, in order."""
    own = prompt.endings[-1:] if rule.endings and prompt.implicit else ()
    marks = prompt.marked(rule.mark)[-(rule.writes - len(own)) :]
    return sorted(end for end in {*own, *marks} if prompt.ends[end] >= rule.least)


class _Continuations(NamedTuple):
    """The blocks that followed a prefix, the newest first, and when that expires."""

    blocks: tuple[PromptBlock, ...]
    expires: float


class _Entry(NamedTuple):
    lifetime: float
    expires: float


_NO_ENTRY = _Entry(0.0, -inf)


class PromptCache:
    """A provider's memory of earlier prompts, for each owner (a credential and a model) apart."""

    def __init__(self, count: Count, clock: Callable[[], float] = lambda: 0.0, capacity: int = 256_000_000) -> None:
        self._count = count
        self._clock = clock
        self._continuations: LRUCache[bytes, _Continuations] = LRUCache(
            capacity, lambda row: NODE_WEIGHT + sum(len(block.text) for block in row.blocks)
        )
        """By the digest of a prefix."""
        self._entries: LRUCache[bytes, _Entry] = LRUCache(1_000_000)

    def charge(self, owner: str, prompt: ProviderPrompt, rule: CacheRule) -> Usage:
        """Serve a prompt: what it reads and writes; the completion is added later."""
        chain = prompt.chain(owner)
        if rule.mark:
            return self._by_breakpoint(chain, prompt, rule)
        cached = self._by_prefix(chain, prompt, rule)
        cached -= cached % rule.step
        return Usage(prompt.tokens, cached if cached >= rule.least else 0, 0, 0)

    def _by_breakpoint(self, chain: tuple[bytes, ...], prompt: ProviderPrompt, rule: CacheRule) -> Usage:
        now, ends = self._clock(), writes(prompt, rule)
        lasting = ends if prompt.longer else [end for end in ends if LONGER in prompt.blocks[end - 1].marks]
        last = max(lasting, default=0)
        hit = next((end for end in lookups(prompt, rule) if self._entry(chain[end]).expires >= now), 0)
        entry, longest = self._entry(chain[hit]), max((each.seconds for each in rule.lifetimes), default=0.0)
        # Of a mark that reads what was written for another lifetime no provider says that it changes this. So the dear
        # reading counts: nothing lengthens an entry, and what goes on from one lasts no longer than that
        built_on = entry.lifetime if hit else inf
        for end in range(1, hit + 1):
            used = self._entry(chain[end])
            if used.expires >= now:
                lifetime = used.lifetime if end <= last else min(used.lifetime, rule.seconds)
                self._entries[chain[end]] = _Entry(lifetime, now + lifetime)
        for end in ends:
            lifetime = min(longest, built_on) if end <= last else rule.seconds
            if end > hit:
                self._entries[chain[end]] = _Entry(lifetime, now + lifetime)
        cached = prompt.ends[hit]
        written = max(0, prompt.ends[max(ends, default=0)] - cached)
        # Anthropic, "Prompt caching", "Mixing different TTLs": what stands up to the last write for the longer lifetime
        # costs what such a write costs.
        return Usage(prompt.tokens, cached, written, 0, max(0, prompt.ends[last] - cached))

    def _entry(self, digest: bytes) -> _Entry:
        return self._entries.get(digest, _NO_ENTRY)

    def _by_prefix(self, chain: tuple[bytes, ...], prompt: ProviderPrompt, rule: CacheRule) -> int:
        """Tokens of the longest prefix that an earlier prompt of the owner had; this one is now such."""
        now, nothing = self._clock(), _Continuations((), -inf)
        wishes = (each.seconds for each in rule.lifetimes if each.pattern.search(prompt.retention))
        expires = now + next(wishes, rule.seconds)
        there = [self._continuations.get(digest, nothing) for digest in chain]
        depth_seen = sum(1 for _ in takewhile(lambda row: row.expires >= now, there)) - 1
        shared = prompt.ends[max(depth_seen, 0)]
        if 0 <= depth_seen < len(prompt.blocks):  # and the first differing block may begin as one that stood there
            others = there[depth_seen].blocks
            shared += max((prompt.blocks[depth_seen].shared(other, self._count) for other in others), default=0)
        # Deepest first, so that what a prefix is reached by was always used later than the prefix itself.
        for depth in range(len(prompt.blocks), -1, -1):
            blocks = there[depth].blocks
            if depth >= depth_seen:
                blocks = (*prompt.blocks[depth : depth + 1], *blocks)[:CONTINUATIONS]
            with suppress(ValueError):  # heavier than all that may be stored
                self._continuations[chain[depth]] = _Continuations(blocks, expires)
        return shared
