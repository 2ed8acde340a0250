"""How tools reach a cluster: the client's settings, and a client that ends with the tool."""

import asyncio
import os
import signal
import stat
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeVar

from barnabas.base.host import kernel
from barnabas.cli._command import UsageError, warn
from barnabas.client import names
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import ClientConfig, client_config, load_properties

T = TypeVar("T")

_SETUP = "socket.connection.setup.timeout.ms"


def options(
    bootstrap: str | None,
    command_config: str | None = None,
    properties: Mapping[str, str] | None = None,
    *,
    known: Collection[str] = names.CONNECTION,
) -> ClientConfig:
    """Return the client's settings: the file's, overridden by `properties`, overridden by the command line.

    Settings without effect are reported on stderr, because a misspelt one may matter.
    """
    settings = (load_properties(command_config) if command_config else {}) | dict(properties or {})
    if bootstrap is None and "bootstrap.servers" not in settings:
        raise UsageError("--bootstrap-server must be specified, for example --bootstrap-server localhost:9092")
    for notice in names.notices(settings, known):
        warn(notice)
    # A person waits: report an unreachable broker after seconds.
    return client_config(bootstrap, {_SETUP: "5000"} | settings, client_id="barnabas-tool")


def run(config: ClientConfig, body: Callable[[AsyncClient], Awaitable[T]], *, fast: bool = False) -> T:
    """Run `body` with a client, and close the client. `fast`: on uvloop, for tools that move data."""

    is_terminated = has_lost_reader = False

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None

        def end() -> None:
            nonlocal is_terminated
            is_terminated = True
            task.cancel()

        def lose_reader() -> None:
            nonlocal has_lost_reader
            has_lost_reader = True
            asyncio.get_running_loop().remove_reader(_stdout_pipe())
            task.cancel()

        if (pipe := _stdout_pipe()) >= 0:
            # `| head -1`: a consumer that waits for records would never write again, so it would not notice the closed pipe.
            asyncio.get_running_loop().add_reader(pipe, lose_reader)
        # Like Ctrl-C: the member leaves its group, and typed records are sent.
        if threading.current_thread() is threading.main_thread():  # Python handles signals only there
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
        async with AsyncClient(config) as cluster:
            cluster.tell = warn
            return await body(cluster)

    try:
        if fast:
            return kernel.run(main())
        return asyncio.run(main())
    except asyncio.CancelledError:
        if is_terminated:
            raise SystemExit(128 + signal.SIGTERM) from None
        if has_lost_reader:
            raise BrokenPipeError from None
        raise
    finally:
        if not has_lost_reader:
            sys.stdout.flush()


def _stdout_pipe() -> int:
    """Return the descriptor of standard output if it is a pipe, whose reader may close it; else -1."""
    try:
        descriptor = sys.stdout.fileno()
        return descriptor if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else -1
    except (OSError, ValueError):
        return -1
