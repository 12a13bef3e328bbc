"""`GET /narrows/usage`: the report that `narrows usage` prints, as JSON or CSV, to whoever may see the figures."""

import asyncio
from dataclasses import replace
from urllib.parse import parse_qsl

from aiohttp import web

from proxy.admin.answers import PRIVATE, PageParts, json_page
from proxy.admin.targets import READ, allow_only
from proxy.billing.usage import as_csv, as_json
from proxy.billing.usage_query import UsageQuery, read_usage
from proxy.errors import ApiError
from proxy.identity import viewer_of

USAGE = "/narrows/usage"
_PARAMETERS = ("by", "since")


async def usage_page(parts: PageParts, request: web.BaseRequest) -> web.Response:
    """The report. Raises ApiError."""
    allow_only(request, READ)
    viewer = viewer_of(request, parts.settings, parts.secret)
    try:
        fields = dict(parse_qsl(request.query_string, keep_blank_values=True, max_num_fields=8))
        if unknown := fields.keys() - set(_PARAMETERS):
            raise ValueError(f"{min(unknown)!r} is not a parameter of this page; it takes {' and '.join(_PARAMETERS)}")
        query = UsageQuery.read(fields.get("by", ""), fields.get("since", ""), parts.clock())
    except ValueError as error:
        raise ApiError(400, f"{error}.", "bad_parameter") from error
    query = replace(query, tenant=viewer.tenant, owner=viewer.owner)
    report = await parts.ask("usage", read_usage(parts.store, query))
    if "text/csv" not in request.headers.get("Accept", ""):
        return json_page(await asyncio.to_thread(as_json, report))
    text = await asyncio.to_thread(as_csv, report)
    headers = {"Content-Type": "text/csv; charset=utf-8", "Vary": "Accept", **PRIVATE}
    return web.Response(body=text.encode(), headers=headers)
