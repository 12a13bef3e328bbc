"""What Narrows would do to one request, and why: a dry run, as plain values.

The request is planned as the proxy plans it where its store knows nothing: by replaying its history. Nothing is sent.

Laws
  Tokens before less tokens after is the sum over the changes, less the recall tool: nothing goes that is not listed.
  What a reference stands for is told as it was said, to the byte.
  The bills are those of this one request's input, at two ends: nothing of it cached, and all of it cached. What a whole
  session costs lies between and depends on its past; that is what a replay is for.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from policies.assemble import tool_tokens
from policies.compact import Compacted, compact
from policies.dialects.detect import dialect_of
from policies.model.conversation import Block
from policies.model.edits import Replace
from policies.model.rawjson import UnreadableError, members, replaced
from policies.money.prices import Prices, Usage
from policies.presets import Preset
from policies.recall import answer, original, read
from policies.text.stubs import MARK
from proxy.archive.originals import named
from proxy.lab.breakdown import Layer, Share, by_block, by_kind, by_layer, by_message, order_of, span
from proxy.lab.client_apis import FORMS

WHY: Mapping[str, str] = {
    "dedupe": "the same output stands elsewhere in the request",
    "collapse": "recalled a while ago; it can be recalled again",
    "clip": "large argument of an old call that was carried out; it can be recalled",
    "offload": "old output; what matters stays, the rest can be recalled",
    "digest": "large output; what matters by its kind stays, the rest can be recalled",
    "abridge": "old prose; its ends, names and decisions stay, the rest can be recalled",
    "summarize": "old turns; a summary and what people wrote stand for them, the rest can be recalled",
    "trim": "it does not fit the window otherwise; it can be recalled",
}
"""Why each policy shortens what it shortens, in words."""
REASONS: Mapping[str, str] = {
    "": "nothing new in this request; what was shortened in earlier ones stays as it is",
    "tail-cut": "outputs that the model has just answered are cut; nothing older moves",
    "checkpoint:paid": "a rewrite costs less than carrying the old text along",
    "checkpoint:window": "the request comes near the window or a price tier, so room is made",
    "checkpoint:cold": "the provider has forgotten this prompt, so a rewrite costs nothing",
    "checkpoint:summary": "a summary of old turns has paid for itself and stands from now on",
    "checkpoint:summary-stale": "the summary does not count any more, so the turns stand for themselves again",
    "checkpoint:recall": "what was recalled behind an earlier reply is not known any more",
    "checkpoint:replayed": "what was sent before is not known any more",
    "checkpoint:config": "it is planned by other settings than the request before",
    "checkpoint:failed-open": "planning failed, so it goes as the client wrote it",
}


@dataclass(frozen=True, slots=True)
class Change:
    """One edit: which policy, where, and what it does to the size. `new` are those that this very request makes; `ref`
    is what the recall tool knows the hidden by, where the text names it."""

    by: str
    at: str
    kind: str
    tool: str
    before: int
    after: int
    new: bool
    text: str
    ref: str = ""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "policy": self.by,
            "why": WHY.get(self.by, self.by),
            "where": self.at,
            "kind": self.kind,
            "tool": self.tool,
            "tokens": {"before": self.before, "after": self.after},
            "new_in_this_request": self.new,
            "becomes": self.text,
            "ref": self.ref or None,
        }


@dataclass(frozen=True, slots=True)
class Told:
    """What a reference stands for; where it stands for nothing, `text` says so."""

    ref: str
    found: bool
    text: str

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {"ref": self.ref, "found": self.found, "text": self.text if self.found else None}


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything about the dry run that a person may ask."""

    model: str
    prices: Prices
    preset: str
    steps: int
    reason: str
    verdict: str
    before: int
    after: int
    tool: int
    """Tokens of the recall tool, which are part of `after`; 0 where it is not added."""
    shares: tuple[Share, ...]
    kinds: tuple[Share, ...]
    changes: tuple[Change, ...]
    layers: tuple[Layer, ...] = ()
    """What each policy leaves of the request, in the preset's order."""
    idle: tuple[str, ...] = ()
    """The policies that change nothing in it."""

    def bill(self, tokens: int, cached: bool) -> float:
        """Dollars for so much input, all of it read from the cache or none."""
        return self.prices.cost(Usage(tokens, tokens if cached else 0, 0, 0)).input

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        sizes = {"before": self.before, "after": self.after}
        return {
            "model": self.model,
            "prices": self.prices.model,
            "prices_known": self.prices.listed,
            "preset": self.preset,
            "requests_in_history": self.steps,
            "reason": self.reason or None,
            "verdict": self.verdict,
            "tokens": sizes,
            "tokens_of_recall_tool": self.tool,
            "input_bill_of_this_request": {
                name: {end: round(self.bill(tokens, cached), 8) for end, tokens in sizes.items()}
                for name, cached in (("nothing_cached", False), ("all_cached", True))
            },
            "messages": [share.as_json() for share in self.shares],
            "kinds": {share.kind: {"before": share.before, "after": share.after} for share in self.kinds},
            "layers": [layer.as_json() for layer in self.layers],
            "idle_policies": list(self.idle),
            "edits": [change.as_json() for change in self.changes],
        }


def request_from(name: str, model: str = "") -> bytes:
    """A saved request body, from a file or, for -, from standard input; with `model` in the place of its own.

    Raises ValueError, which says what is wrong with it and what to do.
    """
    said = "standard input" if name == "-" else name
    try:
        body = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {name} ({error.strerror}); name a file with a request body, or -") from error
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{said} is not JSON ({error}); give the body of one request") from error
    field = FORMS[dialect_of(found)].history
    if not isinstance(found, dict) or not isinstance(found.get(field), list | str) or not found[field]:
        raise ValueError(f"{said} holds no `{field}`; give the body of one request, or a session")
    if not model and not isinstance(found.get("model"), str):
        raise ValueError(f"{said} names no `model`; name one with --model")
    try:
        return _with_model(body, model) if model else body
    except UnreadableError as error:
        raise ValueError(f"{said} cannot be read without guessing ({error})") from error


def _with_model(body: bytes, model: str) -> bytes:
    named = msgspec.json.encode(model)
    if "model" in members(body):
        return replaced(body, {("model",): named})
    start = body.index(b"{") + 1
    return body[:start] + b'"model":' + named + b"," + body[start:]


def explained(
    body: bytes, preset: str, *, prices: Prices | None = None, text_protocol: bool = False, own: Preset | None = None
) -> Explanation:
    """Plan the request and say what would become of it. `own` is the preset of that name, where it does not come with
    Narrows. Raises ValueError where it is not one."""
    done = compact(body, policies=own or preset, prices=prices, text_protocol=text_protocol, recall=True)
    conversation, plan, setup, tool = (
        done.conversation,
        done.plan,
        done.settings,
        tool_tokens(done.tool, done.settings.count),
    )
    whole = setup.head - tool + plan.before
    sizes = conversation, plan.edits, setup.count, whole, tool
    order = order_of(setup.policies)
    layers = tuple(by_layer(*sizes, order))
    return Explanation(
        model=json.loads(body)["model"],
        prices=setup.prices,
        preset=preset,
        steps=conversation.steps,
        reason=plan.reason,
        verdict=_verdict(done),
        before=whole,
        after=setup.head + plan.after,
        tool=tool,
        shares=tuple(by_message(*sizes)),
        kinds=tuple(by_kind(*sizes)),
        changes=tuple(_changes(done)),
        layers=layers,
        idle=tuple(name for name in order if name not in {layer.after for layer in layers}),
    )


def referred(body: bytes, ref: str, part: str = "") -> Told:
    """What a reference stands for in this request: all of it, or a part as the recall tool understands it.

    Raises ValueError where the body is not a request.
    """
    conversation = compact(body, policies=()).conversation
    asked = json.dumps({"ref": ref, "part": part})
    text = original(conversation, read(asked).ref)
    if text is None:
        return Told(ref, False, f"nothing in this request has the ref {ref!r}; --json without --ref lists those it has")
    if not part:
        return Told(ref, True, text)
    found = answer(conversation, asked)
    return Told(ref, found.succeeded, found.text if found.succeeded else found.text.removeprefix(MARK).strip(" ]"))


def _verdict(done: Compacted) -> str:
    """Why there is something to shorten, or why not."""
    plan, setup = done.plan, done.settings
    tokens, pending = setup.head + plan.before, plan.state.offers
    if plan.edits:
        return REASONS.get(plan.reason, plan.reason)
    if tokens < setup.budget.floor:
        return f"its {tokens:,} tokens are below the floor of {setup.budget.floor:,}: nothing so short is touched"
    if setup.only_to_fit:
        return "it brings no tools, so nobody could bring back what is hidden; it is shortened only to fit the window"
    if pending:
        saving = sum(plan.state.ledger.saving.get(at, 0) for at in pending)
        edits = "1 edit" if len(pending) == 1 else f"{len(pending)} edits"
        why_not = "rewriting what the provider has in its cache has not paid for itself yet"
        return f"{edits} would save {saving:,} tokens, but {why_not}"
    if not done.conversation.has_calls and not setup.text_protocol:
        return "it has no tool calls, so no tool could bring back what is hidden; --text-protocol shortens all the same"
    return "nothing in it is large, or old, or repeated enough"


def _changes(done: Compacted) -> Iterator[Change]:
    history = FORMS[done.dialect].history
    conversation, count = done.conversation, done.settings.count
    before, after = by_block(conversation, done.plan.edits, count)
    new = set(done.plan.new)
    for edit in done.plan.edits:
        first, last = span(conversation, edit)
        block = conversation.blocks[first]
        yield Change(
            by=edit.by,
            at=history + (_address(block) if isinstance(edit, Replace) else _run(block, conversation.blocks[last])),
            kind=block.kind if isinstance(edit, Replace) else "turns",
            tool=block.tool if isinstance(edit, Replace) else "",
            before=sum(before[first : last + 1]),
            after=sum(after[first : last + 1]),
            new=edit in new,
            text=edit.text,
            ref=named(conversation, edit),
        )


def _address(block: Block) -> str:
    """As one would write it in a program: [7].tool_calls[0].function.arguments."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in block.path)


def _run(first: Block, last: Block) -> str:
    return f"[{first.message}..{last.message}]"
