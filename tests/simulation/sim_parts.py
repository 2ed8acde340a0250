"""The small parts of a simulated broker: a replica, a fetch session, a fetcher, a controller's channel."""

from collections.abc import Callable

from sim_disk import SimLog

from barnabas.controller import effects as fx
from barnabas.core.errors import ErrorCode
from barnabas.core.ids import LeaderEpoch, Offset, TopicPartition
from barnabas.replication.fetcher_machine import (
    FetcherMachine,
)
from barnabas.replication.follower_session import FetchEntry
from barnabas.replication.machine import PartitionMachine
from barnabas.storage.epoch_cache import EpochEnd

FETCH_WAIT_MS = 50
RPC_TIMEOUT_MS = 120
RETRY_MS = 50
BATCH = 10


class SimPartition:
    """A replica in a running broker: gone with the process, but for its log."""

    def __init__(self, tp: TopicPartition, machine: PartitionMachine, log: SimLog) -> None:
        self.tp = tp
        self.machine = machine
        self.log = log
        self.known_hw: int = machine.high_watermark
        self.waiting_produces: list[tuple[int, Callable[[ErrorCode], None]]] = []

    @property
    def log_start(self) -> Offset:
        return self.log.log_start

    @property
    def log_end(self) -> Offset:
        return self.log.log_end

    @property
    def high_watermark(self) -> Offset:
        return self.machine.high_watermark

    @property
    def latest_epoch(self) -> LeaderEpoch | None:
        return self.log.latest_epoch

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        return self.log.end_offset_for_epoch(epoch)


class ServerSession:
    def __init__(self, entries: dict[TopicPartition, FetchEntry]) -> None:
        self.entries = entries
        self.next_epoch = 1
        self.told: dict[TopicPartition, tuple[int, int]] = {}


class Fetcher:
    """The driver of one fetcher machine: one request at a time."""

    def __init__(self, machine: FetcherMachine) -> None:
        self.machine = machine
        self.request = 0
        self.is_busy = False


class Channel:
    """A controller's queue to one broker: in order, repeated until it is answered."""

    def __init__(self, broker: int) -> None:
        self.broker = broker
        self.queue: list[fx.SendLeaderAndIsr | fx.SendStopReplica | fx.SendUpdateMetadata] = []
        self.request = 0
        self.is_busy = False
