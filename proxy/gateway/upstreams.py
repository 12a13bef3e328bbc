"""The upstreams of the settings, and which of them a request goes to.

Law: the first row that fits counts, of those that the request may use.
"""

from collections.abc import Collection, Iterator, Sequence

from proxy.config import ConfigurationError, Settings, UpstreamRow
from proxy.errors import ApiError
from proxy.gateway.upstream import Upstream
from proxy.telemetry import Telemetry


class Upstreams:
    """All upstreams, made within a running loop."""

    def __init__(self, settings: Settings, telemetry: Telemetry) -> None:
        rows: Sequence[UpstreamRow] = settings.upstream_rows
        if not rows:
            message = "upstream: say where requests go, for example --upstream https://api.openai.com/v1"
            raise ConfigurationError(message)
        self._upstreams = {row.name: Upstream(settings, row, telemetry) for row in rows}

    def __iter__(self) -> Iterator[Upstream]:
        return iter(self._upstreams.values())

    def __getitem__(self, name: str) -> Upstream:
        return self._upstreams[name]

    def choose(self, dialect: str, model: str | None, allowed: Collection[str] = ()) -> Upstream:
        """Where a request in this API to this model goes; None where no model is known. `allowed`: the names of those
        it may use, where not all. Raises ApiError where none fits."""
        for upstream in self:
            if (not allowed or upstream.name in allowed) and upstream.row.fits(dialect, model):
                return upstream
        raise ApiError(404, "No upstream serves this model in this API.", "no_upstream", "model")

    def needs_model(self, dialect: str) -> bool:
        """Whether it depends on the model where requests in this API go."""
        fitting = [upstream for upstream in self if upstream.row.fits(dialect, None)]
        return any(upstream.row.models for upstream in fitting)

    async def close(self) -> None:
        for upstream in self:
            await upstream.close()
