"""The runtime of a coordinator: one shard for each partition of its internal topic that this broker leads.

A machine is pure. An operation on it returns a `Result`: records to write, an answer, effects. The runtime appends the records
to the partition, replays them into the machine, and releases the answers when the records are committed. Only replay changes
the hard state, so that a new leader, which only replays the log, arrives at the same state.

    answer = await runtime.write(partition, lambda machine, ticket: machine.join_group(request, ticket, now_ms))

If an operation's answer comes later (a join that waits for other members), it returns no answer and keeps its ticket; a later
result has `Respond(ticket, answer)`. Owner: the event loop. Appending is synchronous: nothing else runs between an operation
and its replay, so machines never see half of a change. An operation may see state that is not committed yet. The answer of a
read, or of an operation that writes nothing (a refusal, a retry), therefore waits for the shard's last write, and never shows
state that a fail-over could take back.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Generic

from barnabas.base.errors import ErrorCode, LogDirFault, Refused
from barnabas.broker.runtime.internal_log import CoordinatorLog
from barnabas.broker.runtime.machine import Marker, R, Reply, Result, Ticket
from barnabas.broker.runtime.shard import M, Shard, ShardContext, ShardState
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.runtime.timers import Timers

log = logging.getLogger(__name__)


class CoordinatorRuntime(Generic[M]):
    def __init__(
        self,
        name: str,
        coordinator_log: CoordinatorLog,
        *,
        make_machine: Callable[[int], M],
        now_ms: Callable[[], int],
        timers: Timers,
        spawn: Spawn,
        on_effect: Callable[[int, object], None] = lambda partition, message: None,
        answer_timeout_ms: Callable[[], int] | None = None,
        on_loaded: Callable[[float], None] = lambda took_ms: None,
    ) -> None:
        """`name` is the topic's name. `on_loaded` gets a partition's load time. For the other parameters see `ShardContext`."""
        self._context = ShardContext(
            name=name,
            log=coordinator_log,
            now_ms=now_ms,
            timers=timers,
            on_effect=on_effect,
            answer_timeout_ms=answer_timeout_ms,
        )
        self._make_machine = make_machine
        self._spawn = spawn
        self._on_loaded = on_loaded
        self._shards: dict[int, Shard[M]] = {}

    # -- leadership ---------------------------------------------------------------------------------------------------

    def elected(self, partition: int, epoch: int) -> bool:
        """Load a partition that this broker leads now, and serve it after that. False: it has the right state already."""
        current = self._shards.get(partition)
        if current is not None:
            if current.epoch >= epoch:
                return False
            if current.state is ShardState.ACTIVE and epoch == current.epoch + 1:
                # This broker still leads, in the next epoch: the state is right, and nothing was lost. If epochs are missing,
                # another broker was coordinator in between, and may have prevented this one from ending the transactions that
                # it decided.
                current.epoch = epoch
                return False
            current.close()
        shard = self._shards[partition] = Shard(self._context, partition, epoch, self._make_machine(partition))
        self._spawn(self._load(shard), f"load {self._context.name} {partition}")
        return True

    def resigned(self, partition: int) -> None:
        shard = self._shards.pop(partition, None)
        if shard is not None:
            shard.close()

    def close(self) -> None:
        """Stop serving: the broker stops."""
        for partition in list(self._shards):
            self.resigned(partition)

    @property
    def active(self) -> dict[int, M]:
        """Machines of the partitions that are served."""
        return {p: shard.machine for p, shard in self._shards.items() if shard.state is ShardState.ACTIVE}

    def count(self, state: ShardState) -> int:
        """Return the number of partitions in a state."""
        return sum(shard.state is state for shard in self._shards.values())

    async def _load(self, shard: Shard[M]) -> None:
        began_s = self._context.timers.time()
        try:
            await self._context.log.load(shard.partition, shard.replay_loaded)
        except Refused as refusal:
            log.info("[%s] is not loaded: %s", shard, refusal)
            shard.state = ShardState.FAILED
            return
        except LogDirFault as fault:
            # The directory is offline, and the controller elects another broker.
            log.error("[%s] cannot be loaded, another broker takes over: mend the log directory: %s", shard, fault)
            shard.state = ShardState.FAILED
            return
        except Exception:
            log.exception(
                "[%s] cannot be loaded, so its groups or transactions are unavailable: please report this bug", shard
            )
            shard.state = ShardState.FAILED
            return
        if shard.state is not ShardState.LOADING:
            return  # this broker resigned meanwhile
        self._on_loaded((self._context.timers.time() - began_s) * 1000)
        log.info("[%s] loaded in epoch %d", shard, shard.epoch)
        shard.activate()

    # -- operations ---------------------------------------------------------------------------------------------------

    def _active(self, partition: int) -> Shard[M]:
        shard = self._shards.get(partition)
        if shard is None or shard.state is ShardState.CLOSED:
            name = self._context.name
            raise Refused(ErrorCode.NOT_COORDINATOR, f"this broker does not lead partition {partition} of {name}")
        if shard.state is ShardState.LOADING:
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{shard} is being loaded")
        if shard.state is ShardState.FAILED:
            raise Refused(ErrorCode.NOT_COORDINATOR, f"{shard} could not be loaded")
        return shard

    def require(self, partition: int) -> None:
        """:raises Refused: if this broker does not serve the partition, or not yet."""
        self._active(partition)

    def begin(self, partition: int, operation: Callable[[M, Ticket], Result[R]]) -> "asyncio.Future[R]":
        """Run an operation now. The future gets its answer once the records are committed: often that is at once."""
        return self._active(partition).begin(operation)

    async def write(self, partition: int, operation: Callable[[M, Ticket], Result[R]]) -> R:
        """Run an operation; return its answer once the records are committed."""
        return await self.begin(partition, operation)

    def gather(self, partition: int, operation: Callable[[M, Ticket], Result[R]], reply: Reply[R]) -> None:
        """Run an operation now, and write its records together with those of other operations in the same turn of the loop.

        For operations that do not read what operations of their kind write: they do not see each other's records. Everything
        else does, since the records are written before anything else happens to the shard. An exception of the operation is
        raised here. Otherwise `reply` is called once, never before this returns and never in the middle of another operation.
        """
        self._active(partition).gather(operation, reply)

    async def read(self, partition: int, operation: Callable[[M], R]) -> R:
        """Read, and return the result when all state that it saw is committed."""
        return await self._active(partition).read(operation)

    async def read_all(self, operation: Callable[[M], Iterable[R]]) -> list[R]:
        """Read from all partitions that this broker coordinates. Raises `Refused` while one of them is being loaded."""
        if self.count(ShardState.LOADING):
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self._context.name} is being loaded")
        found: list[R] = []
        for partition in self.active:
            try:
                found += await self.read(partition, operation)
            except Refused as refusal:
                if refusal.code is not ErrorCode.NOT_COORDINATOR:  # another broker serves it by now
                    raise
        return found

    def submit(self, partition: int, operation: Callable[[M], Result[None]]) -> None:
        """Run an operation without a caller, after a disconnect or a topic's deletion. Skipped if the partition is not
        loaded."""
        shard = self._shards.get(partition)
        if shard is not None and shard.state is ShardState.ACTIVE:
            shard.submit(operation)

    def submit_all(self, operation: Callable[[M], Result[None]]) -> None:
        for partition in self.active:
            self.submit(partition, operation)

    def replay_marker(self, partition: int, marker: Marker, offset: int) -> None:
        """Replay a transaction marker that was written to a partition that this broker leads."""
        shard = self._shards.get(partition)
        if shard is not None and shard.state is ShardState.ACTIVE:
            shard.replay_marker(marker, offset)
