"""The exactly-once sink on Apache Kafka: drivers die, attempts lose, and a broker aborts transactions."""

from collections.abc import Iterator

import pytest
from bench.kafka import ApacheKafka

from barnabas.spark.sink_connection import close_connections
from barnabas.spark.transactions import ALL_ENDED, DECIDED, HALF_ENDED, READY, DriverReplaced, TransactionsLost
from tests.unit.spark.spark_sink_query import Died, Query, all_of, rows_of


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    config = {
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }
    with ApacheKafka(config=config) as kafka:
        yield kafka.bootstrap
    close_connections()


@pytest.fixture
def query(bootstrap: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Query:
    return Query(bootstrap, monkeypatch, f"query{abs(hash(request.node.name))}")


@pytest.mark.parametrize("point", [READY, DECIDED, HALF_ENDED, ALL_ENDED])
@pytest.mark.parametrize("spark_lives", [False, True])
def test_a_driver_that_dies_is_followed_by_one_that_finishes_or_starts_over(
    query: Query, point: str, spark_lives: bool
) -> None:
    first = query.start()
    first.do(0)
    with pytest.raises(Died):
        first.do(1, dies_at=point, spark_lives=spark_lives)
    second = query.start()
    second.do(1)
    second.do(2)
    assert query.seen() == all_of(0, 1, 2)
    assert query.open_transactions() == []


def test_attempts_that_lost_and_old_drivers_change_nothing(query: Query) -> None:
    old = query.start()
    old.do(0)
    late = old.write_all(1)
    new = query.start()
    messages = new.write_all(1)
    new.write(1, 1, rows_of(1, 1), attempt=1)
    new.writer().commit(messages, 1)
    with pytest.raises(DriverReplaced):
        old.writer().commit(late, 1)
    for batch in range(2, 7):
        new.do(batch)
    assert query.seen() == all_of(*range(7))
    assert query.open_transactions() == []


def test_decided_transactions_that_the_broker_aborted_are_reported(query: Query) -> None:
    with pytest.raises(Died):
        query.start().do(0, dies_at=DECIDED)
    query.connection().transactions.abort_all(query.open_transactions()[:1], timeout_ms=1000)
    with pytest.raises(TransactionsLost, match="onLostTransactions=rewrite"):
        query.start().do(0)


def test_at_least_once_is_seen_when_the_task_is_done(query: Query) -> None:
    query.start(deliveryGuarantee="at-least-once").write_all(0)
    assert query.seen() == all_of(0)
