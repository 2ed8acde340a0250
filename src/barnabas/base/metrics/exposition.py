"""Prometheus text exposition of a `Registry`.

`prometheus-client` formats the text. It is imported at the first scrape, so that brokers without scrapes do not load it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from barnabas.base.metrics.registry import LATENCY_BUCKETS_MS, Counter, Family, Gauge, Histogram, Registry, Table

if TYPE_CHECKING:
    from prometheus_client.core import Metric as PrometheusMetric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(registry: Registry) -> bytes:
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

    collectors = CollectorRegistry(auto_describe=False)
    collectors.register(_Collector(registry))
    ProcessCollector(registry=collectors)  # memory, CPU and open files, with the names that other programs use
    return generate_latest(collectors)


class _Collector:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def collect(self) -> "Iterator[PrometheusMetric]":
        for family in list(self._registry.families()):
            yield _translate(family)


def _translate(family: Family) -> "PrometheusMetric":
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    if family.kind is Table:
        return _translate_table(family)
    names = sorted({name for labels in family.series for name, _ in labels})
    out: PrometheusMetric
    if family.kind is Counter:
        out = CounterMetricFamily(family.name, family.help, labels=names)
    elif family.kind is Gauge:
        out = GaugeMetricFamily(family.name, family.help, labels=names)
    else:
        out = HistogramMetricFamily(family.name, family.help, labels=names)
    for labels, metric in family.series.items():
        by_name = dict(labels)
        values = [by_name.get(name, "") for name in names]
        if isinstance(metric, Histogram):
            assert isinstance(out, HistogramMetricFamily)
            out.add_metric(values, _cumulative(metric), metric.total_ms)
        elif isinstance(metric, Counter):
            assert isinstance(out, CounterMetricFamily)
            out.add_metric(values, metric.value)
        else:
            assert isinstance(out, GaugeMetricFamily) and isinstance(metric, Gauge)
            out.add_metric(values, metric.read())
    return out


def _translate_table(family: Family) -> "PrometheusMetric":
    from prometheus_client.core import GaugeMetricFamily

    rows = [row for table in family.series.values() if isinstance(table, Table) for row in table.read()]
    names = list(rows[0][0]) if rows else []
    out = GaugeMetricFamily(family.name, family.help, labels=names)
    for labels, value in rows:
        out.add_metric([labels[name] for name in names], value)
    return out


def _cumulative(metric: Histogram) -> list[tuple[str, float]]:
    seen, rows = metric.zeros.value, []
    for bound, hits in zip((*map(str, LATENCY_BUCKETS_MS), "+Inf"), metric.buckets, strict=True):
        seen += hits
        rows.append((bound, float(seen)))
    return rows
