"""`barnabas zookeeper`: the embedded ZooKeeper as a separate process."""

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from barnabas.base.errors import BarnabasError
from barnabas.base.host import kernel
from barnabas.cli.tool import Argument, Option, Tool

if TYPE_CHECKING:
    from barnabas.zookeeper.config import ConfigFile, ZooKeeperConfig


class StartFailed(BarnabasError):
    """The server cannot start or continue; the message says why in one line."""


TOOL = Tool(
    note="See [embedded ZooKeeper](embedded-zookeeper.md).",
    about="""A durable, standalone server of the ZooKeeper 3.8 protocol. Prints `ready zookeeper=HOST:PORT` when clients can
    connect. SIGTERM or Ctrl-C stops it cleanly.""",
    arguments=(Argument("file", "A zoo.cfg or zookeeper.properties; options win over it.", Path),),
    options=(
        Option("--port", "Port to listen on; 0 picks a free one. [2181]", int),
        Option("--data", "Directory of logs and snapshots. Without it, a temporary one, deleted at the end.", Path),
        Option("--host", "Address to listen on. [127.0.0.1]", metavar="ADDRESS"),
        Option("--tick-time", "Unit of session expiry. [2000]", int, metavar="MS", name="tick_time_ms"),
        Option("--min-session-timeout", "Default two ticks.", int, metavar="MS", name="min_session_timeout_ms"),
        Option("--max-session-timeout", "Default twenty ticks.", int, metavar="MS", name="max_session_timeout_ms"),
        Option("--max-client-cnxns", "Connections from one address, 0: no limit. [60]", int),
        Option(
            "--jute-maxbuffer", "Length of the longest request. [1048575]", int, metavar="BYTES", name="jute_max_buffer"
        ),
        Option("--snap-count", "Transactions between snapshots. [100000]", int),
        Option(
            "--4lw-commands-whitelist",
            "Four-letter words to serve. Default * on loopback, else srvr,ruok.",
            metavar="WORDS",
            name="four_letter_whitelist",
        ),
        Option("--no-force-sync", "Do not wait for the disk: fast, and loses data when the machine fails.", bool),
        Option("--verbose", "Log to stderr what happens.", bool),
    ),
    examples=("barnabas zookeeper --data ./zookeeper", "barnabas zookeeper zoo.cfg --port 2181"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Options that win over the fields of `ZooKeeperConfig` with the same names."""

    tick_time_ms: int | None = None
    min_session_timeout_ms: int | None = None
    max_session_timeout_ms: int | None = None
    max_client_cnxns: int | None = None
    jute_max_buffer: int | None = None
    snap_count: int | None = None
    four_letter_whitelist: str | None = None

    def over(self, config: "ZooKeeperConfig") -> "ZooKeeperConfig":
        given: dict[str, Any] = {
            "tick_time_ms": self.tick_time_ms,
            "min_session_timeout_ms": self.min_session_timeout_ms,
            "max_session_timeout_ms": self.max_session_timeout_ms,
            "max_client_cnxns": self.max_client_cnxns,
            "jute_max_buffer": self.jute_max_buffer,
            "snap_count": self.snap_count,
            "four_letter_whitelist": self.four_letter_whitelist,
        }
        return replace(config, **{name: value for name, value in given.items() if value is not None})


@TOOL.main
def _zookeeper(
    file: Path | None,
    port: int | None,
    data: Path | None,
    host: str | None,
    overrides: Overrides,
    no_force_sync: bool,
    verbose: bool,
) -> None:
    import logging

    from barnabas.base.host.descriptors import raise_limit
    from barnabas.base.host.parent import die_with_parent
    from barnabas.base.log_format import log_to

    die_with_parent()
    log_to(
        sys.stderr,
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    of_file = _read(file)
    config = overrides.over(of_file.config)
    if no_force_sync:
        config = replace(config, force_sync=False)
    ports = Ports(_plain_port(port, of_file.port, of_file.secure_port), of_file.secure_port)
    raise_limit()
    # The log and snapshots hold the brokers' secrets: SCRAM verifiers, delegation tokens.
    os.umask(0o077)
    with _data_dir(data or of_file.data_dir) as folder:
        kernel.run(_serve(folder, host or of_file.host or "127.0.0.1", ports, config))


class Ports(NamedTuple):
    #: None: clients without TLS are not served.
    plain: int | None
    secure: int | None


def _read(path: Path | None) -> "ConfigFile":
    from barnabas.zookeeper.config import ConfigFile, ZooKeeperConfig, read_config

    if path is None:
        return ConfigFile(config=ZooKeeperConfig(), data_dir=None, host=None, port=None)
    try:
        return read_config(path)
    except OSError as error:
        raise StartFailed(f"can't read {path}: {error.strerror}") from error


def _plain_port(option: int | None, of_file: int | None, secure: int | None) -> int | None:
    if option is not None:
        return option
    return 2181 if of_file is None and secure is None else of_file


@contextlib.contextmanager
def _data_dir(data: Path | None) -> Iterator[Path]:
    if data is not None:
        try:
            data.mkdir(mode=0o700, parents=True, exist_ok=True)
            data.chmod(0o700)  # an earlier run or the umask may have left it open
        except OSError as error:
            raise StartFailed(f"can't use the directory {data}: {error.strerror}") from error
        yield data
        return
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="barnabas-zookeeper-")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _serve(folder: Path, host: str, ports: Ports, config: "ZooKeeperConfig") -> None:
    import asyncio
    import signal

    from barnabas.zookeeper.server import EmbeddedZooKeeper

    server = EmbeddedZooKeeper(folder, host, ports.plain, secure_port=ports.secure, config=config)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    try:
        await server.start()
    except OSError as error:
        port = ports.plain if ports.secure is None else ports.secure
        where = f"the directory {error.filename}" if error.filename else f"{host}:{port}"
        raise StartFailed(f"can't use {where}: {error.strerror or error}") from error
    assert server.failed is not None, "start sets it"
    server.failed.add_done_callback(lambda _: stopped.set())
    print(f"ready zookeeper={server.connect_string}", flush=True)  # noqa: T201
    await stopped.wait()
    await server.stop()
    if server.failed.done():
        raise StartFailed(f"stopped serving: {server.failed.exception()}")
