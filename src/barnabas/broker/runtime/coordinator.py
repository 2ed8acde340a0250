"""The runtime of a coordinator: one shard for each partition of its internal topic that this broker leads.

A machine is pure. An operation on it returns a `Result`: records to write, an answer, effects. The runtime appends the
records to the partition, replays them into the machine, and lets the answers go when the records are committed. Replay
alone changes the hard state, so that a new leader, which only replays the log, arrives at the same state.

    answer = await runtime.write(partition, lambda machine, ticket: machine.join_group(request, ticket, now_ms))

An operation whose answer comes later (a join that waits for others) returns no answer and keeps its ticket; a later result
carries `Respond(ticket, answer)`. Owner: the event loop. Appending is synchronous: between an operation and its replay
nothing else runs, so machines never see half of a change. What is seen may not be committed yet; the answer of a read, or
of an operation that writes nothing (a refusal, a retry), therefore waits for the shard's last write, and never shows what
a failover could take back.
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
        """`name` is the topic's. `on_loaded` gets the time that a partition took to load. The rest: see `ShardContext`."""
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
        """This broker leads the partition now: load it, and serve when it is loaded. False: what it has is still right."""
        current = self._shards.get(partition)
        if current is not None:
            if current.epoch >= epoch:
                return False
            if current.state is ShardState.ACTIVE and epoch == current.epoch + 1:
                # Still the leader, in the next epoch: the state is right, and nothing was lost. If epochs are missing, another
                # broker has coordinated meanwhile, and may have kept this one from ending what it had decided.
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
        """The broker stops."""
        for partition in list(self._shards):
            self.resigned(partition)

    @property
    def active(self) -> dict[int, M]:
        """The machines that serve, by partition."""
        return {p: shard.machine for p, shard in self._shards.items() if shard.state is ShardState.ACTIVE}

    def count(self, state: ShardState) -> int:
        """How many partitions are in a state."""
        return sum(shard.state is state for shard in self._shards.values())

    async def _load(self, shard: Shard[M]) -> None:
        began_s = self._context.timers.time()
        try:
            await self._context.log.load(shard.partition, shard.replay_loaded)
        except Refused as refusal:
            log.info("%s is not loaded: %s", shard, refusal)
            shard.state = ShardState.FAILED
            return
        except LogDirFault as fault:
            # The directory is offline, and another broker is elected.
            log.error("cannot load %s: %s", shard, fault)
            shard.state = ShardState.FAILED
            return
        except Exception:
            log.exception("cannot load %s; its groups or transactions are unavailable", shard)
            shard.state = ShardState.FAILED
            return
        if shard.state is not ShardState.LOADING:
            return  # resigned meanwhile
        self._on_loaded((self._context.timers.time() - began_s) * 1000)
        log.info("%s loaded in epoch %d", shard, shard.epoch)
        shard.activate()

    # -- operations ---------------------------------------------------------------------------------------------------

    def _active(self, partition: int) -> Shard[M]:
        shard = self._shards.get(partition)
        if shard is None or shard.state is ShardState.CLOSED:
            name = self._context.name
            raise Refused(ErrorCode.NOT_COORDINATOR, f"{name} partition {partition} is not led by this broker")
        if shard.state is ShardState.LOADING:
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{shard} is being loaded")
        if shard.state is ShardState.FAILED:
            raise Refused(ErrorCode.NOT_COORDINATOR, f"{shard} could not be loaded")
        return shard

    def require(self, partition: int) -> None:
        """:raises Refused: where this broker does not serve the partition, or not yet."""
        self._active(partition)

    def begin(self, partition: int, operation: Callable[[M, Ticket], Result[R]]) -> "asyncio.Future[R]":
        """Run an operation now. The future has its answer once what it wrote is committed: often it is there at once."""
        return self._active(partition).begin(operation)

    async def write(self, partition: int, operation: Callable[[M, Ticket], Result[R]]) -> R:
        """Run an operation; its answer, once what it wrote is committed."""
        return await self.begin(partition, operation)

    def gather(self, partition: int, operation: Callable[[M, Ticket], Result[R]], reply: Reply[R]) -> None:
        """Run an operation now, and write its records together with those of others that come in the same turn of the loop.

        For operations that look at nothing which their like write: they do not see each other's records. Everything else
        does, since the records are written before anything else happens to the shard. What the operation raises is raised
        here; else `reply` is called once, never before this returns and never in the middle of another operation.
        """
        self._active(partition).gather(operation, reply)

    async def read(self, partition: int, operation: Callable[[M], R]) -> R:
        """Look, and answer when everything that was seen is committed."""
        return await self._active(partition).read(operation)

    async def read_all(self, operation: Callable[[M], Iterable[R]]) -> list[R]:
        """Look at everything that this broker coordinates. Refused while some of it is being loaded."""
        if self.count(ShardState.LOADING):
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self._context.name} is being loaded")
        found: list[R] = []
        for partition in self.active:
            try:
                found += await self.read(partition, operation)
            except Refused as refusal:
                if refusal.code is not ErrorCode.NOT_COORDINATOR:  # moved away meanwhile: others look at that
                    raise
        return found

    def submit(self, partition: int, operation: Callable[[M], Result[None]]) -> None:
        """An operation without a caller: a client went away, a topic was deleted. Skipped where nothing is loaded."""
        shard = self._shards.get(partition)
        if shard is not None and shard.state is ShardState.ACTIVE:
            shard.submit(operation)

    def submit_all(self, operation: Callable[[M], Result[None]]) -> None:
        for partition in self.active:
            self.submit(partition, operation)

    def replay_marker(self, partition: int, marker: Marker, offset: int) -> None:
        """A transaction marker was written to a partition that this broker leads."""
        shard = self._shards.get(partition)
        if shard is not None and shard.state is ShardState.ACTIVE:
            shard.replay_marker(marker, offset)
