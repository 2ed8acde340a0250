"""`barnabas zookeeper`: the embedded ZooKeeper as a separate process.

`OPTIONS` is the only list of its options: `main` parses them without typer, which takes longer to load than the server;
`command`, built from the same list when typer asks for it, provides help and completion.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from barnabas.base.errors import BarnabasError
from barnabas.base.host import kernel

if TYPE_CHECKING:
    from barnabas.zookeeper.config import ZooKeeperConfig


class StartFailed(BarnabasError):
    """The server cannot start or continue; the message says why in one line."""


class Option(NamedTuple):
    flag: str
    type: type[int] | type[str] | type[bool] | type[Path]
    help: str
    #: The field of `ZooKeeperConfig` that the option sets, if any.
    field: str | None = None

    @property
    def name(self) -> str:
        return self.field or self.flag.removeprefix("--").replace("-", "_")


OPTIONS = (
    Option("--port", int, "Port to listen on; 0 picks a free one. Default 2181."),
    Option("--data", Path, "Directory of logs and snapshots. Without it, a temporary one, deleted at the end."),
    Option("--host", str, "Address to listen on. Default 127.0.0.1."),
    Option("--tick-time", int, "Unit of session expiry, in ms. Default 2000.", "tick_time_ms"),
    Option("--min-session-timeout", int, "In ms. Default two ticks.", "min_session_timeout_ms"),
    Option("--max-session-timeout", int, "In ms. Default twenty ticks.", "max_session_timeout_ms"),
    Option("--max-client-cnxns", int, "Connections from one address, 0: no limit. Default 60.", "max_client_cnxns"),
    Option("--jute-maxbuffer", int, "Bytes of the longest request. Default 1048575.", "jute_max_buffer"),
    Option("--snap-count", int, "Transactions between snapshots. Default 100000.", "snap_count"),
    Option(
        "--4lw-commands-whitelist",
        str,
        "Four-letter words to serve. Default * on loopback, else srvr,ruok.",
        "four_letter_whitelist",
    ),
    Option("--no-force-sync", bool, "Do not wait for the disk: fast, and loses data when the machine fails."),
    Option("--verbose", bool, "Log to stderr what happens."),
)

_HELP = """Run the embedded ZooKeeper: a durable, standalone server of the ZooKeeper 3.8 protocol.

Prints `ready zookeeper=HOST:PORT` when clients can connect. SIGTERM or Ctrl-C stops it cleanly."""

_FILE_HELP = "A zoo.cfg or zookeeper.properties; options win over it."


def main(arguments: Sequence[str]) -> NoReturn:
    """Parse, run, exit: 0 after a stop was requested, 1 with one line on stderr after a failure."""
    parser = argparse.ArgumentParser(prog="barnabas zookeeper", description=_HELP)
    parser.add_argument("file", nargs="?", type=Path, help=_FILE_HELP)
    for option in OPTIONS:
        if option.type is bool:
            parser.add_argument(option.flag, action="store_true", dest=option.name)
        else:
            parser.add_argument(option.flag, type=option.type, dest=option.name)
    try:
        run(vars(parser.parse_args(arguments)))
    except BarnabasError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
    sys.exit(0)


def _typer_command() -> Callable[..., None]:
    """Build the command for `barnabas --help` and completion."""
    import inspect

    import typer

    def command(**values: object) -> None:
        run(values)

    def parameter(name: str, kind: object, default: object) -> inspect.Parameter:
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)

    parameters = [parameter("file", Path | None, typer.Argument(None, metavar="FILE", help=_FILE_HELP))]
    for option in OPTIONS:
        if option.type is bool:
            parameters.append(parameter(option.name, bool, typer.Option(False, option.flag, help=option.help)))
        else:
            info = typer.Option(None, option.flag, help=option.help)
            parameters.append(parameter(option.name, option.type | None, info))
    command.__doc__ = _HELP
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {item.name: item.annotation for item in parameters}
    return command


def __getattr__(name: str) -> object:
    if name == "command":
        return _typer_command()
    raise AttributeError(name)


def run(values: dict[str, object]) -> None:
    """Serve until a signal comes. `values` are the options by name; None means not given."""
    import logging

    from barnabas.base.host.descriptors import raise_limit
    from barnabas.base.host.parent import die_with_parent
    from barnabas.base.log_format import log_to

    die_with_parent()
    log_to(
        sys.stderr,
        level=logging.INFO if values["verbose"] else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    host, ports, data, config = _settings(values)
    raise_limit()
    # The log and snapshots hold the brokers' secrets: SCRAM verifiers, delegation tokens.
    os.umask(0o077)
    with _data_dir(data) as folder:
        kernel.run(_serve(folder, host, ports, config))


class Ports(NamedTuple):
    #: None: clients without TLS are not served.
    plain: int | None
    secure: int | None


def _settings(values: dict[str, object]) -> "tuple[str, Ports, Path | None, ZooKeeperConfig]":
    from dataclasses import replace

    from barnabas.zookeeper.config import ConfigFile, ZooKeeperConfig, read_config

    path = values["file"]
    file = ConfigFile(config=ZooKeeperConfig(), data_dir=None, host=None, port=None)
    if isinstance(path, Path):
        try:
            file = read_config(path)
        except OSError as error:
            raise StartFailed(f"can't read {path}: {error.strerror}") from error
    changes = {
        option.field: values[option.field] for option in OPTIONS if option.field and values[option.field] is not None
    }
    if values["no_force_sync"]:
        changes["force_sync"] = False
    host, port, data = values["host"], values["port"], values["data"]
    return (
        str(host or file.host or "127.0.0.1"),
        Ports(_plain_port(port, file.port, file.secure_port), file.secure_port),
        data if isinstance(data, Path) else file.data_dir,
        replace(file.config, **changes),  # type: ignore[arg-type]
    )


def _plain_port(option: object, of_file: int | None, secure: int | None) -> int | None:
    if isinstance(option, int):
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
