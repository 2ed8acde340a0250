"""The exactly-once topic sink when another batch comes under a number that was written: nothing is lost or skipped in silence.

Without Spark, against a real broker. Row `r` stands for a record that the query reads once and never again.
"""

import json
import logging
import shutil
from collections.abc import Iterator

import pytest

from barnabas.base.ids import TopicPartition
from barnabas.client.blocking_producer import BlockingProducer, ReadyBatch
from barnabas.spark import decision, sink
from barnabas.spark.batch_identity import NotTheSameBatch
from barnabas.spark.checkpoint import REPEATED_FILE, CheckpointElsewhere
from barnabas.spark.decision import DECISION, ENDED, Decision, Ended, Key
from barnabas.spark.sink_connection import close_connections
from barnabas.spark.transactions import DECIDED, READY, DriverReplaced
from barnabas.testing import Kafka
from barnabas.testing.cluster import Cluster
from tests.unit.spark.spark_sink_query import Died, Query, Run, all_of


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=1) as cluster:
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def connections() -> Iterator[None]:
    yield
    close_connections()


@pytest.fixture
def query(cluster: Cluster, kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> Query:
    return Query(cluster.bootstrap, monkeypatch, kafka.name("query"))


def write(run: Run, batch: int, *rows: str) -> None:
    run.writer().commit([run.write(batch, 0, rows)], batch)


def copied(query: Query, monkeypatch: pytest.MonkeyPatch, *, topic: str | None = None) -> Query:
    """A query with a copy of the checkpoint, into a topic of its own."""
    copy = Query(query.bootstrap, monkeypatch, topic or f"{query.name}-staging")
    shutil.rmtree(copy.checkpoint)
    shutil.copytree(query.checkpoint, copy.checkpoint)
    copy.name = query.name  # the query's id is in the checkpoint
    return copy


def test_a_batch_planned_again_with_other_records_is_refused_and_can_be_accepted(query: Query) -> None:
    """FINDINGS P1: an operator takes the last offsets and commits away, and Spark plans the batch again."""
    query.start().do(0)
    write(query.start(), 1, "a", "b")
    query.forget(1)
    query.plan(1, end=99)
    with pytest.raises(NotTheSameBatch) as refused:
        write(query.start(), 1, "a", "b", "new")
    said = str(refused.value)
    assert "it differs in the planned offsets" in said
    assert f"Written before: batch 1 of query {query.name}" in said
    assert f"Planned now: batch 1 of query {query.name}" in said
    assert "acceptReplannedBatch=1:write" in said and "acceptReplannedBatch=1:skip" in said
    assert query.seen() == sorted([*all_of(0), "a", "b"])
    assert query.open_transactions() == []
    write(query.start(acceptReplannedBatch="1:write"), 1, "a", "b", "new")
    write(query.start(), 2, "next")
    assert query.seen() == sorted([*all_of(0), "a", "a", "b", "b", "new", "next"])


def test_driver_that_comes_back_late_is_replaced_and_advises_no_second_write(query: Query) -> None:
    """The simulation's seed 29: a paused driver of batch 0 goes on when another one has written batches 0 and 1.

    `late` had no open transaction when the other one decided, so that it is not ruled out.
    """
    late = query.start()
    query.plan(0)
    writer = late.writer()
    query.start().do(0)
    query.start().do(1)
    query.monkeypatch.setattr(late, "writer", lambda: writer)
    messages = late.write_all(0)
    with pytest.raises(DriverReplaced, match="has planned batch 1 since") as replaced:
        writer.commit(messages, 0)
    assert "acceptReplannedBatch" not in str(replaced.value)
    assert query.open_transactions() == []
    assert query.seen() == all_of(0, 1)


def test_an_accepted_batch_is_written_once_though_the_option_stays(query: Query) -> None:
    write(query.start(), 0, "a")
    query.forget(0)
    query.plan(0, end=99)
    options = {"acceptReplannedBatch": "0:write"}
    for dies_at in (DECIDED, None):
        run = query.start(**options)
        messages = [run.write(0, 0, ["a", "new"])]
        if dies_at is None:
            run.writer().commit(messages, 0)
        else:
            with pytest.raises(Died):
                run.writer(dies_at).commit(messages, 0)
    assert query.seen() == ["a", "a", "new"]


def test_decided_batch_that_comes_again_is_ended_though_no_other_follows(query: Query) -> None:
    with pytest.raises(Died):
        query.start().do(0, dies_at=DECIDED)
    query.start().do(0)
    assert query.seen() == all_of(0)
    assert query.open_transactions() == []


def test_decided_batch_whose_driver_died_is_ended_before_another_one_is_accepted(query: Query) -> None:
    with pytest.raises(Died):
        query.start().do(0, dies_at=DECIDED)
    query.forget(0)
    query.plan(0, end=99)
    write(query.start(acceptReplannedBatch="0:write"), 0, "new")
    assert query.seen() == sorted([*all_of(0), "new"])
    assert query.open_transactions() == []


def test_rows_of_a_batch_that_the_user_skips_are_counted_in_the_log(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    write(query.start(), 0, "a")
    query.forget(0)
    query.plan(0, end=99)
    with caplog.at_level(logging.WARNING):
        write(query.start(acceptReplannedBatch="0:skip"), 0, "x", "y")
    assert "its 2 rows are thrown away" in caplog.text
    write(query.start(), 1, "b")
    assert query.seen() == ["a", "b"]


def test_batches_far_below_the_decided_one_are_refused_and_can_be_accepted(query: Query) -> None:
    run = query.start()
    for batch in range(5):
        write(run, batch, f"r{batch}")
    for batch in (2, 3, 4):
        query.forget(batch)
    query.plan(2, end=99)
    with pytest.raises(NotTheSameBatch):
        write(query.start(), 2, "again")
    again = query.start(acceptReplannedBatch="2:write")
    write(again, 2, "again")
    # The numbers that follow were decided once too, of the line that is over.
    write(again, 3, "and on")
    with pytest.raises(Died):
        late = query.start()
        late.writer(DECIDED).commit([late.write(4, 0, ["last"])], 4)
    write(query.start(), 4, "last")
    assert query.seen() == sorted(["r0", "r1", "r2", "r3", "r4", "again", "and on", "last"])


def test_a_batch_that_comes_again_is_counted_in_log_and_checkpoint(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    query.start().do(0)
    with caplog.at_level(logging.WARNING):
        query.start().do(0)
    assert (
        f"batch 0 of query {query.name} came again and was written before: its 15 rows are not written" in caplog.text
    )
    noted = json.loads((query.checkpoint / REPEATED_FILE).read_text())
    assert (noted["batches"], noted["rows"], noted["last_batch"]) == (1, 15, 0)
    assert query.seen() == all_of(0)


def test_a_copied_checkpoint_is_refused_before_it_writes_and_may_become_a_query_of_its_own(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FINDINGS P2: a staging copy that writes to another topic of the same cluster. Production must not notice."""
    query.start().do(0)
    copy = copied(query, monkeypatch)
    with pytest.raises(CheckpointElsewhere, match=r"acceptCheckpoint=moved.*acceptCheckpoint=copied"):
        copy.start().do(1)
    query.start().do(1)
    staging = copy.start(acceptCheckpoint="copied")
    for batch in range(4):
        staging.do(batch)
    production = query.start()
    for batch in (2, 3):
        production.do(batch)
    # The copy stays a query of its own, with the option and without.
    copy.start().do(4)
    copy.start(acceptCheckpoint="copied").do(4)
    assert query.seen() == all_of(0, 1, 2, 3)
    assert copy.seen() == all_of(0, 1, 2, 3, 4)
    with pytest.raises(CheckpointElsewhere):
        copied(copy, monkeypatch, topic=f"{query.name}-third").start().do(5)


def test_a_moved_checkpoint_goes_on_when_the_user_says_so(query: Query) -> None:
    query.start().do(0)
    elsewhere = query.checkpoint.with_name(f"{query.checkpoint.name}-moved")
    query.checkpoint.rename(elsewhere)
    query.checkpoint = elsewhere
    query.options["checkpointLocation"] = str(elsewhere)
    with pytest.raises(CheckpointElsewhere):
        query.start().do(0)
    query.start(acceptCheckpoint="moved").do(0)
    query.start().do(1)
    assert query.seen() == all_of(0, 1)


def test_a_copy_that_was_made_before_checkpoints_had_ids_is_refused_at_every_number(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copied(query, monkeypatch)
    query.start().do(0)
    for batch in (0, 1):
        with pytest.raises(NotTheSameBatch, match="differs in the checkpoint"):
            copy.start().do(batch)
    # The refused query has not become the driver: the right one is not fenced while it decides.
    run = query.start()
    messages = run.write_all(1)
    writer = run.writer()

    def reached(point: str) -> None:
        if point == READY:
            with pytest.raises(NotTheSameBatch):
                copy.start().do(1)

    writer.reached = reached  # type: ignore[method-assign]
    writer.commit(messages, 1)
    assert query.seen() == all_of(0, 1)
    assert copy.seen() == []


def test_a_batch_that_begins_where_none_has_ended_is_refused(query: Query) -> None:
    """An operator edits the offsets of the last batch, which is committed, so that the next one begins elsewhere."""
    query.start().do(0)
    query.forget(0)
    query.plan(0, end=5)
    with pytest.raises(
        NotTheSameBatch, match="The offsets of batch 0 in the checkpoint are not those that were written"
    ):
        query.start().do(1)
    assert query.seen() == all_of(0)
    query.start(acceptReplannedBatch="1:write").do(1)
    query.start().do(2)
    assert query.seen() == all_of(0, 1, 2)


def test_a_batch_that_was_decided_for_another_topic_is_refused_and_the_next_one_goes_there(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    query.start().do(0)
    old_topic, new = query.topic, Query(query.bootstrap, query.monkeypatch, f"{query.name}-new")
    query.options["topic"] = new.topic
    with pytest.raises(NotTheSameBatch, match=f"differs in the target.*topic {old_topic}.*topic {new.topic}"):
        query.start().do(0)
    with caplog.at_level(logging.WARNING):
        query.start().do(1)
    assert f"batches up to 0 went to cluster {query.connection().cluster_id()}, topic {old_topic}" in caplog.text
    assert (query.seen(), new.seen()) == (all_of(0), all_of(1))


def test_a_refused_batch_leaves_no_decided_transaction_open(query: Query) -> None:
    """Readers wait for a decided batch: the sink ends it although it refuses the other batch of its number."""
    query.start().do(0)
    with pytest.raises(Died):
        query.start().do(1, dies_at=DECIDED)
    query.forget(1)
    query.plan(1, end=99)
    with pytest.raises(NotTheSameBatch):
        query.start().do(1)
    assert query.open_transactions() == []
    assert query.seen() == all_of(0, 1)


def test_a_query_without_a_checkpoint_location_refuses_to_skip_and_says_why(query: Query) -> None:
    del query.options["checkpointLocation"]
    query.start().do(0)
    query.start().do(1)
    with pytest.raises(NotTheSameBatch, match="give the query the option checkpointLocation"):
        query.start().do(1)
    assert query.seen() == all_of(0, 1)


def test_a_damaged_id_of_a_checkpoint_is_an_error(query: Query) -> None:
    query.start().do(0)
    (query.checkpoint / "barnabas" / "checkpoint.json").write_text("{")
    with pytest.raises(NotTheSameBatch, match=r"checkpoint\.json is damaged"):
        query.start().do(0)


@pytest.mark.parametrize(("decided_at_ms", "is_same"), [(2_000, True), (500, False)])
def test_after_an_upgrade_the_last_batch_of_the_older_version_is_finished_or_refused(
    query: Query, decided_at_ms: int, is_same: bool
) -> None:
    """The older barnabas noted no offsets. A batch that Spark planned after the decision is another one."""
    connection = query.connection()
    connection.make_decisions_topic("decisions")
    old = Decision(kind="stream", batch=3, run="old", decided_at_ms=decided_at_ms)
    found = connection.decisions("decisions", query.name)
    assert found is not None
    records = [
        (Key(query.name, DECISION).encode(), old.encode()),
        (Key(query.name, ENDED).encode(), Ended(3, decided_at_ms).encode()),
    ]
    assert json.loads(old.encode())["version"] == 1
    producer = BlockingProducer(connection.client, sink.parse(query.options).producer)
    producer.send(ReadyBatch.of(TopicPartition("decisions", found[0].partition), records, timestamp_ms=1))
    producer.flush()
    query.plan(3, at_ms=1_000)
    if is_same:
        assert all(message is not None and message.skipped for message in query.start().do(3))
    else:
        with pytest.raises(NotTheSameBatch, match="An older barnabas wrote the batch before"):
            query.start().do(3)
    query.start().do(4)
    assert query.seen() == all_of(4)
    state = connection.decisions("decisions", query.name)
    assert state is not None and state[1].of(query.name).decision.batch == 4  # type: ignore[union-attr]


def test_the_decision_keeps_what_the_batch_was(query: Query) -> None:
    query.start().do(0)
    found = query.connection().decisions("decisions", query.name)
    assert found is not None
    decided = found[1].of(query.name).decision
    assert decided is not None and decided.identity is not None
    noted = json.loads((query.checkpoint / "barnabas" / "checkpoint.json").read_text())
    assert decided.identity.checkpoint == noted["id"]
    assert noted["location"] == str(query.checkpoint.resolve())
    assert decided.identity.target == f"cluster {query.connection().cluster_id()}, topic {query.topic}"
    assert decision.decode_decision(decided.encode()) == decided
