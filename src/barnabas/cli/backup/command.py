"""`barnabas metadata`: the command line."""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from barnabas.base.errors import BarnabasError
from barnabas.broker.zookeeper_client.open_znodes import find_open
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.session_config import SessionConfig
from barnabas.cli._command import UsageError, complain
from barnabas.cli._connection import options, run
from barnabas.cli._json_files import parse_json
from barnabas.cli._output import say
from barnabas.cli._zookeeper_settings import session_settings, warn_of_open
from barnabas.cli.backup import brokers, plan, znodes
from barnabas.cli.backup.document import Coder, Document, counts, from_json, to_json
from barnabas.cli.tool import BOOTSTRAP, COMMAND_CONFIG, Argument, Option, Tool, at_least_one, needs
from barnabas.client.asynchronous import AsyncClient
from barnabas.wire.auth.password_encoder import PasswordEncoder

#: Means standard output, or standard input.
_STANDARD: Final = "-"
_CIPHER: Final = "AES/GCM/NoPadding"
_ITERATIONS: Final = 300_000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ways:
    """How to reach the cluster: through brokers, ZooKeeper, or both."""

    cluster: AsyncClient | None
    session: ZooKeeperSession | None


def _secret(file: str) -> PasswordEncoder:
    try:
        text = Path(file).read_text().strip()
    except OSError as error:
        raise UsageError(f"--secret-file: cannot read {file}: {error.strerror}") from None
    if not text:
        raise UsageError(f"--secret-file: {file} is empty")
    return PasswordEncoder(text, cipher=_CIPHER, key_bits=256, iterations=_ITERATIONS)


TOOL = Tool(
    note="See [operating](operating.md#backup-of-metadata).",
    about="""Saves topics with their settings and partitions, dynamic settings of brokers, quotas, SCRAM verifiers, ACLs, and
    with --offsets the committed offsets of groups. It saves no records and no delegation tokens. `restore` adds what the
    cluster lacks: run it again if it was interrupted.""",
    arguments=(Argument("file", "The backup; - is standard output, or input.", metavar="FILE", what="a file"),),
    options=(
        replace(
            BOOTSTRAP, help="Read and write through brokers: no topic ids, no SCRAM verifiers; --offsets needs it."
        ),
        COMMAND_CONFIG,
        Option("--zookeeper", "Read and write znodes: all but offsets.", metavar="HOST:PORT[/PATH]"),
        Option("--zookeeper-config", "A broker's file, for how it reaches ZooKeeper.", metavar="FILE"),
        Option("--offsets", "Also what groups have committed.", bool),
        Option(
            "--secret-file",
            "Encrypt or decrypt SCRAM verifiers with the secret in this file.",
            _secret,
            metavar="FILE",
            name="secret",
        ),
        Option("--without-scram", "Leave SCRAM verifiers out.", bool),
        Option("--spread", "Let the cluster place replicas; else as they were.", bool),
        Option("--dry-run", "Say what would be done, and do nothing.", bool),
    ),
    rules=(
        needs("--offsets", "--bootstrap-server", says="--offsets needs --bootstrap-server: groups live in brokers"),
        at_least_one(
            "--bootstrap-server",
            "--zookeeper",
            says="say where the cluster is: --zookeeper HOST:PORT, --bootstrap-server HOST:PORT, or both",
        ),
    ),
    examples=(
        "barnabas metadata backup cluster.json --zookeeper localhost:2181 --secret-file secret",
        "barnabas metadata restore cluster.json --zookeeper localhost:2182 --dry-run",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the cluster is."""

    bootstrap_server: str | None
    command_config: str | None
    zookeeper: str | None
    zookeeper_config: str | None

    def session(self) -> SessionConfig | None:
        return session_settings(self.zookeeper, self.zookeeper_config, creates=True) if self.zookeeper else None

    def through(self, config: SessionConfig | None, body: Callable[[Ways], Coroutine[None, None, T]]) -> T:
        client = options(self.bootstrap_server, self.command_config) if self.bootstrap_server is not None else None

        async def reach(cluster: AsyncClient | None) -> T:
            if config is None:
                return await body(Ways(cluster, None))
            async with znodes.session_with(config) as session:
                return await body(Ways(cluster, session))

        return run(client, reach) if client is not None else asyncio.run(reach(None))


@TOOL.action("backup", "Keep a cluster's metadata in a file.", needs=("file",))
def _backup(file: str, place: Place, offsets: bool, secret: PasswordEncoder | None, without_scram: bool) -> None:
    document = place.through(place.session(), lambda ways: _read(ways, offsets=offsets))
    if without_scram:
        document.scram = {}
    _write(file, json.dumps(to_json(document, secret.encode if secret else None), indent=2, ensure_ascii=False) + "\n")
    tell = say if file != _STANDARD else complain
    tell(f"{counts(document)}" + (f" in {file}" if file != _STANDARD else ""))
    for each in document.left_out:
        tell(f"left out: {each}")


@TOOL.action("restore", "Restore it into an empty cluster.", needs=("file",))
def _restore_file(
    file: str,
    place: Place,
    offsets: bool,
    secret: PasswordEncoder | None,
    without_scram: bool,
    spread: bool,
    dry_run: bool,
) -> int:
    wanted = _load(file, secret.decode if secret else None, without_scram=without_scram)
    config = place.session()

    async def restore(ways: Ways) -> bool:
        done = await _restore(ways, wanted, offsets=offsets, spread=spread, dry_run=dry_run)
        if ways.session is not None and config is not None and (config.secure_acls or wanted.scram) and not dry_run:
            found = await find_open(ways.session)
            warn_of_open(found, config, place.zookeeper or "", place.zookeeper_config, option="--zookeeper-config")
        return done

    return int(not place.through(config, restore))


async def _read(ways: Ways, *, offsets: bool) -> Document:
    if ways.session is not None:
        document = await znodes.read(ways.session)
        if document.cluster_id is None:
            raise UsageError(f"there is no cluster in ZooKeeper at {ways.session.hosts}: is a path missing?")
    else:
        assert ways.cluster is not None
        document = await brokers.read(ways.cluster)
    document.taken = datetime.now(UTC).isoformat(timespec="seconds")
    if offsets and ways.cluster is not None:
        document.groups = await brokers.read_offsets(ways.cluster)
    else:
        document.left_out.append("committed offsets of groups: see --offsets")
    return document


async def _restore(ways: Ways, wanted: Document, *, offsets: bool, spread: bool, dry_run: bool) -> bool:
    """Restore, and return whether the cluster now has everything in the backup."""
    todo = await _plan(ways, wanted, spread=spread)
    if offsets and ways.cluster is not None:
        present = Document(groups=await brokers.read_offsets(ways.cluster))
        plan.add_offsets(todo, wanted, present, partial(brokers.commit, ways.cluster))
    for note in todo.notes:
        say(f"note: {note}")
    for conflict in todo.conflicts:
        say(f"in the way: {conflict}")
    if dry_run:
        for step in todo.steps:
            say(f"would restore {step.text}")
    say(f"{len(todo.steps)} steps to do" if todo.steps else "nothing to do: everything of the backup is here")
    if todo.conflicts or dry_run:
        return not todo.conflicts
    if ways.session is not None:
        await znodes.prepare(ways.session)
    return await _carry_out(todo.steps)


async def _plan(ways: Ways, wanted: Document, *, spread: bool) -> plan.Plan:
    if ways.session is None:
        assert ways.cluster is not None
        present = await brokers.read(ways.cluster)
        live = frozenset(await ways.cluster.brokers())
        to = brokers.BrokersTarget(ways.cluster, spread=spread)
        return plan.make(wanted, present, to, None, brokers=live, spread=spread)
    places = await znodes.live_brokers(ways.session)
    if spread and not places:
        raise UsageError("--spread needs brokers that run")
    root = znodes.ZnodesTarget(ways.session, places, spread=spread)
    present = await znodes.read(ways.session)
    return plan.make(wanted, present, root, root, brokers=frozenset(places), spread=spread)


async def _carry_out(steps: list[plan.Step]) -> bool:
    """Do all steps. A failed step does not stop the others."""
    failed = 0
    for number, step in enumerate(steps, 1):
        try:
            await step.carry_out()
        except BarnabasError as error:
            failed += 1
            say(f"{number}/{len(steps)} failed: {step.text}: {error}")
        else:
            say(f"{number}/{len(steps)} {step.text}")
    if failed:
        say(f"{failed} of {len(steps)} steps failed: fix what they report, and run it again")
    return not failed


def _load(file: str, unseal: Coder | None, *, without_scram: bool) -> Document:
    try:
        text = sys.stdin.read() if file == _STANDARD else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    value = parse_json(text, what=file)
    if without_scram:
        value["scram"] = {}
    return from_json(value, what=file, unseal=unseal)


def _write(file: str, text: str) -> None:
    """Write the whole file or nothing, readable only by its owner."""
    if file == _STANDARD:
        sys.stdout.write(text)
        return
    target = Path(file)
    try:
        with tempfile.NamedTemporaryFile("w", dir=target.parent, prefix=f".{target.name}.", delete=False) as unfinished:
            try:
                unfinished.write(text)
                unfinished.flush()
                os.fsync(unfinished.fileno())
                Path(unfinished.name).replace(target)
            except BaseException:
                Path(unfinished.name).unlink()
                raise
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from None
