"""The upstreams of the settings, and which of them a request goes to.

Law: the first row that fits counts, of those that the request may use.
"""

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import AsyncExitStack, closing
from functools import lru_cache, partial
from typing import Self

from multidict import CIMultiDict

from policies.dialects import DIALECTS
from proxy.config import ConfigurationError, Settings, UpstreamRow
from proxy.config.rules import Rule, first_fitting
from proxy.config.upstreams import MODEL
from proxy.errors import ApiError
from proxy.identity.who import Identity
from proxy.telemetry import Telemetry
from proxy.upstreams.upstream import Upstream

_LOOK = 2.0
"""Seconds between two looks at a file with a key."""
_CHOICES = 1_024
_LONGEST_MODEL = 128


class Upstreams:
    def __init__(self, upstreams: Sequence[Upstream], telemetry: Telemetry) -> None:
        self.by_name = {upstream.name: upstream for upstream in upstreams}
        self.rows = rows = [upstream.row for upstream in upstreams]
        self._telemetry = telemetry
        self.has_keys = any(row.has_key for row in rows)
        """True where a key of the gateway's own may go with requests."""
        self.need_model = {
            api for api in DIALECTS if any(row.models or MODEL in row.url for row in rows if row.fits(api, None))
        }
        """The APIs in which it depends on the model where requests go."""
        self.choose = lru_cache(_CHOICES)(partial(chosen, tuple(rows)))
        """`chosen` of these rows, remembered."""
        self._following = [asyncio.create_task(self._follow(each)) for each in self if each.row.key_file is not None]

    @classmethod
    async def open(cls, settings: Settings, telemetry: Telemetry, *, looks: bool = False) -> Self:
        """Those of the settings; `looks`: find out in the background whether their URLs are those of APIs. Raises
        ConfigurationError where one of them cannot be asked; then none is left."""
        rows = settings.upstream_rows
        if not rows:
            example = '--upstream https://api.openai.com/v1, or in the file upstream = "https://api.openai.com/v1"'
            message = f"upstream: say where requests go, for example {example}"
            raise ConfigurationError(message)
        async with AsyncExitStack() as parts:
            upstreams = list[Upstream]()
            for row in rows:
                upstreams.append(Upstream(settings, row, telemetry))
                parts.push_async_callback(upstreams[-1].close)
            parts.pop_all()
        opened = cls(upstreams, telemetry)
        if looks:
            opened._following += [asyncio.create_task(each.address.look(partial(_status, each))) for each in upstreams]
        return opened

    def __iter__(self) -> Iterator[Upstream]:
        return iter(self.by_name.values())

    async def _follow(self, upstream: Upstream) -> None:
        trouble = ""
        while True:
            await asyncio.sleep(_LOOK)
            before, trouble = trouble, await upstream.outbound.reread()
            if trouble and trouble != before:
                effect = "the previous key stays in use"
                self._telemetry.log.warning(
                    "upstream_key_unreadable", upstream=upstream.name, reason=trouble, effect=effect
                )

    async def close(self) -> None:
        for task in self._following:
            task.cancel()
        for upstream in self:
            await upstream.close()


async def _status(upstream: Upstream, target: str) -> int:
    with closing(await upstream.send("GET", target, CIMultiDict({"Accept": "application/json"}), None)) as reply:
        return reply.status


def row_for(
    rows: Sequence[UpstreamRow],
    rules: Sequence[Rule],
    access: Identity,
    dialect: str,
    model: str,
    *,
    spends: bool = True,
) -> UpstreamRow:
    """Where a client's request goes, by the rules and what its key may use. `model`: "" if unknown. Raises ApiError."""
    rule = None
    if any(each.upstream for each in rules):
        rule = first_fitting(rules, dialect, access.digests, model)
    allowed = access.key.upstreams if access.key is not None else ()
    return chosen(rows, dialect, model or None, allowed, (rule and rule.upstream) or "", spends=spends)


def chosen(
    rows: Sequence[UpstreamRow],
    dialect: str,
    model: str | None,
    allowed: Collection[str] = (),
    rule: str = "",
    *,
    spends: bool = True,
) -> UpstreamRow:
    """Where a request in this API to this model goes: the first row that fits. `model`: None where none is known;
    `allowed`: the names of those it may use, where not all; `rule`: the one that a rule names, which serves any model
    then; `spends`: whether a key of the gateway's own may go with it. Raises ApiError where none fits."""
    needs_key = False
    for row in rows:
        is_allowed = not allowed or row.name in allowed
        if is_allowed and (row.fits(dialect, None) if row.name == rule else not rule and row.fits(dialect, model)):
            if spends or not row.has_key:
                return row
            needs_key = True
    if needs_key:
        message = "This costs the gateway's own key: send a key of this gateway (nrw_...), or ask from its machine."
        raise ApiError(401, message, "invalid_api_key", headers={"x-should-retry": "false"})
    raise _no_upstream(dialect, model, allowed, rule)


def _no_upstream(dialect: str, model: str | None, allowed: Collection[str], rule: str) -> ApiError:
    name = ascii(model)[1:-1][:_LONGEST_MODEL] if model else ""
    what = f"The model `{name}` is" if name else "This request is"
    api = DIALECTS[dialect].label
    where = f"the upstream {rule}, which a rule names for it" if rule else f"any upstream that speaks {api}"
    where += f" and is among those of the key ({', '.join(sorted(allowed))})" if allowed else ""
    return ApiError(404, f"{what} not served here by {where}; see `upstreams`.", "no_upstream", "model")
