"""The audit log of requested changes and denied requests. It has one JSON object per line, so that no name can forge a line.

Owner: the event loop; a thread writes. Lines are queued for the thread; if more arrive than it can write, the surplus is
dropped and the log states how many. Files rotate by size. Kafka's own line about a denial goes to `kafka.authorizer.logger`.
"""

import json
import logging
from collections.abc import Iterator
from typing import Final

from barnabas.base.clock import Clock
from barnabas.base.errors import ErrorCode
from barnabas.base.host.disk import Disk, write_fully
from barnabas.base.words import AclOperation, AclResourceType
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.runtime.threads import OnThread
from barnabas.broker.server.call import Call
from barnabas.wire.messages.base import Message
from barnabas.wire.versions import api_named

log = logging.getLogger(__name__)
kafka_log = logging.getLogger("kafka.authorizer.logger")

#: Requests that change something lasting, or something that other clients can see.
CHANGES: Final = frozenset(
    api_named(name).key
    for name in (
        "CreateTopics",
        "DeleteTopics",
        "CreatePartitions",
        "DeleteRecords",
        "AlterConfigs",
        "IncrementalAlterConfigs",
        "CreateAcls",
        "DeleteAcls",
        "AlterUserScramCredentials",
        "AlterClientQuotas",
        "CreateDelegationToken",
        "RenewDelegationToken",
        "ExpireDelegationToken",
        "AlterPartitionReassignments",
        "AlterReplicaLogDirs",
        "ElectLeaders",
        "UpdateFeatures",
        "DeleteGroups",
        "OffsetDelete",
        "CreateLink",
        "AlterLink",
        "DeleteLink",
    )
)
#: Fields that identify what a request is about. They contain no values, passwords or keys.
_NAMES: Final = frozenset(
    {"name", "resource_name", "group_id", "groups_names", "topic_names", "topic", "user", "owner_principal_name",
     "principal", "principal_filter", "resource_name_filter", "entity_name", "feature"}
)  # fmt: skip
#: Limits for the names in one line: clients choose their number and length.
NAMES_MAX: Final = 100
CHARACTERS_MAX: Final = 300
#: Limit of the queue for the disk.
WAITING_MAX: Final = 10_000
#: Rotated files to keep, besides the current one.
FILES_KEPT: Final = 10


class AuditLog:
    changes = CHANGES

    def __init__(
        self,
        path: str,
        *,
        disk: Disk,
        clock: Clock,
        on_thread: OnThread,
        spawn: Spawn,
        file_bytes_max: int,
    ) -> None:
        self.path = path
        self._disk = disk
        self._clock = clock
        self._on_thread = on_thread
        self._spawn = spawn
        self._file_bytes_max = file_bytes_max
        self._waiting: list[str] = []
        self._dropped = 0
        self._is_writing = False
        self._fd = -1
        self._position = 0

    def denied(self, call: Call, operation: AclOperation, resource: AclResourceType, name: str) -> None:
        channel = call.channel
        self._add(call, "denied", operation=operation.name, resource=resource.name, names=[name[:CHARACTERS_MAX]])
        kafka_log.info(
            "Principal = %s is Denied operation = %s from host = %s on resource = %s:LITERAL:%s for request = %s with "
            "resourceRefCount = 1",
            *(channel.principal, operation.name.title(), channel.peer_host, resource.name.title(), name, call.api.name),
        )

    def changed(self, call: Call, request: object, response: object) -> None:
        """Record the answer to a request that changes something."""
        errors = sorted({ErrorCode(code).name for code in _errors(response) if code})
        names = list(
            dict.fromkeys(name[:CHARACTERS_MAX] for _, name in zip(range(NAMES_MAX), _names(request), strict=False))
        )
        self._add(call, "change", names=names, errors=errors)

    def _add(self, call: Call, event: str, **more: object) -> None:
        if len(self._waiting) >= WAITING_MAX:
            self._dropped += 1
            return
        channel = call.channel
        entry = {
            "time_ms": self._clock.now_ms(),
            "event": event,
            "principal": str(channel.principal)[:CHARACTERS_MAX],
            "host": channel.peer_host,
            "listener": channel.listener_name,
            "client_id": (call.client_id or "")[:CHARACTERS_MAX],
            "request": call.api.name,
            **more,
        }
        # ASCII only: this escapes control characters, which could move the cursor of a terminal.
        self._waiting.append(json.dumps(entry, ensure_ascii=True))
        if not self._is_writing:
            self._is_writing = True
            self._spawn(self._write_all(), "audit log")

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                lines, self._waiting = self._waiting, []
                if self._dropped:
                    lines.append(
                        json.dumps({"time_ms": self._clock.now_ms(), "event": "dropped", "lines": self._dropped})
                    )
                    self._dropped = 0
                data = ("\n".join(lines) + "\n").encode("ascii")
                await self._on_thread(lambda data=data: self._write(data))  # type: ignore[misc]
        except OSError as error:
            log.error("[audit] cannot write %s, entries are lost until it is writable: %s", self.path, error)
        finally:
            self._is_writing = False

    def _write(self, data: bytes) -> None:
        disk = self._disk
        if self._fd >= 0 and self._position + len(data) > self._file_bytes_max:
            disk.close(self._fd)
            self._fd = -1
            for number in range(FILES_KEPT - 1, 0, -1):
                disk.rename_if_exists(f"{self.path}.{number}", f"{self.path}.{number + 1}")
            disk.rename(self.path, f"{self.path}.1")
        if self._fd < 0:
            self._fd = disk.open(self.path, create=True, mode=0o600)
            self._position = disk.length(self._fd)
        write_fully(disk, self._fd, data, self._position)
        self._position += len(data)


def _names(message: object) -> Iterator[str]:
    if not isinstance(message, Message):
        return
    for field in message.__wire__:
        value = getattr(message, field)
        for each in value if isinstance(value, list) else (value,):
            if isinstance(each, Message):
                yield from _names(each)
            elif isinstance(each, str) and field in _NAMES:
                yield each


def _errors(message: object) -> Iterator[int]:
    if not isinstance(message, Message):
        return
    for field in message.__wire__:
        value = getattr(message, field)
        if field == "error_code" and isinstance(value, int):
            yield value
        elif isinstance(value, list):
            for each in value[:NAMES_MAX]:
                yield from _errors(each)
