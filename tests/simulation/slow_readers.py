"""Timed faults while a long response is being sent: its reader takes a part of it, and the rest waits in a file.

Meanwhile another broker becomes leader, and the records of the response are cut and overwritten. Brokers of Apache Kafka, which
a cluster may contain (`docs/migration.md`), send the current contents of their file, and accept what they are sent. So one of
the two brokers behaves like Kafka each time, and the other one alone must keep the replicas equal.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from barnabas.base.ids import TopicPartition
from barnabas.broker.storage.file_handle import NEVER_CUT
from barnabas.client.admin.partitions import alter_reassignments, elect_leaders
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.transactions import Transactions
from barnabas.testing.simulation.network import WINDOW_BYTES
from barnabas.testing.simulation.process import BrokerProcess
from tests.simulation.succession_faults import SuccessionFaultClient
from tests.simulation.timed_client_faults import Led

if TYPE_CHECKING:
    from barnabas.testing.simulation.network import Line

_TIMEOUT_MS: Final = 5_000
#: Number of batches that makes a response larger than what is sent as one piece.
_BATCHES: Final = 24
_KEY: Final = b"k" * 3_500
#: Bytes that the reader's kernel accepts before it must be read: some batches.
_SMALL_WINDOW_BYTES: Final = 16 * 1024
#: How long a reader may take to read the rest, or to find that there is none.
_TAKEN_S: Final = 1.0


class SlowReaderFaultClient(SuccessionFaultClient):
    """Visits that happen only if the scenario names them."""

    async def _is_cut_while_it_is_sent(self, cluster: AsyncClient) -> None:
        """A follower that has not heard of the next leader gets records of the last one, and then, in the same response, the
        records that have overwritten the rest.
        """
        led, controller = await self._find_movable(cluster), self.cluster.controller()
        if led is None or controller is None:
            return
        others = [each for each in self.cluster.settled_replicas(led.tp) if each != led.process.id]
        followers = [self.cluster.brokers[each] for each in self.chance.sample(others, len(others))]
        reader = next(each for each in followers if each is not controller)
        successor = next(each for each in followers if each is not reader)
        if not await self._is_next(cluster, led, successor, reader):
            return
        for broker in await cluster.brokers():
            await cluster.link(broker)  # connect now, so that it takes no time later
        transactions = Transactions(cluster)
        identities = [await transactions.initialise(None, timeout_ms=_TIMEOUT_MS) for _ in range(2)]
        asks = fetches_of(reader, led.tp)
        if asks is None or asks.held is not None or asks.other.held is not None or not led.is_same_life:
            return
        end, epoch, every_batch = led.end, led.partition.log.epochs.latest_epoch, range(_BATCHES)
        with ExitStack() as until_sent, ExitStack() as until_elected:
            until_elected.enter_context(self._parted((led.process, successor), (successor, led.process)))
            with _held(asks):
                if not await self._until(lambda: asks.held):
                    return
                await self._write(cluster, led.tp, identities[0], every_batch, to=led.process.id, key=_KEY)
                until_sent.enter_context(_held(asks.other, window_bytes=_SMALL_WINDOW_BYTES))
            sending = await self._sending(led, asks.other, end)
            if sending is None:
                return
            until_sent.enter_context(self._parted((controller, reader)))
            self.note(f"makes {successor.name} leader of {led.tp} while {reader.name} has half a response")
            await elect_leaders(cluster, 0, [led.tp])
            if not await self._until(lambda: self._leads(successor, led.tp)):
                return
            until_elected.close()
            if not await self._until(lambda: not led.partition.is_leader):
                return
            await self._write(cluster, led.tp, identities[1], every_batch, to=successor.id, key=_KEY)
            if not await self._until(lambda: self._is_written_over(led, end, epoch, _BATCHES)):
                return
            self.note(f"finds {led.tp} on {led.process.name} overwritten from {end} on")
            until_sent.enter_context(self._of_another_make(sending.source.handle, reader, led.tp))
            _release(asks.other)
            await self._until(lambda: self._has_taken(reader, led.tp, end) or asks.is_closed, _TAKEN_S)

    # -- who is next ------------------------------------------------------------------------------------------------------

    async def _is_next(self, cluster: AsyncClient, led: Led, successor: BrokerProcess, reader: BrokerProcess) -> bool:
        """Whether an election makes the broker the next leader, and all brokers know the present one until then."""
        order = (successor.id, led.process.id, reader.id)
        await alter_reassignments(cluster, {led.tp: order})

        def is_known() -> bool:
            if self.cluster.settled_replicas(led.tp) != order or set(self._in_sync(led.tp)) != set(order):
                return False
            states = [self._partition_of(self.cluster.brokers[each], led.tp) for each in order]
            epochs = {None if each is None else each.machine.leader_epoch for each in states}
            return len(epochs) == 1 and led.is_same_life and led.partition.is_leader

        return await self._until(is_known)

    def _partition_of(self, process: BrokerProcess, tp: TopicPartition) -> Any:
        return process.broker.replicas.hosted.get(tp) if process.is_serving and process.broker is not None else None

    def _leads(self, process: BrokerProcess, tp: TopicPartition) -> bool:
        partition = self._partition_of(process, tp)
        return partition is not None and partition.is_leader

    @contextmanager
    def _parted(self, *pairs: tuple[BrokerProcess, BrokerProcess]) -> Iterator[None]:
        """Cut each pair: its second broker hears nothing from the first."""
        for source, target in pairs:
            self.cluster.network.cut(source.name, target.name)
        try:
            yield
        finally:
            for source, target in pairs:
                self.cluster.network.mend(source.name, target.name)

    # -- an answer that is half sent ----------------------------------------------------------------------------------------

    async def _sending(self, led: Led, answers: "Line", end: int) -> Any:
        """Return the file part that the leader is sending, if it has sent whole batches of it; otherwise None."""
        found: list[Any] = []

        def is_stuck() -> bool:
            found[:] = _queued(led.process, answers)[:1]
            return answers.room == 0 and bool(found) and hasattr(found[0], "source")

        if not await self._until(is_stuck):
            return None
        [sending], log = found, led.partition.log
        with led.process.looked_at():
            [first] = log.read(end, max_bytes=1, max_offset=log.log_end_offset).ranges
        first.release()
        if sending.source.handle is not first.handle:
            return None
        sent_bytes = sending.position - first.position
        # Let the reader's kernel accept a little more, up to the end of a batch.
        answers.window_bytes += -sent_bytes % first.size_bytes
        answers.poll()
        return sending if await self._until(lambda: answers.room == 0) and sending.size_bytes else None

    @contextmanager
    def _of_another_make(self, file: Any, reader: BrokerProcess, tp: TopicPartition) -> Iterator[None]:
        """Let either the sender send the file's current contents, or the receiver accept what it is sent, as Kafka does."""
        partition = self._partition_of(reader, tp)
        if partition is None or self.chance.random() < 0.5:
            file.cut_at = NEVER_CUT
            yield
            return
        log = partition.log
        take = log.append_as_follower
        log.append_as_follower = lambda records, *, now_ms, leader_epoch: take(records, now_ms=now_ms)
        try:
            yield
        finally:
            log.append_as_follower = take

    def _has_taken(self, reader: BrokerProcess, tp: TopicPartition, end: int) -> bool:
        log = self.cluster.log_of(reader.id, tp)
        return log is not None and log.log_end_offset > end


@contextmanager
def _held(line: "Line", *, window_bytes: int = WINDOW_BYTES) -> Iterator[None]:
    line.hold()
    line.window_bytes = window_bytes
    try:
        yield
    finally:
        _release(line)


def _release(line: "Line") -> None:
    line.window_bytes = WINDOW_BYTES
    if line.held is not None:
        line.release()
    line.poll()


def fetches_of(process: BrokerProcess, tp: TopicPartition) -> "Line | None":
    """Return a follower's side of the connection on which it fetches a partition."""
    fetcher = process.broker.replication.fetchers.fetcher_of(tp) if process.is_serving and process.broker else None
    connection: Any = None if fetcher is None else getattr(fetcher._endpoint, "_connection", None)
    if connection is None or connection._transport is None:
        return None
    line: Line = connection._transport._line
    return None if line.is_closed or line.is_gone or line.is_reset else line


def _queued(process: BrokerProcess, line: "Line") -> list[Any]:
    """Return what a broker has queued for a connection and cannot send yet."""
    for sock in line.watchers:
        waiting = None if process.loop is None else process.loop.writers.get(sock.fileno())
        if waiting is not None:
            return list(waiting._callback.__self__._queue)
    return []
