"""The metrics of all workers in one page: each sends what it has counted, and whoever is asked adds it up.

Counters and histograms are sums. Gauges have the label `worker`: of two processes' memory neither the sum nor the mean
says anything. (prometheus_client's own multiprocess mode takes no collectors, and costs each count a lock and a write.)
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric


class _Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


class _Family(NamedTuple):
    name: str
    help: str
    kind: str
    samples: list[_Sample]


_families = msgspec.msgpack.Decoder(list[_Family])


def packed(registry: CollectorRegistry) -> bytes:
    return msgspec.msgpack.encode(
        [
            _Family(each.name, each.documentation, each.type, [_Sample(*sample[:3]) for sample in each.samples])
            for each in registry.collect()
        ]
    )


def page(workers: Mapping[int, bytes]) -> bytes:
    """The page for Prometheus, from what workers have packed, by their numbers."""
    return generate_latest(_Sums(workers))


class _Sums:
    """Collects what workers have packed, as a registry does."""

    def __init__(self, workers: Mapping[int, bytes]) -> None:
        self._workers = {number: _families.decode(content) for number, content in sorted(workers.items())}

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("narrows_workers", "Workers whose metrics are in this page.", len(self._workers))
        metrics: dict[str, Metric] = {}
        sums: dict[str, dict[tuple[str, frozenset[tuple[str, str]]], float]] = {}
        for number, families in self._workers.items():
            for family in families:
                metrics.setdefault(family.name, Metric(family.name, family.help, family.kind))
                own = {"worker": str(number)} if family.kind == "gauge" else {}
                values = sums.setdefault(family.name, {})
                for sample in family.samples:
                    series = (sample.name, frozenset({**sample.labels, **own}.items()))
                    values[series] = values.get(series, 0.0) + sample.value
        for name, metric in metrics.items():
            for (series_name, labels), value in sums[name].items():
                metric.add_sample(series_name, dict(labels), value)
            yield metric
