"""The state of one share partition as the coordinator keeps it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from barnabas.broker.runtime.share_state import ShareState, ShareStateSummary, StateBatch

#: The start offset is not chosen yet, or (in a write) does not change.
NO_START_OFFSET: Final = -1
NO_COUNT: Final = -1
#: In a request: the sender does not know the epoch, and is not fenced.
NO_EPOCH: Final = -1
#: The leader epoch of a state that no leader has read yet.
FIRST_LEADER_EPOCH: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptState:
    #: The epochs never go back. Each snapshot has a higher snapshot epoch.
    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]
    created_ms: int
    #: When the last snapshot was written. Differs from `created_ms` if that one only repeated the state.
    written_ms: int
    #: Update records since the last snapshot.
    updates: int
    #: Offset of the last snapshot. Earlier records of this share partition are not needed.
    snapshot_offset: int

    @property
    def is_repeated(self) -> bool:
        """Whether the last snapshot only repeated the state."""
        return self.created_ms != self.written_ms

    def shown(self) -> ShareState:
        return ShareState(self.state_epoch, self.start_offset, self.batches)

    def summary(self) -> ShareStateSummary:
        return ShareStateSummary(self.state_epoch, self.leader_epoch, self.start_offset, self.delivery_complete_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A write of a leader: only the batches that changed. An unchanged start offset is -1."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: Sequence[StateBatch]
