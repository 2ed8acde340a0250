"""A leader that is overruled in the middle of a transaction, whose end only the leader and the store have."""

from functools import partial
from typing import TYPE_CHECKING, Any

from barnabas.base.ids import TopicPartition
from barnabas.broker.features.tiered.feature import TieredPlugin
from tests.simulation.lossy_tiered_topic import TP
from tests.simulation.slow_readers import fetches_of
from tests.simulation.tier_troubles import LOOK_S, Overrule, Overruling, Trouble
from tests.simulation.timed_client_faults import answers_to

if TYPE_CHECKING:
    from barnabas.testing.simulation.network import Line

#: Size up to which a segment has just begun: it lasts until the transaction has ended.
EARLY_BYTES = 1_000
#: How long the fault waits, once the leader is alone, until the store has the end of the transaction.
COPIED_WITHIN_S = 4.0


class Unheard(Overruling):
    """The follower gets no more records after the first one of a transaction. The leader writes the marker that ends it, of
    which the coordinator gets no acknowledgement, and copies it to the store. Then the leader dies: the next one gets the
    marker again, in another segment, while the store has the first marker beside the records of both leaders.
    """

    def _look(self) -> None:
        if self.is_over:
            return
        self._world.after(LOOK_S, self._look)
        state = self._cluster.partition_states().get(TP)
        if not self._is_armed or state is None or len(state.isr) < 2:
            return
        followers = [self._cluster.log_of(each, TP) for each in state.isr if each != state.leader]
        log = self._cluster.log_of(state.leader, TP)
        if log is None or None in followers or not log.is_tiered:
            return
        begun = [each for each in followers[0].producers.ongoing if each >= log.active_segment.base_offset]
        if not begun or begun[0] not in log.producers.ongoing or log.active_segment.size_bytes > EARLY_BYTES:
            return
        self._is_armed = False
        OverruleUnheard(self._cluster, TP, lambda: self.is_over, begun[0]).begin()
        self._world.after(self._world.between(6.0, 7.0), self._arm)


class OverruleUnheard(Overrule):
    def __init__(self, cluster: Any, tp: TopicPartition, is_over: Any, first: int) -> None:
        """`first`: offset of the transaction's first record."""
        super().__init__(cluster, tp, is_over)
        self._followers = [cluster.brokers[each] for each in cluster.settled_replicas(tp) if each != self._leader.id]
        # The leader must reach the controller, which may be one of the followers: so not all their connections are cut.
        self._pairs = []
        self._first = first
        #: The log end when the transaction had ended.
        self._end: int | None = None
        self._held: list[Line] = []

    def begin(self) -> None:
        others = [each for each in self._cluster.brokers.values() if each is not self._leader]
        lines = [fetches_of(each, self._tp) for each in self._followers]
        lines += [answers_to(each, self._leader, "transaction-markers") for each in others]
        self._held = [line for line in lines if line is not None and line.held is None]
        for line in self._held:
            line.hold()
        super().begin()

    def _wait_alone(self, is_alone: bool) -> None:
        self._lie_in_wait(self._world.now_s + (COPIED_WITHIN_S if is_alone else 0.0), is_alone)

    def _lie_in_wait(self, until_s: float, is_alone: bool) -> None:
        if self._is_over() or self._world.now_s >= until_s or self._is_copied():
            self._strike(is_alone)
        else:
            self._world.after(LOOK_S, partial(self._lie_in_wait, until_s, is_alone))

    def _is_copied(self) -> bool:
        """Whether the store has one segment with both the beginning and the end of the transaction."""
        log = self._cluster.log_of(self._leader.id, self._tp)
        if log is None:
            return False
        if self._end is None and self._first not in log.producers.ongoing:
            self._end = log.log_end_offset
        view = self._leader.broker.plugin(TieredPlugin).manager.view(self._tp)
        if view is None or self._end is None:
            return False
        found = any(
            each.is_finished and each.start_offset <= self._first and each.end_offset >= self._end - 1
            for each in view.all()
        )
        if found:
            self._world.note("store", f"has the transaction of {self._leader.name} from {self._first} on, and its end")
        return found

    def _strike(self, is_alone: bool) -> None:
        super()._strike(is_alone)
        for line in self._held:
            assert line.held is not None
            # Packets to and from the leader are lost with it.
            line.held.clear()
            line.release()
            for each in (line, line.other):
                each.reset_later()
        self._held.clear()


KINDS: dict[str, type[Trouble]] = {"unheard": Unheard}
