"""What Narrows is told: every setting, where it comes from, and what cannot work."""

from proxy.config.errors import ConfigurationError
from proxy.config.keys import KeyRow
from proxy.config.rules import Mode
from proxy.config.settings import Settings, load_settings
from proxy.config.sources import Configured
from proxy.config.summarizers import SummarizerSettings, SummaryBudget
from proxy.config.upstreams import UpstreamRow

__all__ = [
    "ConfigurationError",
    "Configured",
    "KeyRow",
    "Mode",
    "Settings",
    "SummarizerSettings",
    "SummaryBudget",
    "UpstreamRow",
    "load_settings",
]
