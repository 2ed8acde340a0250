"""Group commit: a response waits until its transactions are durable, and one flush covers all that arrived meanwhile."""

import asyncio
import threading
from pathlib import Path

import pytest

from barnabas.zookeeper.commit import GroupCommit
from barnabas.zookeeper.txnlog import LogWriter


class SlowWriter(LogWriter):
    """Flushes when the test asks for it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.flushes: list[bytes] = []
        self.may_flush = threading.Semaphore(0)
        self.fail = False

    def append(self, first_zxid: int, records: bytes) -> None:
        assert self.may_flush.acquire(timeout=60)
        if self.fail:
            raise OSError(5, "Input/output error")
        self.flushes.append(records)

    def close(self) -> None:
        self.may_flush.release()


class Sink:
    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.closed = False

    def transmit(self, pieces: list[bytes], *, close: bool) -> None:
        assert not self.closed
        self.got.extend(pieces)
        self.closed = close


class Bench:
    def __init__(self, folder: Path) -> None:
        self.writer = SlowWriter(folder)
        self.failure: OSError | None = None
        self.released = asyncio.Event()
        self.commit = GroupCommit(
            self.writer, loop=asyncio.get_running_loop(), on_released=self.released.set, on_failure=self._fail
        )
        self.commit.start(0)

    def _fail(self, error: OSError) -> None:
        self.failure = error
        self.released.set()

    async def one_flush(self) -> None:
        self.released.clear()
        self.writer.may_flush.release()
        await asyncio.wait_for(self.released.wait(), 60)


async def turn() -> None:
    """Run what `call_soon` queued."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_answer_waits_for_its_record_and_reads_wait_behind_it(tmp_path: Path) -> None:
    bench, writer, reader = Bench(tmp_path), Sink(), Sink()
    commit = bench.commit
    commit.send(reader, [b"at once"])
    assert reader.got == [b"at once"]
    commit.append(1, b"r1")
    commit.send(writer, [b"a1"])
    commit.send(reader, [b"sees 1"])
    await turn()
    assert (writer.got, commit.held_count) == ([], 2)
    # During the first flush more writes gather, and a read before them needs only the first flush.
    commit.send(reader, [b"still sees 1"])
    commit.append(2, b"r2")
    commit.send(writer, [b"a2"])
    commit.append(3, b"r3")
    commit.send(writer, [b"a3"], close=True)
    await bench.one_flush()
    assert writer.got == [b"a1"]
    assert reader.got == [b"at once", b"sees 1", b"still sees 1"]
    assert bench.writer.flushes == [b"r1"]
    await bench.one_flush()
    assert (writer.got, writer.closed) == ([b"a1", b"a2", b"a3"], True)
    assert bench.writer.flushes == [b"r1", b"r2r3"], "one flush for all that came meanwhile"
    assert (commit.held_count, commit.held_bytes, commit.synced_zxid) == (0, 0, 3)
    await commit.stop()


async def test_failed_flush_acknowledges_nothing_ever_again(tmp_path: Path) -> None:
    bench, sink = Bench(tmp_path), Sink()
    bench.writer.fail = True
    bench.commit.append(1, b"r1")
    bench.commit.send(sink, [b"a1"])
    await turn()
    bench.commit.append(2, b"r2")
    bench.commit.send(sink, [b"a2"])
    await bench.one_flush()
    assert bench.failure is not None
    await turn()
    assert sink.got == []
    await bench.commit.stop()


async def test_ended_connection_is_forgotten_with_its_responses(tmp_path: Path) -> None:
    bench, sink = Bench(tmp_path), Sink()
    bench.commit.append(1, b"r1")
    bench.commit.send(sink, [b"a1", b"b"])
    await turn()
    bench.commit.append(2, b"r2")
    bench.commit.send(sink, [b"a2"])
    bench.commit.forget(sink)
    await bench.one_flush()
    await bench.one_flush()
    assert sink.got == []
    assert (bench.commit.held_count, bench.commit.held_bytes) == (0, 0)
    await bench.commit.stop()


async def test_stop_flushes_the_remaining_records(tmp_path: Path) -> None:
    bench, sink = Bench(tmp_path), Sink()
    bench.commit.append(1, b"r1")
    bench.commit.send(sink, [b"a1"])
    bench.writer.may_flush.release()
    await asyncio.wait_for(bench.commit.stop(), 60)
    assert sink.got == [b"a1"]


@pytest.mark.parametrize("zxid", [1, 2])
async def test_synced_returns_when_the_zxid_is_durable(tmp_path: Path, zxid: int) -> None:
    bench = Bench(tmp_path)
    bench.commit.append(1, b"r1")
    await turn()
    bench.commit.append(2, b"r2")
    waiter = asyncio.ensure_future(bench.commit.synced(zxid))
    for flushed in (1, 2):
        await bench.one_flush()
        await turn()
        assert waiter.done() == (flushed >= zxid)
    await bench.commit.stop()
