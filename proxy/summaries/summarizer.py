"""A chain of models that write summaries, asked through the official SDKs of their APIs; where one fails, the next.

Laws
  Hosts and keys come from the configuration. A client's own credential is sent where its requests are sent, in the same
  API, and with one request: nothing here stores it. No variable of the SDKs in the environment is read, and no redirect
  is followed.
  Every failure is a SummarizerError, within `summary_timeout` once the SDK is there, and holds no text and no key.
"""

import asyncio
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from urllib.parse import quote

import httpx2

from policies.dialects import DIALECTS, Dialect
from policies.dialects.dialect import is_completion_limited, limit
from policies.model.summary_record import Criteria, SummaryCost
from policies.money.prices import Prices, Usage
from policies.presets import AS_CONFIGURED, WritingOptions
from policies.text.summary_checks import End
from proxy.config import ConfigurationError, Settings, SummarizerSettings, UpstreamRow
from proxy.config.groups.compaction import SAME
from proxy.identity.credential import CredentialStates, seconds_of
from proxy.summaries.endpoints import ASKED, PROOF, Completion, Endpoint, ModelRequest
from proxy.summaries.models import ModelKnowledge, Upstream, siblings
from proxy.upstreams.price_book import PriceBook

_REFUSED_KEY = 600.0
"""Seconds in which a key of the gateway's own is not used after it was refused."""
_FILLED = 0.9
"""How much of its window a sibling may be given: tokens are counted with another vocabulary than its own."""
_LONGEST_ERROR = 4_096
"""Characters of an error that are read."""
_ABOUT_SIZE = re.compile("too long|too large|context|max", re.I)
"""Words of refusals that are about the size of the material, whatever else they name."""


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """An answer, the model that gave it, and its cost with that of the failures before it."""

    text: str
    model: str
    end: End
    spent: SummaryCost
    charged: float = 0.0
    """Dollars that it takes from the budget: prices that are not known are assumed."""


class SummarizerError(Exception):
    """There is no answer; `reason` is one word. About the last of the chain: timeout, limited, server, refused,
    unreachable or garbled; about the caller: busy, paused, stopped or budget."""

    def __init__(self, reason: str, spent: SummaryCost | None = None, charged: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.spent = spent or SummaryCost()
        self.charged = charged


class Summarizer:
    """The chain for each API in which a conversation may be."""

    def __init__(
        self, settings: Settings, states: CredentialStates | None = None, price_book: PriceBook | None = None
    ) -> None:
        for name in ("openai", "anthropic"):  # at their debug level the SDKs log what they send
            logging.getLogger(name).setLevel(logging.WARNING)
        self._seconds = settings.summary_timeout
        self._states = states or CredentialStates()
        self._knowledge = ModelKnowledge()
        self._endpoints: _Endpoints = {}
        self._chains = _chains(settings, price_book or PriceBook(settings), self._endpoints)

    def models(self, dialect: str, model: str, writing: WritingOptions = AS_CONFIGURED) -> tuple[str, ...]:
        """The models that may be asked, whoever pays, for a conversation in this API with `model`."""
        chain = self._chains[dialect, ""]
        return tuple(name for entry in chain for name in entry.candidates(model, writing))

    def first(self, request: ModelRequest) -> tuple[str, Prices] | None:
        """The model that is asked first, as far as is known, and its prices; None where none may be."""
        return next(((name, entry.prices(name)) for name, entry in self._in_order(request)), None)

    def may_ask(self, request: ModelRequest) -> bool:
        """True where any may be asked now: not with a credential that was refused, or is over its rate limit."""
        return not all(self._states.is_blocked(entry.payer(request)) for entry in self._chain(request))

    async def look_up(self, request: ModelRequest) -> None:
        """Learn which models the upstream has, where a sibling of the model would be asked. Takes a few seconds."""
        for entry in self._chain(request):
            if len(self._usable(entry, request)) > 1 and not self._states.is_blocked(entry.payer(request)):
                await self._knowledge.look_up(entry.upstream(request), partial(entry.models, request))

    def estimate(self, request: ModelRequest) -> float:
        """The most dollars that one answer is likely to cost. Where no price is known, one is assumed."""
        return max((entry.estimate(model, request) for model, entry in self._in_order(request)), default=0.0)

    async def write(self, request: ModelRequest) -> GeneratedText:
        """The answer of the first model in the chain that gives one. Raises SummarizerError."""
        now = asyncio.get_running_loop().time
        end, spent, charged, reason = now() + self._seconds, SummaryCost(), 0.0, "paused"
        chain = self._chain(request)
        for at, entry in enumerate(chain):
            models = [] if self._states.is_blocked(entry.payer(request)) else self._usable(entry, request)
            for model in models:
                try:
                    completion = await entry.ask(request, model, (end - now()) / (len(chain) - at))
                except _NoAnswerError as error:
                    reason, spent = error.reason, spent + entry.cost(model, error.billed)
                    charged += entry.charge(model, request, error.billed, reason)
                    if not self._may_go_on(entry, model, request, error):
                        break
                else:
                    self._knowledge.confirm(entry.upstream(request), model)
                    spent += entry.cost(model, completion)
                    charged += entry.charge(model, request, completion)
                    return GeneratedText(completion.text, model, completion.end, spent, charged)
        raise SummarizerError(reason, spent, charged)

    async def close(self) -> None:
        await self._knowledge.close()
        for endpoint in self._endpoints.values():
            await endpoint.http.aclose()

    def _chain(self, request: ModelRequest) -> "list[_ChainEntry]":
        """The entries that may be asked for this request, with the credentials that pay for it."""
        payment = request.payment
        chain = self._chains[request.dialect, request.upstream]
        return [entry for entry in chain if (payment.gateway if entry.has_key else payment.client)]

    def _in_order(self, request: ModelRequest) -> "Iterator[tuple[str, _ChainEntry]]":
        """The models in the order in which they are asked, each with its entry."""
        return ((name, entry) for entry in self._chain(request) for name in self._usable(entry, request))

    def _usable(self, entry: "_ChainEntry", request: ModelRequest) -> list[str]:
        """The models of an entry in the order in which they are asked: siblings that the upstream has, as far as is
        known, and that can take the material; the last one is asked in any case, unless one before it is certain."""
        upstream, usable = entry.upstream(request), list[str]()
        *small, last = entry.candidates(request.model, request.writing)
        for name in small:
            window = entry.prices(name).window
            has_room = window is None or request.tokens + request.most <= _FILLED * window
            if has_room and self._knowledge.has(upstream, name, request.model):
                usable.append(name)
                if self._knowledge.is_certain(upstream, name):
                    return usable
        return [*usable, last]

    def _may_go_on(self, entry: "_ChainEntry", model: str, request: ModelRequest, error: "_NoAnswerError") -> bool:
        """True where another model may be asked with the same credential. What was refused is remembered."""
        if error.refuses_model:
            self._knowledge.refuse(entry.upstream(request), model)
        elif error.status in (401, 403, 429):
            is_for_long = entry.has_key and error.status != 429  # nobody else would find that it is accepted again
            after = _REFUSED_KEY if is_for_long else error.retry_after
            self._states.note(entry.payer(request), 429 if is_for_long else error.status, after)
        return error.refuses_model or error.status == 400  # as where the material is too long for a sibling


def criteria_for(
    settings: Settings, summarizer: Summarizer, request: ModelRequest, policy: str, prompt: str
) -> Criteria:
    """The terms that a record must have been written under to count now; `prompt`: the instructions' version."""
    options = request.writing.stale.over(settings.stale)
    required = summarizer.models(request.dialect, request.model, request.writing) if options.same_model else ()
    return Criteria(policy, prompt, required, options.ttl or settings.summary_ttl)


_Refusal = tuple[int, float | None, bool]
"""The status of an upstream's error, after how many seconds it may be asked again, and if the model is why."""
_NO_REFUSAL: _Refusal = (0, None, False)


class _NoAnswerError(Exception):
    """One of the chain gave no answer; `billed` is a completion that was billed nevertheless."""

    def __init__(self, reason: str, billed: Completion | None = None, refusal: _Refusal = _NO_REFUSAL) -> None:
        super().__init__(reason)
        self.reason, self.billed = reason, billed
        self.status, self.retry_after, self.refuses_model = refusal


class _ChainEntry:
    """One entry of `summarizers`."""

    def __init__(self, entry: SummarizerSettings, endpoint: Endpoint, provider: str, price_book: PriceBook) -> None:
        self._model = entry.model
        self._provider = provider
        self._key_env = entry.key_env
        self._key = os.environ[entry.key_env] if entry.key_env else ""
        self._endpoint = endpoint
        self.prices = partial(price_book.prices, upstream=endpoint.outbound.row.name)
        """The prices of a model where this entry is asked."""
        self.has_key = bool(entry.key_env) or endpoint.outbound.row.has_key

    def payer(self, request: ModelRequest) -> str:
        """The name of that credential."""
        own = self._key_env or f"@{self._endpoint.outbound.row.name}"
        return f"${own}" if self.has_key else request.owner

    def upstream(self, request: ModelRequest) -> Upstream:
        return self._endpoint.base, self.payer(request)

    def candidates(self, model: str, writing: WritingOptions) -> tuple[str, ...]:
        """The models to ask for a conversation with `model`, in order: the next one where one is refused."""
        name = self._model or writing.model(self._provider)
        if not name:
            return *siblings(model, self.prices), model
        return (model if name == SAME else name,)

    def cost(self, model: str, completion: Completion | None) -> SummaryCost:
        """The cost of a completion; where it has no usage, only that there was one."""
        if completion is None or completion.usage is None:
            return SummaryCost(calls=int(completion is not None))
        usage, prices = completion.usage, self.prices(model)
        dollars = prices.cost(usage).total if prices.listed else 0.0
        return SummaryCost(1, usage.prompt, usage.cached, usage.written, usage.completion, dollars)

    def charge(self, model: str, request: ModelRequest, completion: Completion | None, reason: str = "") -> float:
        """Dollars that a call takes from the budget, at assumed prices where these are not known. One without usage
        counts as estimated where it may have been billed."""
        if completion is not None and completion.usage is not None:
            return self.prices(model).cost(completion.usage).total
        is_free = completion is None and reason in ("refused", "limited", "server", "unreachable")
        return 0.0 if is_free else self.estimate(model, request)

    def estimate(self, model: str, request: ModelRequest) -> float:
        """The most dollars that a call is likely to cost."""
        most = limit(request.most, model, is_completion_limited(model))
        return self.prices(model).cost(Usage(request.tokens, 0, 0, most)).total

    async def models(self, request: ModelRequest) -> frozenset[str]:
        """The names of the models that the upstream lists. Raises what says that there is no list."""
        return await self._endpoint.models(self._headers(request))

    async def ask(self, request: ModelRequest, model: str, seconds: float) -> Completion:
        """The answer, within so many seconds. Raises _NoAnswerError."""
        await self._endpoint.connect()  # before the clock runs: importing the SDK is no fault of the model
        errors: tuple[type[Exception], ...] = (*self._endpoint.errors, httpx2.HTTPError, OSError, UnicodeError)
        refusal = _NO_REFUSAL
        try:
            async with asyncio.timeout(seconds):
                headers = {**self._headers(request), ASKED: quote(model)}
                body = await self._endpoint.ask(request, model, headers)
            completion = self._endpoint.read(body)
        except TimeoutError:
            reason = "timeout"
        except errors as error:
            reason, refusal = _reason(error), _refusal(error, model)
        except (ValueError, RecursionError):
            reason = "garbled"
        else:
            if completion.readable:
                return completion
            raise _NoAnswerError("garbled", completion if completion.usage else None)
        # not where the other error was caught: that one holds the request, and with it the credential
        raise _NoAnswerError(reason, refusal=refusal)

    def _headers(self, request: ModelRequest) -> dict[str, str]:
        header, before = self._endpoint.api.http.key
        auth = {header: before + self._key} if self._key else self._endpoint.outbound.proof or request.auth
        return {PROOF + name: value for name, value in auth.items()}


_Endpoints = dict[tuple[str, str, Dialect], Endpoint]
_Chains = Mapping[tuple[str, str], Sequence[_ChainEntry]]
"""Who is asked for a conversation in an API at an upstream, by both names; "" is the first upstream of the API."""


def _chains(settings: Settings, price_book: PriceBook, endpoints: _Endpoints) -> _Chains:
    """All chains; their endpoints, which are to be closed, are put into `endpoints`."""

    def chain(dialect: str, row: UpstreamRow | None) -> Sequence[_ChainEntry]:
        provider = DIALECTS[dialect].provider
        pairs = ((entry, _endpoint(settings, entry, dialect, row, endpoints)) for entry in settings.summarizers)
        return tuple(
            _ChainEntry(entry, endpoint, entry.provider or provider, price_book)
            for entry, endpoint in pairs
            if endpoint is not None
        )

    first = {(dialect, ""): chain(dialect, settings.upstream_row_of(dialect)) for dialect in DIALECTS}
    rows = product(DIALECTS, settings.upstream_rows)
    return first | {(dialect, row.name): chain(dialect, row) for dialect, row in rows}


def _endpoint(
    settings: Settings, entry: SummarizerSettings, dialect: str, row: UpstreamRow | None, endpoints: _Endpoints
) -> Endpoint | None:
    """Where an entry is asked for a conversation in this API; None where it is not. Without a key of its own it is
    asked where the conversation is, with the credential that goes there, so it must be of the same provider."""
    api = DIALECTS[dialect]
    if entry.key_env:
        maker = entry.provider or "openai"
        api = next(each for each in DIALECTS.values() if each.provider == maker and each.writing is not None)
        row = settings.upstream_row_of(api.name)
        if (url := entry.base_url) is not None:
            if api.http.adds_version:  # people leave it out for clients that add it themselves
                url = url.removesuffix("/v1") + "/v1"
            row = UpstreamRow(name="summaries", url=url)
        elif row is not None:  # the entry's key takes the place of the row's
            row = row.model_copy(update={"auth": "passthrough", "key_env": "", "key_file": None})
        if row is None:
            raise ConfigurationError("upstream: say where requests go; `summarizers` asks there")
    elif entry.provider not in (None, api.provider) or row is None:
        return None
    if api.writing is None:
        return None
    name = (row.name, row.url, api) if not row.has_key else (f"${row.name}", row.url, api)
    if name not in endpoints:
        endpoints[name] = Endpoint(row, api, api.writing, settings)
    return endpoints[name]


def _reason(error: Exception) -> str:
    """The fault in a word. SDKs keep the error below theirs as its cause."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return "limited" if status == 429 else "server" if status >= 500 else "refused"
    cause = error.__cause__ or error
    if isinstance(cause, httpx2.TimeoutException | TimeoutError):
        return "timeout"
    return "unreachable" if isinstance(cause, httpx2.HTTPError | OSError) else "garbled"


def _refusal(error: Exception, model: str) -> _Refusal:
    """The meaning of an error of an SDK for the credential, or about the model: a 404 is about that; a 400 or 403 where
    it speaks of models; a 401 where it names this one, as gateways do that allow a key some models only."""
    status, response = getattr(error, "status_code", None), getattr(error, "response", None)
    if not isinstance(status, int) or response is None:
        return _NO_REFUSAL
    text = str(error)[:_LONGEST_ERROR].lower()
    speaks = (status in (400, 403) and "model" in text) or (status in (400, 401, 403) and model.lower() in text)
    is_about_model = status == 404 or (speaks and not _ABOUT_SIZE.search(text))
    return status, seconds_of(response.headers.get("retry-after")), is_about_model
