"""A list of tools of which some definitions are deferred: how each API takes that, and the request with such a list.

Laws
  A definition that stays, or is found, is the very bytes of the client; its order stays.
  Anything that cannot be read without guessing raises UnreadableError: then nothing is deferred.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from itertools import accumulate

from msgspec import structs

from policies.context import TokenCounter
from policies.dialects.common import Request, as_json, decoded, list_at, object_at, objects, text_at
from policies.model.conversation import Block, Conversation
from policies.model.rawjson import Change, Span, UnreadableError, items, members, spliced
from policies.money.prices import Prices
from policies.recall import FINDS, QUERY, RecallAnswer, found_tools
from policies.tools import SEARCH
from policies.tools.deferral import (
    Catalog,
    Definition,
    Terms,
    beside,
    deferred,
    is_last,
    named_in,
    names_of,
    unambiguous,
)

Entry = dict[str, object]
_CATALOGS = 16
"""Lists that are remembered as they were read: those of the agents that are at work."""
_OF_OTHERS = (b'"tool_reference"', b'"tool_search_call"')
"""In the history of a client whose model searches by itself."""
_OF_SEARCHES = ("toolsearch", "searchtool", "findtool", "tool_search")
"""What the name or kind of a tool says that finds others."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DeferralForm:
    takes: Callable[[Request], bool]
    """True where the API, for this model, has a form in which our search can bring definitions."""
    definition: Callable[[Entry], Entry | None]
    """The function that an entry of the list defines; None where it is anything else."""
    tool: Callable[[str, str], bytes]
    """The search tool, by its description and the schema of its parameters."""
    listed: Callable[[Sequence[bytes], Collection[int], bytes], list[bytes]]
    """The entries of a list of which those in these places are deferred, and the search tool."""
    finds_in_list: bool = False
    """True where what a search finds is added at the end of the list."""
    counts_found: bool = False
    """True where the result of a search only names the definitions, so that they have to be counted beside it."""
    has_namespaces: bool = False
    """True where a function is called by a namespace of its own name once a search has loaded it: no client hears of
    that, and without it the API refuses the call."""
    refused: Sequence[bytes] = ()
    """The members that an error names where the upstream does not take this form."""


@dataclass(frozen=True, slots=True, eq=False)
class DeferredTools:
    """The list of a request, and what was decided of it for its conversation."""

    form: DeferralForm
    catalog: Catalog
    places: tuple[int, ...]
    """Of the definitions that are deferred."""
    whole: bytes = field(repr=False)
    """The list as the client wrote it."""
    prices: tuple[float, float]
    """Of a token that is read from the cache or written to it, when that was decided."""

    @property
    def deferred(self) -> tuple[Definition, ...]:
        return tuple(self.catalog.definitions[at] for at in self.places)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(each.name for each in self.deferred)

    def answer(self, arguments: str, last: bool) -> RecallAnswer:
        return found_tools(self.catalog, self.places, arguments, last)

    def called_in(self, conversation: Conversation) -> tuple[Definition, ...]:
        """Those deferred which a history calls."""
        calls = {conversation.blocks[at].tool for at in conversation.kinds.get("call", ())}
        return tuple(each for each in self.deferred if each.name in calls)

    def found_in(self, conversation: Conversation) -> tuple[Definition, ...]:
        """What the searches of a history have found, in this order. Where each has all of the prompt written anew, it
        brings neighbours in as many tokens, that fewer follow; the last that pays brings all that is left."""
        hits, times, every = dict[Definition, None](), 0, self.deferred
        for at, block in enumerate(conversation.blocks):
            new = self._found_by(block)
            if self.form.finds_in_list and (first := [each for each in new if each not in hits]):
                times += 1
                terms = Terms(*self.prices, conversation.client_tokens[at], block.turn + 1, True)
                new += beside(self.catalog, self.places, first, terms.prompt)
                new += every if is_last(times, sum(each.tokens for each in every), terms) else ()
            hits |= dict.fromkeys(new)
        return tuple(hits)

    def list(self, hits: Sequence[Definition] = ()) -> bytes:
        """The list as it is sent."""
        raws = [each.raw for each in self.catalog.definitions]
        listed = self.form.listed(raws, set(self.places), search_tool(self.form, self.catalog, self.places))
        return b"[" + b",".join([*listed, *(each.raw for each in hits if self.form.finds_in_list)]) + b"]"

    def applied_to(self, request: Request, conversation: Conversation, hits: Sequence[Definition]) -> Request:
        """The request as it is sent where so much was found."""
        listed, changes = self.list(hits), list(self._namespaces(request, conversation))
        return with_list(request, listed, changes) if changes or request.tool_list != listed else request

    def _namespaces(self, request: Request, conversation: Conversation) -> Iterator[Change]:
        """What the calls of a history lack of those that the model made, once a search had loaded their tools."""
        loaded = set[str]()
        for block in conversation.blocks if self.form.has_namespaces else ():
            loaded |= {each.name for each in self._found_by(block)}
            if block.kind == "call" and block.tool in loaded:
                start, end = request.spans[block.message]
                if "namespace" not in members(request.body[start:end]):
                    yield (start + 1, start + 1), b'"namespace":%s,' % as_json(block.tool)

    def _found_by(self, block: Block) -> tuple[Definition, ...]:
        """What a block of a history has found: a call that searches, or an item that says what it loads."""
        if block.tool != SEARCH or block.kind not in ("call", "opaque"):
            return ()
        if block.kind == "call":
            return self.answer(block.text, False).tools
        item = decoded(block.text.encode("utf-8", "surrogatepass"))
        loaded = {text_at(tool, "name") for tool in objects(list_at(item, "tools"))}
        return tuple(each for each in self.deferred if each.name in loaded)

    def hidden(self, hits: Sequence[Definition], count: TokenCounter) -> int:
        """Tokens of definitions that the list lacks where so much was found, the search tool taken off."""
        spared = sum(each.tokens for each in self.deferred)
        if self.form.finds_in_list:
            spared -= sum(each.tokens for each in hits)
        return spared - count(search_tool(self.form, self.catalog, self.places).decode())


def search_tool(form: DeferralForm, catalog: Catalog, places: Collection[int]) -> bytes:
    return form.tool(as_json(FINDS.format(names_of(catalog, places))).decode(), QUERY)


def searches(call: str) -> bool:
    """True where a call that a RecallRound holds looks for tools."""
    entry = decoded(call.encode("utf-8", "surrogatepass"))
    names = (text_at(entry, "name"), text_at(object_at(entry, "function"), "name"))
    return SEARCH in names or text_at(entry, "type") == "tool_search_call"


def with_list(request: Request, tools: bytes, more: Iterable[Change] = ()) -> Request:
    """The same request with another list of tools, and other changes; what was found of its messages stays."""
    changes = sorted([(request.tools, tools), *more])
    ends = [end for (_, end), _ in changes]
    shifts = [0, *accumulate(len(new) - (end - start) for (start, end), new in changes)]

    def moved(span: Span) -> Span:
        first, last = (at + shifts[bisect_right(ends, at)] for at in span)
        return first, last

    return structs.replace(
        request,
        body=spliced(request.body, changes),
        spans=tuple(map(moved, request.spans)),
        tools=moved(request.tools),
        lead=moved(request.lead),
        members={name: moved(span) for name, span in request.members.items()},
    )


@lru_cache(maxsize=_CATALOGS)
def catalog_of(form: DeferralForm, tools: bytes, count: TokenCounter) -> Catalog:
    """A list of tools as it is read once. Raises UnreadableError."""
    definitions, is_searched = [], False
    for start, end in items(tools):
        raw = tools[start:end]
        entry = decoded(raw)
        if not isinstance(entry, dict):
            raise UnreadableError("a tool is no object")
        is_searched = is_searched or "defer_loading" in entry or _is_search(entry)
        definitions.append(_definition(form, entry, raw, count(raw.decode("utf-8", "replace"))))
    return Catalog(unambiguous(definitions), list_digest(tools), is_searched or b'"defer_loading"' in tools)


def decided(
    form: DeferralForm,
    request: Request,
    conversation: Conversation,
    catalog: Catalog,
    count: TokenCounter,
    prices: Prices,
    called: Collection[str] = (),
    step: int = -1,
) -> tuple[int, ...]:
    """The places of the definitions that are deferred from this step of the history on; `called`: the tools that others
    have called which have the same list."""
    if any(word in request.body for word in _OF_OTHERS):
        return ()
    blocks = conversation.blocks[: conversation.ends[step]]
    instructions = request.instructions.decode("utf-8", "replace")
    texts = [block.text for block in blocks if block.kind in ("system", "user")]
    fixed = named_in(catalog, [*texts, instructions]) | forced(request) | {*called}
    fixed |= {block.tool for block in blocks if block.kind == "call"}
    prompt, requests = sum(block.tokens for block in blocks) + count(instructions), range(conversation.steps)[step] + 1
    terms = Terms(prices.read, prices.write, prompt, requests, form.finds_in_list)
    every = range(len(catalog.definitions))
    return deferred(catalog, fixed, terms, count(search_tool(form, catalog, every).decode()))


def list_digest(tools: bytes) -> str:
    return sha256(tools).hexdigest()[:32]


def _definition(form: DeferralForm, entry: Entry, raw: bytes, tokens: int) -> Definition:
    function = form.definition(entry)
    if function is None:
        return Definition(raw, tokens)
    schema = object_at(function, "parameters") or object_at(function, "input_schema")
    parameters = " ".join(object_at(schema, "properties"))
    return Definition(raw, tokens, text_at(function, "name"), text_at(function, "description"), parameters)


def _is_search(entry: Entry) -> bool:
    names = text_at(entry, "type"), text_at(entry, "name"), text_at(object_at(entry, "function"), "name")
    spellings = (spelling for name in names for spelling in (name.lower(), name.lower().replace("_", "")))
    return any(word in spelling.replace("-", "") for spelling in spellings for word in _OF_SEARCHES)


def forced(request: Request) -> set[str]:
    """The names in what a request says of the tool that has to be called, or of those that may be."""
    span = request.members.get("tool_choice")
    choice = decoded(request.body[slice(*span)]) if span else None
    holders = [choice, object_at(choice, "allowed_tools")]
    holders += [tool for holder in [*holders] for tool in objects(list_at(holder, "tools"))]
    return {text_at(each, "name") or text_at(object_at(each, "function"), "name") for each in holders} - {""}


def without(raws: Sequence[bytes], places: Collection[int], tool: bytes) -> list[bytes]:
    """The entries but for those deferred, and the search tool behind them."""
    return [*(raw for at, raw in enumerate(raws) if at not in places), tool]
