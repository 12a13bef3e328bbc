"""Windows and prices that upstreams list of their own models (`look_up_models`), and the windows of models at local
addresses, where a model server says how much it has loaded.

Laws
  It stops nothing: where an upstream does not answer, says nothing of use, or something absurd, what was known before
  counts on, and one line in the log says so.
  An answer is bounded in time, bytes and models. Who asks is the gateway: no client's credential goes with it.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
from cachetools import TTLCache
from multidict import CIMultiDict

from policies.dialects import DIALECTS
from policies.model.parameters import MOST
from policies.money.catalog import check_overrides
from proxy.config.routes import VERSIONS
from proxy.errors import ApiError
from proxy.telemetry import Telemetry
from proxy.upstreams.price_book import PriceBook
from proxy.upstreams.upstream import Upstream, document, models_in

_TARGETS = ("/models", "/model/info")
"""Asked in this order until one says something of use; LiteLLM's list of models says nothing but names."""
_HEADERS = {"Accept": "application/json", **VERSIONS}
_SECONDS = 5.0
_MOST_BYTES, _MOST_MODELS = 2**23, 10_000
_AGAIN, _SOON = 3600.0, 30.0
"""Seconds between two look-ups, and as long as none has worked."""
_DEAREST = 10_000
"""Dollars per million tokens; more is another unit, or a mistake."""
_LONGEST_NUMBER, _LONGEST_NAME = 40, 256
_LOCAL_SECONDS = 2.0
"""For all that a local server is asked of one model; a request waits for it, once."""
_LOADED = ("max_model_len", "meta.n_ctx", "context_length")
"""Where local servers list the window of a model: vLLM and SGLang, llama.cpp, others."""
_NUM_CTX = re.compile(r"^num_ctx\s+(\d{1,9})$", re.MULTILINE)
_NOTHING = "it lists neither windows nor prices"

Fields = dict[str, float | int]


class Shape(NamedTuple):
    """Where a list says what of a model: names of members, with a dot from one to the next. Prices are dollars per
    token, as numbers or as text."""

    name: str
    window: str
    input: str = ""
    output: str = ""
    read: str = ""
    write: str = ""


SHAPES: Sequence[Shape] = (
    Shape("id", "max_model_len"),  # vLLM
    Shape("id", "max_input_tokens"),  # Anthropic
    Shape(  # OpenRouter
        "id",
        "context_length",
        "pricing.prompt",
        "pricing.completion",
        "pricing.input_cache_read",
        "pricing.input_cache_write",
    ),
    Shape(  # LiteLLM, in /model/info
        "model_name",
        "model_info.max_input_tokens",
        "model_info.input_cost_per_token",
        "model_info.output_cost_per_token",
        "model_info.cache_read_input_token_cost",
        "model_info.cache_creation_input_token_cost",
    ),
)
"""A model is read in the first shape in which it says anything. OpenAI's and Ollama's lists hold names alone."""


def overrides_in(content: Any) -> dict[str, Fields]:
    """The window and prices of each model of a list, in the form of the setting `models`. Raises ValueError where it is
    no list. Of several entries for one model the smallest window and the highest prices count."""
    listed: dict[str, Fields] = {}
    for model in models_in(content)[:_MOST_MODELS]:
        for shape in SHAPES:
            name, fields = _member(model, shape.name), _fields(model, shape)
            if fields and isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME:
                listed[name] = _merged(listed.get(name, {}), fields)
                break
    return listed


def _fields(model: object, shape: Shape) -> Fields:
    window = _window(_member(model, shape.window))
    fields: Fields = {} if window is None else {"window": window}
    paid = _price(_member(model, shape.input))
    if paid:  # nothing is relative to a price of nothing, and no output has a price without an input's
        output, *cached = (_price(_member(model, way)) for way in (shape.output, shape.read, shape.write))
        prices = {"input": float(paid)} | ({"output": float(output)} if output is not None else {})
        # lists have 0 where a cache has no price of its own
        relative = {name: float(each / paid) for name, each in zip(("read", "write"), cached, strict=True) if each}
        fields |= _valid({**prices, **relative})
    return fields


def _valid(fields: Fields) -> Fields:
    try:
        check_overrides({"": fields})
    except ValueError:
        return {}
    return fields


def _merged(one: Fields, other: Fields) -> Fields:
    windows = [each["window"] for each in (one, other) if "window" in each]
    dearer = max(one, other, key=lambda each: (each.get("input", 0), each.get("output", 0)))
    return {**dearer, **({"window": min(windows)} if windows else {})}


def _member(model: object, way: str) -> Any:
    for name in way.split("."):
        model = model.get(name) if isinstance(model, dict) else None
    return model


def _window(value: Any) -> int | None:
    window = _number(value)
    return int(window) if window is not None and 0 < window <= MOST and window == int(window) else None


def _price(value: Any) -> Decimal | None:
    """Dollars per million tokens, from dollars per token."""
    number = _number(value)
    return number * 1_000_000 if number is not None and 0 <= number <= Decimal(_DEAREST) / 1_000_000 else None


def _number(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    text = str(value) if not isinstance(value, int) or abs(value) <= MOST else ""
    try:
        number = Decimal(text) if len(text) <= _LONGEST_NUMBER else None
    except ArithmeticError:
        return None
    return number if number is not None and number.is_finite() else None


class ModelLookup:
    """Asks upstreams for their lists, before anything is served and then now and again."""

    def __init__(self, upstreams: Iterable[Upstream], price_book: PriceBook, telemetry: Telemetry) -> None:
        self._by_name = {each.name: each for each in upstreams}
        self._upstreams = [each for each in self._by_name.values() if each.row.look_up_models]
        self._price_book = price_book
        self._log = telemetry.log
        self._answered: set[str] = set()
        self._failing: set[str] = set()
        self._following: list[asyncio.Task[None]] = []
        self._asking: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._silent: TTLCache[str, bool] = TTLCache(1024, _SOON)
        """Local servers that have just not answered in time: whatever names clients send, they are not asked again."""
        price_book.ask_window = self.ask_window

    async def open(self) -> None:
        await asyncio.gather(*map(self._look_up, self._upstreams))
        self._following = [asyncio.create_task(self._follow(each)) for each in self._upstreams]

    async def close(self) -> None:
        for task in (*self._following, *self._asking.values()):
            task.cancel()

    async def ask_window(self, model: str, upstream: str) -> None:
        """Ask an upstream's server for a model's window; where it is not reached, the next request does so again."""
        name = (model, upstream)
        if name not in self._asking:
            task = self._asking[name] = asyncio.create_task(self._learn_window(model, self._by_name[upstream]))
            task.add_done_callback(lambda _: self._asking.pop(name, None))
        await asyncio.wait([self._asking[name]])  # a client that leaves does not end it for the others

    async def _learn_window(self, model: str, upstream: Upstream) -> None:
        window: int | None = None
        if upstream.name in self._silent:
            return
        try:
            async with asyncio.timeout(_LOCAL_SECONDS):
                window = await _window_at(upstream, model)
        except TimeoutError:
            self._silent[upstream.name] = True
        except ApiError:
            return
        self._price_book.take_window(model, upstream.name, window)
        self._log.info("local_model", upstream=upstream.name, model=model[:_LONGEST_NAME], window=window)

    async def _follow(self, upstream: Upstream) -> None:
        while True:
            await asyncio.sleep(_AGAIN if upstream.name in self._answered else _SOON)
            await self._look_up(upstream)

    async def _look_up(self, upstream: Upstream) -> None:
        fault: str
        models: Mapping[str, Fields] = {}
        try:
            async with asyncio.timeout(_SECONDS):
                models = await self._listed(upstream)
            fault = "" if models else _NOTHING
        except TimeoutError:
            fault = f"it did not answer in {_SECONDS:g} s"
        except ApiError as error:
            fault = error.message
        except (RecursionError, ValueError):
            fault = f"it sent something that is no list, or more than {_MOST_BYTES} bytes"
        if fault and upstream.name not in self._failing:
            self._log.warning("models_not_looked_up", upstream=upstream.name, reason=fault)
        (self._failing.add if fault else self._failing.discard)(upstream.name)
        if models and self._price_book.take_list(upstream.row, models):
            self._log.info("models_looked_up", upstream=upstream.name, models=len(models))

    async def _listed(self, upstream: Upstream) -> Mapping[str, Fields]:
        whole = [api.http.models.whole for api in DIALECTS.values() if api.label in upstream.row.apis]
        page = f"?{whole[0]}" if whole and all(whole) else ""
        for target in _TARGETS:
            headers = CIMultiDict(_HEADERS)
            status, content = await document(upstream, "GET", target + page, headers, most=_MOST_BYTES)
            if status != 200 and target == _TARGETS[0]:
                raise ApiError(502, f"it answered {status}", "no_models")
            models = await asyncio.to_thread(overrides_in, content) if content is not None else {}
            self._answered.add(upstream.name)
            if models:
                return models
        return {}


async def _window_at(upstream: Upstream, model: str) -> int | None:
    """The tokens that a local server has loaded a model with; those that it was trained with where it says no more.
    Raises ApiError where it cannot be reached."""
    entries: list[Any] = []
    with suppress(ValueError):
        entries = models_in(await _answer(upstream, "GET", "/models"))
    same = [each for each in entries if _member(each, "id") == model] or entries[:1] * (len(entries) == 1)
    entry = same[0] if same and _member(same[0], "pricing") is None else None
    loaded = next((window for way in _LOADED if (window := _window(_member(entry, way)))), None)
    if loaded is None:  # llama.cpp
        props = await _answer(upstream, "GET", "/props", beside=True)
        loaded = _window(_member(props, "default_generation_settings.n_ctx"))
    if loaded is None:  # Ollama
        details = await _answer(upstream, "POST", "/api/show", msgspec.json.encode({"model": model}), beside=True)
        chosen = _NUM_CTX.search(str(_member(details, "parameters") or ""))
        info = _member(details, "model_info")
        about = info if isinstance(info, dict) else {}
        sizes = [each for name, each in about.items() if name.endswith(".context_length")]
        loaded = _window(int(chosen[1]) if chosen else next(iter(sizes), None))
    return loaded or _window(_member(entry, "meta.n_ctx_train"))


async def _answer(upstream: Upstream, method: str, target: str, body: bytes | None = None, beside: bool = False) -> Any:
    """The JSON that a local server answers; None where there is none. `beside`: at a path outside its API."""
    headers = CIMultiDict({**_HEADERS, **({"Content-Type": "application/json"} if body else {})})
    with suppress(ValueError, RecursionError):
        return (await document(upstream, method, target, headers, body, most=_MOST_BYTES, beside=beside))[1]
    return None
