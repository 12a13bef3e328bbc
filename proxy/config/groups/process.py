"""The settings about the process: where clients find it, how much it takes and for how long, and its log."""

from pathlib import Path
from typing import Literal, Self

from pydantic import ByteSize, Field, model_validator

from proxy.config.errors import refused_at
from proxy.config.groups.keeping import MOST_BYTES
from proxy.config.sources import Configured
from proxy.config.units import Seconds, size


class ListenGroup(Configured):
    """Listen"""

    config: Path | None = Field(default=None, description="a TOML file with settings of these names")
    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(default=8787, ge=0, le=65535, description="port to listen on; 0 picks a free one")
    workers: int = Field(default=1, ge=1, le=64, description="processes that serve on this port (Linux)")
    compress_api: bool = Field(default=False, description="serve POST /v1/compress and GET /v1/retrieve/HASH")


class LimitsGroup(Configured):
    """Limits"""

    body_limit: ByteSize = Field(default=ByteSize(64 * 2**20), gt=0, description="largest request body, decompressed")
    requests_limit: int = Field(
        default=2048,
        ge=4,
        le=10**6,
        description="requests in flight in a process, 4 or more; one address may have half, one credential a third",
    )
    bytes_limit: ByteSize | None = Field(
        default=None,
        gt=0,
        le=MOST_BYTES,
        description="bytes of bodies in flight in a process, shared in the same way; at least three times "
        "`body_limit`, default: eight times",
    )
    connect_timeout: Seconds = Field(default=10, gt=0, description="how long connecting to the upstream may take")
    read_timeout: Seconds = Field(default=600, gt=0, description="how long the upstream may be silent (no total limit)")
    header_timeout: Seconds = Field(
        default=30,
        gt=0,
        description="how long a client may take for a request's head, from connecting or from the reply before",
    )
    body_timeout: Seconds = Field(
        default=30, gt=0, description="how long a client may be silent in a body, or slower than 1 KiB a second"
    )
    planning_timeout: Seconds = Field(
        default=2,
        gt=0,
        le=600,
        description="how long planning a request may work; three times that with `cold_process`",
    )
    grace: Seconds = Field(default=25, ge=0, description="how long running replies may go on after SIGTERM")

    @model_validator(mode="after")
    def _bodies_have_room(self) -> Self:
        limit, body = self.bytes_limit, self.body_limit
        if limit is not None and limit < 3 * body:  # of which one client gets a third
            text = f"{size(limit)} must be three times body_limit ({size(body)}) or more; raise it"
            raise refused_at([(("bytes_limit",), text)])
        return self


class LoggingGroup(Configured):
    """Logging"""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="the least severe level to log"
    )
    log_format: Literal["auto", "json", "console"] = Field(
        default="auto", description="json; console, for people; or auto, which is console on a terminal"
    )
