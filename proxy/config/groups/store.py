"""The settings about what outlives a process."""

from platformdirs import user_state_path
from pydantic import ByteSize, Field

from proxy.config.sources import Configured
from proxy.config.store_url import StoreUrl

MOST_BYTES = 2**60
"""More than any store has."""


def default_store() -> str:
    """The URL of the store where none is set: a file in the user's state directory."""
    return f"sqlite:///{user_state_path('narrows', appauthor=False) / 'narrows.db'}"


class StoreGroup(Configured):
    """Store"""

    store: StoreUrl = Field(
        default_factory=default_store,
        description="where Narrows stores its decisions: sqlite:///FILE, or redis://HOST for several Narrows",
        json_schema_extra={"default": "narrows.db in the state directory"},
    )
    store_limit: ByteSize | None = Field(
        default=None,
        gt=0,
        le=MOST_BYTES,
        description="bytes in the store, of all tenants; above it Narrows deletes the oldest conversation of the "
        "largest tenant; default: 16GiB in a file, what Redis allows in Redis",
    )
