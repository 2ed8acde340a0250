"""Calls that reach outside of the simulated world are refused by name, with advice.

An audit hook sees it at the door of the interpreter, whichever library calls. Only guests are watched.
"""

import asyncio
import functools
import os
import sys
import threading
from typing import Any

from barnabas.testing.simulation.guests import current, refuse
from barnabas.testing.simulation.patches import replace_everywhere

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PROCESS = "run the other program's code with world.process, or stand in for it with world.http"
_FILES = "keep what must survive in world.database (files may be read, not written)"
_SOCKETS = "a blocking socket stops the world: use aiokafka, httpx.AsyncClient, or asyncio.open_connection"
_THREADS = "use asyncio tasks, or asyncio.to_thread for a function that does not wait"
#: Event of the interpreter -> the call as the user knows it, and what to do instead.
_EVENTS = {
    "socket.__new__": ("socket.socket", _SOCKETS),
    "socket.getaddrinfo": ("socket.getaddrinfo", _SOCKETS),
    "socket.gethostbyname": ("socket.gethostbyname", _SOCKETS),
    "subprocess.Popen": ("subprocess.Popen", _PROCESS),
    "os.system": ("os.system", _PROCESS),
    "os.exec": ("os.exec", _PROCESS),
    "os.fork": ("os.fork", _PROCESS),
    "os.forkpty": ("os.forkpty", _PROCESS),
    "os.posix_spawn": ("os.posix_spawn", _PROCESS),
    "os.spawn": ("os.spawn", _PROCESS),
    "os.remove": ("os.remove", _FILES),
    "os.rename": ("os.rename", _FILES),
    "os.mkdir": ("os.mkdir", _FILES),
    "os.rmdir": ("os.rmdir", _FILES),
    "os.truncate": ("os.truncate", _FILES),
    "os.link": ("os.link", _FILES),
    "os.symlink": ("os.symlink", _FILES),
    "shutil.rmtree": ("shutil.rmtree", _FILES),
}


def _heard(event: str, args: tuple[Any, ...]) -> None:
    guest = current()
    if guest is None or guest.world.violation is not None:
        return
    if event == "open":
        path, mode, flags = args
        if isinstance(path, int) or str(path).endswith(".pyc") or ".pyc." in str(path):
            return
        if (isinstance(flags, int) and flags & _WRITES) or (isinstance(mode, str) and set(mode) & set("wax+")):
            refuse(f"writing the file {path!s}", _FILES)
    elif event == "sqlite3.connect":
        path = str(args[0])
        if path != ":memory:":
            refuse(f"sqlite3.connect({path!r})", 'use ":memory:", which lives as long as the run, or world.database')
    else:
        found = _EVENTS.get(event)
        if found is not None:
            refuse(*found)


def install() -> None:
    """Watch this interpreter, for good."""
    sys.addaudithook(_heard)
    asyncio.new_event_loop = _refused_to_guests(
        asyncio.new_event_loop, "asyncio.new_event_loop", "the function of world.process runs on a loop already"
    )
    threading.Thread.start = _refused_to_guests(  # type: ignore[method-assign]
        threading.Thread.start, "threading.Thread", _THREADS
    )


def _refused_to_guests(real: Any, call: str, instead: str) -> Any:
    @functools.wraps(real)
    def checked(*args: Any, **options: Any) -> Any:
        if current() is not None:
            refuse(call, instead)
        return real(*args, **options)

    return checked


def refuse_librdkafka() -> None:
    """Its threads and sockets are C: no hook sees them. Call it when the application's modules are loaded."""
    module = sys.modules.get("confluent_kafka")
    if module is None:
        return
    pairs = []
    for where, name in (
        ("confluent_kafka", "Producer"),
        ("confluent_kafka", "Consumer"),
        ("confluent_kafka.cimpl", "Producer"),
        ("confluent_kafka.cimpl", "Consumer"),
        ("confluent_kafka", "SerializingProducer"),
        ("confluent_kafka", "DeserializingConsumer"),
        ("confluent_kafka.admin", "AdminClient"),
    ):
        real = getattr(sys.modules.get(where), name, None)
        if real is not None:
            pairs.append((real, _refusing(name)))
    replace_everywhere(pairs)


def _refusing(name: str) -> Any:
    def made(*_: Any, **__: Any) -> Any:
        refuse(
            f"confluent_kafka.{name}",
            "librdkafka has threads and sockets of its own: use aiokafka here, or barnabas.testing.Broker with real time",
        )

    return made
