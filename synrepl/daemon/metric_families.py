"""Makes Prometheus metric families from plain numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

#: Pairs of label values and metric value.
Samples = Iterable[tuple[Sequence[str], float]]


def by_one(counts: Mapping[str, float]) -> Samples:
    """Samples with one label, from a mapping."""
    return [((name,), count) for name, count in counts.items()]


def gauge(name: str, meaning: str, labels: Sequence[str], samples: Samples) -> Metric:
    """A family of gauges."""
    return _filled(GaugeMetricFamily(f"synrepl_{name}", meaning, labels=labels), samples)


def counter(name: str, meaning: str, labels: Sequence[str], samples: Samples) -> Metric:
    """A family of counters."""
    return _filled(CounterMetricFamily(f"synrepl_{name}", meaning, labels=labels), samples)


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily, samples: Samples
) -> GaugeMetricFamily | CounterMetricFamily:
    for values, value in samples:
        family.add_metric(values, value)
    return family
