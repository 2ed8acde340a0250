"""`barnabas zookeeper`: the embedded coordinator as a process of its own."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from barnabas.core.errors import BarnabasError

if TYPE_CHECKING:
    from barnabas.coordination.embedded.config import ZooKeeperConfig


class StartFailed(BarnabasError):
    """The server can't start; the message says why, in one line."""


def command(
    properties: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A zoo.cfg or zookeeper.properties; options win over it.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 picks a free one. Default 2181.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Directory for logs and snapshots. Without it, a temporary one goes with the process."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. Default 127.0.0.1.")] = None,
    tick_time: Annotated[
        int | None, typer.Option(help="tickTime in ms: the unit of session expiry. Default 2000.")
    ] = None,
    min_session_timeout: Annotated[int | None, typer.Option(help="In ms. Default two ticks.")] = None,
    max_session_timeout: Annotated[int | None, typer.Option(help="In ms. Default twenty ticks.")] = None,
    max_client_cnxns: Annotated[
        int | None, typer.Option(help="Connections from one address, 0 for no limit. Default 60.")
    ] = None,
    jute_maxbuffer: Annotated[int | None, typer.Option(help="Bytes of the longest request. Default 1048575.")] = None,
    snap_count: Annotated[int | None, typer.Option(help="Transactions between snapshots. Default 100000.")] = None,
    whitelist: Annotated[
        str | None, typer.Option("--4lw-commands-whitelist", help="Four-letter words that are served. Default *.")
    ] = None,
    force_sync: Annotated[
        bool | None,
        typer.Option("--force-sync/--no-force-sync", help="Wait for the disk before answering a write. Default yes."),
    ] = None,
    verbose: Annotated[bool, typer.Option(help="Log what happens to stderr.")] = False,
) -> None:
    """Run the embedded coordinator: a durable, standalone server of the ZooKeeper 3.8 protocol.

    Prints `ready zookeeper=HOST:PORT` when clients can connect. SIGTERM or Ctrl-C stops it cleanly.
    """
    from barnabas.runtime.parent import die_with_parent

    die_with_parent()
    changes: dict[str, object] = {
        "tick_time_ms": tick_time,
        "min_session_timeout_ms": min_session_timeout,
        "max_session_timeout_ms": max_session_timeout,
        "max_client_cnxns": max_client_cnxns,
        "jute_max_buffer": jute_maxbuffer,
        "snap_count": snap_count,
        "four_letter_whitelist": whitelist,
        "force_sync": force_sync,
    }
    _run(properties, port, data, host, {key: value for key, value in changes.items() if value is not None}, verbose)


def _run(
    properties: Path | None,
    port: int | None,
    data: Path | None,
    host: str | None,
    changes: dict[str, object],
    verbose: bool,
) -> None:
    import logging

    from barnabas.coordination.embedded.config import ZooKeeperConfig, read_config

    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    config = ZooKeeperConfig()
    if properties is not None:
        try:
            file = read_config(properties)
        except OSError as error:
            raise StartFailed(f"can't read {properties}: {error.strerror}") from error
        config = file.config
        data, host, port = data or file.data_dir, host or file.host, port if port is not None else file.port
    from dataclasses import replace

    config = replace(config, **changes)  # type: ignore[arg-type]
    with _data_dir(data) as folder:
        _serve(folder, host or "127.0.0.1", 2181 if port is None else port, config)


@contextlib.contextmanager
def _data_dir(data: Path | None) -> Iterator[Path]:
    if data is not None:
        yield data
        return
    folder = tempfile.mkdtemp(prefix="barnabas-zookeeper-")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _serve(folder: Path, host: str, port: int, config: "ZooKeeperConfig") -> None:
    import uvloop

    uvloop.run(_main(folder, host, port, config))


async def _main(folder: Path, host: str, port: int, config: "ZooKeeperConfig") -> None:
    import asyncio
    import signal

    from barnabas.coordination.embedded.server import EmbeddedZooKeeper

    server = EmbeddedZooKeeper(folder, host, port, config=config)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    try:
        await server.start()
    except OSError as error:
        where = f"the directory {error.filename}" if error.filename else f"{host}:{port}"
        raise StartFailed(f"can't use {where}: {error.strerror or error}") from error
    typer.echo(f"ready zookeeper={server.connect_string}")
    assert server.failed is not None, "start sets it"
    server.failed.add_done_callback(lambda _: stopped.set())
    await stopped.wait()
    await server.stop()
    if server.failed.done():
        raise StartFailed(f"the transaction log can't be written: {server.failed.exception()}")
