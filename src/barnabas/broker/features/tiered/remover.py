"""Removes segments from the tier in Kafka's order: announce, delete the objects, finish.

Owner: the event loop. After the announcement the segment has no readers. If this broker fails, the next leader continues.
"""

import logging
from collections.abc import Callable

from barnabas.base.clock import Clock
from barnabas.base.ids import BrokerId
from barnabas.broker.features.tiered import layout
from barnabas.broker.features.tiered.expiry import Removal
from barnabas.broker.features.tiered.health import StoreHealth
from barnabas.broker.features.tiered.metadata_topic import RemoteMetadata
from barnabas.broker.features.tiered.metrics import TierMetrics
from barnabas.broker.features.tiered.segment_metadata import Mark, RemoteSegment, SegmentState, SegmentUpdate
from barnabas.broker.features.tiered.store import Store, StoreFault

log = logging.getLogger(__name__)


class Remover:
    def __init__(
        self,
        broker_id: BrokerId,
        store: Store,
        metadata: RemoteMetadata,
        *,
        health: StoreHealth,
        metrics: TierMetrics,
        clock: Clock,
    ) -> None:
        self._broker_id = broker_id
        self._store = store
        self._metadata = metadata
        self._health = health
        self._metrics = metrics
        self._clock = clock

    async def remove(self, removal: Removal, *, leader_epoch: int, check: Callable[[], None]) -> bool:
        """Remove a segment; return False if it is in use again. `check` raises once this broker may no longer remove it.

        :raises StoreFault, MetadataUnavailable: the next check of the partition retries.
        """
        segment = removal.segment
        mark = Mark(leader_epoch, if_unfinished=removal.if_unfinished).encode()
        check()
        if segment.state is not SegmentState.DELETE_STARTED:
            await self._metadata.publish(self._event(segment, SegmentState.DELETE_STARTED, mark))
        view = self._metadata.view(segment.id.of)
        known = None if view is None else view.get(segment.id)
        if known is None or known.state is not SegmentState.DELETE_STARTED:
            return False
        check()
        counters = self._metrics.of(segment.id.topic)
        counters.delete_requests.add()
        try:
            await self._store.delete(layout.keys(segment))
        except StoreFault as error:
            counters.delete_errors.add()
            self._health.failed(f"deleting {segment.id.tp}", error)
            raise
        self._health.worked()
        check()
        await self._metadata.publish(self._event(segment, SegmentState.DELETE_FINISHED, mark))
        log.info(
            "[tier %s] removed offsets %d to %d from the tier: %s",
            *(segment.id.tp, segment.start_offset, segment.end_offset, removal.reason),
        )
        return True

    def _event(self, segment: RemoteSegment, state: SegmentState, mark: bytes) -> SegmentUpdate:
        return SegmentUpdate(segment.id, state, self._clock.now_ms(), self._broker_id, mark)
