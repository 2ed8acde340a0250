"""A follower's session skips unchanged partitions: what wakes a partition, and what its rest means for the follower.

The real Fetch handler, session cache and replica manager, on real logs.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import BrokerId, LeaderEpoch, TopicPartition
from barnabas.broker.api.fetch import FetchApi
from barnabas.broker.replication.appends import AppendEntry
from barnabas.broker.replication.fetch_session_cache import FetchKey, FetchSession, FetchSessionCache
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.state import FollowerPosition, PartitionLeadership
from barnabas.broker.storage.log_types import Origin
from barnabas.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from barnabas.wire.records import BatchBuilder
from tests.unit.broker.replication.test_replica_manager import FOLLOWER, ME, World

OTHER = BrokerId(3)
VERSION = 12


class Leader:
    """A broker that leads partitions 0, 1, … of topic t, and a follower's session with it."""

    def __init__(self, folder: Path, partitions: int = 5, *, isr: tuple[BrokerId, ...] = (ME, FOLLOWER)) -> None:
        self.world = World(folder, replicas=(ME, FOLLOWER), isr=isr)
        self.partitions = [self.world.partition, *(self.world.add_partition(n) for n in range(1, partitions))]
        self.sessions = FetchSessionCache(slots_max=10, eviction_ms=1000, random_id=iter(range(7, 100)).__next__)
        self.may_follow = True
        self._api = FetchApi(
            cast(
                Any,
                SimpleNamespace(
                    replicas=self.world.manager,
                    fetch_sessions=self.sessions,
                    clock=self.world.clock,
                    leader_throttle=None,
                    allows=lambda *_: self.may_follow,
                ),
            )
        )
        self.ends = [0] * partitions
        self.starts = [0] * partitions
        self._epoch = 0
        self._id = 0

    def ask(
        self,
        *changed: int,
        broker: int = FOLLOWER,
        broker_epoch: int = 1,
        forgotten: tuple[int, ...] = (),
        max_wait_ms: int = 500,
    ) -> list[FetchResponse]:
        """Send a request of the session with the follower's positions in `changed`; return the answer, if it has come."""
        answers: list[FetchResponse] = []
        numbers = range(len(self.partitions)) if self._epoch == 0 else changed

        def reply(response: FetchResponse) -> None:
            answers.append(response)
            self._id = response.session_id

        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=self._id,
            session_epoch=self._epoch,
            replica_state=ReplicaState(replica_id=broker, replica_epoch=broker_epoch),
            topics=[FetchTopic(topic="t", partitions=[self._where(number) for number in numbers])] if numbers else [],
            forgotten_topics_data=[ForgottenTopic(topic="t", partitions=list(forgotten))] if forgotten else [],
        )
        call = SimpleNamespace(
            api_version=VERSION, request_bytes=0, meter=None, client_id="", reply=reply, on_abandoned=None
        )
        self._api.handle(cast(Any, call), request)
        self._epoch += 1
        return answers

    def _where(self, number: int) -> FetchPartition:
        return FetchPartition(
            partition=number,
            current_leader_epoch=0,
            fetch_offset=self.ends[number],
            log_start_offset=self.starts[number],
            partition_max_bytes=1 << 20,
        )

    def append(self, number: int) -> None:
        builder = BatchBuilder()
        builder.append(None, b"v", timestamp=self.world.clock.now_ms())
        self.world.manager.appends.append(
            [AppendEntry(TopicPartition("t", number), bytearray(builder.build()))],
            required_acks=1,
            timeout_ms=0,
            origin=Origin.CLIENT,
            on_done=lambda outcomes: None,
        )

    def at_rest(self) -> None:
        """Begin a session in which all partitions rest."""
        [answer] = self.ask(max_wait_ms=0)
        assert sorted(answered(answer)) == list(range(len(self.partitions)))
        assert self.awake == []

    @property
    def session(self) -> FetchSession:
        return self.sessions._sessions[self._id]

    @property
    def awake(self) -> list[int]:
        return sorted(key.partition for key in self.session.awake)

    def position(self, number: int) -> FollowerPosition:
        position = self.partitions[number].machine.follower(FOLLOWER)
        assert position is not None
        return position


def answered(answer: FetchResponse) -> dict[int, PartitionData]:
    found = {each.partition_index: each for topic in answer.responses for each in topic.partitions}
    for data in found.values():
        for part in getattr(data.records, "parts", ()):
            part.release()
    return found


def test_partitions_without_news_rest_and_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader(tmp_path, 5)
    leader.at_rest()
    looked: list[Partition] = []
    was = Partition.read_nothing
    monkeypatch.setattr(Partition, "read_nothing", lambda self, want: looked.append(self) or was(self, want))
    assert leader.ask() == []
    assert looked == []
    assert len(leader.world.manager.hosted.fetch_purgatory) == 1
    assert leader.world.manager.hosted.fetch_purgatory.watched_keys == 1


def test_record_in_a_resting_partition_ends_the_wait_and_only_that_partition_is_answered(tmp_path: Path) -> None:
    leader = Leader(tmp_path, 5)
    leader.at_rest()
    answers = leader.ask()
    leader.append(3)
    [answer] = answers
    assert list(answered(answer)) == [3] and leader.awake == [3]
    leader.ends[3] = 1
    answers = leader.ask(3)
    # The fetch moved the high watermark, which the next answer has.
    assert answers == [] and leader.partitions[3].high_watermark == 1
    leader.append(1)
    [answer] = answers
    found = answered(answer)
    assert sorted(found) == [1, 3] and found[3].high_watermark == 1
    assert leader.awake == [1]
    assert leader.world.manager.hosted.fetch_purgatory.watched_keys == 0


def test_append_after_another_event_in_the_same_partition_still_ends_the_wait(tmp_path: Path) -> None:
    """The partition has woken already, by an event that ended no wait: the wait must watch it from then on."""
    leader = Leader(tmp_path, 3)
    leader.at_rest()
    answers = leader.ask()
    leader.world.manager.hosted.high_watermark_moved(leader.partitions[2])
    assert answers == [] and leader.awake == [2]
    leader.append(2)
    [answer] = answers
    assert list(answered(answer)) == [2]


def test_append_between_two_requests_is_in_the_next_answer(tmp_path: Path) -> None:
    leader = Leader(tmp_path, 3)
    leader.at_rest()
    leader.append(1)
    [answer] = leader.ask()
    assert list(answered(answer)) == [1]


def test_moved_log_start_of_a_resting_partition_is_answered(tmp_path: Path) -> None:
    leader = Leader(tmp_path, 3)
    leader.append(0)
    leader.ends[0] = 1
    leader.ask(max_wait_ms=0)  # moves the high watermark
    leader.ask(max_wait_ms=0)  # gets it
    assert leader.awake == []
    assert leader.partitions[0].local_log.maybe_increment_log_start_offset(1)
    [answer] = leader.ask(max_wait_ms=0)
    assert answered(answer)[0].log_start_offset == 1


def test_partition_that_is_lost_while_it_rests_ends_the_wait_with_its_error(tmp_path: Path) -> None:
    leader = Leader(tmp_path, 3)
    leader.at_rest()
    answers = leader.ask()
    leader.partitions[1].machine.stop()
    leader.world.manager.hosted.wake_all(leader.partitions[1])
    [answer] = answers
    assert answered(answer)[1].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert leader.awake == [1]


def test_partition_that_is_deleted_while_it_rests_ends_the_wait_with_its_error(tmp_path: Path) -> None:
    leader = Leader(tmp_path, 3)
    leader.at_rest()
    answers = leader.ask()
    leader.world.manager.hosted.remove(TopicPartition("t", 1))
    [answer] = answers
    assert answered(answer)[1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_follower_whose_partitions_rest_is_caught_up_as_long_as_it_asks(tmp_path: Path) -> None:
    leader = Leader(tmp_path, 2)
    leader.at_rest()
    leader.world.clock.advance_ms(700)
    leader.ask(max_wait_ms=0)
    asked_ms = leader.world.clock.now_ms()
    assert leader.position(1).last_caught_up_ms == asked_ms
    leader.world.clock.advance_ms(600)
    leader.append(1)
    assert leader.position(1).last_caught_up_ms == leader.position(1).last_fetch_ms == asked_ms
    machine = leader.partitions[1].machine
    now_ms = leader.world.clock.now_ms()
    assert machine.out_of_sync(now_ms, leader.partitions[1].log_end) == frozenset()
    assert machine.out_of_sync(now_ms + 401, leader.partitions[1].log_end) == {FOLLOWER}


def test_follower_that_is_silent_does_not_count_as_caught_up_though_its_partitions_rest(tmp_path: Path) -> None:
    leader = Leader(tmp_path, 2)
    leader.at_rest()
    asked_ms = leader.world.clock.now_ms()
    leader.world.clock.advance_ms(5_000)
    assert leader.position(0).last_caught_up_ms == asked_ms


def test_follower_outside_the_isr_does_not_rest(tmp_path: Path) -> None:
    """Each of its fetches may bring it back into the ISR."""
    leader = Leader(tmp_path, 2, isr=(ME,))
    leader.ask(max_wait_ms=0)
    assert leader.awake == [0, 1]


def test_partition_of_a_follower_that_leaves_the_isr_wakes(tmp_path: Path) -> None:
    leader = Leader(tmp_path, 2)
    leader.at_rest()
    partition = leader.partitions[1]
    proposal = partition.machine._propose(  # as if it had lagged
        change=cast(Any, None), isr=frozenset({ME})
    )
    settled = partition.machine.isr_accepted(
        proposal,
        isr=frozenset({ME}),
        leader_epoch=LeaderEpoch(0),
        partition_epoch=1,
        log_end=partition.log_end,
        now_ms=leader.world.clock.now_ms(),
    )
    leader.world.manager.isr_settled(partition, settled)
    assert leader.awake == [1]
    proposals: list[Any] = []
    leader.world.manager.fetches._submit_isr_change = lambda where, what: proposals.append(where)
    leader.ask(max_wait_ms=0)
    assert proposals == [partition]


def test_new_leader_epoch_wakes_the_partition_and_resets_the_follower(tmp_path: Path) -> None:
    leader = Leader(tmp_path, 2)
    leader.world.clock.advance_ms(100)
    leader.at_rest()
    partition = leader.partitions[0]
    partition.become_leader(
        PartitionLeadership(
            leader=ME, leader_epoch=LeaderEpoch(1), isr=(ME,), partition_epoch=1, replicas=(ME, FOLLOWER)
        ),
        now_ms=leader.world.clock.now_ms(),
    )
    leader.world.manager.hosted.wake_all(partition)
    assert leader.awake == [0]
    # Outside the ISR it must not hold the high watermark back.
    assert leader.position(0).last_caught_up_ms == 0


def test_new_broker_epoch_of_the_follower_is_recorded_in_every_partition(tmp_path: Path) -> None:
    leader = Leader(tmp_path, 3)
    leader.at_rest()
    leader.ask(broker_epoch=2, max_wait_ms=0)
    assert [leader.position(number).broker_epoch for number in range(3)] == [2, 2, 2]
    [answer] = leader.ask(broker_epoch=1, max_wait_ms=0)
    assert {each.error_code for each in answered(answer).values()} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_request_of_another_broker_in_the_session_wakes_all_partitions(tmp_path: Path) -> None:
    leader = Leader(tmp_path, 2)
    leader.at_rest()
    [answer] = leader.ask(broker=OTHER, max_wait_ms=0)
    assert {each.error_code for each in answered(answer).values()} == {ErrorCode.UNKNOWN_LEADER_EPOCH}


def test_follower_that_may_no_longer_follow_is_refused_in_every_partition(tmp_path: Path) -> None:
    leader = Leader(tmp_path, 2)
    leader.at_rest()
    leader.may_follow = False
    [answer] = leader.ask(max_wait_ms=0)
    assert {each.error_code for each in answered(answer).values()} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}


def test_forgotten_partition_leaves_no_entry_behind(tmp_path: Path) -> None:
    leader = Leader(tmp_path, 2)
    leader.at_rest()
    leader.ask(forgotten=(1,), max_wait_ms=0)
    assert leader.partitions[1].resting == []
    assert FetchKey("t", 1) not in leader.session.partitions
    assert leader.position(1).resting is None


def test_ended_session_leaves_no_entry_behind(tmp_path: Path) -> None:
    leader = Leader(tmp_path, 2)
    leader.at_rest()
    leader._epoch = 0
    leader.ask(max_wait_ms=0)
    assert [len(partition.resting) for partition in leader.partitions] == [1, 1]
    assert all(want.session is leader.session for partition in leader.partitions for want in partition.resting)
