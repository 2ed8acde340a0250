import pytest

from barnabas.base.metrics.exposition import render
from barnabas.base.metrics.registry import Registry


def test_same_name_and_labels_are_the_same_metric() -> None:
    registry = Registry()
    registry.counter("requests", "n", api="Fetch").add(2)
    registry.counter("requests", "n", api="Fetch").add()
    assert registry.counter("requests", "n", api="Fetch").value == 3
    assert registry.counter("requests", "n", api="Produce").value == 0


def test_name_has_one_kind() -> None:
    registry = Registry()
    registry.counter("requests", "n")
    with pytest.raises(ValueError, match="is a Counter, not a Histogram"):
        registry.histogram("requests", "n")


def test_exposition_is_prometheus_text() -> None:
    registry = Registry()
    registry.counter("kafka_requests", "Requests.", request="Fetch").add(7)
    registry.gauge("connections", "Open.", lambda: 3)
    registry.histogram("latency_ms", "Time.", request="Fetch").observe_ms(0.2)
    text = render(registry).decode()
    assert 'kafka_requests_total{request="Fetch"} 7.0' in text
    assert "connections 3.0" in text
    assert 'latency_ms_bucket{le="0.25",request="Fetch"} 1.0' in text
    assert 'latency_ms_count{request="Fetch"} 1.0' in text


def test_removed_series_is_no_longer_exposed() -> None:
    registry = Registry()
    registry.counter("bytes", "n", topic="gone").add()
    registry.remove("bytes", topic="gone")
    assert b"gone" not in render(registry)
