"""A batch behind one that was refused a moment ago is early, not out of order. With a real replica manager and real logs."""

from pathlib import Path

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import LeaderEpoch, TopicPartition
from barnabas.broker.replication import early_batches
from barnabas.broker.replication.appends import AppendEntry
from barnabas.broker.replication.state import PartitionLeadership
from barnabas.broker.storage.log_types import Origin
from barnabas.wire.record_batch import MAX_SEQUENCE
from barnabas.wire.records import BatchBuilder
from tests.unit.broker.replication.test_replica_manager import FOLLOWER, ME, World  # type: ignore[attr-defined]

OK, NOT_LEADER, EARLY = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_LEADER_OR_FOLLOWER
NOT_YET = ErrorCode.NOT_ENOUGH_REPLICAS
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class Leader(World):
    """A broker that becomes leader or follower while a producer's batches arrive."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, replicas=(ME, FOLLOWER), isr=(ME,))
        self._epoch = 0
        self.isr: tuple[int, ...] = (ME,)

    def lead(self) -> None:
        self._epoch += 1
        self.partition.become_leader(self._state(ME), now_ms=self.clock.now_ms())

    def be_elected(self) -> None:
        """Like `lead`, and the manager is notified as by a control request."""
        self.lead()
        self.manager.appends.elected(self.partition)

    def follow(self) -> None:
        self._epoch += 1
        self.partition.become_follower(self._state(FOLLOWER))

    def _state(self, leader: int) -> PartitionLeadership:
        return PartitionLeadership(
            leader=leader,
            leader_epoch=LeaderEpoch(self._epoch),
            isr=self.isr,
            partition_epoch=self._epoch,
            replicas=(ME, FOLLOWER),
        )

    def batch(self, sequence: int, *, producer: int = 7, epoch: int = 0, base_offset: int = 0) -> bytearray:
        builder = BatchBuilder(
            base_offset=base_offset, producer_id=producer, producer_epoch=epoch, base_sequence=sequence
        )
        builder.append(None, b"%d" % sequence, timestamp=self.clock.now_ms())
        return bytearray(builder.build())

    def produce(
        self, sequence: int, *, producer: int = 7, epoch: int = 0, partition: int = 0, acks: int = -1
    ) -> ErrorCode:
        outcomes: list[AppendEntry] = []
        tp = TopicPartition("t", partition)
        self.manager.appends.append(
            [AppendEntry(tp, self.batch(sequence, producer=producer, epoch=epoch))],
            required_acks=acks,
            timeout_ms=0,
            origin=Origin.CLIENT,
            on_done=outcomes.extend,
        )
        [outcome] = outcomes
        return outcome.error

    def elected_behind_the_first_of(self, *sequences: int) -> list[ErrorCode]:
        """Return the answers to batches of which the first arrives before the election is known."""
        self.follow()
        answers = [self.produce(sequences[0])]
        self.lead()
        return answers + [self.produce(sequence) for sequence in sequences[1:]]


@pytest.fixture
def leader(tmp_path: Path) -> Leader:
    return Leader(tmp_path)


def test_batches_behind_a_refused_one_get_its_error_and_are_all_sent_again_in_order(leader: Leader) -> None:
    assert leader.produce(0) is OK
    assert leader.elected_behind_the_first_of(1, 2, 3, 4, 5) == [NOT_LEADER] + [EARLY] * 4
    assert [leader.produce(sequence) for sequence in range(1, 6)] == [OK] * 5
    assert leader.log.log_end_offset == 6
    assert leader.manager.appends.early.missing == {}


def test_second_batch_of_an_unknown_producer_is_not_appended_before_its_first(leader: Leader) -> None:
    assert leader.elected_behind_the_first_of(0, 1) == [NOT_LEADER, EARLY]
    assert leader.log.log_end_offset == 0
    assert [leader.produce(sequence) for sequence in range(2)] == [OK] * 2


def test_lack_of_replicas_that_ends_between_two_batches_is_answered_to_both(leader: Leader) -> None:
    machine, now_ms = leader.partition.machine, leader.clock.now_ms()
    assert leader.produce(0) is OK
    machine.set_min_insync_replicas(2, log_end=leader.log.log_end_offset, now_ms=now_ms)
    assert leader.produce(1) is ErrorCode.NOT_ENOUGH_REPLICAS
    machine.set_min_insync_replicas(1, log_end=leader.log.log_end_offset, now_ms=now_ms)
    assert leader.produce(2) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert [leader.produce(1), leader.produce(2)] == [OK, OK]


def test_partition_that_arrives_between_two_batches_does_not_begin_with_the_second(leader: Leader) -> None:
    assert leader.produce(0, partition=1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    leader.add_partition(1)
    assert leader.produce(1, partition=1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [leader.produce(0, partition=1), leader.produce(1, partition=1)] == [OK, OK]


def test_real_gap_is_reported_after_four_batches_that_may_have_been_in_flight(leader: Leader) -> None:
    assert leader.produce(0) is OK
    assert leader.elected_behind_the_first_of(1, 2, 2, 2, 2) == [NOT_LEADER] + [EARLY] * 4
    assert [leader.produce(2), leader.produce(2)] == [OUT_OF_ORDER] * 2


def test_real_gap_is_reported_when_the_refusal_is_old(leader: Leader) -> None:
    assert leader.produce(0) is OK
    leader.elected_behind_the_first_of(1)
    leader.clock.advance_ms(int(early_batches.KEPT_S * 1000) + 1)
    assert leader.produce(2) is OUT_OF_ORDER
    assert leader.manager.appends.early.missing == {}


def test_refusals_are_forgotten_if_the_producer_does_not_come_back(leader: Leader) -> None:
    leader.elected_behind_the_first_of(1)
    leader.manager.tick()
    assert len(leader.manager.appends.early.missing) == 1
    leader.clock.advance_ms(int(early_batches.KEPT_S * 1000) + 1)
    leader.manager.tick()
    assert leader.manager.appends.early.missing == {}


def test_gap_without_a_refusal_is_out_of_order(leader: Leader) -> None:
    assert leader.produce(0) is OK
    leader.follow()
    assert leader.produce(5, producer=8) is NOT_LEADER
    leader.lead()
    assert leader.produce(2) is OUT_OF_ORDER, "another producer's refusal does not matter"
    leader.elected_behind_the_first_of(3)
    assert leader.produce(1) is OK
    assert leader.produce(4) is EARLY
    assert leader.produce(2) is OK


def test_new_producer_epoch_starts_without_refusals(leader: Leader) -> None:
    assert leader.produce(0) is OK
    leader.elected_behind_the_first_of(1)
    assert leader.produce(0, epoch=1) is OK
    assert leader.produce(1, epoch=1) is OK
    assert leader.manager.appends.early.missing == {}


def test_refused_batch_that_another_leader_has_written_delays_no_batch(leader: Leader) -> None:
    assert leader.produce(0) is OK
    leader.follow()
    assert leader.produce(1) is NOT_LEADER
    leader.partition.append_follower(memoryview(leader.batch(1, base_offset=1)), 2, 0)
    assert leader.produce(2) is NOT_LEADER, "the first missing batch now"
    leader.lead()
    assert leader.produce(3) is EARLY
    assert [leader.produce(2), leader.produce(3)] == [OK, OK]
    leader.elected_behind_the_first_of(4)
    leader.follow()
    leader.partition.append_follower(memoryview(leader.batch(4, base_offset=4)), 5, 0)
    leader.lead()
    assert leader.produce(5) is OK


def test_first_of_several_refused_batches_counts(leader: Leader) -> None:
    assert leader.produce(0) is OK
    leader.follow()
    assert [leader.produce(1), leader.produce(2)] == [NOT_LEADER] * 2
    leader.lead()
    assert [leader.produce(2), leader.produce(3)] == [EARLY] * 2
    assert [leader.produce(sequence) for sequence in (1, 2, 3)] == [OK] * 3


def test_early_batch_is_recognized_when_sequences_wrap(leader: Leader) -> None:
    assert leader.produce(MAX_SEQUENCE - 1) is OK
    assert leader.elected_behind_the_first_of(MAX_SEQUENCE, 0, 1) == [NOT_LEADER, EARLY, EARLY]
    assert [leader.produce(sequence) for sequence in (MAX_SEQUENCE, 0, 1)] == [OK] * 3


def test_number_of_remembered_refusals_is_bounded(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_batches, "MISSING_MAX", 10)
    leader.follow()
    for producer in range(30):
        assert leader.produce(0, producer=producer) is NOT_LEADER
    kept = leader.manager.appends.early.missing
    assert [producer for _, producer in kept] == list(range(20, 30))


def test_batch_behind_one_that_the_former_leader_refused_waits_for_it(leader: Leader) -> None:
    """librdkafka may send the second batch to the new leader before it has read the old one's refusal of the first."""
    assert leader.produce(0) is OK
    leader.be_elected()
    assert [leader.produce(2), leader.produce(3)] == [NOT_YET] * 2
    assert [leader.produce(sequence) for sequence in (1, 2, 3)] == [OK] * 3
    assert leader.manager.appends.early.missing == {}


def test_real_gap_after_an_election_is_reported_after_four_batches_or_ten_seconds(leader: Leader) -> None:
    assert leader.produce(0) is OK
    leader.be_elected()
    assert [leader.produce(2) for _ in range(5)] == [NOT_YET] * 4 + [OUT_OF_ORDER]
    leader.be_elected()
    assert leader.produce(0, producer=8) is OK
    leader.clock.advance_ms(int(early_batches.ELECTED_S * 1000) + 1)
    assert leader.produce(2, producer=8) is OUT_OF_ORDER


def test_unknown_producer_waits_for_its_first_batch_after_an_election_but_not_forever(leader: Leader) -> None:
    leader.be_elected()
    assert leader.produce(1) is NOT_YET
    assert [leader.produce(0), leader.produce(1)] == [OK] * 2
    assert [leader.produce(5, producer=8) for _ in range(5)] == [NOT_YET] * 4 + [OK], "its state may have expired"
    assert leader.produce(6, producer=8) is OK
    leader.clock.advance_ms(int(early_batches.ELECTED_S * 1000) + 1)
    assert leader.produce(5, producer=9) is OK


def test_first_leader_of_a_partition_accepts_any_first_sequence(tmp_path: Path) -> None:
    leader = Leader(tmp_path)
    leader.manager.appends.elected(leader.partition)
    assert leader.produce(5) is OK


def test_early_batches_are_quiet_once_elections_and_refusals_are_old(leader: Leader) -> None:
    early = leader.manager.appends.early
    assert early.is_quiet
    leader.be_elected()
    leader.elected_behind_the_first_of(1)
    leader.manager.tick()
    assert not early.is_quiet
    leader.clock.advance_ms(int(early_batches.ELECTED_S * 1000) + 1)
    leader.manager.tick()
    assert not early.is_quiet
    leader.clock.advance_ms(int(early_batches.KEPT_S * 1000))
    leader.manager.tick()
    assert early.is_quiet


def test_batch_after_a_final_refusal_does_not_count_as_early(leader: Leader) -> None:
    assert leader.produce(0, epoch=3) is OK
    assert leader.produce(1, epoch=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert leader.produce(2, epoch=3) is OUT_OF_ORDER
    assert leader.manager.appends.early.missing == {}


def test_refused_producer_gets_the_log_start(leader: Leader) -> None:
    """The Java client repeats a batch of an unknown producer forever if the answer does not have the log start."""
    for sequence in range(3):
        leader.produce(sequence)
    leader.log.maybe_increment_log_start_offset(2)
    outcomes: list[AppendEntry] = []
    leader.manager.appends.append(
        [AppendEntry(leader.partition.tp, leader.batch(9))],
        required_acks=-1,
        timeout_ms=0,
        origin=Origin.CLIENT,
        on_done=outcomes.extend,
    )
    assert [(outcome.error, outcome.log_start_offset) for outcome in outcomes] == [(OUT_OF_ORDER, 2)]


def test_leader_whose_followers_are_gone_does_not_say_that_a_sequence_is_out_of_order(leader: Leader) -> None:
    """The leader may have been deposed without knowing it: its successor has the records before the batch. librdkafka had lost
    the connection to the successor, went back to the former leader, and gave up. Chaos seed 3602."""
    leader.isr = (ME, FOLLOWER)
    leader.lead()
    leader.fetch_as_follower(0, leader_epoch=1)
    leader.produce(0, acks=1)
    leader.fetch_as_follower(1, leader_epoch=1)
    leader.clock.advance_ms(500)
    assert leader.produce(40) is OUT_OF_ORDER
    leader.clock.advance_ms(501)
    assert leader.produce(40) is NOT_LEADER
    leader.fetch_as_follower(1, leader_epoch=1)
    assert leader.produce(40) is OUT_OF_ORDER


def test_real_gap_is_reported_by_a_leader_that_is_alone_in_sync(leader: Leader) -> None:
    leader.lead()
    leader.produce(0)
    leader.clock.advance_ms(5_000)
    assert leader.produce(40) is OUT_OF_ORDER
