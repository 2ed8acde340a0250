"""A task's fetches, against a scripted client with the rare answers of brokers."""

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from barnabas.base.errors import ErrorCode, Malformed
from barnabas.base.ids import TopicPartition
from barnabas.base.words import EARLIEST_LOCAL
from barnabas.client.blocking import BlockingClient
from barnabas.client.errors import BrokerRefused, ConnectionLost, DeadlineExceeded
from barnabas.client.fetching import ConsumerConfig, Fetched
from barnabas.client.image import ClusterImage, TopicInfo
from barnabas.spark import fetching
from barnabas.spark.fetching import read_range, read_ranges, read_small
from barnabas.spark.offsets import DataLoss, OffsetRange
from barnabas.spark.options import source_options
from barnabas.wire.records import BatchBuilder

PARTITION = TopicPartition("t", 3)
OPTIONS = source_options(
    {"kafka.bootstrap.servers": "nowhere:1", "assign": '{"t":[3]}', "kafkaConsumer.pollTimeoutMs": "0"}, streaming=False
)


def knowing(topic_id: bytes) -> ClusterImage:
    return ClusterImage(topics={"t": TopicInfo("t", topic_id, False, ())})


def batch(base: int, count: int) -> bytes:
    builder = BatchBuilder(base_offset=base)
    for index in range(count):
        builder.append(None, b"%d" % (base + index), timestamp=1)
    return builder.build()


@dataclass
class Script:
    """A client that answers from a list, and repeats the last answer for ever. Remembers the requests."""

    answers: list[Fetched | Exception]
    first_offset: int = 0
    #: Id of the existing topic.
    topic_id: bytes = b"1" * 16
    #: Below it the log is in tiered storage; None: the broker is too old to know of such.
    first_local: int | None = 0
    #: The result of the next metadata request.
    next_ids: list[bytes] = field(default_factory=list)
    #: The topic that a fetch finds when it looks for the leader again after an error.
    found_id: bytes | None = None

    def __post_init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.image = knowing(self.topic_id)

    def refresh(self, topics: list[str]) -> ClusterImage:
        if self.next_ids:
            self.image = knowing(self.next_ids.pop(0))
        return self.image

    def __enter__(self) -> "Script":
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def fetch(self, partition: TopicPartition, offset: int, *, max_bytes: int, **_: object) -> Fetched:
        assert partition == PARTITION
        self.asked.append((offset, max_bytes))
        if self.found_id is not None:
            self.image = knowing(self.found_id)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return replace(answer, position=offset)

    def fetch_some(self, positions: dict[TopicPartition, int], config: ConsumerConfig) -> dict[TopicPartition, Fetched]:
        raise ConnectionLost("one at a time")

    def list_offsets(self, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        if EARLIEST_LOCAL not in wanted.values():
            return dict.fromkeys(wanted, self.first_offset)
        if self.first_local is None:
            raise BrokerRefused(ErrorCode.UNSUPPORTED_VERSION)
        return dict.fromkeys(wanted, self.first_local)


def answer(data: bytes = b"", *, high_watermark: int = 100, throttle_ms: int = 0) -> Fetched:
    return Fetched(PARTITION, data, 0, high_watermark, high_watermark, 0, (), throttle_ms)


Read = Callable[..., list[int]]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[Read]:
    def offsets(script: Script, start: int, until: int, *, fail: bool = True) -> list[int]:
        monkeypatch.setattr(fetching, "BlockingClient", lambda config: script)
        rows = read_range(replace(OPTIONS, fail_on_data_loss=fail), OffsetRange(PARTITION, start, until), ("offset",))
        return [offset for part in rows for offset in part.column("offset").to_pylist()]

    yield offsets
    left = [thread for thread in threading.enumerate() if thread.name.startswith("fetch ")]
    for thread in left:
        thread.join(60)
        assert not thread.is_alive()


def test_fetches_follow_each_other_and_rows_outside_the_range_are_cut(read: Read):
    script = Script([answer(batch(0, 10)), answer(batch(10, 10)), answer(batch(20, 10))])
    assert read(script, 5, 25) == list(range(5, 25))
    assert [offset for offset, _ in script.asked] == [5, 10, 20]


def test_a_throttled_answer_is_not_taken_for_the_end(read: Read):
    script = Script([*[answer(throttle_ms=1)] * 5, answer(batch(0, 3))])
    assert read(script, 0, 3) == [0, 1, 2]


@pytest.mark.parametrize("first_local", [0, None])
def test_a_hole_at_the_end_of_a_compacted_log_ends_the_range(read: Read, first_local: int | None):
    script = Script([answer(batch(0, 3)), answer(high_watermark=10)], first_local=first_local)
    assert read(script, 0, 10) == [0, 1, 2]
    assert len(script.asked) == 4  # the broker has to say so three times


def test_a_slow_read_from_tiered_storage_is_not_taken_for_a_hole(read: Read, monkeypatch: pytest.MonkeyPatch):
    """A broker returns an empty response whenever its remote storage does not answer in time."""
    monkeypatch.setattr(sys.modules[__name__], "OPTIONS", replace(OPTIONS, poll_timeout_ms=60_000))
    script = Script([*[answer(high_watermark=10)] * 7, answer(batch(0, 10))], first_local=8)
    assert read(script, 0, 10) == list(range(10))


def test_tiered_storage_that_never_answers_is_data_loss(read: Read):
    with pytest.raises(DataLoss, match="Cannot fetch record for offset 0 of t-3 in 0 milliseconds"):
        read(Script([answer(high_watermark=10)], first_local=8), 0, 10)


def test_records_that_were_promised_and_do_not_come_are_data_loss(read: Read):
    answers: list[Fetched | Exception] = [answer(batch(0, 3), high_watermark=3), answer(high_watermark=3)]
    with pytest.raises(
        DataLoss, match="Cannot fetch record for offset 3 of t-3 in 0 milliseconds: the log ends at 3, 9 was"
    ):
        read(Script(list(answers)), 0, 9)
    assert read(Script(list(answers)), 0, 9, fail=False) == [0, 1, 2]


def test_an_offset_out_of_range_skips_to_the_start_of_the_log(read: Read):
    refused = BrokerRefused(ErrorCode.OFFSET_OUT_OF_RANGE)
    with pytest.raises(DataLoss, match="Cannot fetch offset 2 of t-3"):
        read(Script([refused]), 2, 9)
    # The batch that holds the first offset comes whole: deleted records in it stay deleted.
    assert read(Script([refused, answer(batch(0, 9))], first_offset=6), 2, 9, fail=False) == [6, 7, 8]
    assert read(Script([refused], first_offset=50), 2, 9, fail=False) == []
    assert read(Script([refused], first_offset=0), 2, 9, fail=False) == []


def test_a_deleted_partition_is_data_loss_and_an_unreachable_cluster_is_not(read: Read):
    gone = DeadlineExceeded("gave up")
    gone.__cause__ = BrokerRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    with pytest.raises(DataLoss, match="Cannot fetch offset 0 of t-3: there is no such partition"):
        read(Script([gone]), 0, 9)
    assert read(Script([gone]), 0, 9, fail=False) == []
    away = DeadlineExceeded("gave up")
    away.__cause__ = ConnectionLost("no broker there")
    with pytest.raises(DeadlineExceeded):
        read(Script([away]), 0, 9, fail=False)


def test_a_topic_created_again_between_plan_and_read_is_data_loss(monkeypatch: pytest.MonkeyPatch):
    planned = OffsetRange(PARTITION, 0, 3, topic_id=b"1" * 16)

    def read(topic_id: bytes, *, fail: bool) -> int:
        script = Script([answer(batch(0, 3))], topic_id=topic_id)
        monkeypatch.setattr(fetching, "BlockingClient", lambda config: script)
        rows = read_range(replace(OPTIONS, fail_on_data_loss=fail), planned, ("offset",))
        return sum(part.num_rows for part in rows)

    assert read(b"1" * 16, fail=True) == 3
    assert read(bytes(16), fail=True) == 3, "a broker that is too old to know"
    with pytest.raises(DataLoss, match="offset 0 of t-3: the topic was deleted and created again"):
        read(b"2" * 16, fail=True)
    assert read(b"2" * 16, fail=False) == 0


def test_a_client_that_knows_the_topic_as_it_was_asks_again():
    """The driver's reads keep their client from one micro-batch to the next."""
    script = Script([answer(batch(0, 3))], topic_id=b"1" * 16, next_ids=[b"2" * 16])
    planned = OffsetRange(PARTITION, 0, 3, topic_id=b"2" * 16)
    rows = read_small(cast(BlockingClient, script), replace(OPTIONS, fail_on_data_loss=False), [planned], ("offset",))
    assert [offset for part in rows for offset in part.column("offset").to_pylist()] == [0, 1, 2]


def test_a_fetch_from_a_topic_that_was_created_again_is_not_read():
    """After an error a fetch looks for the leader again, and asks for the topic that has the name then."""
    planned = OffsetRange(PARTITION, 0, 3, topic_id=b"1" * 16)

    def read(*, fail: bool) -> int:
        script = cast(BlockingClient, Script([answer(batch(0, 3))], found_id=b"2" * 16))
        rows = read_small(script, replace(OPTIONS, fail_on_data_loss=fail), [planned], ("offset",))
        return sum(part.num_rows for part in rows)

    with pytest.raises(DataLoss, match="offset 0 of t-3: the topic was deleted and created again"):
        read(fail=True)
    assert read(fail=False) == 0


def test_several_ranges_of_a_task_are_read_with_one_client(monkeypatch: pytest.MonkeyPatch):
    script = Script([answer(batch(0, 10)), answer(batch(20, 5))])
    opened: list[Script] = []
    monkeypatch.setattr(fetching, "BlockingClient", lambda config: opened.append(script) or script)
    wanted = [OffsetRange(PARTITION, 2, 10), OffsetRange(PARTITION, 20, 25)]
    rows = read_ranges(OPTIONS, wanted, ("offset",))
    assert [row for part in rows for row in part.column("offset").to_pylist()] == [*range(2, 10), *range(20, 25)]
    assert (opened, script.closed) == ([script], True)


@dataclass
class Many:
    """A client of a topic whose partitions have ten records each. A response has room for four. Remembers the requests."""

    #: Partitions that come alone only.
    alone: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self.image = knowing(b"1" * 16)
        self.together: list[list[int]] = []
        self.come: list[list[int]] = []
        self.one: list[int] = []

    def refresh(self, topics: list[str]) -> ClusterImage:
        return self.image

    def fetch(self, partition: TopicPartition, offset: int, **_: object) -> Fetched:
        self.one.append(partition.partition)
        return Fetched(partition, batch(0, 10), offset, 10, 10, 0)

    def fetch_some(self, positions: dict[TopicPartition, int], config: ConsumerConfig) -> dict[TopicPartition, Fetched]:
        assert config.fetch_max_wait_ms == 0
        self.together.append([each.partition for each in positions])
        come = [each for each in positions if each.partition not in self.alone][:4]
        self.come.append([each.partition for each in come])
        return {each: Fetched(each, batch(0, 10), positions[each], 10, 10, 0) for each in come}


def small(partitions: int, *, topic_id: bytes = b"") -> list[OffsetRange]:
    return [OffsetRange(TopicPartition("t", index), 2, 9, topic_id) for index in range(partitions)]


def rows_of(client: Many, wanted: list[OffsetRange]) -> tuple[list[tuple[int, int]], int]:
    pieces = list(read_small(cast(BlockingClient, client), OPTIONS, wanted, ("partition", "offset")))
    rows = [(row["partition"], row["offset"]) for piece in pieces for row in piece.to_pylist()]
    return rows, len(pieces)


@pytest.mark.parametrize("alone", [frozenset(), frozenset({3}), frozenset({0, 1, 6, 9}), frozenset(range(10))])
def test_many_small_ranges_come_with_few_fetches_in_order_and_in_one_piece(alone: frozenset[int]):
    client = Many(alone)
    rows, pieces = rows_of(client, small(10))
    assert rows == [(partition, offset) for partition in range(10) for offset in range(2, 9)]
    assert pieces == 1
    assert sorted({*client.one} - {9}) == sorted(alone - {9}), "the last one is alone anyway"
    if not alone:
        assert client.together == [[*range(10)], [*range(4, 10)], [*range(8, 10)]]
    come = [partition for asked in client.come for partition in asked]
    assert len(come) == len({*come}), "nothing is fetched again because another partition had nothing"


def test_records_that_are_fetched_together_are_of_the_planned_topic():
    assert len(rows_of(Many(), small(3, topic_id=b"1" * 16))[0]) == 21
    with pytest.raises(DataLoss, match="offset 2 of t-0: the topic was deleted and created again"):
        rows_of(Many(), small(3, topic_id=b"2" * 16))


def test_pieces_of_a_task_are_joined_up_to_a_size(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fetching, "MAX_ROWS", 20)
    assert rows_of(Many(), small(5))[1] == 3, "of seven rows each, two fit"


def test_a_batch_larger_than_a_fetch_is_asked_for_again_with_more_room(read: Read):
    whole = batch(0, 5)
    script = Script([answer(whole[:40]), answer(whole[:70]), answer(whole)])
    assert read(script, 0, 5) == [0, 1, 2, 3, 4]
    sizes = [size for _, size in script.asked]
    assert sizes == [sizes[0], sizes[0] * 2, sizes[0] * 4]


def test_an_old_message_format_is_refused_by_name(read: Read):
    old = bytearray(batch(0, 5))
    old[16] = 1
    with pytest.raises(Malformed, match=r"t-3: .*message format v1"):
        read(Script([answer(bytes(old)[:60])]), 0, 5)


def test_a_task_that_stops_early_leaves_no_thread_behind(monkeypatch: pytest.MonkeyPatch):
    script = Script([answer(batch(base, 10)) for base in range(0, 1000, 10)])
    monkeypatch.setattr(fetching, "BlockingClient", lambda config: script)
    rows = read_range(OPTIONS, OffsetRange(PARTITION, 0, 1000), ("offset",))
    assert next(rows).num_rows == 10
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "fetch t-3"]
    rows.close()  # type: ignore[attr-defined]
    thread.join(60)
    assert not thread.is_alive()
    assert script.closed
    assert len(script.asked) < 100
