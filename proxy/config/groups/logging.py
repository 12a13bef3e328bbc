"""The settings about the log."""

from typing import Literal

from pydantic import Field

from proxy.config.sources import Configured


class LoggingGroup(Configured):
    """Logging"""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="the least severe level to log"
    )
    log_format: Literal["auto", "json", "console"] = Field(
        default="auto", description="json; console, for people; or auto, which is console on a terminal"
    )
