"""Copying and expiry on a real broker, with a store in memory."""

from pathlib import Path

from barnabas.tiered import layout
from tests.memory_store import MemoryStore
from tests.unit.coordination.zookeeper_fixture import zookeeper
from tests.unit.tiered.tier_broker import TP, tiered_broker, until


async def test_rolled_segments_go_up_and_then_go_locally(tmp_path: Path) -> None:
    store = MemoryStore()
    async with zookeeper() as ensemble, tiered_broker(ensemble, tmp_path, store) as tier:
        await tier.create({"local.retention.bytes": "1"})
        await tier.produce(20)
        await until(tier.is_all_copied, "every rolled segment is in the tier")
        await until(lambda: len(tier.log.segments) == 1, "local segments go")
        assert tier.log.log_start_offset == 0
        assert tier.log.local_log_start_offset == tier.log.active_segment.base_offset > 0
        # End to end, without a hole or an overlap.
        segments = tier.finished
        assert segments[0].start_offset == 0
        assert [each.start_offset for each in segments[1:]] == [each.end_offset + 1 for each in segments[:-1]]
        for each in segments:
            assert len(store.objects[layout.log_key(each)]) == each.size_bytes
            assert layout.Part.LEADER_EPOCHS in layout.unpack_indexes(store.objects[layout.indexes_key(each)])
        assert len(store.objects) == 2 * len(segments)
        assert TP in tier.manager.led
