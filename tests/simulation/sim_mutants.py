"""Machines with a bug each, of the kind that replication has had: the simulation must notice every one."""

from sim_cluster import Mutation

from barnabas.core.errors import ErrorCode
from barnabas.replication.fetcher_machine import FetcherMachine, Phase, Truncate, TruncateTo
from barnabas.replication.machine import PartitionMachine


class TruncatesToHighWatermark(FetcherMachine):
    """Before KIP-101: a follower cuts to its own high watermark and compares no epochs."""

    def __init__(self, **arguments):
        super().__init__(**{**arguments, "truncates_on_fetch": False})

    def _settle(self):
        cuts = [
            TruncateTo(partition, min(state.log.high_watermark, state.log.log_end), True)
            for partition in self._unsettled
            if (state := self._states[partition]).phase is Phase.TRUNCATING
        ]
        return Truncate(tuple(cuts)) if cuts else super()._settle()


class NeverTruncates(FetcherMachine):
    """A follower believes that its log fits any leader's."""

    def _truncation(self, partition, state, leader):
        return TruncateTo(partition, state.log.log_end, True)

    def _entries(self, partitions):
        entries, dropped = super()._entries(partitions)
        return {partition: entry._replace(last_fetched_epoch=-1) for partition, entry in entries.items()}, dropped


class IgnoresIsr(PartitionMachine):
    """The leader's own log end is the high watermark."""

    __slots__ = ()

    def _advance(self, log_end, now_ms):
        if self.role.value != "leader" or log_end <= self.high_watermark:
            return False
        self.high_watermark = log_end
        return True


class ShrinksBeforeTheControllerAgrees(PartitionMachine):
    """The high watermark leaves a lagging follower behind while the controller may still elect it."""

    __slots__ = ()

    def tick(self, now_ms, log_end):
        ticked = super().tick(now_ms, log_end)
        if ticked.propose is not None:
            self.isr = ticked.propose.broker_ids
            for follower in self._order:
                follower.in_maximal_isr = follower.broker_id in self.isr
            self._advance(log_end, now_ms)
        return ticked

    def validate(self, *, log_start, log_end):
        return None


class AcknowledgesTooEarly(PartitionMachine):
    """acks=all is answered when one replica has the record: the leader."""

    __slots__ = ()

    def check_replicated(self, required_offset, leadership):
        code = super().check_replicated(required_offset, leadership)
        return ErrorCode.NONE if code is None else code


class TellsTheEndAtOnce(PartitionMachine):
    """Before KIP-207: a new leader tells an end that is behind what the old one told."""

    __slots__ = ()

    @property
    def high_watermark_lags(self):
        return False


def obeys_anybody(request_epoch: int, known_epoch: int) -> bool:
    return False


#: name -> (mutation, the invariants of which one must break)
MUTANTS = {
    "truncates to its high watermark": (
        Mutation(fetcher_machine=TruncatesToHighWatermark),
        {"committed stays", "replicas agree", "the cluster heals"},
    ),
    "never truncates": (Mutation(fetcher_machine=NeverTruncates), {"replicas agree", "the cluster heals"}),
    "high watermark ignores the isr": (
        Mutation(machine=IgnoresIsr),
        {"committed stays", "replicas agree", "consumers never go back"},
    ),
    "shrinks before the controller agrees": (
        Mutation(machine=ShrinksBeforeTheControllerAgrees),
        {"committed stays", "replicas agree"},
    ),
    "acknowledges too early": (Mutation(machine=AcknowledgesTooEarly), {"acknowledged is committed"}),
    "tells the end at once": (Mutation(machine=TellsTheEndAtOnce), {"consumers never go back"}),
    "obeys stale controllers": (Mutation(is_stale=obeys_anybody), {"stale controllers change nothing"}),
}
