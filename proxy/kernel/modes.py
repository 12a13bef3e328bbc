"""What stands around compaction: the modes of requests and the holdout, each with the signature of `Compactor.prepare`.

    by_mode(...)    on       FailOpen(HeldOut(compactor.prepare)), where a share of all conversations is held out
                    observe  FailOpen(Observed)
                    off      bypassed

Laws
  Fail open: whatever goes wrong inside, the client's own bytes go out; a header, a log line and a counter say so.
  Where a request is only observed, or held out, it goes as the client wrote it, and its plan has no effect on the store
  or on anything upstream.
"""

import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import structs

from policies.dialects import TooManyError
from policies.money.bills import Arm
from proxy.errors import ApiError
from proxy.kernel.outgoing import in_arm, unchanged, warning_header
from proxy.kernel.prepare import Compactor
from proxy.memory import Key
from proxy.requests import ClientRequest, PlannedRequest, UpstreamRequest
from proxy.summaries.background import Waiting
from proxy.telemetry import Telemetry

_OBSERVED = {"x-narrows-mode": "observed"}


class Prepare(Protocol):
    async def __call__(self, client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
        """The request that goes upstream. `waiting` is entered while a client that streams waits for a summary. Raises
        ApiError where a policy wants the request to fail, and nothing else."""


@dataclass(frozen=True, slots=True)
class Holdout:
    """A share of all conversations, by a keyed hash of tenant and conversation: each belongs to it for its whole life,
    in every replica, and nobody who chooses a name can tell whether."""

    share: float
    secret: bytes = field(repr=False)

    def arm(self, key: Key) -> Arm:
        """The arm in which a conversation is, unless it leaves that."""
        if not self.share:
            return ""
        return "holdout" if self.has(key) else "on"

    def has(self, key: Key) -> bool:
        if not self.share:
            return False
        name = f"holdout\0{key.tenant}\0{key.conversation}".encode("utf-8", "surrogatepass")
        return int.from_bytes(hmac.digest(self.secret, name, "sha256")[:8]) < self.share * 2**64


async def relayed(client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
    """The client's own bytes, where the settings turn all compaction off: nothing else is there."""
    return structs.replace(unchanged(client_request, "bypassed", "bypassed"), model=None)


async def bypassed(client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
    """The client's own bytes, of one request that is to be left alone."""
    upstream_request = await relayed(client_request)
    return structs.replace(upstream_request, headers={**upstream_request.headers, "x-narrows-ms": "0.0"})


def by_mode(compactor: Compactor, holdout: Holdout, telemetry: Telemetry) -> Prepare:
    """Prepares each request in its own mode."""
    compact: Prepare = HeldOut(compactor, holdout) if holdout.share else compactor.prepare
    modes: Mapping[str, Prepare] = {
        "on": FailOpen(compact, telemetry),
        "observe": FailOpen(Observed(compactor), telemetry),
        "off": bypassed,
    }

    async def prepare(client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
        return await modes[client_request.options.mode](client_request, waiting)

    return prepare


class FailOpen:
    def __init__(self, prepare: Prepare, telemetry: Telemetry) -> None:
        self._prepare = prepare
        self._telemetry = telemetry

    async def __call__(self, client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
        began, warning = time.perf_counter(), dict[str, str]()
        try:
            upstream_request = await self._prepare(client_request, waiting)
        except ApiError:
            raise
        except TooManyError as error:
            self._telemetry.log.warning("too_many", what=error.what, limit=error.limit)
            self._telemetry.metrics.count("too_many", error.what)
            upstream_request = unchanged(client_request, "untouched", "bypassed")
            warning = warning_header([f"too-many-{error.what}"])
        except Exception as error:  # law 6: our trouble is never the client's
            self._telemetry.log.error("failed_open", error=type(error).__name__, exc_info=True)
            upstream_request = unchanged(client_request, "failed-open", "checkpoint:failed-open")
        ms = {"x-narrows-ms": f"{(time.perf_counter() - began) * 1000:.1f}"}
        return structs.replace(upstream_request, headers={**upstream_request.headers, **warning, **ms})


class Observed:
    """The client's own bytes, and what would have become of them."""

    def __init__(self, compactor: Compactor) -> None:
        self._compactor = compactor

    async def __call__(self, client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
        dry = structs.replace(client_request, is_dry=True)
        if not client_request.only_counts:
            planned = await self._compactor.plan(dry)
            return await self._compactor.unread(dry) if planned is None else self._compactor.observed(planned)
        counted = await self._compactor.prepare(dry)
        if counted.body is dry.body:
            return counted
        return UpstreamRequest(dry, dry.body, {**counted.headers, **_OBSERVED})


class HeldOut:
    """Compaction for all conversations but those that are held out, until one of these needs room. The arms are
    compared by what was planned: a conversation that needs room has left either of them."""

    def __init__(self, compactor: Compactor, holdout: Holdout) -> None:
        self._compactor = compactor
        self._holdout = holdout

    async def __call__(self, client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
        compactor = self._compactor
        planned = await compactor.plan(client_request, is_dry=self._holdout.has)
        needs_room = planned is not None and compactor.needs_room(planned)
        if planned is not None and planned.context.client_request.is_dry:
            if not needs_room and not planned.context.live.sent_before(planned.context.conversation) is not None:
                return self._held_out(planned)
            needs_room = True
            planned = None if client_request.only_counts else await compactor.plan(client_request)
        if client_request.only_counts:
            return await compactor.prepare(client_request)
        if planned is None:
            return await compactor.unread(client_request)
        return in_arm(await compactor.compacted(planned, waiting), "left" if needs_room else "on")

    def _held_out(self, planned: PlannedRequest) -> UpstreamRequest:
        """As if it were only observed; but where the upstream may find it too long, it is compacted then, and its reply
        may hold recalls."""
        client_request = planned.context.client_request
        if client_request.only_counts:
            headers = self._compactor.record_and_headers(planned)[1]
            return UpstreamRequest(client_request, client_request.body, {**headers, **_OBSERVED})
        held_out = in_arm(self._compactor.observed(planned), "holdout")
        may_overflow = self._compactor.learned.may_overflow(planned.context, held_out.tokens_sent)
        return structs.replace(held_out, recalls=may_overflow, may_overflow=may_overflow)
