"""The settings about where clients find this Narrows."""

from pathlib import Path

from pydantic import Field

from proxy.config.sources import Configured


class ListenGroup(Configured):
    """Listen"""

    config: Path | None = Field(default=None, description="a TOML file with settings of these names")
    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(default=8787, ge=0, le=65535, description="port to listen on; 0 picks a free one")
    workers: int = Field(default=1, ge=1, le=64, description="processes that serve on this port (Linux)")
    compress_api: bool = Field(default=False, description="serve POST /v1/compress and GET /v1/retrieve/HASH")
