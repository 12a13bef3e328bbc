"""What Narrows is told: every setting, where it comes from, and what cannot work."""

from proxy.config.errors import ConfigurationError
from proxy.config.rules import Mode
from proxy.config.settings import Settings, SummarizerSettings, load_settings
from proxy.config.sources import Configured

__all__ = ["ConfigurationError", "Configured", "Mode", "Settings", "SummarizerSettings", "load_settings"]
