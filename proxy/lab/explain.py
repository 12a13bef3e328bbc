"""A dry run: how Narrows would change one request, and why, as plain values.

The request is planned as the proxy plans it where its store knows nothing: by replaying its history. Nothing is sent.

Laws
  Tokens before less tokens after is the sum over the edits, less the recall tool: nothing goes that is not listed.
  What a reference stands for is the original text, to the byte.
  The bills are those of this one request's input, at two ends, nothing of it cached and all of it cached, and right
  behind the request before it, and in ten minutes. What a session costs depends on its past: that is for a replay.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from policies.assemble import tool_tokens
from policies.compact import Compacted, compact
from policies.context import Aim
from policies.dialects import DIALECTS
from policies.keep import Patterns, names, patterns_of
from policies.model.edits import Replace
from policies.model.parameters import Trigger, is_large
from policies.model.rawjson import UnreadableError, members, replaced
from policies.money.catalog import prices_for
from policies.money.prices import BudgetLimits, Prices, Usage
from policies.planning.step import may_mark
from policies.presets import Preset
from policies.recall import original, read
from policies.rules.digest import Digest
from policies.rules.summarize import Summarize
from policies.tools import RECALL
from policies.tools.deferral import ToolLists
from proxy.addons.archive.texts import named
from proxy.console.arguments import AsJson, Config
from proxy.console.output import explains_columns, plain_table, print_json, print_last_line, printable, refusing
from proxy.drawing.figures import change_of, money
from proxy.drawing.words import REASONS, WHY
from proxy.lab.arguments import (
    PRESET,
    AimOption,
    ContextTokens,
    Html,
    Keep,
    PresetName,
    TextProtocol,
    Tools,
    check_preset,
    check_prices,
    custom_presets,
)
from proxy.lab.breakdown import TOOLS, BeforeAfter, Breakdown, MessageSize, PolicyEffect, break_down, order_of, span
from proxy.lab.replay.bills import notes_on
from proxy.lab.request_file import content_of, request_in
from proxy.lab.terminal import kind_bars, legend, message_bars, print_bars, print_notes, print_report, writable

_SOME_PLACES = 3
"""Places of a pattern that a sentence lists."""
_MOST_TO_COME = 25
"""Requests that a session is expected to go on for, at most: in the mean recorded ones did that had 120."""
_LATER = 600.0
"""Seconds of a pause of a person, which is longer than some caches live, and shorter than others do."""


@dataclass(frozen=True, slots=True)
class EditSummary:
    """One edit: which policy makes it, where, and what it does to the size."""

    policy: str
    why: str
    where: str
    kind: str
    tool: str
    tokens: BeforeAfter
    new_in_this_request: bool
    becomes: str
    ref: str | None
    """The reference of the hidden text, where the edit's text names it."""


@dataclass(frozen=True, slots=True)
class InputBill:
    """Dollars for the input of one request, as the client wrote it and as it is sent."""

    DIGITS: ClassVar = 8

    before: float | None
    """None, as is `after`, where the prices are not known."""
    after: float | None


@dataclass(frozen=True, slots=True)
class Arrival:
    """What is new of one kind: its tokens, and dollars as it is first sent, and as it is sent again from then on."""

    tokens: BeforeAfter
    first_sight: InputBill
    rest_of_session: InputBill


@dataclass(frozen=True, slots=True)
class PatternEffect:
    blocks: int
    tokens: int
    where: Sequence[str]


@dataclass(frozen=True, slots=True)
class Explanation:
    JSON: ClassVar = (
        *("model", "prices", "prices_known", "notes", "preset", "aim", "requests_in_history", "reason", "verdict"),
        *("tokens", "tokens_of_recall_tool", "deferred", "input_bill_of_this_request", "messages", "kinds", "foretold"),
        *("new", "requests_to_come", "edits", "keep"),
    )

    model: str
    prices: str
    prices_known: bool
    notes: Sequence[str]
    preset: str
    aim: Aim
    requests_in_history: int
    reason: str | None
    verdict: str
    tokens: BeforeAfter
    tokens_of_recall_tool: int
    deferred: Mapping[str, int]
    """The tools whose definitions are deferred, each with the tokens of its definition."""
    input_bill_of_this_request: Mapping[str, InputBill]
    messages: Sequence[MessageSize]
    kinds: Mapping[str, BeforeAfter]
    new: Mapping[str, Arrival]
    """What the request before it did not have, by kind, the largest first."""
    requests_to_come: int
    """For how many requests its session goes on, as sessions of its age do."""
    layers: Sequence[PolicyEffect]
    """The request after each policy, in the order of the preset."""
    idle_policies: Sequence[str]
    """Those that change nothing in it."""
    foretold: Sequence[str]
    """Which summaries and digests a model would be asked for, and when: nobody is asked here."""
    edits: Sequence[EditSummary]
    keep: Mapping[str, PatternEffect]


def request_from(name: str, model: str = "") -> bytes:
    """A saved request body, from a file or, for -, from standard input; with `model` in the place of its own.

    Raises ValueError, which says what is wrong with it and what to do.
    """
    source = "standard input" if name == "-" else name
    body, request = request_in(content_of(name), source)
    if not model and not request.get("model"):
        raise ValueError(f"{source} names no `model`; name one with --model")
    if not model:
        return body
    try:
        fields = members(body)
    except UnreadableError as error:
        raise ValueError(f"{source} cannot be read without guessing ({error})") from error
    encoded = msgspec.json.encode(model)
    if "model" in fields:
        return replaced(body, {("model",): encoded})
    start = body.index(b"{") + 1
    return body[:start] + b'"model":' + encoded + b"," + body[start:]


def explained(
    body: bytes,
    preset: str,
    *,
    prices: Prices | None = None,
    text_protocol: bool = False,
    own: Preset | None = None,
    aim: Aim | None = None,
    context_tokens: int | None = None,
    keep: Patterns = (),
    tools: ToolLists | None = None,
) -> Explanation:
    """Plan the request and say what would become of it. `own` is the preset of that name, where it does not come with
    Narrows; the aim is that of the preset where none is given. Raises ValueError where the body is not a request."""
    result = compact(
        body,
        policies=own or preset,
        prices=prices,
        aim=aim,
        limits=BudgetLimits(context_tokens=context_tokens),
        text_protocol=text_protocol,
        recall=True,
        own_marks="auto",
        keep=keep,
        tools=tools,
    )
    plan, settings = result.plan, result.settings
    tool, list_ = tool_tokens(result.tool, settings.count), result.tools
    hidden = list_.hidden(list_.called_in(result.conversation), settings.count) if list_ else 0
    before, order = settings.head - tool + plan.before + hidden, order_of(settings.policies)
    sizes = break_down(result.conversation, plan.edits, settings.count, before, tool - hidden, order)
    tokens = BeforeAfter(before, settings.head + plan.after)
    warm = warm_tokens(result, sizes.messages, tokens)
    paid = paid_prices(result, body, tokens)
    effects = {pattern: _effect(result, pattern) for pattern in settings.keep}
    return Explanation(
        model=json.loads(body)["model"],
        prices=settings.prices.model,
        prices_known=settings.prices.listed,
        notes=[*_notes_on_keep(effects), *paid.notes(), *notes_on(settings.prices)],
        preset=preset,
        aim=settings.aim,
        requests_in_history=result.conversation.steps,
        reason=plan.reason or None,
        verdict=_verdict(result),
        tokens=tokens,
        tokens_of_recall_tool=tool,
        deferred={each.name: each.tokens for each in list_.deferred} if list_ else {},
        input_bill_of_this_request=input_bills(paid, tokens, warm, result.input.lifetime),
        messages=sizes.messages,
        kinds=sizes.kinds,
        new=arrivals(result, sizes, tokens, paid),
        requests_to_come=remaining(result.conversation.steps),
        layers=sizes.layers,
        idle_policies=[name for name in order if all(layer.after != name for layer in sizes.layers)],
        foretold=tuple(foretold(result)),
        edits=tuple(_edits(result, sizes.edits)),
        keep=effects,
    )


def _effect(result: Compacted, pattern: str) -> PatternEffect:
    conversation, history = result.conversation, DIALECTS[result.dialect].fields.history
    places = [at for at in range(len(conversation.blocks)) if names((pattern,), conversation, at)]
    tokens = sum(conversation.blocks[at].tokens for at in places)
    return PatternEffect(len(places), tokens, [_place(history, conversation.blocks[at].path) for at in places])


def _notes_on_keep(effects: Mapping[str, PatternEffect]) -> Iterator[str]:
    """Why texts were left as they are, in a sentence for each pattern."""
    for pattern, effect in effects.items():
        some, others = ", ".join(effect.where[:_SOME_PLACES]), len(effect.where) - _SOME_PLACES
        where = f"{some} and {others:,} more" if others > 0 else some
        names_what = f"{effect.tokens:,} tokens that are never edited: {where}" if some else "nothing in this request"
        yield f"kept: {pattern} names {names_what}."


def _place(history: str, path: Sequence[str | int]) -> str:
    """As one would write it in a program: messages[7].tool_calls[0].function.arguments"""
    return history + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)


@dataclass(frozen=True, slots=True)
class PaidPrices:
    """The prices at which a cache is billed, and plain input each time where nothing is cached: of the request as its
    client wrote it, as it is sent, and as it is sent again."""

    before: Prices
    after: Prices
    again: Prices

    def notes(self) -> Iterator[str]:
        if self.before != self.again:
            yield "before: its client marks nothing for a cache, so all of it is plain input each time."


def paid_prices(result: Compacted, body: bytes, tokens: BeforeAfter) -> PaidPrices:
    """A provider that caches only what is marked bills the rest as plain input; ours begin with the second request."""
    settings, api = result.settings, DIALECTS[result.dialect]
    request, prices = api.split(body), settings.prices
    marks = request is not None and api.marks.style(request, result.conversation.messages)
    is_cached = bool(marks) or settings.marks_end or not prices.breakpoints
    plain, ours = replace(prices, read=1.0, write=1.0), may_mark(settings, 1, tokens.after)
    caches = (is_cached, is_cached or bool(result.plan.marks), is_cached or ours)
    return PaidPrices(*(prices if cached else plain for cached in caches))


def input_bills(paid: PaidPrices, tokens: BeforeAfter, warm: BeforeAfter, lifetime: float) -> Mapping[str, InputBill]:
    """The cost of this input where the provider has nothing of it in its cache, and where it has all; sent right behind
    the request before it, when so much is `warm`, and in ten minutes, which a cache outlives or does not."""
    prices = paid.after

    def bill(cached: BeforeAfter, writes: int = prices.breakpoints) -> InputBill:
        sides = ((paid.before, tokens.before, cached.before), (prices, tokens.after, cached.after))
        costs = (each.cost(Usage(size, read, (size - read) * writes, 0)).input for each, size, read in sides)
        return InputBill(*(cost if prices.listed else None for cost in costs))

    nothing = BeforeAfter(0, 0)
    later = warm if lifetime >= _LATER else nothing
    ends = {"nothing_cached": bill(nothing, 0), "all_cached": bill(tokens)}
    return {**ends, "now": bill(warm), "in_ten_minutes": bill(later)}


def warm_tokens(result: Compacted, messages: Sequence[MessageSize], tokens: BeforeAfter) -> BeforeAfter:
    """The tokens that the cache holds right behind the request before: all but what is new in this one, or follows what
    it changes; none where they are too few for a cache."""
    conversation, changed, least = result.conversation, result.plan.state.changed, result.settings.cache.least
    if conversation.steps < 2:  # nothing was sent before it
        return BeforeAfter(0, 0)
    end = conversation.ends[-2]
    begins = [conversation.blocks[at].message for at in (end, end if changed is None else min(end, changed))]
    new = [[each.tokens for each in messages if (each.message or -1) >= begin] for begin in begins]
    before = tokens.before - sum(each.before for each in new[0])
    after = tokens.after - sum(each.after for each in new[1])
    return BeforeAfter(*(size if size >= least else 0 for size in (before, after)))


def remaining(requests: int) -> int:
    """For how many requests a session of this age goes on: as long again, but no longer than _MOST_TO_COME."""
    return min(requests, _MOST_TO_COME)


def arrivals(result: Compacted, breakdown: Breakdown, tokens: BeforeAfter, paid: PaidPrices) -> Mapping[str, Arrival]:
    """What is new in a request, by kind: outputs by that of their tool. What is cached is written, where the provider
    has a price for that, and read in the requests to come."""
    conversation, settings = result.conversation, result.settings
    blocks, head = conversation.blocks, breakdown.messages[0]
    sizes = {TOOLS: head.tokens} if conversation.steps == 1 and head.message is None else {}
    for at in conversation.arrived(conversation.steps - 1):
        block, kind = blocks[at], str(blocks[at].kind)
        if block.answers is not None:
            kind = f"{settings.toolbox.kind(block.tool, blocks[block.answers].text, block.text)} output"
        some, more = sizes.get(kind, BeforeAfter(0, 0)), breakdown.blocks[at]
        sizes[kind] = BeforeAfter(some.before + more.before, some.after + more.after)

    def bill(size: BeforeAfter, before: float, after: float) -> InputBill:
        costs = (size.before * before * price, size.after * after * price)
        return InputBill(*(cost if paid.after.listed else None for cost in costs))

    price = settings.prices.cost(Usage(tokens.after, 0, 0, 0)).input / max(1, tokens.after)  # of so long a prompt
    first = [each.write if each.breakpoints else 1.0 for each in (paid.before, paid.after)]
    reads = [each.read if tokens.after >= settings.cache.least else 1.0 for each in (paid.before, paid.again)]
    rest = [remaining(conversation.steps) * read for read in reads]
    largest = sorted(sizes.items(), key=lambda item: -item[1].before)
    return {kind: Arrival(size, bill(size, *first), bill(size, *rest)) for kind, size in largest}


def original_text(body: bytes, ref: str) -> str | None:
    """The text behind a reference here; None where it has none. Raises ValueError where the body is no request."""
    return original(compact(body, policies=()).conversation, read(json.dumps({"ref": ref})).ref)


def _verdict(result: Compacted) -> str:
    plan, settings = result.plan, result.settings
    tokens, pending = settings.head + plan.before, plan.state.offers
    if plan.edits:
        return REASONS.get(plan.reason, plan.reason)
    if tokens < settings.budget.floor:
        return f"its {tokens:,} tokens are below the floor of {settings.budget.floor:,}: nothing so short is touched"
    if settings.only_to_fit:
        return "it brings no tools, so nobody could bring back what is hidden; it is shortened only to fit the window"
    if pending:
        saving = sum(plan.state.ledger.saving.get(at, 0) for at in pending)
        edits = "1 edit" if len(pending) == 1 else f"{len(pending)} edits"
        why_not = "rewriting what the provider has in its cache has not paid for itself yet"
        return f"{edits} would save {saving:,} tokens, but {why_not}"
    if "call" not in result.conversation.kinds and not settings.text_protocol:
        return "it has no tool calls, so no tool could bring back what is hidden; --text-protocol shortens all the same"
    return "nothing in it is large, or old, or repeated enough"


def _edits(result: Compacted, sizes: Sequence[BeforeAfter]) -> Iterator[EditSummary]:
    history = DIALECTS[result.dialect].fields.history
    conversation, new = result.conversation, set(result.plan.new)
    for edit, tokens in zip(result.plan.edits, sizes, strict=True):
        blocks = span(conversation, edit)
        first, last = conversation.blocks[blocks[0]], conversation.blocks[blocks[-1]]
        kind, tool, place = "turns", "", f"[{first.message}..{last.message}]"
        if isinstance(edit, Replace):
            place = _place("", first.path)
            kind, tool = first.kind, first.tool
        yield EditSummary(
            policy=edit.by,
            why=WHY.get(edit.by, edit.by),
            where=history + place,
            kind=kind,
            tool=tool,
            tokens=tokens,
            new_in_this_request=edit in new,
            becomes=edit.text,
            ref=named(conversation, edit) or None,
        )


# --- what a preset would ask a model for, and when: said of one request, without asking anybody ---


def foretold(result: Compacted) -> Iterator[str]:
    """One sentence for the summary, and one for the digests, that the preset would have a model write."""
    conversation, settings = result.conversation, result.settings
    for policy in settings.policies:
        if isinstance(policy, Summarize) and (when := policy.triggers(is_chat=settings.is_chat, is_first=True)):
            waiting = [_moment(result, trigger) for trigger in when]
            moments = " or ".join(waiting) if all(waiting) else "as soon as enough lies before the newest turns"
            pays = ", once it pays" if settings.aim == "bill" else ""
            yield f"A summary would be asked for {moments}{pays}."
        elif isinstance(policy, Digest) and policy.by_model:
            outputs = [block for block in conversation.blocks if block.answers is not None and block.tool != RECALL]
            large = sum(is_large(block.text, block.tokens, policy.over) for block in outputs)
            yield f"A model would be asked for digests of {large:,} of its {len(outputs):,} outputs, as they arrive."


def _moment(result: Compacted, trigger: Trigger) -> str:
    """When a trigger will hold, with how far the request is; empty where it holds now."""
    conversation, budget = result.conversation, result.settings.budget
    step, tokens = conversation.steps - 1, result.plan.after
    if trigger.holds(conversation, step, tokens, budget.window, budget.high):
        return ""
    limits = (
        ("tokens", int(trigger.lowest_tokens(budget.window, budget.high)), tokens),
        ("messages", trigger.messages, conversation.blocks[-1].message + 1),
        ("turns", trigger.turns, step),
    )
    return " and ".join(f"at {limit:,} {unit} ({count:,} so far)" for unit, limit, count in limits if limit)


# --- the report ---

_LAST_LINE = """
    where: the place in the body; before, after: tokens; since now: decided in this request, earlier: in one before it;
    `narrows explain FILE --ref REF` prints what a ref stands for, --json lists all edits.
"""
MOST_EDITS = 20


def print_explanation(console: Console, explanation: Explanation) -> None:
    plain = console.options.ascii_only
    head = f"{printable(explanation.model)}, preset {explanation.preset}, aim {explanation.aim}"
    head = f"{head}: request {explanation.requests_in_history}"
    console.print(Text(f"{head}, tokens per message   {legend(plain)}", style="bold"))
    print_bars(console, message_bars(explanation.messages), console.width)
    console.print(Text("\nby kind", style="bold"))
    print_bars(console, kind_bars(explanation.kinds), console.width)
    new = plain_table("new in it", "tokens", "as sent", "now", "in the rest")
    for kind, each in explanation.new.items():
        dollars = (money(bill.after) for bill in (each.first_sight, each.rest_of_session))
        new.add_row(kind, f"{each.tokens.before:,}", f"{each.tokens.after:,}", *dollars)
    console.print("", new, "", sep="\n")
    if explanation.edits:
        table = plain_table("policy", "where", "what", "ref", "before", "after", "since", left=4)
        table.columns[1].no_wrap, table.columns[1].overflow = False, "fold"  # the widest, so that no other is cut
        largest = sorted(explanation.edits, key=lambda edit: edit.tokens.after - edit.tokens.before)
        for edit in largest[:MOST_EDITS]:
            what = printable(f"{edit.kind} {edit.tool}".strip(), 24)
            sizes = (f"{edit.tokens.before:,}", f"{edit.tokens.after:,}")
            since = "now" if edit.new_in_this_request else "earlier"
            where = printable(edit.where.removesuffix(".content"), 60)
            table.add_row(edit.policy, where, what, edit.ref or "", *sizes, since)
        if others := largest[MOST_EDITS:]:
            sizes = (f"{sum(e.tokens.before for e in others):,}", f"{sum(e.tokens.after for e in others):,}")
            table.add_row("", f"{len(others)} smaller ones", "", "", *sizes, "")
        console.print(table)
    for policy in sorted({edit.policy for edit in explanation.edits}):
        count = sum(edit.policy == policy for edit in explanation.edits)
        console.print(Text(f"{policy:<8} {count:>4}  {WHY.get(policy, '')}"))
    console.print(Text(f"\n{'why now' if explanation.edits else 'nothing to shorten'}: {explanation.verdict}"))
    before, after = explanation.tokens.before, explanation.tokens.after
    tokens = f"{before:>10,} -> {after:>10,}  ({change_of(before, after)})"
    console.print(Text(f"\ntokens of the input              {tokens}"))
    for end, bill in explanation.input_bill_of_this_request.items():
        costs = f"{money(bill.before):>10} -> {money(bill.after):>10}"
        console.print(Text(f"its bill, {end.replace('_', ' '):<22} {costs}"))
    if explanation.deferred:
        size, names = sum(explanation.deferred.values()), ", ".join(map(printable, explanation.deferred))
        count = len(explanation.deferred)
        console.print(Text(f"deferred until looked for        {size:>10,} tokens of {count} tools: {names}"))
    note = (
        f"Prices of {printable(explanation.prices)}, for the input of this one request; now and in ten minutes: "
        "after the request before it. What a whole session costs, with every rewrite of the provider's cache, is what "
        "`narrows replay` adds up."
    )
    print_notes(console, [*explanation.foretold, note, *explanation.notes])
    if explanation.edits:
        print_last_line(console, _LAST_LINE)


# --- the command ---

RequestFile = Annotated[
    str,
    typer.Argument(
        metavar="FILE|-",
        help="The body of a request, or a session that `narrows serve --record FOLDER` wrote; - is stdin.",
    ),
]


@explains_columns(
    """
    Bars: one for each message by its place in the history, with its tokens, and behind -> those that would be sent.

    New in it, by kind: its tokens, and its cost as sent: now, and in the rest, as many requests again, 25 at most.

    Columns: policy, what shortens it; where, its place in the body; what, its kind and tool; ref, what --ref takes;
    before and after, tokens; since, now (decided in this request) or earlier (in one before it).
    """
)
def explain(
    file: RequestFile,
    model: Annotated[str, typer.Option(metavar="MODEL", help="The model to ask, in place of the file's.")] = "",
    preset: PresetName = PRESET,
    config: Config = None,
    aim: AimOption = None,
    context_tokens: ContextTokens = None,
    keep: Keep = None,
    prices: Annotated[str, typer.Option(metavar="MODEL", help="Take the prices of this model.")] = "",
    text_protocol: TextProtocol = False,
    tools: Tools = None,
    html: Html = None,
    ref: Annotated[str, typer.Option(metavar="REF", help="Print what this reference stands for, unchanged.")] = "",
    as_json: AsJson = False,
) -> None:
    """Show what would become of one saved request.

    What would go and why, message by message, with tokens and the input bill before and after. Nothing is sent.
    With --html all of it as a page; what its history has cost so far is found out by replaying that.
    With --ref, the original that a reference stands for in it.
    """
    if ref:
        return _print_original(file, model, ref, html, as_json)
    with refusing():
        own = custom_presets(config)
        check_preset(preset, own)
        check_prices([prices] if prices else [])
        path, body = writable(html, [file]), request_from(file, model)
        choices: dict[str, Any] = {"preset": preset, "aim": aim, "context_tokens": context_tokens}
        choices |= {"text_protocol": text_protocol, "keep": patterns_of(keep or ()), "tools": tools}
        own_preset = own[preset].preset if preset in own else None
        explanation = explained(body, prices=prices_for(prices) if prices else None, own=own_preset, **choices)

    def page(explanation: Explanation) -> str:
        # they load all that a replay needs
        from proxy.lab.pages import explain_page
        from proxy.lab.replay.command import replay_until
        from proxy.lab.replay.environment import Options

        name = "a request" if file == "-" else Path(file).name
        options = Options((prices,) if prices else (), own=own, **choices)
        return explain_page(name, explanation, replay_until(body, name, options))

    print_report(explanation, print_explanation, page, as_json, path)
    return None


def _print_original(file: str, model: str, ref: str, html: str | None, as_json: bool) -> None:
    """Print the text behind a reference in a request: the bytes, and no more."""
    with refusing():
        if html is not None:
            raise ValueError("--html shows the whole request; give it without --ref")
        text = original_text(request_from(file, model), ref)
        if as_json:
            print_json({"ref": ref, "found": text is not None, "text": text})
        if text is None:
            raise ValueError(f"nothing in this request has the ref {ref!r}; --json without --ref lists those it has")
    if not as_json:
        sys.stdout.buffer.write(text.encode("utf-8", "surrogatepass"))
