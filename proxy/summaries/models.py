"""Which model writes: the small siblings of models, and what is known of the models that upstreams have.

Laws
  A sibling is of the same maker, and listed with a price. It is asked only where it costs less than the model itself.
  Its name is spelt as the model's: with the same vendor in front, and with dots where that one has dots.
  A model that is not in the table has no sibling, and writes its summaries itself.
  A list of models is asked for once, beside requests, when a sibling would be asked for the first time. Where none
  comes, nothing is known, and the best sibling is tried. It is believed where it names the conversation's own model:
  else it is a list of something else.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress

from cachetools import LRUCache, TTLCache

from policies.money.prices import Prices

_DATE = r"(?:-latest|-preview|-\d{4}(?:-\d\d-\d\d|\d{4})?|-\d\d-\d\d)?"
TABLE: Sequence[tuple[str, Sequence[str]]] = (
    (r"gpt-4o|chatgpt-4o|gpt-4(?:-turbo)?", ("gpt-4o-mini",)),
    (r"gpt-4\.1", ("gpt-4.1-mini",)),
    (r"gpt-5(?:\.[1-3])?(?:-pro|-codex|-codex-max|-chat)?", ("gpt-5-mini",)),
    (r"gpt-5\.[45](?:-pro)?", ("gpt-5.4-mini",)),
    (r"gpt-5\.6(?:-sol|-terra)?", ("gpt-5.6-luna",)),
    (r"gpt-6(?:\.\d)?-(?:sol|terra|astra)", ("gpt-6-luna",)),
    (r"o[13](?:-pro|-preview)?", ("o4-mini",)),
    (r"claude-(?:opus|sonnet|fable|mythos)-\d(?:[-.]\d)?", ("claude-haiku-5-5", "claude-haiku-4-5")),
    (r"claude-3(?:[-.]\d)?-(?:opus|sonnet)", ("claude-haiku-4-5",)),
    (r"gemini-2\.5-pro", ("gemini-2.5-flash",)),
    (r"gemini-3(?:\.\d)?-pro", ("gemini-3.1-flash-lite", "gemini-2.5-flash")),
    (r"gemini-3\.\d-flash", ("gemini-3.5-flash-lite",)),
    (r"gemini-4-argon", ("gemini-3.5-flash-lite",)),
    (r"deepseek-v4-pro", ("deepseek-v4-flash",)),
    (r"deepseek-reasoner", ("deepseek-chat",)),
    (r"mistral-(?:large|medium)(?:-\d)?", ("mistral-small-latest",)),
    (r"grok-3", ("grok-3-mini",)),
    (r"grok-4", ("grok-4-fast-non-reasoning",)),
)
"""Names of models without a vendor and a date, and their siblings, the best first."""
_FAMILIES = tuple((re.compile(f"(?:{name}){_DATE}"), siblings) for name, siblings in TABLE)
_LISTS, _ANSWERS = 1_024, 4_096
_LASTS = 3_600.0
"""Seconds for which a list is believed, or for which it is not asked for again where none came."""
_SECONDS = 5.0
"""Seconds that a list may take."""
_VERSION = re.compile(r"-(?:latest|preview|\d{8}|\d{4}-\d\d-\d\d)$")

Upstream = tuple[str, str]
"""A URL, and whose credential is used there."""


class ModelKnowledge:
    """Remembers, of each upstream and credential, which models it lists and which it has refused."""

    def __init__(self) -> None:
        self._lists: TTLCache[Upstream, Collection[str]] = TTLCache(_LISTS, _LASTS)
        self._answered: LRUCache[tuple[Upstream, str], bool] = LRUCache(_ANSWERS)
        """False where a model was refused."""
        self._tasks: dict[Upstream, asyncio.Task[None]] = {}

    def has(self, upstream: Upstream, sibling: str, model: str) -> bool:
        """True where a sibling of a model is worth a try there, as far as is known."""
        models = self._lists.get(upstream, ())
        is_unlisted = model in models and sibling not in models
        return not is_unlisted and self._answered.get((upstream, sibling), True)

    def refuse(self, upstream: Upstream, model: str) -> None:
        """Remember that the upstream has refused a model."""
        self._answered[upstream, model] = False

    def confirm(self, upstream: Upstream, model: str) -> None:
        """Remember that a model has answered there."""
        self._answered[upstream, model] = True

    def is_certain(self, upstream: Upstream, model: str) -> bool:
        """True where a model has answered there, or is listed."""
        return self._answered.get((upstream, model), False) or model in self._lists.get(upstream, ())

    async def look_up(self, upstream: Upstream, ask: Callable[[], Awaitable[Collection[str]]]) -> None:
        """Have the list by the end, unless there is none, or it was asked for a while ago."""
        if upstream in self._lists:
            return
        if upstream not in self._tasks:
            task = self._tasks[upstream] = asyncio.create_task(self._remember(upstream, ask))
            task.add_done_callback(lambda _: self._tasks.pop(upstream, None))
        await asyncio.wait([self._tasks[upstream]])  # a caller that leaves does not end it for the others

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _remember(self, upstream: Upstream, ask: Callable[[], Awaitable[Collection[str]]]) -> None:
        models: Collection[str] = ()
        with suppress(Exception):  # no list is as good as one that says nothing
            async with asyncio.timeout(_SECONDS):
                models = await ask()
        self._lists[upstream] = _by_name(models)


def _by_name(models: Collection[str]) -> frozenset[str]:
    """The names by which listed models can be asked: without the date that some have, and without Gemini's prefix."""
    plain = {each.removeprefix("models/") for each in models}
    return frozenset((*models, *plain, *(_VERSION.sub("", each) for each in plain)))


def siblings(model: str, prices: Callable[[str], Prices]) -> tuple[str, ...]:
    """The small siblings of a model, the best first, spelt as its upstream spells it; none where it has none."""
    vendor, slash, name = model.rpartition("/")
    names = next((names for family, names in _FAMILIES if family.fullmatch(name)), ())
    spelt = (vendor + slash + _dotted(name, vendor, each) for each in names)
    own, rows = prices(model), [(each, prices(each)) for each in spelt]
    if not (own.listed or own.assumed):  # a model of no family is what a person called so: nothing is known of it
        return ()
    return tuple(each for each, row in rows if row.listed and row.input < own.input and row.output <= own.output)


def _dotted(model: str, vendor: str, sibling: str) -> str:
    """A sibling of Claude as OpenRouter spells it (`claude-haiku-4.5`), where the model is spelt so."""
    is_dotted = re.search(r"\d\.\d", model) or (vendor and not re.search(r"\d-\d", model))
    return re.sub(r"(\d)-(\d)$", r"\1.\2", sibling) if is_dotted and sibling.startswith("claude-") else sibling
