"""A partition's knowledge of its producers: idempotence, fencing, open transactions. A pure machine.

Offsets, sequences and epochs come from batch headers; time and files from the owner. The owner checks an append first
(`analyze`, which raises `Refused` and changes nothing), then writes it to the log, then applies it (`update`,
`complete_txn`), so that a refused or failed append leaves no trace.

Follows Kafka's ProducerStateManager and ProducerAppendInfo. Owner: the log.
"""

from collections.abc import Iterable

from barnabas.base.errors import BrokenInvariant, ErrorCode, Refused
from barnabas.base.ids import NO_PRODUCER_ID, Offset, TopicPartition
from barnabas.broker.storage.producer_append import AppendOrigin, AppendPlan, ProducerAppend, repeats_ended_transaction
from barnabas.broker.storage.producer_entry import CompletedTxn, ProducerEntry, VerificationEntry
from barnabas.wire.record_batch import BatchHeader
from barnabas.wire.records import EndTxnMarker as EndTxnMarker


class ProducerStateManager:
    """All producers of a partition, its open transactions, and the transactions whose end is not replicated yet.

    `map_end_offset`: the state reflects every batch below it. `snap_offset`: offset of the latest snapshot taken or loaded.
    """

    def __init__(
        self,
        partition: TopicPartition,
        *,
        producer_id_expiration_ms: int = 86_400_000,
        transaction_verification: bool = False,
    ) -> None:
        self.partition = partition
        self.producer_id_expiration_ms = producer_id_expiration_ms
        #: `transaction.partition.verification.enable`
        self.transaction_verification = transaction_verification
        self._producers: dict[int, ProducerEntry] = {}
        #: Producers that came from a snapshot, with one batch each.
        self._restored: set[int] = set()
        self._verifications: dict[int, VerificationEntry] = {}
        #: first offset -> producer id, ascending: transactions begin in the order of the log.
        self.ongoing: dict[int, int] = {}
        #: first offset -> offset of the marker, as long as the marker is not known to be below the high watermark.
        self.unreplicated: dict[int, int] = {}
        self.map_end_offset = Offset(0)
        self.snap_offset = Offset(0)

    # -- queries

    @property
    def producers(self) -> dict[int, ProducerEntry]:
        """The producers by id. Do not change it."""
        return self._producers

    def entry(self, producer_id: int) -> ProducerEntry | None:
        return self._producers.get(producer_id)

    @property
    def is_empty(self) -> bool:
        return not self._producers and not self.unreplicated

    @property
    def first_unstable_offset(self) -> Offset | None:
        """The first offset of a transaction that is open, or whose marker is not below the high watermark."""
        ongoing = next(iter(self.ongoing), None)
        if not self.unreplicated:
            return None if ongoing is None else Offset(ongoing)
        unreplicated = min(self.unreplicated)
        return Offset(unreplicated if ongoing is None or unreplicated < ongoing else ongoing)

    def has_ongoing_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a transaction of exactly this epoch is open. A transaction of an earlier epoch is decided and waits for its
        marker: records of the next transaction must not become part of it (KIP-890 part 2).
        """
        entry = self._producers.get(producer_id)
        return entry is not None and entry.txn_first_offset is not None and entry.producer_epoch == producer_epoch

    # -- append: check, then change

    def analyze(
        self,
        batches: Iterable[tuple[BatchHeader, EndTxnMarker | None]],
        origin: AppendOrigin,
        verification_guard: object | None = None,
    ) -> AppendPlan:
        """Check the batches of one append, whose offsets are assigned; raise `Refused` or return the changes.

        Changes nothing. A client's duplicate ends the analysis: nothing of the append is written.
        """
        appends: dict[int, ProducerAppend] = {}
        completed: list[CompletedTxn] = []
        for header, marker in batches:
            producer_id = header.producer_id
            if producer_id == NO_PRODUCER_ID:
                continue
            if origin is AppendOrigin.CLIENT:
                entry = self._producers.get(producer_id)
                if entry is not None:
                    duplicate = entry.find_duplicate(header)
                    if duplicate is None and producer_id in self._restored:
                        duplicate = entry.find_forgotten(header)
                    if duplicate is not None:
                        if header.is_transactional and entry.has_ended(duplicate):
                            raise repeats_ended_transaction(self.partition, header)
                        return AppendPlan([], [], duplicate)
            if origin is not AppendOrigin.REPLICATION and self.transaction_verification:
                self._check_verified(header, verification_guard)
            append = appends.get(producer_id)
            if append is None:
                append = appends[producer_id] = self.prepare(producer_id, origin)
            ended = append.append(header, marker)
            if ended is not None:
                completed.append(ended)
        return AppendPlan(list(appends.values()), completed, None)

    def _check_verified(self, header: BatchHeader, guard: object | None) -> None:
        """KIP-890: a transaction may begin here only with the guard of a confirmed verification."""
        if not header.is_transactional or header.is_control:
            return
        if self.has_ongoing_transaction(header.producer_id, header.producer_epoch):
            return
        entry = self._verifications.get(header.producer_id)
        if guard is None or entry is None or entry.guard is not guard:
            raise Refused(ErrorCode.INVALID_TXN_STATE, "Record was not part of an ongoing transaction")

    def prepare(self, producer_id: int, origin: AppendOrigin) -> ProducerAppend:
        """Start the checks for one producer's batches; `analyze` does this for a whole append."""
        current = self._producers.get(producer_id) or ProducerEntry(producer_id)
        return ProducerAppend(self.partition, current, origin, self._verifications.get(producer_id))

    def update(self, append: ProducerAppend) -> None:
        """Take over a checked append that is now in the log."""
        if append.producer_id == NO_PRODUCER_ID:
            raise BrokenInvariant(f"{self.partition}: state of a producer without an id")
        current = self._producers.get(append.producer_id)
        if current is None:
            self._producers[append.producer_id] = append.updated
        else:
            current.absorb(append.updated)
        for first_offset in append.started:
            self._begin(first_offset, append.producer_id)
        if append.transactional:
            # From now on the open transaction itself permits the producer to write; after a marker no write is permitted.
            self._verifications.pop(append.producer_id, None)

    def _begin(self, first_offset: int, producer_id: int) -> None:
        in_order = first_offset > next(reversed(self.ongoing), -1)
        self.ongoing[first_offset] = producer_id
        if not in_order:
            # The producers of one fetch are updated one by one, so their transactions can come out of order.
            self.ongoing = dict(sorted(self.ongoing.items()))

    def update_map_end_offset(self, end_offset: int) -> None:
        """Record that every batch below `end_offset` has been applied."""
        self.map_end_offset = Offset(end_offset)

    def last_stable_offset(self, completed: CompletedTxn) -> Offset:
        """Return the last stable offset after `completed`: for the transaction index, before `complete_txn`.

        Transactions that began after its marker do not count: a follower may get all of them in one fetch.
        """
        for first_offset, producer_id in self.ongoing.items():
            if producer_id != completed.producer_id:
                return Offset(min(first_offset, completed.last_offset + 1))
        return Offset(completed.last_offset + 1)

    def complete_txn(self, completed: CompletedTxn) -> None:
        """End the transaction; it stays unstable until its marker is below the high watermark."""
        if self.ongoing.pop(completed.first_offset, None) is None:
            raise BrokenInvariant(f"{self.partition}: {completed} ends a transaction that was not begun")
        self.unreplicated[completed.first_offset] = completed.last_offset

    # -- effects of time and the high watermark

    def on_high_watermark(self, high_watermark: int) -> bool:
        """Forget ended transactions whose marker is replicated; return whether the first unstable offset may have moved."""
        if not self.unreplicated:
            return False
        replicated = [first for first, last in self.unreplicated.items() if last < high_watermark]
        for first in replicated:
            del self.unreplicated[first]
        return bool(replicated)

    def on_log_start_offset(self, log_start_offset: int, latest_snapshot_offset: int | None) -> None:
        """Follow a log start that moved up: forget transactions that ended below it; the state reaches at least to it."""
        self.on_high_watermark(log_start_offset)
        if self.map_end_offset < log_start_offset:
            self.map_end_offset = Offset(log_start_offset)
        self.snap_offset = Offset(log_start_offset if latest_snapshot_offset is None else latest_snapshot_offset)

    def is_expired(self, entry: ProducerEntry, now_ms: int) -> bool:
        """Whether the producer was silent for `producer.id.expiration.ms` and has no open transaction."""
        return entry.txn_first_offset is None and now_ms - entry.last_timestamp >= self.producer_id_expiration_ms

    def remove_expired(self, now_ms: int) -> int:
        """Forget silent producers and unused verifications; return the number of producers removed."""
        expired = [pid for pid, entry in self._producers.items() if self.is_expired(entry, now_ms)]
        for producer_id in expired:
            del self._producers[producer_id]
            self._restored.discard(producer_id)
        for producer_id, verification in list(self._verifications.items()):
            if now_ms - verification.timestamp_ms >= self.producer_id_expiration_ms:
                del self._verifications[producer_id]
        return len(expired)

    # -- transaction verification (KIP-890)

    def start_verification(self, producer_id: int, sequence: int, epoch: int, now_ms: int) -> VerificationEntry:
        """Return the verification of a producer that is about to begin a transaction here; its `guard` goes with the append."""
        entry = self._verifications.get(producer_id)
        if entry is None:
            entry = self._verifications[producer_id] = VerificationEntry(now_ms, sequence, epoch)
        entry.observe(sequence, epoch)
        return entry

    def verification(self, producer_id: int) -> VerificationEntry | None:
        return self._verifications.get(producer_id)

    # -- snapshots, truncation

    def snapshot_entries(self) -> list[ProducerEntry]:
        """Return the entries of a snapshot at `map_end_offset`. They are live objects: encode them before the next append."""
        return list(self._producers.values())

    @property
    def needs_snapshot(self) -> bool:
        """Whether the state has changed since the last snapshot."""
        return self.map_end_offset > self.snap_offset

    def on_snapshot_taken(self) -> None:
        self.snap_offset = self.map_end_offset

    def load(self, entries: Iterable[ProducerEntry], offset: int, now_ms: int) -> None:
        """Start from a snapshot at `offset`, without producers that have expired since."""
        self.truncate_fully(offset)
        open_txns = []
        for entry in entries:
            if self.is_expired(entry, now_ms):
                continue
            self._producers[entry.producer_id] = entry
            self._restored.add(entry.producer_id)
            if entry.txn_first_offset is not None:
                open_txns.append((entry.txn_first_offset, entry.producer_id))
        self.ongoing.update(sorted(open_txns))
        self.snap_offset = self.map_end_offset

    def truncate_fully(self, offset: int) -> None:
        """Forget everything but verifications; the state reflects a log that is empty up to `offset`."""
        self._producers.clear()
        self._restored.clear()
        self.ongoing.clear()
        self.unreplicated.clear()
        self.map_end_offset = Offset(offset)
        self.snap_offset = Offset(0)

    def new(self) -> "ProducerStateManager":
        """Return an empty state for the same partition with the same settings, to be filled on a thread."""
        return ProducerStateManager(
            self.partition,
            producer_id_expiration_ms=self.producer_id_expiration_ms,
            transaction_verification=self.transaction_verification,
        )

    def become(self, other: "ProducerStateManager") -> None:
        """Take over another's state, except verifications, which concern future appends."""
        self._producers = other._producers
        self._restored = other._restored
        self.ongoing = other.ongoing
        self.unreplicated = other.unreplicated
        self.map_end_offset = other.map_end_offset
        self.snap_offset = other.snap_offset
