"""Makes Prometheus metric families from plain numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

#: A number without labels, if there is one, numbers by the value of one label, or pairs of label values and number.
Samples = float | None | Mapping[str, float] | Iterable[tuple[Sequence[str], float]]


def gauge(name: str, meaning: str, samples: Samples, *labels: str) -> Metric:
    """A family of gauges."""
    return _filled(GaugeMetricFamily(f"synrepl_{name}", meaning, labels=labels), samples)


def counter(name: str, meaning: str, samples: Samples, *labels: str) -> Metric:
    """A family of counters."""
    return _filled(CounterMetricFamily(f"synrepl_{name}", meaning, labels=labels), samples)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, samples: Samples) -> Metric:
    if samples is None:
        samples = []
    elif isinstance(samples, int | float):
        samples = [((), samples)]
    elif isinstance(samples, Mapping):
        samples = [((value,), number) for value, number in samples.items()]
    for values, number in samples:
        family.add_metric(values, number)
    return family
