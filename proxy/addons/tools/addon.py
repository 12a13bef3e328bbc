"""Which tools conversations call, where definitions are deferred: what one has called is there from the first request
on in others of its tenant that bring the same list.

Law: names and counts alone are kept, of tools that the request itself lists, and of requests that succeeded.
"""

from policies.dialects.deferring import list_digest
from policies.dialects.tool_lists import tools
from proxy.kernel.addons import Addon, Exchange
from proxy.kernel.defer import CalledTools, first_calls, wants_deferral
from proxy.kernel.services import Services


class CallCounts(Addon):
    def __init__(self, services: Services, called: CalledTools) -> None:
        self._settings, self._called = services.settings, called

    async def finished(self, exchange: Exchange) -> None:
        upstream_request = exchange.upstream_request
        planned = upstream_request.planned if upstream_request is not None else None
        if planned is None or exchange.upstream_status != 200 or exchange.kind != "chat":
            return
        client_request, received = planned.context.client_request, planned.context.received
        if not received.request.brings_tools or not wants_deferral(client_request, self._settings):
            return
        calls = {*first_calls(received.conversation)}
        if calls and (names := calls & {tool.name for tool in tools(received.request)}):
            digest = list_digest(received.request.tool_list)
            self._called.note(client_request.sender.tenant, digest, sorted(names))


async def start(services: Services) -> CallCounts | None:
    deferral = services.compaction.compactor.deferral if services.compaction is not None else None
    return CallCounts(services, deferral.called) if deferral is not None else None
