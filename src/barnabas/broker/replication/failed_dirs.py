"""Reacts to a failed log directory. Owner: the event loop."""

from collections.abc import Callable, Sequence
from typing import Protocol

from barnabas.base.errors import BarnabasError
from barnabas.base.ids import TopicPartition
from barnabas.broker.replication.control_requests import ControlRequests
from barnabas.broker.replication.fetchers import FetcherManager
from barnabas.broker.replication.manager import ReplicaManager


class LogDirs(Protocol):
    @property
    def live_dirs(self) -> Sequence[object]: ...


class FailedDirs:
    """Takes the partitions of a failed directory offline. A broker with no directory left stops."""

    def __init__(
        self,
        logs: LogDirs,
        replicas: ReplicaManager,
        fetchers: FetcherManager,
        control: ControlRequests,
        *,
        call_soon: Callable[..., object],
        report: Callable[[str], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        """`report` notifies the controller, which elects other leaders."""
        self._logs = logs
        self._replicas = replicas
        self._fetchers = fetchers
        self._control = control
        self._call_soon = call_soon
        self._report = report
        self._fail = fail

    def failed(self, directory: str, gone: list[TopicPartition]) -> None:
        self._fetchers.remove(gone)
        offline = [partition for tp in gone if (partition := self._replicas.hosted.get(tp)) is not None]
        for partition in offline:
            partition.machine.go_offline()
            partition.log = None
            self._replicas.hosted.wake_all(partition)
        # Do this later: a coordinator may be in the middle of the append that found the failure.
        self._call_soon(self._control.went_offline, offline)
        if not self._logs.live_dirs:
            self._fail(BarnabasError("every log directory has failed: mend the disks and restart the broker"))
        else:
            self._report(directory)
