"""All metrics: their types, labels and help, and what the values of labels mean."""

from collections.abc import Iterator, Mapping

from proxy.telemetry.metrics import Metrics
from tests.docs.reference.markdown import items

INTRODUCTION = """\
# Metrics

`GET /metrics` has these, for Prometheus: counters end with `_total`, histograms with `_seconds`, and all others are
gauges. Labels stand in brackets. [Telemetry](../../addons/telemetry/README.md#metrics) says who may read them, and how
they are bounded."""
NOTES: Mapping[str, str] = {
    "narrows_prompt_tokens_sent_total": "Those of the first round of a reply.",
    "narrows_billed_tokens_total": "`kind`: `input`, `cached`, `written`, `output`. Where the provider reports no "
    "usage, `input` is an estimate.",
    "narrows_cost_usd_total": "Where prices are known. `kind`: `request` of a client; `recall`, rounds that answer "
    "one; `ping`; `summary` or digest.",
    "narrows_cost_baseline_marked_usd_total": "Its difference from the baseline is what marks save.",
    "narrows_cost_unknown_total": "`reason`: `no_usage`, an estimate; `no_price`, no dollars.",
    "narrows_cache_total": "`outcome`: `first` of its conversation; `read`, all or most of the request before; "
    "`bridged`, read behind a pause that would have outlived the cache without pings and longer lifetimes; `expired` "
    "in a pause; `rewritten` by Narrows or the client; `missed`, by none of these; `unreported` usage.",
    "narrows_prefix_total": "`outcome`: as in the header `x-narrows-prefix`.",
    "narrows_refused_total": "`limit`: `requests` or `bytes` in flight, or one of a key (`rpm`, `tpm`, `usd_per_day`, "
    "`concurrency`). `whose`: this `client`, `all` together, or `key:NAME`.",
    "narrows_shed_total": "`reason`: too much planning (`queue`), a late event `loop`, or too much `time`.",
    "narrows_connections_closed_total": "`reason`: to make `room`, or because a client took nothing of its reply "
    "(`stalled`).",
    "narrows_upstream_requests_total": "Each round by itself. `code`: the status of the reply, or the "
    "[error](errors.md) where none came.",
    "narrows_store_bytes": "In Redis only with `store_limit`.",
    "narrows_actions_total": "The newest action of each. `sight`: all that it used was `shown`, or something of it "
    "was `hidden`.",
    "narrows_overflows_total": "`outcome`: `retried` (a shorter prompt was accepted), `failed` (it was refused, too), "
    "`no_room` (nothing could be cut), `later_round` (of a reply that had begun).",
    "narrows_cold_replays_total": "`outcome`: in the spare `process`, or in a thread because that was `busy` or has "
    "`failed`; `left`: the client left.",
    "narrows_summaries_total": "`outcome`: among others `budget` (used up), `no_credential` (only a sign-in token, "
    "and no key of the gateway's own).",
    "narrows_agreements_total": "`compared`: `narrows`, one with Narrows; `itself`, both without. `outcome`: `same` "
    "where they agree.",
    "narrows_shadows_total": "`outcome`: `compared`; `recalled` (an edited shadow called the recall tool); `unread` "
    "(an incomplete or too large reply); `failed`; `budget` (used up); `dropped` (too many at once, overload, or "
    "after failures); `store` (in trouble).",
    "narrows_shadow_cost_usd_total": "In no other sum.",
    "narrows_breakers_open": "`name`: see [breakers](../../kernel/wire/README.md#breakers).",
    "narrows_store_seconds": "For a request or a summary.",
    "narrows_build_info": "The digest is the same for processes with the same settings (apart from secrets, `config`, "
    "`host`, `port` and `store`).",
}
"""What the help on the page for Prometheus does not say."""
WORKERS = ("narrows_workers", (), "Workers whose metrics are in this page; with `workers` alone.")

OTHERS = """\
With `workers`, gauges have the label `worker`, too. On Linux the page also has the process's own use under the names of
Prometheus' clients, such as `process_cpu_seconds_total` and `process_resident_memory_bytes`."""


def metrics() -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Name, labels and help of each."""
    own = Metrics()
    for family in own.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield name, tuple(getattr(family, "_labelnames")), family.documentation  # noqa: B009 - no other way
    for gauge in dict.fromkeys(own.registry._names_to_collectors.values()):
        (family,) = gauge.describe()
        yield family.name, tuple(getattr(gauge, "_labelnames")), family.documentation  # noqa: B009 - likewise
    yield WORKERS


def page() -> str:
    """The page."""
    return "\n\n".join([INTRODUCTION, items(_text(*metric) for metric in metrics()), OTHERS]) + "\n"


def _text(name: str, labels: tuple[str, ...], about: str) -> str:
    names = f" ({', '.join(f'`{label}`' for label in labels)})" if labels else ""
    return f"`{name}`{names}: {about} {NOTES.get(name, '')}".rstrip()
