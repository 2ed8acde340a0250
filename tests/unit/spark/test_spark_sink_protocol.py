"""The exactly-once sink without Spark: tasks write, drivers decide, die at every point, come back late; each row is seen once.

Against real brokers, with transactions that time out and with prepared ones that do not (KIP-939).
"""

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.base.errors import ConfigError, ErrorCode
from barnabas.client.blocking_transactions import BlockingTransactions, Initialised
from barnabas.client.errors import BrokerRefused
from barnabas.client.transactions import Transactions
from barnabas.spark import sink, transactions
from barnabas.spark.checkpoint import BY_CALLER
from barnabas.spark.pipelines import sinks
from barnabas.spark.pipelines.connector import Origin
from barnabas.spark.sink import Written
from barnabas.spark.sink_connection import SinkConnection, close_connections
from barnabas.spark.transactions import (
    ALL_ENDED,
    DECIDED,
    HALF_ENDED,
    READY,
    BatchNotWritten,
    DriverReplaced,
    TransactionsLost,
)
from barnabas.testing import Kafka, wait_until
from barnabas.testing.cluster import Cluster
from tests.unit.spark.spark_sink_query import SCHEMA, Died, Query, Run, Task, all_of, rows_of

#: A cluster for tests has it: where it is off must be said.
TWO_PHASE, TIMES_OUT = ({"transaction.two.phase.commit.enable": value} for value in ("true", "false"))


@pytest.fixture(scope="module")
def two_phase_cluster() -> Iterator[Cluster]:
    with Cluster(brokers=1, config=TWO_PHASE) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def plain_cluster() -> Iterator[Cluster]:
    with Cluster(brokers=1, config=TIMES_OUT) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def mixed_cluster() -> Iterator[Cluster]:
    """Two-phase commit is a read-only setting: a cluster that enables it, broker by broker, is mixed for a while."""
    spread = {"transaction.state.log.num.partitions": "16"}
    with Cluster(brokers=2, config=spread, broker_config={1: TWO_PHASE, 2: TIMES_OUT}) as cluster:
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def connections() -> Iterator[None]:
    yield
    close_connections()


@pytest.fixture(params=["plain_cluster", "two_phase_cluster", "mixed_cluster"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    found: Cluster = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def query(cluster: Cluster, kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> Query:
    return Query(cluster.bootstrap, monkeypatch, kafka.name("query"))


def test_batches_are_seen_when_they_are_decided(query: Query) -> None:
    run = query.start()
    messages = run.write_all(0)
    assert query.seen() == []
    run.writer().commit(messages, 0)
    assert query.seen() == all_of(0)
    for batch in range(1, 6):  # past the cycle of transactional ids
        run.do(batch)
    assert query.seen() == all_of(*range(6))
    assert query.open_transactions() == []


@pytest.mark.parametrize("spark_lives", [False, True])
@pytest.mark.parametrize("point", [READY, DECIDED, HALF_ENDED, ALL_ENDED])
def test_a_driver_that_dies_is_followed_by_one_that_finishes_or_starts_over(
    query: Query, point: str, spark_lives: bool
) -> None:
    first = query.start()
    first.do(0)
    with pytest.raises(Died):
        first.do(1, dies_at=point, spark_lives=spark_lives)
    if spark_lives and point == READY:
        assert query.open_transactions() == []
    second = query.start()
    messages = second.do(1)
    if point == READY:
        assert not any(message.skipped for message in messages if message)
    # Else a task skips what was decided, unless the decision's marker is still on its way: then its rows are given up.
    second.do(2)
    assert query.seen() == all_of(0, 1, 2)
    assert query.open_transactions() == []


def test_a_batch_that_was_decided_and_ended_is_not_written_again(query: Query) -> None:
    query.start().do(0)
    again = query.start()
    assert all(message is not None and message.skipped for message in again.do(0))
    assert query.seen() == all_of(0)


#: The requests of a driver.
STEPS = ("initialise", "ongoing", "keep_all", "describe_all", "end", "end_all", "abort_all")


def pause_before(patch: pytest.MonkeyPatch, number: int, meanwhile: Callable[[], object]) -> list[str]:
    """Run `meanwhile` before the step of this number. Return the steps, as they come."""
    steps: list[str] = []

    def paused(step: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            steps.append(step)
            if len(steps) == number:
                meanwhile()
            return original(*args, **options)

        return call

    for step in STEPS:
        patch.setattr(BlockingTransactions, step, paused(step, getattr(BlockingTransactions, step)))
    return steps


def decides_and_dies(run: Run, messages: list[Written | None], batch: int) -> None:
    with contextlib.suppress(Died, DriverReplaced):
        run.writer(DECIDED).commit(messages, batch)


@pytest.mark.parametrize("comes_again", [False, True])
def test_driver_that_is_paused_at_any_step_aborts_nothing_that_another_one_decides(
    plain_cluster: Cluster, kafka: Kafka, monkeypatch: pytest.MonkeyPatch, comes_again: bool
) -> None:
    """Meanwhile another start decides, and dies. `comes_again`: it has written the batch of the paused driver before."""
    for pause_at in itertools.count(1):
        query = Query(plain_cluster.bootstrap, monkeypatch, f"{kafka.name('query')}-{pause_at}")
        query.start().do(0)
        late, other = query.start(), query.start()
        if comes_again:
            other.do(1)
        theirs_is = 2 if comes_again else 1
        ours, writer = late.write_all(1), late.writer()
        theirs = other.write_all(theirs_is)
        with monkeypatch.context() as patch:
            steps = pause_before(patch, pause_at, partial(decides_and_dies, other, theirs, theirs_is))
            with contextlib.suppress(DriverReplaced, BatchNotWritten):
                writer.commit(ours, 1)
        if len(steps) < pause_at:
            return
        for batch in (theirs_is, theirs_is + 1):
            query.start().do(batch)
        assert query.seen() == all_of(*range(theirs_is + 2)), f"paused before {steps[:pause_at]}"
        assert query.open_transactions() == []


def test_rows_of_attempts_that_lost_are_never_seen(query: Query) -> None:
    """A speculative attempt and a task that died after writing: Spark tells the driver of one attempt of each task."""
    run = query.start()
    messages = run.write_all(0)
    run.write(0, 1, rows_of(0, 1), attempt=1)
    dead = run.write(0, 2, rows_of(0, 2), attempt=7)
    assert dead.records == 5
    assert len(query.open_transactions()) == 5
    run.writer().commit(messages, 0)
    assert query.seen() == all_of(0)
    assert query.open_transactions() == []
    # The first batch of a start aborts what earlier starts have left; later ones abort only what has lost.
    messages = run.write_all(1)
    run.write(1, 1, rows_of(1, 1), attempt=1)
    run.writer().commit(messages, 1)
    assert query.seen() == all_of(0, 1)
    assert query.open_transactions() == []


def test_an_attempt_of_a_repeated_stage_does_not_fence_the_winner_of_its_number(query: Query) -> None:
    """Spark numbers attempts from 0 again: one of the stage before may have won already, or win while this one writes."""
    run = query.start()
    for batch in range(6):  # past the cycle of transactional ids
        messages = run.write_all(batch)
        late = run.write(batch, 1, rows_of(batch, 1))
        assert late.transactional_id != (messages[1].transactional_id if messages[1] else None)
        if batch % 2:
            messages[1] = late
        run.writer().commit(messages, batch)
        assert query.open_transactions() == []
    assert query.seen() == all_of(*range(6))


def test_an_old_driver_that_comes_back_decides_nothing(query: Query) -> None:
    old = query.start()
    old.do(0)
    late = old.write_all(1)
    new = query.start()
    new.do(1)
    with pytest.raises(DriverReplaced, match="started again"):
        old.writer().commit(late, 1)
    with pytest.raises(DriverReplaced):
        old.do(2)
    new.do(2)
    assert query.seen() == all_of(0, 1, 2)
    assert query.open_transactions() == []


def test_of_two_drivers_that_decide_the_same_batch_the_first_wins(query: Query) -> None:
    """The old driver decides while the new one's tasks still write: what they wrote is aborted, and the new one has to end."""
    old, new = query.start(), query.start()
    theirs = old.write_all(0)
    ours = new.write_all(0)
    old.writer().commit(theirs, 0)
    with pytest.raises(DriverReplaced, match="an earlier start of it went on"):
        new.writer().commit(ours, 0)
    new.writer().abort(ours, 0)
    old.do(1)  # the abort has not fenced it
    again = query.start()
    again.do(1)
    assert query.seen() == all_of(0, 1)
    assert query.open_transactions() == []


def test_a_driver_that_is_fenced_while_it_decides_fails_with_driver_replaced(query: Query) -> None:
    old, new = query.start(), query.start()
    theirs = old.write_all(0)
    writer = old.writer()
    seen: list[str] = []

    def reached(point: str) -> None:
        if point == READY and not seen:
            seen.append(point)
            new.do(0)

    writer.reached = reached  # type: ignore[method-assign]
    with pytest.raises(DriverReplaced, match="taken over"):
        writer.commit(theirs, 0)
    assert query.seen() == all_of(0)


def test_a_transaction_gone_before_the_decision_fails_the_batch_whole(query: Query) -> None:
    run = query.start()
    messages = run.write_all(0)
    assert messages[1] is not None and messages[1].transactional_id is not None
    query.connection().transactions.abort_all([messages[1].transactional_id], timeout_ms=1000)
    with pytest.raises(BatchNotWritten, match=r"1 of its 3 transactions.*will be written again"):
        run.writer().commit(messages, 0)
    assert query.seen() == []
    query.start().do(0)
    assert query.seen() == all_of(0)
    assert query.open_transactions() == []


def lose(query: Query, run: Run, count: int) -> None:
    """Let the driver die after deciding; before it comes back, the brokers abort transactions."""
    with pytest.raises(Died):
        run.do(0, dies_at=DECIDED)
    names = query.open_transactions()
    assert len(names) == 3
    query.connection().transactions.abort_all(names[:count], timeout_ms=1000)


def test_decided_transactions_that_a_broker_aborted_fail_the_query_until_an_option_decides(query: Query) -> None:
    lose(query, query.start(), 1)
    for _ in range(2):
        with pytest.raises(TransactionsLost, match=r"1 of its 3 .*onLostTransactions=rewrite"):
            query.start().do(0)
    with pytest.raises(TransactionsLost, match="Start the query again"):
        query.start(onLostTransactions="rewrite").do(0)
    query.start().do(0)
    seen = query.seen()
    assert sorted(set(seen)) == all_of(0)
    assert len(seen) == 25


def test_lost_rows_are_skipped_where_the_user_says_so(query: Query) -> None:
    lose(query, query.start(), 1)
    run = query.start(onLostTransactions="skip")
    run.do(0)
    query.start().do(1)
    assert len(query.seen()) == 25


def test_a_decision_whose_transactions_are_all_gone_is_void(query: Query) -> None:
    lose(query, query.start(), 3)
    with pytest.raises(TransactionsLost, match="Nothing of it is seen"):
        query.start().do(0)
    query.start().do(0)
    assert query.seen() == all_of(0)


def test_a_batch_is_not_decided_without_the_rows_of_tasks_that_took_it_for_decided(query: Query) -> None:
    """The tasks read a decision that another driver was just voiding."""
    run = query.start()
    messages = run.write_all(0)
    assert messages[1] is not None
    messages[1] = Written(messages[1].batch, skipped=True)
    with pytest.raises(BatchNotWritten, match="1 of its tasks found it decided"):
        run.writer().commit(messages, 0)
    assert query.seen() == []
    query.start().do(0)
    assert query.seen() == all_of(0)
    assert query.open_transactions() == []


def test_prepared_transactions_do_not_time_out_and_undecided_ones_do(
    two_phase_cluster: Cluster, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(two_phase_cluster.bootstrap, monkeypatch, kafka.name("query"))
    with pytest.raises(Died):
        query.start().do(0, dies_at=DECIDED)
    described = query.connection().transactions.describe_all(query.open_transactions())
    assert {state.transaction_timeout_ms for state in described.values()} == {2**31 - 1}  # type: ignore[union-attr]
    run = query.start()
    run.write(1, 0, ["x"])
    (name,) = [name for name in query.open_transactions() if run.run in name]
    state = query.connection().transactions.describe_all([name])[name]
    assert state.transaction_timeout_ms == 60000  # type: ignore[union-attr]
    query.forget(1)
    query.start().do(0)
    assert query.seen() == all_of(0)


def timeouts_ms(query: Query) -> set[int]:
    described = query.connection().transactions.describe_all(query.open_transactions())
    return {state.transaction_timeout_ms for state in described.values()}  # type: ignore[union-attr]


@pytest.mark.parametrize("point", [READY, DECIDED, HALF_ENDED, ALL_ENDED])
def test_coordinators_that_differ_in_two_phase_commit_let_a_batch_be_seen_whole(
    mixed_cluster: Cluster, kafka: Kafka, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    query = Query(mixed_cluster.bootstrap, monkeypatch, kafka.name("query"))
    run, tasks = query.start(), 16
    messages = run.write_all(0, tasks)
    with pytest.raises(Died):
        run.writer(dies_at=point).commit(messages, 0)
    if point in (READY, DECIDED):
        assert timeouts_ms(query) == {60000, 2**31 - 1}, "both kinds of coordinators have a part"
    again = query.start()
    again.writer().commit(again.write_all(0, tasks), 0)
    again.do(1)
    assert query.seen() == sorted(all_of(0, tasks=tasks) + all_of(1))
    assert query.open_transactions() == []


def test_a_transaction_prepared_by_a_coordinator_that_then_lost_its_place_is_written_again(
    mixed_cluster: Cluster, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its new identity was lost with the answer: a coordinator without two-phase commit that takes over cannot return it."""
    query = Query(mixed_cluster.bootstrap, monkeypatch, kafka.name("query"))
    run = query.start()
    messages = run.write_all(0, 16)
    kept = query.connection().transactions.keep_all([each.transactional_id for each in messages if each])
    lost = [name for name, answer in kept.items() if isinstance(answer, Initialised)]
    assert lost

    def refused(transactions: BlockingTransactions, names: list[str]) -> dict[str, BrokerRefused]:
        return {name: BrokerRefused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, name) for name in names}

    with monkeypatch.context() as during:
        during.setattr(BlockingTransactions, "keep_all", refused)
        with pytest.raises(BatchNotWritten, match=f"{len(lost)} of its 16 transactions"):
            run.writer().commit(messages, 0)
    assert query.open_transactions() == [], "a prepared one would hold readers back for ever"
    again = query.start()
    again.writer().commit(again.write_all(0, 16), 0)
    assert query.seen() == all_of(0, tasks=16)


def test_transactions_that_ended_and_were_forgotten_are_not_taken_for_lost(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TIMES_OUT | {
        "transactional.id.expiration.ms": "1000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
    }
    with Cluster(brokers=1, config=config) as cluster:
        query = Query(cluster.bootstrap, monkeypatch, kafka.name("query"))
        with pytest.raises(Died):
            query.start().do(0, dies_at=ALL_ENDED)
        assert query.seen() == all_of(0)
        known = query.connection().decisions("decisions", query.name)
        assert known is not None
        decided = known[1].of(query.name).decision
        assert decided is not None

        def all_forgotten() -> bool:
            states = query.connection().transactions.describe_all(list(decided.participants))
            return all(isinstance(state, BrokerRefused) for state in states.values())

        wait_until(all_forgotten, timeout_s=60)
        for _ in range(2):
            with pytest.raises(
                TransactionsLost, match=r"3 of its 3 transactions are forgotten.*onLostTransactions=skip"
            ):
                query.start().do(0)
        query.start(onLostTransactions="skip").do(0)
        query.start().do(1)
        assert query.seen() == all_of(0, 1)


@pytest.mark.parametrize("raised_epochs", [True, False])
def test_ended_transactions_are_not_taken_for_lost_after_the_cluster_has_agreed_on_another_version(
    mixed_cluster: Cluster, kafka: Kafka, monkeypatch: pytest.MonkeyPatch, raised_epochs: bool
) -> None:
    """`transaction.version` goes up with the last old broker, and down with one that comes back. An end with the one version
    leaves another epoch than an end with the other, and a second end with the other is refused."""
    query = Query(mixed_cluster.bootstrap, monkeypatch, kafka.name("query"))

    def agree(raises_epochs: bool) -> None:
        async def agreed(transactions: Transactions, transactional_id: str) -> bool:
            return raises_epochs

        monkeypatch.setattr(Transactions, "raises_epochs", agreed)

    agree(raised_epochs)
    run = query.start()
    messages = run.write_all(0, 16)
    with pytest.raises(Died):
        run.writer(dies_at=ALL_ENDED).commit(messages, 0)
    agree(not raised_epochs)
    again = query.start()
    again.writer().commit(again.write_all(0, 16), 0)
    again.do(1)
    assert query.seen() == sorted(all_of(0, tasks=16) + all_of(1))


def test_aborted_batches_leave_nothing(query: Query) -> None:
    run = query.start()
    messages = run.write_all(0)
    run.writer().abort([messages[0], None, messages[2]], 0)
    run.write(0, 1, rows_of(0, 1), attempt=1)
    query.start().do(0)
    assert query.seen() == all_of(0)


def test_a_batch_without_rows_needs_no_decision(query: Query) -> None:
    run = query.start()
    run.writer().commit([run.write(0, 0, []), None], 0)
    run.do(1)
    assert query.seen() == all_of(1)


def test_at_least_once_is_seen_when_the_task_is_done(query: Query) -> None:
    run = query.start(deliveryGuarantee="at-least-once")
    messages = run.write_all(0)
    assert query.seen() == all_of(0)
    run.writer().commit(messages, 0)
    assert query.seen() == all_of(0)


# -- batch writes -----------------------------------------------------------------------------------------------------


def batch_write(query: Query, *, dies_at: str | None = None) -> Callable[[], None]:
    writer = sink.batch_writer(query.options, SCHEMA, False)
    messages: list[Written] = []
    for partition in range(3):
        query.monkeypatch.setattr(sink, "_task", lambda partition=partition: Task("", "", 0, partition, 0))
        rows = pa.record_batch([pa.array(rows_of(0, partition), pa.string())], names=["value"])
        messages.append(writer.write(iter([rows])))

    def reached(point: str) -> None:
        if point == dies_at:
            raise Died(point)

    writer.reached = reached  # type: ignore[method-assign]
    return lambda: writer.commit(list(messages))


def test_a_batch_write_is_all_or_nothing_and_leaves_no_decision(query: Query) -> None:
    commit = batch_write(query)
    assert query.seen() == []
    commit()
    assert query.seen() == all_of(0)
    with pytest.raises(Died):
        batch_write(query, dies_at=READY)()
    assert decisions(query) == {}


def test_the_next_batch_write_finishes_one_whose_driver_died_after_deciding(query: Query) -> None:
    with pytest.raises(Died):
        batch_write(query, dies_at=HALF_ENDED)()
    assert len(decisions(query)) == 1
    batch_write(query)()
    assert query.seen() == sorted(all_of(0) * 2)
    assert decisions(query) == {}


def test_a_write_within_foreach_batch_over_connect_is_identified_by_its_options(query: Query) -> None:
    """Over Spark Connect, a write within foreachBatch has no properties of its query."""

    def write(batch: int, run: str, **options: str) -> None:
        known_by = options | {
            "queryName": "q",
            "__batchId": str(batch),
            "__runId": run,
        }
        query.plan(batch)
        writer = sink.batch_writer(query.options | known_by, SCHEMA, False)
        query.monkeypatch.setattr(sink, "_task", lambda: Untold())
        rows = pa.record_batch([pa.array(rows_of(batch, 0), pa.string())], names=["value"])
        writer.commit([writer.write(iter([rows]))])

    class Untold(Task):
        def __init__(self) -> None:
            super().__init__("", "", 0, 0, 0)
            self._properties = {}

    write(0, "first")
    write(1, "first")
    write(1, "second")
    write(2, "second")
    # A checkpoint that was moved still names the query by the place where it was.
    query.checkpoint = query.checkpoint.rename(query.checkpoint.with_name(f"{query.checkpoint.name}-moved"))
    query.options["checkpointLocation"] = str(query.checkpoint)
    write(2, "third", acceptCheckpoint="moved")
    write(3, "third")
    assert query.seen() == all_of(0, 1, 2, 3, tasks=1)


def test_a_write_within_a_micro_batch_is_known_by_the_number_that_it_was_given(query: Query) -> None:
    """Spark has a number for the micro-batch, but `once=` may give another one: of a part of it, or one of the caller's own."""

    def write(number: int) -> None:
        sink_of_parts = sinks.topic(query.topic, bootstrap=query.bootstrap, options=query.options)
        writer = sink.batch_writer(
            {**sink_of_parts.options, **sink_of_parts._once("parts", number, Origin(BY_CALLER))}, SCHEMA, False
        )
        query.monkeypatch.setattr(sink, "_task", lambda: Task(query.name, "run", 3, 0, 0))
        rows = pa.record_batch([pa.array(rows_of(number, 0), pa.string())], names=["value"])
        writer.commit([writer.write(iter([rows]))])

    for number in (30, 31, 31, 32):
        write(number)
    assert query.seen() == all_of(30, 31, 32, tasks=1)


def decisions(query: Query) -> dict[str, object]:
    """Return the unfinished batch writes."""
    found = SinkConnection(sink.parse(query.options).client)
    try:
        known = found.decisions("decisions", "any")
        assert known is not None
        return {name: state for name, state in known[1].states.items() if state.unfinished and "query" not in name}
    finally:
        found.close()


def test_old_decisions_are_deleted(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    query.start().do(0)
    connection = query.connection()
    driver = transactions.Driver(
        sink.parse(query.options | {"decisionRetentionMs": "1000"}), connection, now_ms=lambda: 4_000_000_000_000
    )
    other = Query(query.bootstrap, monkeypatch, f"{query.name}-other")
    run = other.start()
    messages = [message for message in run.write_all(0) if message is not None]
    driver.commit(
        messages[0].batch,
        {message.transactional_id: message.identity for message in messages if message.transactional_id},
    )
    known = connection.decisions("decisions", query.name)
    assert known is not None
    assert query.name not in known[1].states
    assert other.name in known[1].states


def test_decisions_are_json_that_any_tool_can_read(query: Query) -> None:
    query.start().do(3)
    reader = Consumer({"bootstrap.servers": query.bootstrap, "group.id": "x", "isolation.level": "read_committed"})
    try:
        reader.assign([TopicPartition("decisions", 0, 0)])
        mine: dict[str, dict[str, object]] = {}
        while "ended" not in mine:
            message = reader.poll(60)
            assert message is not None and message.error() is None
            key = json.loads(message.key())
            if key["query"] == query.name:
                mine[key["record"]] = json.loads(message.value())
    finally:
        reader.close()
    assert mine["decision"]["batch"] == mine["ended"]["batch"] == 3
    assert len(mine["decision"]["transactions"]) == 3  # type: ignore[arg-type]


def test_a_driver_asks_for_no_longer_time_out_than_its_tasks(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers with a low `transaction.max.timeout.ms` would refuse it, whatever the option says."""
    asked: list[int] = []
    initialise = BlockingTransactions.initialise

    def noted(transactions: BlockingTransactions, name: str | None, *, timeout_ms: int, **more: Any) -> Any:
        asked.append(timeout_ms)
        return initialise(transactions, name, timeout_ms=timeout_ms, **more)

    monkeypatch.setattr(BlockingTransactions, "initialise", noted)
    query.start(**{"kafka.transaction.timeout.ms": "20000"}).do(0)
    assert set(asked) == {20000}
    assert query.seen() == all_of(0)


def test_a_time_out_that_brokers_refuse_says_which_setting(query: Query) -> None:
    with pytest.raises(ConfigError, match=r"kafka\.transaction\.timeout\.ms=99999999 is more than the brokers allow"):
        query.start(**{"kafka.transaction.timeout.ms": "99999999"}).write_all(0)


def test_a_batch_that_is_too_large_for_the_topic_says_which_setting(query: Query) -> None:
    query.options["topic"] = name = f"{query.topic}-small"
    admin = AdminClient({"bootstrap.servers": query.bootstrap})
    [made] = admin.create_topics([NewTopic(name, 1, 1, config={"max.message.bytes": "300"})]).values()
    made.result(60)
    rows = ["x" * 100] * 5
    with pytest.raises(ConfigError, match=r"MESSAGE_TOO_LARGE.*Set kafka\.batch\.size \(now 524288\)"):
        query.start().write(0, 0, rows)
    assert query.open_transactions() == []
    query.start(**{"kafka.batch.size": "250"}).write(0, 0, rows)
