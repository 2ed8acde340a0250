"""Finds batches of aborted transactions, and markers that are no longer needed. A pure machine.

Follows Kafka's CleanedTransactionMetadata. It sees every transactional and control batch of one pass over a log, in order.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from barnabas.wire.control_records import ControlType, control_type
from barnabas.wire.record_batch import BatchHeader
from barnabas.wire.records import decode_body

if TYPE_CHECKING:
    from barnabas.broker.storage.txn_index import AbortedTxn


class TransactionTracker:
    """The transactions of one pass. `aborted`: the aborted transactions that may have a batch in it, in any order."""

    def __init__(self, aborted: "Iterable[AbortedTxn]") -> None:
        #: Sorted so that the next transaction is the last item.
        self._waiting = sorted(aborted, key=lambda txn: txn.first_offset, reverse=True)
        self._aborted: dict[int, AbortedTxn] = {}
        #: Producers with a batch of the open aborted transaction in this pass.
        self._aborted_seen: set[int] = set()
        self._committed_seen: set[int] = set()
        #: Aborted transactions with remaining records: for the index of the segment that has their marker.
        self.retained: list[AbortedTxn] = []

    def _begin_up_to(self, offset: int) -> None:
        while self._waiting and self._waiting[-1].first_offset <= offset:
            txn = self._waiting.pop()
            self._aborted.setdefault(txn.producer_id, txn)

    def on_data(self, producer_id: int, last_offset: int) -> bool:
        """Process a transactional batch; return whether it was aborted, so that its records can go."""
        self._begin_up_to(last_offset)
        if producer_id in self._aborted:
            self._aborted_seen.add(producer_id)
            return True
        self._committed_seen.add(producer_id)
        return False

    def on_control(self, header: BatchHeader, body: bytes) -> bool:
        """Process a control batch; return whether it is useless: its transaction has no batch left, or it is empty."""
        self._begin_up_to(header.last_offset)
        record = next(decode_body(body, header), None)
        if record is None:
            return True
        kind = control_type(record.key)
        producer_id = header.producer_id
        if kind is ControlType.ABORT:
            txn = self._aborted.pop(producer_id, None)
            if txn is None or producer_id not in self._aborted_seen:
                return True
            self._aborted_seen.remove(producer_id)
            self.retained.append(txn)
            return False
        if kind is ControlType.COMMIT:
            if producer_id not in self._committed_seen:
                return True
            self._committed_seen.remove(producer_id)
            return False
        return False
