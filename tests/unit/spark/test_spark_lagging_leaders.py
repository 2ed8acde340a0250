"""Answers of brokers that lag: one that has just started and knows few topics, a new leader with an old high watermark."""

from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from barnabas.base.errors import ConfigError, ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import EARLIEST, LATEST
from barnabas.broker.storage.txn_index import AbortedTxn
from barnabas.client.admin.partitions import ListedOffset
from barnabas.client.config import client_config
from barnabas.client.errors import BrokerRefused, DeadlineExceeded
from barnabas.client.fetching import Fetched
from barnabas.client.image import Broker, ClusterImage, PartitionInfo, TopicInfo
from barnabas.spark import lookup
from barnabas.spark.decision import DECISION, ENDED, Decision, Ended, Key
from barnabas.spark.lookup import OffsetLookup
from barnabas.spark.offsets import DataLoss
from barnabas.spark.options import source_options
from barnabas.spark.reader import BarnabasReader, BarnabasStreamReader
from barnabas.spark.sink_connection import SinkConnection
from barnabas.spark.tables import filling
from barnabas.spark.tables.definition import Definition
from barnabas.spark.tables.filling import TableStopped
from barnabas.spark.tables.reading import Reading
from barnabas.spark.tier_plan import TierPlanner
from barnabas.wire.messages.fetch import AbortedTransaction
from barnabas.wire.records import BatchBuilder

DECISIONS = TopicPartition("decisions", 0)


def topic(name: str, error: ErrorCode = ErrorCode.NONE, topic_id: bytes = b"1" * 16, count: int = 1) -> TopicInfo:
    partitions = () if error else tuple(PartitionInfo(index, 1, 0, (1,), (1,)) for index in range(count))
    return TopicInfo(name, topic_id, False, partitions, error)


def image(*topics: TopicInfo) -> ClusterImage:
    return ClusterImage({1: Broker(1, "b", 1)}, "c", 1, {each.name: each for each in topics})


# -- topics -----------------------------------------------------------------------------------------------------------


class Forgetful:
    """A client whose first answers come from a broker that does not know the topic `b` yet."""

    def __init__(self, unknown: list[ClusterImage], then: ClusterImage, ends: Mapping[str, int]) -> None:
        self.images, self.then, self.ends = unknown, then, ends
        self.closed = 0
        self.image = then

    def refresh(self, topics: object) -> ClusterImage:
        self.image = self.images.pop(0) if self.images else self.then
        return self.image

    def retrying(self, what: str, ask):
        return ask()

    def list_offsets(self, wanted: Mapping[TopicPartition, int], isolation_level: int) -> dict[TopicPartition, int]:
        return {partition: 0 if at == EARLIEST else self.ends[partition.topic] for partition, at in wanted.items()}

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(params=[{"subscribe": "a,b"}, {"subscribePattern": "[ab]"}, {"assign": '{"a":[0],"b":[0]}'}])
def strategy(request: pytest.FixtureRequest) -> dict[str, str]:
    return request.param


def reader_of(monkeypatch: pytest.MonkeyPatch, strategy: dict[str, str], client: Forgetful) -> BarnabasStreamReader:
    monkeypatch.setattr(lookup, "BlockingClient", lambda config: client)
    given = {"kafka.bootstrap.servers": "h:1", "fetchOffset.retryIntervalMs": "0", "failOnDataLoss": "false"}
    return BarnabasStreamReader(source_options(given | strategy | {"tierReads": "never"}, streaming=True), ("value",))


def test_a_topic_that_one_broker_does_not_know_yet_stays_in_the_stream(
    monkeypatch: pytest.MonkeyPatch, strategy: dict[str, str]
):
    """Dropped from the offsets, it would be new when it returns, and read from its beginning again."""
    unknown = topic("b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    for stale in (image(topic("a"), unknown), image(topic("a"))):
        client = Forgetful([stale, stale], image(topic("a"), topic("b")), {"a": 5, "b": 7})
        reader = reader_of(monkeypatch, strategy, client)
        found = reader.latestOffset({"a": {"0": 1}, "b": {"0": 2}}, reader.getDefaultReadLimit())
        assert found == {"a": {"0": 5}, "b": {"0": 7}}
        assert client.closed == 2, "the next answer may come from another broker"


def test_a_topic_that_is_gone_is_believed_to_be_gone(monkeypatch: pytest.MonkeyPatch, strategy: dict[str, str]):
    reader = reader_of(monkeypatch, strategy, Forgetful([], image(topic("a")), {"a": 5}))
    assert reader.latestOffset({"a": {"0": 1}, "b": {"0": 2}}, reader.getDefaultReadLimit()) == {"a": {"0": 5}}


def test_a_topic_that_the_stream_has_not_read_yet_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, strategy: dict[str, str]
):
    client = Forgetful([image(topic("a"))], image(topic("a"), topic("b")), {"a": 5, "b": 7})
    reader = reader_of(monkeypatch, strategy, client)
    assert reader.latestOffset({"a": {"0": 1}}, reader.getDefaultReadLimit()) == {"a": {"0": 5}}


@pytest.mark.parametrize(
    "strategy", [{"subscribe": "a"}, {"subscribePattern": "a"}, {"assign": '{"a":[0,1]}'}], ids=str
)
@pytest.mark.parametrize("available_now", [False, True])
def test_an_added_partition_that_one_broker_does_not_know_yet_stays_in_the_stream(
    monkeypatch: pytest.MonkeyPatch, strategy: dict[str, str], available_now: bool
):
    """Dropped from the offsets, it would be new when it returns, and read from its beginning again."""
    stale, then = image(topic("a")), image(topic("a", count=2))
    client = Forgetful([] if "assign" in strategy else [stale, stale], then, {"a": 5})
    reader = reader_of(monkeypatch, strategy, client)
    if available_now:
        reader.prepareForTriggerAvailableNow()
    client.images = [stale, stale]
    found = reader.latestOffset({"a": {"0": 1, "1": 2}}, reader.getDefaultReadLimit())
    assert found == {"a": {"0": 5, "1": 5}}


def test_a_new_partition_is_planned_although_another_broker_does_not_know_it(monkeypatch: pytest.MonkeyPatch):
    """With failOnDataLoss=false its records would be left out."""
    client = Forgetful([], image(topic("a", count=2)), {"a": 5})
    reader = reader_of(monkeypatch, {"subscribe": "a", "driverReadMaxRecords": "0"}, client)
    start = {"a": {"0": 5}}
    until = reader.latestOffset(start, reader.getDefaultReadLimit())
    client.images = [image(topic("a"))]
    [part] = reader.partitions(start, until)
    assert [str(each) for each in part.ranges] == ["a-1 [0, 5)"]


@pytest.mark.parametrize("end", [3, 50])
def test_a_topic_that_was_created_again_is_data_loss_or_read_from_its_beginning(
    monkeypatch: pytest.MonkeyPatch, end: int
):
    """The new topic is shorter or longer than the old one was: from offsets alone the longer one could not be recognised."""

    def reader(fail: str) -> BarnabasStreamReader:
        then = image(topic("a", topic_id=b"2" * 16), topic("b"))
        client = Forgetful([image(topic("a"), topic("b"))], then, {"a": end, "b": 7})
        made = reader_of(monkeypatch, {"subscribe": "a,b", "failOnDataLoss": fail, "driverReadMaxRecords": "0"}, client)
        client.ends = {"a": 20, "b": 7}
        assert made.latestOffset({"a": {"0": 1}, "b": {"0": 2}}, made.getDefaultReadLimit())["a"] == {"0": 20}
        client.ends = {"a": end, "b": 9}
        return made

    start = {"a": {"0": 20}, "b": {"0": 7}}
    strict = reader("true")
    with pytest.raises(DataLoss, match=r"Topic a was deleted and created again.*\{'a': \{'0': 20\}\}"):
        strict.latestOffset(start, strict.getDefaultReadLimit())
    lenient = reader("false")
    until = lenient.latestOffset(start, lenient.getDefaultReadLimit())
    assert until == {"a": {"0": end}, "b": {"0": 9}}
    (first,), (second,) = (part.ranges for part in lenient.partitions(start, until))
    assert (str(first), first.topic_id) == (f"a-0 [0, {end})", b"2" * 16)
    assert str(second) == "b-0 [7, 9)"
    again = lenient.latestOffset(until, lenient.getDefaultReadLimit())
    assert (again, lenient.partitions(until, again)) == (until, [])


def test_a_table_is_not_filled_from_a_topic_that_was_created_again_after_the_plan(
    monkeypatch: pytest.MonkeyPatch,
):
    table = Definition(name="a", topic="a", topic_id=(b"1" * 16).hex(), url="file:///lake/a")
    spark = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
    place = TopicPartition("a", 0)

    def planned(topic_id: bytes) -> Reading:
        client = Forgetful([], image(topic("a", topic_id=topic_id)), {"a": 9})
        monkeypatch.setattr(lookup, "BlockingClient", lambda config: client)
        cluster = filling.Cluster({"bootstrap.servers": "h:1"}, "never")
        return filling._reading(spark, table, cluster, {place: 0}, {place: 5})  # type: ignore[arg-type]

    assert planned(b"1" * 16).topic_ids == {b"1" * 16}
    with pytest.raises(TableStopped, match="topic a was deleted and made again"):
        planned(b"2" * 16)


# -- decisions --------------------------------------------------------------------------------------------------------


class NewLeader:
    """A leader of the decision log: ListOffsets knows the end, but the high watermark lags during the first requests."""

    def __init__(self, log: bytes, end: int, *, lags: int, high_watermark: int = 0) -> None:
        self.config = client_config("h:1", {"default.api.timeout.ms": "300"})
        self.image = image(topic("decisions"))
        self._log, self._end, self._lags, self._known = log, end, lags, high_watermark

    def refresh(self, topics: object) -> ClusterImage:
        return self.image

    def retrying(self, what: str, ask):
        return ask()

    def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {partition: self._end if at == LATEST else 0 for partition, at in wanted.items()}

    def fetch(self, partition: TopicPartition, offset: int, **_: object) -> Fetched:
        self._lags -= 1
        if self._lags >= 0:
            return Fetched(partition, b"", offset, self._known, self._known, 0, (), 0)
        data = self._log if offset == 0 else b""
        return Fetched(partition, data, offset, self._end, self._end, 0, (), 0)


def connection_to(leader: NewLeader) -> SinkConnection:
    connection = SinkConnection(leader.config)
    connection.client.close()
    connection.client = leader  # type: ignore[assignment]
    return connection


def decided(batch: int) -> tuple[bytes, Decision]:
    made = Decision(kind="stream", batch=batch, run="r", decided_at_ms=1)
    builder = BatchBuilder(base_offset=0)
    builder.append(Key("q", DECISION).encode(), made.encode(), timestamp=1)
    builder.append(Key("q", ENDED).encode(), Ended(batch, 1).encode(), timestamp=1)
    return builder.build(), made


def test_a_decision_is_found_at_a_new_leader_whose_high_watermark_lags():
    log, made = decided(4)
    found = connection_to(NewLeader(log, 2, lags=3)).decisions("decisions", "q")
    assert found is not None
    assert found[1].of("q").decision == made


def test_a_leader_that_does_not_come_to_the_end_it_promised_is_an_error():
    log, _ = decided(4)
    with pytest.raises(DeadlineExceeded, match="offset 2 was promised, the leader's high watermark is 1"):
        connection_to(NewLeader(log, 2, lags=10**9, high_watermark=1)).decisions("decisions", "q")


def test_a_decision_log_whose_last_records_were_compacted_away_ends():
    log, made = decided(4)
    found = connection_to(NewLeader(log, 9, lags=0)).decisions("decisions", "q")
    assert found is not None
    assert found[1].of("q").decision == made


def test_offsets_of_a_lagging_leader_are_asked_for_again(monkeypatch: pytest.MonkeyPatch):
    """ListOffsets refuses until the leader knows them: the source asks `fetchOffset.numRetries` times, with fresh
    connections."""
    client = Forgetful([], image(topic("a")), {"a": 5})
    refusals = [BrokerRefused(ErrorCode.OFFSET_NOT_AVAILABLE)] * 2

    def list_offsets(wanted: Mapping[TopicPartition, int], isolation_level: int) -> dict[TopicPartition, int]:
        if refusals:
            raise refusals.pop()
        return dict.fromkeys(wanted, 5)

    monkeypatch.setattr(client, "list_offsets", list_offsets)
    monkeypatch.setattr(lookup, "BlockingClient", lambda config: client)
    given = {"kafka.bootstrap.servers": "h:1", "fetchOffset.retryIntervalMs": "0", "subscribe": "a"}
    asked = OffsetLookup(source_options(given, streaming=True))
    assert asked.latest([TopicPartition("a", 0)]) == {TopicPartition("a", 0): 5}


# -- limits that are wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [{"startingOffsets": 9}, {"startingOffsets": 4, "endingOffsets": 2}])
@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_start_above_the_end_is_refused_also_without_fail_on_data_loss(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], fail: str
):
    """As in Spark's own source: no record is lost, but the options are wrong, and no partition may be left out without an
    error."""
    monkeypatch.setattr(lookup, "BlockingClient", lambda config: Forgetful([], image(topic("a")), {"a": 5}))
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "a", "failOnDataLoss": fail, "tierReads": "never"}
    given |= {name: f'{{"a":{{"0":{offset}}}}}' for name, offset in limits.items()}
    reader = BarnabasReader(source_options(given, streaming=False), ("value",))
    with pytest.raises(ConfigError, match=r"a-0 is to be read from offset . to ."):
        reader.partitions()


# -- history in object storage ----------------------------------------------------------------------------------------


class Leader:
    """The leader of a partition that is tiered up to offset 99; a transaction that began at 50 was aborted at 150."""

    def __init__(self, *answers: tuple[bytes, int]) -> None:
        """`answers`: (result of a fetch, last stable offset) for each request."""
        self._answers = list(answers)

    def fetch(self, partition: TopicPartition, offset: int, **_: object) -> Fetched:
        assert offset == 100
        data, stable = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        aborted = (AbortedTransaction(producer_id=7, first_offset=50),) if data else ()
        return Fetched(partition, data, offset, stable, stable, 0, aborted, 0)


def aborted_above(leader: Leader) -> list[AbortedTxn]:
    times = iter(range(0, 1000, 40))
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "a", "kafka.isolation.level": "read_committed"}
    planner = TierPlanner(source_options(given, streaming=False), clock=lambda: next(times))
    tiered = ListedOffset(99, -1, 3)
    return planner._aborted(leader, TopicPartition("a", 0), tiered, {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "answer", [(b"", 50), (b"", 200)], ids=["its high watermark lags", "the answer came empty for whatever reason"]
)
def test_transaction_that_was_aborted_above_the_tier_is_asked_for_until_the_leader_knows_it(answer: tuple[bytes, int]):
    """Otherwise its records in the tier would be rows."""
    [found] = aborted_above(Leader(answer, answer, (b"a batch", 200)))
    assert (found.producer_id, found.first_offset) == (7, 50)
    with pytest.raises(ConfigError, match=r"a-0 does not say which .* aborted above offset 99: its last stable offset"):
        aborted_above(Leader(answer))


def test_nothing_was_aborted_above_a_tier_that_has_the_whole_log():
    assert aborted_above(Leader((b"", 100))) == []
