"""Settings: every one, its source, and the refusal of what cannot work."""

from proxy.config.errors import ConfigurationError as ConfigurationError
from proxy.config.groups.compaction import SummarizerSettings as SummarizerSettings
from proxy.config.groups.compaction import SummaryBudget as SummaryBudget
from proxy.config.rules import KeyRow as KeyRow
from proxy.config.rules import Mode as Mode
from proxy.config.settings import Settings as Settings
from proxy.config.settings import load_settings as load_settings
from proxy.config.sources import Configured as Configured
from proxy.config.upstreams import UpstreamRow as UpstreamRow
