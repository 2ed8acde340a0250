"""The named invariants of a cluster, checked at every step at which one of them could break.

    one leader per epoch        no two brokers ever lead a partition in the same leader epoch
    committed stays             what was committed is in every later leader, unchanged, while one ISR member lives
    replicas agree              two replicas have the same records below both their high watermarks
    consumers never go back     the end that a consumer is told never moves back, what it read never changes
    stale controllers change nothing
                                neither in ZooKeeper, nor at a broker that knows a newer one
    acknowledged is committed   a produce with acks=all is acknowledged only when it is
    the cluster heals           when the faults end, every replica returns, equal to its leader

"While one ISR member lives": a record may go when a member of the ISR lost the unsynced end of its log, and no other member
with the whole of it is up, in the process that was up when the ISR was written: of one that started since, nobody can know
whether it lost its end, too. (With `--fast-boot`, not one without a session either, once a controller has written who leads
meanwhile: Kafka's promise is for a member that is alive all the time, and one without a session is not.) Such a partition is
excused from then on (`lost`), and the test says how many were.
"""

from collections.abc import Callable

from sim_world import InvariantBroken, World

from barnabas.core.ids import TopicPartition

ONE_LEADER = "one leader per epoch"
COMMITTED_STAYS = "committed stays"
REPLICAS_AGREE = "replicas agree"
NEVER_BACK = "consumers never go back"
STALE_CONTROLLER = "stale controllers change nothing"
ACKED_IS_COMMITTED = "acknowledged is committed"
HEALS = "the cluster heals"

Records = list[tuple[int, int]]


class Oracle:
    def __init__(self, world: World) -> None:
        self._world = world
        self._leaders: dict[tuple[TopicPartition, int], tuple[int, int]] = {}
        #: What some high watermark has passed: (leader epoch of the record, value), by offset.
        self.committed: dict[TopicPartition, Records] = {}
        #: By offset: the leader epoch in which it was first seen committed.
        self._committed_in: dict[TopicPartition, list[int]] = {}
        self.lost: set[TopicPartition] = set()
        #: (offset, record) that went with a power cut.
        self._cut: dict[TopicPartition, set[tuple[int, tuple[int, int]]]] = {}
        #: Asked to look at the ISR of a partition again.
        self.on_suspicion: Callable[[TopicPartition], None] = lambda tp: None
        self.acked: dict[TopicPartition, dict[int, int]] = {}
        self._ends_told: dict[tuple[str, TopicPartition], int] = {}
        self._controller_seen: dict[tuple[int, int], int] = {}

    def broken(self, name: str, detail: str) -> InvariantBroken:
        self._world.note("oracle", "%s", f"BROKEN {name}: {detail}")
        return InvariantBroken(name, detail)

    # --- leaders ---------------------------------------------------------------------------------------------------

    def leads(self, tp: TopicPartition, epoch: int, broker: int, incarnation: int, records: Records) -> None:
        other = self._leaders.setdefault((tp, epoch), (broker, incarnation))
        if other[0] != broker:
            raise self.broken(ONE_LEADER, f"brokers {other[0]} and {broker} lead {tp} in epoch {epoch}")
        if tp in self.lost:
            return
        committed = self.committed.get(tp, [])
        committed_in = self._committed_in.get(tp, [])
        for offset, record in enumerate(committed):
            if committed_in[offset] < epoch and (offset >= len(records) or records[offset] != record):
                has = records[offset] if offset < len(records) else "nothing"
                raise self.broken(
                    COMMITTED_STAYS,
                    f"broker {broker} leads {tp} in epoch {epoch} without {record} at {offset} (it has {has}), "
                    f"committed in epoch {committed_in[offset]}",
                )

    # --- high watermarks -------------------------------------------------------------------------------------------

    def high_watermark_moved(
        self, tp: TopicPartition, epoch: int, broker: int, old: int, new: int, records: Records
    ) -> None:
        if new < old or new > len(records):
            raise self.broken(NEVER_BACK, f"high watermark of {tp} at {broker}: {old} to {new}, log end {len(records)}")
        if tp in self.lost:
            return
        committed = self.committed.setdefault(tp, [])
        committed_in = self._committed_in.setdefault(tp, [])
        cut = self._cut.get(tp, ())
        for offset in range(old, new):
            was_lost = cut and (offset, records[offset]) in cut
            if offset == len(committed):
                committed.append(records[offset])
                committed_in.append(epoch)
                if was_lost:
                    # By the word of a member that has lost it since. If nobody else in the ISR has it, it may go.
                    self.on_suspicion(tp)
            elif committed[offset] != records[offset]:
                if was_lost:
                    self.excuse(tp, "a leader of the past counted on a record that was lost since")
                    return
                raise self.broken(
                    REPLICAS_AGREE,
                    f"{tp} at {offset}: {records[offset]} at broker {broker}, {committed[offset]} committed before",
                )

    def truncates(self, tp: TopicPartition, broker: int, to: int, high_watermark: int) -> None:
        if to < high_watermark and tp not in self.lost:
            raise self.broken(
                COMMITTED_STAYS, f"broker {broker} truncates {tp} to {to}, below its high watermark {high_watermark}"
            )

    def loses(self, tp: TopicPartition, lost: dict[int, tuple[int, int]]) -> None:
        self._cut.setdefault(tp, set()).update(lost.items())

    def isr_is(self, tp: TopicPartition, isr: list[tuple[bool, Records]]) -> None:
        """A member died, or the members changed. `isr`: of each, does it live on, and what is on its disk."""
        committed = self.committed.get(tp, [])
        some_lost = any(records[: len(committed)] != committed for _, records in isr)
        if some_lost and not any(lives and records[: len(committed)] == committed for lives, records in isr):
            self.excuse(tp, "no living member of the ISR has all of it")

    def excuse(self, tp: TopicPartition, why: str) -> None:
        if tp not in self.lost:
            self._world.note("oracle", "%s is excused: %s", tp, why)
            self.lost.add(tp)

    # --- clients ---------------------------------------------------------------------------------------------------

    def acknowledges(self, tp: TopicPartition, offset: int, value: int) -> None:
        if tp in self.lost:
            return
        committed = self.committed.get(tp, [])
        if offset >= len(committed) or committed[offset][1] != value:
            raise self.broken(ACKED_IS_COMMITTED, f"value {value} of {tp} at {offset} acknowledged, not committed")
        self.acked.setdefault(tp, {})[offset] = value

    def told_end(self, consumer: str, tp: TopicPartition, end: int) -> None:
        before = self._ends_told.get((consumer, tp), 0)
        if end < before and tp not in self.lost:
            raise self.broken(NEVER_BACK, f"{consumer} was told that {tp} ends at {before}, and now at {end}")
        self._ends_told[consumer, tp] = end

    def consumes(self, consumer: str, tp: TopicPartition, offset: int, record: tuple[int, int]) -> None:
        if tp in self.lost:
            return
        committed = self.committed.get(tp, [])
        if offset >= len(committed) or committed[offset] != record:
            expected = committed[offset] if offset < len(committed) else "nothing"
            raise self.broken(NEVER_BACK, f"{consumer} read {record} of {tp} at {offset}, committed is {expected}")

    # --- controllers -----------------------------------------------------------------------------------------------

    def obeys(self, broker: int, incarnation: int, controller_epoch: int, what: str) -> None:
        seen = self._controller_seen.get((broker, incarnation), 0)
        if controller_epoch < seen:
            raise self.broken(
                STALE_CONTROLLER, f"broker {broker} obeyed {what} of controller epoch {controller_epoch} after {seen}"
            )
        self._controller_seen[broker, incarnation] = controller_epoch

    def writes_state(self, path: str, controller_epoch: int, current_epoch: int) -> None:
        if controller_epoch > current_epoch:
            raise self.broken(
                STALE_CONTROLLER, f"{path} was written for controller epoch {controller_epoch}, it is {current_epoch}"
            )
