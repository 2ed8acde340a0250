"""Builds pushes as clients send them, with OpenTelemetry's own classes."""

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)

LATENCY = "org.apache.kafka.producer.node.request.latency.avg"


def point(value: float, **labels: str) -> NumberDataPoint:
    return NumberDataPoint(
        as_double=value,
        time_unix_nano=1,
        attributes=[KeyValue(key=key, value=AnyValue(string_value=text)) for key, text in labels.items()],
    )


def gauge(name: str, *points: NumberDataPoint) -> Metric:
    return Metric(name=name, description="d", unit="ms", gauge=Gauge(data_points=points))


def total(name: str, *points: NumberDataPoint, is_delta: bool = False) -> Metric:
    kinds = AggregationTemporality
    temporality = kinds.AGGREGATION_TEMPORALITY_DELTA if is_delta else kinds.AGGREGATION_TEMPORALITY_CUMULATIVE
    return Metric(name=name, sum=Sum(data_points=points, aggregation_temporality=temporality, is_monotonic=True))


def metrics_data(*metrics: Metric) -> bytes:
    scopes = [ScopeMetrics(metrics=[each]) for each in metrics]
    return bytes(MetricsData(resource_metrics=[ResourceMetrics(scope_metrics=scopes)]).SerializeToString())
