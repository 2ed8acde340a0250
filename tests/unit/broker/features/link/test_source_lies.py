"""An implausible answer of a source is neither appended nor recorded; only its partition waits."""

from pathlib import Path

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.broker.replication.fetch_steps import FetchedPartition
from tests.unit.broker.features.link.test_mirror_replica import TP, Mirror, batch
from tests.unit.broker.features.link.test_source_recreated import FOUND, source_of

OTHER = TopicPartition("other", 0)


async def test_implausible_partitions_are_removed_from_the_answer_and_logged(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    source, (mirror, other) = source_of(FOUND), map(Mirror, folders)
    source.replicas = {TP: mirror.replica, OTHER: other.replica}
    other.receive(batch(0, 2))
    far, good = batch(1 << 40, 2), batch(1, 2)

    async def answered() -> list[tuple[int, object]]:
        answer = [FetchedPartition(TP, 0, 5, 0, None, far), FetchedPartition(OTHER, 0, 5, 0, None, good)]
        await source.fetched(answer)
        return [(each.error_code, each.records) for each in answer]

    for _ in range(2):  # its high watermark may have risen while it read: the fetch is repeated
        assert await answered() == [(ErrorCode.NONE, None), (ErrorCode.NONE, good)]
    assert source.errors == 0
    assert await answered() == [(ErrorCode.CORRUPT_MESSAGE, None), (ErrorCode.NONE, good)]
    assert source.errors == 1
    assert mirror.replica.error == f"the source sent records up to {(1 << 40) + 1}, above its high watermark 5"
    assert other.replica.error is None
    assert mirror.replica.objection(batch(0, 2), 5) is None
    assert mirror.replica.implausible_answers == 0
    await source.client.close()
