"""The main scenes of one replica, as stories: what happens to it, and what its machine decides."""

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import BrokerId, LeaderEpoch, Offset
from barnabas.broker.replication.machine import PartitionMachine
from barnabas.broker.replication.state import PartitionLeadership, ProposeIsr
from tests.support.stories import Story

LAG_MS = 10_000


class Replica:
    """The machine of broker 1, with a log of which only the end is known. Time is in seconds."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self.machine = PartitionMachine(local_broker=BrokerId(1), replica_lag_time_max_ms=LAG_MS, min_insync_replicas=2)
        self.log_end = 0
        self.now_s = 0

    def _event(self, text: str, *effects: str) -> None:
        machine = self.machine
        self._story.event(f"{self.now_s:3} s  {text}")
        for effect in effects:
            if effect:
                self._story.effect(effect)
        isr = ",".join(str(each) for each in sorted(machine.isr))
        self._story.effect(
            f"= {machine.role.value}, epoch {machine.leader_epoch}, isr {isr or '-'}, "
            f"high watermark {machine.high_watermark}, log end {self.log_end}"
        )

    def _state(self, leader: int, epoch: int, isr: tuple[int, ...], partition_epoch: int) -> PartitionLeadership:
        return PartitionLeadership(
            leader=BrokerId(leader),
            leader_epoch=LeaderEpoch(epoch),
            isr=tuple(map(BrokerId, isr)),
            partition_epoch=partition_epoch,
            replicas=tuple(map(BrokerId, (1, 2, 3))),
        )

    def leads(self, epoch: int, isr: tuple[int, ...], partition_epoch: int) -> None:
        state = self._state(1, epoch, isr, partition_epoch)
        self.machine.become_leader(state, log_end=Offset(self.log_end), now_ms=self.now_s * 1000)
        self._event("the controller makes it leader")

    def follows(self, leader: int, epoch: int, isr: tuple[int, ...], partition_epoch: int) -> None:
        self.machine.become_follower(self._state(leader, epoch, isr, partition_epoch))
        self._event(f"the controller makes it follower of {leader}")

    def appends(self, records: int) -> None:
        error = self.machine.check_append(required_acks=-1)
        if error is not ErrorCode.NONE:
            self._event(f"a producer sends {records} records, acks=all", f"refused: {error.name}")
            return
        self.log_end += records
        moved = self.machine.record_append(self.log_end, self.now_s * 1000)
        self._event(f"a producer sends {records} records, acks=all", "committed" if moved else "")

    def fetched_by(self, follower: int, offset: int) -> ProposeIsr | None:
        recorded = self.machine.record_follower_fetch(
            BrokerId(follower),
            fetch_offset=offset,
            follower_log_start=0,
            broker_epoch=-1,
            log_end=self.log_end,
            now_ms=self.now_s * 1000,
        )
        self._event(
            f"follower {follower} fetches from offset {offset}",
            "the high watermark moves" if recorded.hw_moved else "",
            _proposal(recorded.propose),
        )
        return recorded.propose

    def waits(self, seconds: int) -> ProposeIsr | None:
        self.now_s += seconds
        ticked = self.machine.tick(self.now_s * 1000, Offset(self.log_end))
        self._event("time passes", "the high watermark moves" if ticked.hw_moved else "", _proposal(ticked.propose))
        return ticked.propose

    def accepted(self, proposal: ProposeIsr | None, isr: tuple[int, ...], partition_epoch: int) -> None:
        assert proposal is not None
        settled = self.machine.isr_accepted(
            proposal,
            leader_epoch=self.machine.leader_epoch,
            isr=frozenset(map(BrokerId, isr)),
            partition_epoch=partition_epoch,
            log_end=Offset(self.log_end),
            now_ms=self.now_s * 1000,
        )
        self._event("the controller accepts the ISR", "the high watermark moves" if settled.hw_moved else "")


def _proposal(proposal: ProposeIsr | None) -> str:
    if proposal is None:
        return ""
    return f"proposes the ISR {','.join(str(each) for each in sorted(proposal.broker_ids))}"


def test_follower_falls_behind_and_returns(story: Story) -> None:
    replica = Replica(story)
    story.title("two followers are in sync")
    replica.leads(5, (1, 2, 3), 0)
    replica.appends(10)
    replica.fetched_by(2, 10)
    replica.fetched_by(3, 10)
    story.title("follower 3 stays away; records wait for it until it has left the ISR")
    replica.appends(5)
    replica.fetched_by(2, 15)
    replica.waits(6)
    replica.fetched_by(2, 15)
    replica.accepted(replica.waits(6), (1, 2), 1)
    story.title("follower 3 returns and catches up")
    replica.fetched_by(3, 10)
    replica.accepted(replica.fetched_by(3, 15), (1, 2, 3), 2)


def test_too_few_replicas_in_sync(story: Story) -> None:
    replica = Replica(story)
    story.title("min.insync.replicas is 2, and this leader is alone in the ISR")
    replica.leads(5, (1,), 0)
    replica.appends(3)
    story.title("follower 2 asks from the log end: it may join")
    replica.accepted(replica.fetched_by(2, 0), (1, 2), 1)
    replica.appends(3)
    replica.fetched_by(2, 3)


def test_leader_becomes_follower(story: Story) -> None:
    replica = Replica(story)
    story.title("it leads and has committed ten records; five more are on their way")
    replica.leads(5, (1, 2, 3), 0)
    replica.appends(10)
    replica.fetched_by(2, 10)
    replica.fetched_by(3, 10)
    replica.appends(5)
    story.title("another broker is elected")
    replica.follows(2, 6, (2, 3), 1)
    story.title("it leads again, in a later epoch")
    replica.leads(7, (1, 2, 3), 3)
    replica.fetched_by(2, 15)
    replica.fetched_by(3, 15)
