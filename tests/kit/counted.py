"""What the metrics have counted."""

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from proxy.telemetry import Telemetry


def counted(page: str | Telemetry, name: str, **labels: str) -> float:
    """The sum of all series of a metric that have these labels."""
    source: CollectorRegistry | str = page if isinstance(page, str) else page.metrics.registry
    families = text_string_to_metric_families(source) if isinstance(source, str) else source.collect()
    samples = [sample for family in families for sample in family.samples if sample.name == f"narrows_{name}"]
    return float(sum(sample.value for sample in samples if labels.items() <= sample.labels.items()))
