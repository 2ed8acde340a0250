"""Reading OpenTelemetry's MetricsData: everything that clients send, and nothing that a hostile client chooses."""

import contextlib
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint

from barnabas.base.errors import Malformed
from barnabas.broker.features.client_metrics import otlp
from barnabas.broker.features.client_metrics.otlp import Series, read
from tests.support.otlp_data import LATENCY, gauge, metrics_data, point, total


def test_gauges_and_sums_are_read_with_their_labels() -> None:
    data = metrics_data(
        gauge(LATENCY, point(1.5, node_id="1"), point(2.5, node_id="2")),
        total("org.apache.kafka.producer.connection.creation.total", point(3.0), is_delta=True),
    )
    assert read(data).series == [
        Series(LATENCY, (("node_id", "1"),), 1.5, False),
        Series(LATENCY, (("node_id", "2"),), 2.5, False),
        Series("org.apache.kafka.producer.connection.creation.total", (), 3.0, True),
    ]


def test_whole_numbers_and_labels_of_other_types_are_read() -> None:
    attributes = [
        KeyValue(key="b", value=AnyValue(bool_value=True)),
        KeyValue(key="d", value=AnyValue(double_value=0.5)),
        KeyValue(key="i", value=AnyValue(int_value=-7)),
    ]
    metric = Metric(name="m", gauge=Gauge(data_points=[NumberDataPoint(as_int=-5, attributes=attributes)]))
    assert read(metrics_data(metric)).series == [Series("m", (("b", "true"), ("d", "0.5"), ("i", "-7")), -5.0, False)]


def test_values_that_are_not_numbers_and_histograms_are_skipped() -> None:
    histogram = Metric(name="h", histogram=Histogram(data_points=[HistogramDataPoint(count=1)]))
    pushed = read(metrics_data(gauge("m", point(math.nan), point(math.inf)), histogram))
    assert (pushed.series, pushed.left_out) == ([], 0)


def test_series_beyond_the_bounds_are_left_out_and_counted() -> None:
    many = gauge("m", *(point(1.0, n=str(n)) for n in range(otlp.SERIES_MAX + 5)))
    pushed = read(metrics_data(many))
    assert (len(pushed.series), pushed.left_out) == (otlp.SERIES_MAX, 5)
    long = gauge("m", point(1.0, label="x" * otlp.TEXT_BYTES_MAX), point(1.0, **{f"l{n}": "" for n in range(17)}))
    assert (read(metrics_data(long)).series, read(metrics_data(long)).left_out) == ([], 2)
    assert read(metrics_data(gauge("n" * (otlp.TEXT_BYTES_MAX + 1), point(1.0)))).left_out == 1


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x0a", "does not end"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "does not end"),
        (b"\x0a\x05\x00", "past the end"),
        (b"\x0b", "wire type 3"),
        (b"\x08\x01" * (otlp.FIELDS_MAX + 1), "more than"),
    ],
)
def test_data_that_are_not_metrics_are_malformed(data: bytes, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        read(data)


@given(st.binary(max_size=300))
def test_bytes_are_read_or_malformed(data: bytes) -> None:
    with contextlib.suppress(Malformed):
        read(data)


@given(st.data())
def test_damaged_metrics_are_read_or_malformed(draw: st.DataObject) -> None:
    data = bytearray(metrics_data(gauge(LATENCY, point(1.5, node_id="1")), total("t", point(3.0))))
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    with contextlib.suppress(Malformed):
        assert len(read(bytes(data)).series) <= len(data)


def test_ten_mebibytes_of_fields_cost_less_than_two_seconds() -> None:
    """10 MiB is the most that a push can have by default, when it is decompressed."""
    hostile = b"\x0a\x00" * (5 * 1024 * 1024)
    began_s = time.process_time()
    with pytest.raises(Malformed):
        read(hostile)
    assert time.process_time() - began_s < 2.0
