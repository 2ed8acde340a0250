"""Which batches are traced, and that all brokers choose the same ones without communication."""

from barnabas.base.config.properties import of_opentelemetry
from barnabas.base.ids import TopicPartition
from barnabas.broker.features.tracing.spans import Span, Tracing
from tests.manual_time import ManualClock

PARTITION = TopicPartition("orders", 3)


def tracing(broker_id: int, ratio: float, *, cluster_id: str = "cluster", spans: list[Span] | None = None) -> Tracing:
    kept: list[Span] = [] if spans is None else spans
    return Tracing(cluster_id=cluster_id, broker_id=broker_id, ratio=ratio, clock=ManualClock(), emit=kept.append)


def test_all_brokers_of_a_cluster_choose_the_same_batches_and_call_them_alike() -> None:
    leader, follower = tracing(1, 0.2), tracing(2, 0.2)
    chosen = [leader.of_batch(PARTITION, offset) for offset in range(2000)]
    assert chosen == [follower.of_batch(PARTITION, offset) for offset in range(2000)]
    some = [each for each in chosen if each is not None]
    assert 300 < len(some) < 500 and len(set(some)) == len(some)
    assert [leader.root_of(each) for each in some] == [follower.root_of(each) for each in some]
    other = tracing(1, 0.2, cluster_id="another")
    assert [other.of_batch(PARTITION, offset) for offset in range(2000)] != chosen


def test_no_batch_or_every_batch() -> None:
    assert all(tracing(1, 0.0).of_batch(PARTITION, offset) is None for offset in range(100))
    assert all(tracing(1, 1.0).of_batch(PARTITION, offset) is not None for offset in range(100))


def test_spans_of_a_follower_belong_to_the_leaders_and_have_ids_of_their_own() -> None:
    spans: list[Span] = []
    for broker_id in (2, 3):
        follower = tracing(broker_id, 1.0, spans=spans)
        trace_id = follower.of_batch(PARTITION, 7)
        assert trace_id is not None
        follower.followed("follower append", [(trace_id, PARTITION, 7)], start_s=0.0, end_s=0.25, leader=1)
    assert {span.parent_id for span in spans} == {tracing(1, 1.0).root_of(spans[0].trace_id)}
    assert len({span.span_id for span in spans}) == 2
    assert [span.end_ns - span.start_ns for span in spans] == [250_000_000] * 2


def test_variables_of_opentelemetry_are_settings() -> None:
    assert of_opentelemetry({}) == {}
    assert of_opentelemetry({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_SAMPLER_ARG": "0.5"}) == {
        "barnabas.otel.endpoint": "http://c:4318",
        "barnabas.otel.sample.ratio": "0.5",
    }
    both = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t/v1/traces"}
    assert of_opentelemetry(both) == {"barnabas.otel.endpoint": "http://t/v1/traces"}
