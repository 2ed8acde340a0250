"""Ends the session of this broker's previous process, if that was killed, so that the new process need not wait for it.

The owner of a session's id and password may close it. A broker keeps them in its log directory, readable for its user only. A
power cut may lose the file: then the new process waits until the session expires, as Kafka's does.

Owner: the event loop. Files are read and written on a thread.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from barnabas.base.errors import Malformed
from barnabas.base.host.disk import Disk
from barnabas.broker.zookeeper_client.json_data import dump, reading
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.session_config import SessionConfig, SessionKey
from barnabas.broker.zookeeper_client.zk_errors import ZkError

if TYPE_CHECKING:
    from barnabas.broker.zookeeper_client.kazoo_client import KazooConnection

_log = logging.getLogger(__name__)

#: Name of the file in a log directory.
FILE_NAME: Final = "zookeeper.session"
_VERSION: Final = 1
#: Keys in the file. A process that is killed before it has registered must not remove the key of its predecessor.
_KEYS_MAX: Final = 4


class FormerSession:
    def __init__(
        self,
        config: SessionConfig,
        connection_type: "Callable[..., KazooConnection] | None",
        *,
        disk: Disk,
        directories: Callable[[], Sequence[str]],
        on_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
    ) -> None:
        self._config = config
        self._connection_type = connection_type
        self._disk = disk
        #: Returns the online log directories.
        self._directories = directories
        self._on_thread = on_thread

    async def keep(self, key: SessionKey) -> None:
        """Store the key for the next process of this broker."""
        await self._on_thread(lambda: self._write(key))

    async def was(self, session_id: int) -> bool:
        """Whether a process with our log directories had this session. That process is dead, or the directories were copied."""
        keys: list[SessionKey] = await self._on_thread(self._read)
        return any(key.session_id == session_id for key in keys)

    async def end(self, session_id: int) -> bool:
        """Close the session, if it was this broker's. False: it was not, or ZooKeeper did not answer."""
        keys: list[SessionKey] = await self._on_thread(self._read)
        key = next((key for key in keys if key.session_id == session_id), None)
        if key is None:
            return False
        session = ZooKeeperSession(replace(self._config, resumes=key), self._connection_type)
        try:
            await session.start()
        except ZkError as error:
            # It has just expired, or ZooKeeper is unavailable: the caller checks the znode again.
            _log.debug("[zookeeper] session 0x%x could not be resumed: %s", session_id, error)
            return False
        finally:
            await session.stop()
        return True

    def _write(self, key: SessionKey) -> None:
        others = [each for each in self._read() if each.session_id != key.session_id]
        data = dump(
            {"version": _VERSION, **_fields(key), "former": [_fields(each) for each in others[: _KEYS_MAX - 1]]}
        )
        for directory in self._directories()[:1]:
            try:
                self._disk.replace_file(f"{directory}/{FILE_NAME}", data, sync=False, mode=0o600)
            except OSError as error:
                _log.warning(
                    "[zookeeper] cannot store the session's key, the next process may wait until the session expires; check "
                    "the log directory: %s",
                    error,
                )

    def _read(self) -> list[SessionKey]:
        found: list[SessionKey] = []
        for directory in self._directories():
            path = f"{directory}/{FILE_NAME}"
            try:
                with reading(path, self._disk.read_file(path)) as value:
                    found += [_key(each) for each in (value, *value.get("former", ()))]
            except FileNotFoundError:
                continue
            except OSError as error:
                _log.warning(
                    "[zookeeper] cannot read the previous process's session, waiting until it expires: %s", error
                )
            except Malformed:
                # The error text would show the file's secret content.
                _log.warning(
                    "[zookeeper] cannot read the previous process's session, waiting until it expires: %s is damaged",
                    path,
                )
        return found


def _fields(key: SessionKey) -> dict[str, str]:
    return {"session": f"{key.session_id:x}", "password": key.password.hex()}


def _key(value: Any) -> SessionKey:
    return SessionKey(int(value["session"], 16), bytes.fromhex(value["password"]))
