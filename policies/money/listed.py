"""The prices that genai-prices lists, from the snapshot that it carries. Loading it takes a while: the catalog does
that when it is asked for its first model.

A model is looked for by its name, then by that name as its maker spells it. One that is not listed at all has the cache
rule and the prices of the newest model of its family that is not above it. Nothing that is assumed is a limit: neither
a window nor a price tier. A name of no family gets what loses least where it is wrong.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache

from genai_prices.data_snapshot import find_provider_by_id, get_snapshot
from genai_prices.types import ModelInfo, ModelPrice, Provider, TieredPrices, TimeOfDateConstraint

from policies.money.caches import marks_only
from policies.money.prices import CAUTIOUS, Prices

_LONGEST_NAME = 256
_NOT_IN_SNAPSHOT = {
    "gpt-6.2-sol": Prices(
        input=2.0,
        output=10.0,
        read=0.05,
        write=1.25,
        breakpoints=True,
        tiers=((272_000, 2.0),),
        output_tiers=((272_000, 1.5),),
        window=1_050_000,
        longest_prompt=922_000,
        listed=True,
    )
}
_LONGEST_PROMPTS = {1_050_000: 922_000}
"""By the window of OpenAI's models: the rest of it is for the answer alone."""
_FAMILIES = frozenset({"sol", "terra", "luna", "astra", "opus", "sonnet", "haiku", "fable", "mythos", "grok"})
"""Names that models of one kind share over their versions, whatever else is in the name."""
_BARE_GPT = frozenset({"gpt", "sol"})
"""The kind that a name without one means, from GPT-5.6 on."""
_REGION_AND_VENDOR = re.compile(r"^(?:[a-z][a-z-]*\.)+(?=[a-z])")
_ENDING = re.compile(r"(?:-v\d+)?:\d+$|:[a-z]+$|-v\d+$|[-@](?:\d{8}|\d{4}-\d\d-\d\d|latest|default|preview)$")
_WORDS = re.compile(r"\d+b(?![a-z])|[a-z]+|\d+")


def listed_prices(model: str) -> Prices:
    """The prices of the snapshot; assumed ones for a model that it does not list, or lists without a price."""
    if len(model) > _LONGEST_NAME:
        return replace(CAUTIOUS, model=model)
    for name in _spellings(model.lower()):
        if (prices := _listed(name)) is not None:
            return replace(prices, model=model)
    kin = _kin(model.lower())
    prices = _listed(kin) if kin else None
    if prices is None:
        return replace(CAUTIOUS, model=model)
    return replace(
        prices, model=model, assumed=kin, listed=False, window=None, longest_prompt=None, tiers=(), output_tiers=()
    )


@lru_cache(maxsize=256)  # a pure function; it tries the patterns of some hundred models
def _listed(name: str) -> Prices | None:
    info = _find(name)
    if info is None:
        return _NOT_IN_SNAPSHOT.get(name)
    price = _current_price(info)
    paid = _base(price.input_mtok)
    if not paid:
        return replace(CAUTIOUS, window=info.context_window)
    read, write = _base(price.cache_read_mtok), _base(price.cache_write_mtok)
    return Prices(
        input=float(paid),
        output=float(_base(price.output_mtok) or 0),
        read=0.1 if read is None else float(read / paid),
        write=1.0 if write is None else float(write / paid),
        breakpoints=marks_only(info.id, write is not None),
        tiers=_tiers(price.input_mtok),
        output_tiers=_tiers(price.output_mtok),
        window=info.context_window,
        longest_prompt=_LONGEST_PROMPTS.get(info.context_window or 0) if info.id.startswith("gpt-") else None,
        listed=True,
    )


def _spellings(name: str) -> Iterator[str]:
    """The name, then without vendor, region and what stands behind the version, with dashes, and with dots."""
    yield name
    if (plain := _plain(name)) != name:
        yield plain
    for pattern, between in ((r"(?<=\d)\.(?=\d)", "-"), (r"(?<=\d)-(?=\d)", ".")):
        if (spelt := re.sub(pattern, between, plain)) != plain:
            yield spelt


def _plain(name: str) -> str:
    name = _REGION_AND_VENDOR.sub("", name.rpartition("/")[2])
    while (shorter := _ENDING.sub("", name)) != name:
        name = shorter
    return name


def _kin(name: str) -> str:
    """The listed model of the family with the highest version not above that of the name, or at all; "" for none."""
    words, version = _words_and_version(name)
    kin = [each for each in _makers_models() if words and each[0] == words]
    if not kin and (family := words & _FAMILIES):
        first = _WORDS.findall(_plain(name))[0]  # another maker's, or a person's, may have such a word
        makers = (each for each in _makers_models() if words == family or each[2].startswith(f"{first}-"))
        sharing = [each for each in makers if family <= each[0]]
        fewest = min((len(words ^ each[0]) for each in sharing), default=0)
        kin = [each for each in sharing if len(words ^ each[0]) == fewest]
    below = [each for each in kin if version and each[1] <= version]
    return max(below or kin, key=lambda each: each[1], default=(words, 0.0, ""))[2]


def _words_and_version(name: str) -> tuple[frozenset[str], float]:
    """The words of a name, and its version as a decimal number, as 4.20 is before 4.3; 0 for none."""
    parts = _WORDS.findall(_plain(name))
    numbers = [each for each in parts if each.isdecimal()]
    version = float(".".join(each for each in numbers[:2] if len(each) < 3) or 0)  # four digits are a date
    words = frozenset(parts) - frozenset(numbers)
    return (_BARE_GPT if words == {"gpt"} and version >= 5.6 else words), version


@lru_cache(maxsize=1)
def _makers_models() -> tuple[tuple[frozenset[str], float, str], ...]:
    """The models that their makers list with prices of text: their words, versions and names."""
    providers = get_snapshot().providers
    names = [
        model.id
        for provider in providers
        if provider.model_match is not None
        for model in provider.models
        if "/" not in model.id and provider.model_match.is_match(model.id) and _base(_current_price(model).output_mtok)
    ]
    return tuple((*_words_and_version(name), name) for name in (*names, *_NOT_IN_SNAPSHOT))


def _find(name: str) -> ModelInfo | None:
    """By the maker's own name, then by a vendor in front of it, then as OpenRouter spells it. Not through the
    snapshot's own lookup: that one remembers every name it was ever asked for."""
    providers = get_snapshot().providers
    vendor, _, rest = name.partition("/")
    bare = name.rpartition("/")[2]
    tries = (
        (_maker(providers, name), name),
        (find_provider_by_id(providers, vendor) if rest else None, rest),
        (_maker(providers, bare), bare),
        (find_provider_by_id(providers, "openrouter"), name),
    )
    for provider, ref in tries:
        if provider is not None and (model := provider.find_model(ref, all_providers=providers)) is not None:
            return model
    return None


def _maker(providers: list[Provider], name: str) -> Provider | None:
    return next((p for p in providers if p.model_match is not None and p.model_match.is_match(name)), None)


def _current_price(model: ModelInfo) -> ModelPrice:
    """The newest price; where it depends on the time of day, the highest of the day."""
    if isinstance(model.prices, ModelPrice):
        return model.prices
    current = [model.prices[0].prices]
    for entry in model.prices:
        earlier = current if isinstance(entry.constraint, TimeOfDateConstraint) else []
        current = [*earlier, entry.prices]
    return max(current, key=lambda price: _base(price.input_mtok) or Decimal(0))


def _base(price: Decimal | TieredPrices | None) -> Decimal | None:
    return price.base if isinstance(price, TieredPrices) else price


def _tiers(price: Decimal | TieredPrices | None) -> tuple[tuple[int, float], ...]:
    if not isinstance(price, TieredPrices):
        return ()
    return tuple((tier.start, float(tier.price / price.base)) for tier in price.tiers)
