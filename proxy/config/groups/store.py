"""The settings about what outlives a process."""

from pydantic import ByteSize, Field

from proxy.config.sources import Configured
from proxy.config.state import default_store
from proxy.config.store_url import StoreUrl

MOST_BYTES = 2**60
"""More than any store has."""


class StoreGroup(Configured):
    """Store"""

    store: StoreUrl = Field(
        default_factory=default_store,
        description="where decisions are remembered: sqlite:///FILE, or redis://HOST for several Narrows",
        json_schema_extra={"default": "narrows.db in the state directory"},
    )
    store_limit: ByteSize | None = Field(
        default=None,
        gt=0,
        le=MOST_BYTES,
        description="bytes stored of all tenants; whoever holds most gives up its oldest conversation first; "
        "else 16GiB for a file, and what Redis allows",
    )
