"""The share partitions that this broker leads, and the sessions of their members.

Owner: the event loop. A share partition is loaded when the first member fetches it. It is forgotten when this broker no longer
leads the partition, when its topic is deleted, and when the group has no session here any more.
"""

from collections.abc import Callable, Iterator, Sequence

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import TopicPartition
from barnabas.base.metrics.registry import Registry
from barnabas.broker.replication.partition import Partition
from barnabas.broker.runtime.share_state import SharePartitionKey
from barnabas.broker.runtime.timers import Deadlines
from barnabas.broker.share import metrics
from barnabas.broker.share.partition import OnSettled, ShareHost, SharePartition
from barnabas.broker.share.records import Acknowledgement
from barnabas.broker.share.sessions import ShareSession, ShareSessions, TopicIdPartition


class SharePartitions:
    def __init__(self, host: ShareHost, *, sessions_max: Callable[[], int], registry: Registry) -> None:
        self._host = host
        #: By group, then by partition.
        self._groups: dict[str, dict[TopicIdPartition, SharePartition]] = {}
        #: One timer serves the locks of all share partitions.
        self._deadlines: Deadlines[SharePartition] = Deadlines(host.timers, SharePartition.locks_due)
        self.sessions = ShareSessions(
            sessions_max=sessions_max, on_end=self._session_ended, on_empty=self._group_emptied
        )
        self.counts = host.counts
        metrics.add_gauges(registry, self)

    def __iter__(self) -> Iterator[SharePartition]:
        for shares in self._groups.values():
            yield from shares.values()

    # -- share partitions ---------------------------------------------------------------------------------------------

    def for_fetch(self, group_id: str, wanted: TopicIdPartition, tp: TopicPartition) -> SharePartition:
        """Return the share partition; the first call begins to load it. `Refused` if this broker does not lead it."""
        known = self._groups.get(group_id, {}).get(wanted)
        if known is not None and known.check():
            return known
        partition = self._led(wanted, tp)
        key = SharePartitionKey(group_id, wanted.topic_id, wanted.partition)
        share = SharePartition(
            key, partition, self._host, self._deadlines, on_over=self._forget, on_idle=self._forget_if_unused
        )
        self._groups.setdefault(group_id, {})[wanted] = share
        self._host.spawn(share.load(), f"load the share partition {tp} of {group_id}")
        return share

    def acknowledge(
        self,
        session: ShareSession,
        wanted: TopicIdPartition,
        tp: TopicPartition,
        decisions: Sequence[Acknowledgement],
        on_settled: OnSettled,
    ) -> None:
        """Carry out a member's decisions; `on_settled` is called once they are persisted, perhaps at once."""

        def settled(refused: Refused | None) -> None:
            if refused is None:
                self.counts.acknowledged(decisions)
            on_settled(refused)

        group_id, member_id = session.key
        share = self._groups.get(group_id, {}).get(wanted)
        try:
            if share is None or not share.check():
                self._led(wanted, tp)
                raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the group has no records of {tp} in flight here")
        except Refused as refused:
            on_settled(refused)
            return
        share.acknowledge(member_id, decisions, settled)

    def _led(self, wanted: TopicIdPartition, tp: TopicPartition) -> Partition:
        partition = self._host.hosted.require(tp)
        if partition.topic_id != wanted.topic_id:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"{tp} has another topic id")
        partition.leader_log()
        return partition

    def _forget(self, share: SharePartition) -> None:
        group_id, topic_id, partition = share.key
        shares = self._groups.get(group_id, {})
        if shares.get(TopicIdPartition(topic_id, partition)) is share:
            del shares[TopicIdPartition(topic_id, partition)]
            if not shares:
                del self._groups[group_id]

    def _forget_if_unused(self, share: SharePartition) -> None:
        if share.is_idle and not self.sessions.has_group(share.key.group_id):
            share.end(Refused(ErrorCode.SHARE_SESSION_NOT_FOUND, "the group has no share session here"))

    # -- sessions -----------------------------------------------------------------------------------------------------

    def _session_ended(self, session: ShareSession) -> None:
        """Give the member's records to others."""
        group_id, member_id = session.key
        for share in list(self._groups.get(group_id, {}).values()):
            share.release(member_id, _ignore)

    def _group_emptied(self, group_id: str) -> None:
        # The state may be set back or deleted while the group is empty: begin with the persisted one then.
        for share in list(self._groups.get(group_id, {}).values()):
            self._forget_if_unused(share)

    # -- the cluster ----------------------------------------------------------------------------------------------------

    def leadership_changed(self, led: list[Partition], followed: list[Partition]) -> None:
        """React: this broker became leader or follower of these partitions, or they were stopped or deleted."""
        changed = {id(partition) for partition in (*led, *followed)}
        for share in [share for share in self if id(share.partition) in changed]:
            share.check()

    def close(self) -> None:
        """Serve nothing more: the broker stops."""
        for share in list(self):
            share.end(Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker is stopping"))


def _ignore(refused: Refused | None) -> None:
    """No request waits for this decision."""
