"""The settings about the log."""

from typing import Literal

from pydantic import Field

from proxy.config.sources import Configured


class LoggingGroup(Configured):
    """Logging"""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least severe line logged"
    )
    log_format: Literal["auto", "json", "console"] = Field(
        default="auto", description="json lines, console for people, auto: console on a terminal"
    )
