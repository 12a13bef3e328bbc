"""How figures and names are written, on a page and on a terminal."""

from policies.money.bills import BillSums

UNKNOWN_PRICE = "unknown price"


def dollars(amount: float) -> str:
    digits = 2 if amount >= 100 else 3 if amount >= 0.1 else 4 if amount >= 0.01 else 5
    return f"{amount:,.{digits}f}"


def money(amount: float | None) -> str:
    """Dollars, where the price is known."""
    return UNKNOWN_PRICE if amount is None else f"${dollars(amount)}"


def signed(amount: float) -> str:
    """Dollars gained or lost."""
    size = abs(amount)
    written = f"{size:,.2f}" if size >= 1 else dollars(size)
    return "$0" if size < 5e-6 else f"{'−' if amount < 0 else ''}${written}"


def short(tokens: float) -> str:
    """Three digits are enough for a table."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if tokens >= size:
            return f"{tokens / size:.{2 if tokens < 10 * size else 1}f}{letter}"
    return str(tokens)


def percent(share: float) -> str:
    return f"{share:.1%}".replace("-", "−")


def counted(count: int, name: str) -> str:
    return f"{count:,} {name if count == 1 else f'{name}s'}"


def change_of(before: int, after: int) -> str:
    """How much less is sent."""
    saved = 1 - after / before if before else 0.0
    return f"{abs(saved):.0%} {'less' if saved >= 0 else 'more, for the recall tool'}"


def pauses_in_words(sums: BillSums) -> str:
    """What pauses cost and what pings and longer lifetimes saved, without a stop; empty where there was neither."""
    expired, bridged = counted(sums.expired, "request"), counted(sums.bridged, "request")
    words = (
        (sums.expired, f"the provider's cache had expired before {expired}, which cost {money(sums.pause_cost)}"),
        (
            sums.bridged,
            f"pings or a longer lifetime kept the cache before {bridged}, which saved about {money(sums.pause_saving)}",
        ),
        (sums.pings, f"{counted(sums.pings, 'ping')} cost {money(sums.ping_cost)}"),
    )
    return "; ".join(text for count, text in words if count)


def bill_in_words(sums: BillSums) -> tuple[str, str]:
    """The cost of requests, and the saving, as two sentences without their stops."""
    summaries = f", and {money(sums.summaries)} for summaries" if sums.summaries else ""
    less = f"{money(abs(sums.saved))} {'less' if sums.saved > 0 else 'more'} than" if sums.saved else "the same as"
    is_in_vain = sums.saved <= 0 < sums.original <= sums.sent
    why = ": the prompts got no shorter, as in most short sessions" if is_in_vain else ""
    unpriced = f", {counted(sums.unpriced, 'request')} of unknown price not counted" if sums.unpriced else ""
    return (
        f"{counted(sums.requests, 'request')}, {short(sums.original)} prompt tokens received, {short(sums.sent)} sent;"
        f" paid {money(sums.paid)}{summaries}",
        f"by an estimate {less} without Narrows ({money(sums.baseline)}){unpriced}{why}",
    )
