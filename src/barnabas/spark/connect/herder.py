"""Keeps connectors running: starts and stops their queries as their users want, and notices those that fail.

Calls of Spark block, so one thread makes them, one after the other. Owner: the event loop.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote

from barnabas.services.http.errors import Refusal, bad_request
from barnabas.spark.connect import files, offsets
from barnabas.spark.connect.classes import CLASSES
from barnabas.spark.connect.connector import Connector, ConnectorClass, Worker, find_class, refuse, validated
from barnabas.spark.connect.options import ConnectorRefused, Problem
from barnabas.spark.connect.states import KEPT, Life, State

log = logging.getLogger(__name__)

R = TypeVar("R")

#: How often ended queries are looked for.
_LOOK_S: Final = 0.5
_FILE: Final = "connector.json"
_WANTED: Final = "wanted"


class Running(Protocol):
    """A query of a connector."""

    def is_active(self) -> bool: ...

    def failure(self) -> str:
        """Return why it ended; "" if it did not fail."""

    def stop(self) -> None: ...


class Engine(Protocol):
    """The calls of Spark. They block."""

    def start(self, connector: Connector) -> "dict[str, Running]":
        """Start the queries of a connector; return them by the names of its flows."""

    def checkpoints(self, name: str) -> dict[str, Path]:
        """Return the checkpoints of a connector's flows, by their names."""

    def reset(self, name: str) -> None:
        """Forget how far the connector has read."""


@dataclass
class Managed:
    described: files.Described
    life: Life = field(default_factory=Life)
    running: "dict[str, Running]" = field(default_factory=dict)

    @property
    def of(self) -> ConnectorClass | None:
        return find_class(self.described.config.get("connector.class", ""), CLASSES)


class Herder:
    def __init__(
        self, engine: Engine, worker: Worker, state: Path, described: "list[files.Described]", *, ends: bool = False
    ) -> None:
        """`ends`: the queries end when everything was read, and with them `run`."""
        self._engine = engine
        self._ends = ends
        self._worker = worker
        self._state = state
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="connect")
        #: One request changes connectors at a time.
        self._changing = asyncio.Lock()
        self.connectors = {each.name: Managed(each) for each in [*described, *self._kept(described)]}
        for name, managed in self.connectors.items():
            managed.life.wanted = self._kept_wish(name) or State(managed.described.initial_state)

    async def run(self, stopping: asyncio.Event, ready: Callable[[], None]) -> None:
        """Run the connectors until `stopping` is set."""
        try:
            async with self._changing:
                for name, managed in self.connectors.items():
                    if managed.life.wanted is State.RUNNING:
                        await self._start(name, managed)
            ready()
            while not stopping.is_set():
                async with self._changing:
                    await self._look()
                if self._ends and not any(each.running for each in self.connectors.values()):
                    return
                await _wait(stopping, _LOOK_S)
        finally:
            async with self._changing:
                for managed in self.connectors.values():
                    for query in managed.running.values():
                        await self._do(query.stop)
            self._thread.shutdown()

    async def _do(self, work: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    # -- requests -----------------------------------------------------------------------------------------------------

    def of(self, name: str) -> Managed:
        managed = self.connectors.get(name)
        if managed is None:
            raise Refusal(404, "NOT_FOUND", f"Connector {name} not found")
        return managed

    def problems_of(self, config: Mapping[str, str]) -> tuple[Connector | None, list[Problem]]:
        """Check a config. Messages do not have the values of options that name a file or a variable of the environment."""
        try:
            connector, problems = validated(files.resolved(config), CLASSES, self._worker)
        except ConnectorRefused as error:
            return None, [Problem("config", str(error))]
        hidden = tuple(files.secrets_in(config))
        return connector, [
            Problem(each.option, "the value that it stands for is not valid")
            if any(name.startswith(each.option) for name in hidden)
            else each
            for each in problems
        ]

    async def put(self, name: str, config: Mapping[str, Any], *, wanted: State | None = None) -> bool:
        """Create or change a connector. Return whether it is new. :raises Refusal: if the config cannot run."""
        try:
            described = files.described({"name": name, "config": {**config, "name": name}})
        except ConnectorRefused as error:
            raise bad_request(str(error)) from None
        async with self._changing:
            known = self.connectors.get(name)
            if known is not None and known.described.file is not None:
                raise Refusal(
                    409, "CONFLICT", f"connector {name} is described by {known.described.file}: change the file"
                )
            if known is not None and known.of is not find_class(described.config.get("connector.class", ""), CLASSES):
                raise bad_request(f"connector {name} keeps its class: delete it first")
            connector, problems = self.problems_of(described.config)
            if connector is None:
                raise bad_request(str(refuse(name, problems)))
            folder = self._folder(name)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / _FILE).write_text(json.dumps({"name": name, "config": dict(described.config)}))
            managed = known or Managed(described)
            managed.described = described
            self.connectors[name] = managed
            if wanted is not None:
                managed.life.want(wanted)
                (folder / _WANTED).write_text(wanted)
            await self._stop(managed)
            if managed.life.wanted is State.RUNNING:
                await self._start(name, managed)
        return known is None

    async def delete(self, name: str) -> None:
        """Stop and forget a connector. Its offsets stay, as in Connect: a new connector of this name goes on from them."""
        async with self._changing:
            managed = self.of(name)
            if managed.described.file is not None:
                raise Refusal(
                    409, "CONFLICT", f"connector {name} is described by {managed.described.file}: remove the file"
                )
            await self._stop(managed)
            del self.connectors[name]
            for each in (_FILE, _WANTED):
                (self._folder(name) / each).unlink(missing_ok=True)

    async def want(self, name: str, state: State) -> None:
        """Pause, stop or resume a connector. The wish outlives the process."""
        async with self._changing:
            managed = self.of(name)
            managed.life.want(state)
            folder = self._folder(name)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / _WANTED).write_text(state)
            if state is not State.RUNNING:
                await self._stop(managed)
            elif not managed.running:
                await self._start(name, managed)

    async def restart(self, name: str, *, only_failed: bool) -> None:
        async with self._changing:
            managed = self.of(name)
            if managed.life.wanted is not State.RUNNING:
                raise Refusal(409, "CONFLICT", f"connector {name} is {managed.life.state}: resume it")
            if not only_failed or managed.life.has_failed:
                await self._stop(managed)
                await self._start(name, managed)

    async def offsets(self, name: str) -> list[dict[str, Any]]:
        managed = self.of(name)
        checkpoints = self._engine.checkpoints(name)
        if managed.of is not None and managed.of.kind == "source":
            return await asyncio.to_thread(offsets.source_offsets, checkpoints)
        return [each for place in checkpoints.values() for each in await asyncio.to_thread(offsets.sink_offsets, place)]

    async def reset_offsets(self, name: str) -> None:
        async with self._changing:
            self.of(name).life.require_stopped(name)
            await asyncio.to_thread(self._engine.reset, name)

    async def set_offsets(self, name: str, document: Mapping[str, Any]) -> None:
        async with self._changing:
            managed = self.of(name)
            managed.life.require_stopped(name)
            if managed.of is None or managed.of.kind == "source":
                raise bad_request("the offsets of a source are its own: only those of a sink can be set")
            wanted = offsets.wanted_offsets(document)
            for place in self._engine.checkpoints(name).values():
                await asyncio.to_thread(offsets.set_sink_offsets, place, wanted)

    # -- queries ------------------------------------------------------------------------------------------------------

    async def _start(self, name: str, managed: Managed) -> None:
        try:
            connector, problems = self.problems_of(managed.described.config)
            if connector is None:
                raise refuse(name, problems)
            managed.running = await self._do(lambda: self._engine.start(connector))
        except Exception as error:
            # Also errors of Spark and of the database: the other connectors go on.
            log.error("[connector %s] FAILED to start; restart it when that is mended: %s", name, error)
            managed.life.failed_to_start(str(error))
            return
        managed.life.started(list(managed.running))
        log.info("[connector %s] runs: %s", name, ", ".join(managed.running))

    async def _stop(self, managed: Managed) -> None:
        running, managed.running = managed.running, {}
        for query in running.values():
            await self._do(query.stop)
        managed.life.stopped()

    async def _look(self) -> None:
        """Notice the queries that have ended."""
        for name, managed in self.connectors.items():
            for flow, query in list(managed.running.items()):
                if await self._do(query.is_active):
                    continue
                del managed.running[flow]
                trace = await self._do(query.failure)
                if self._ends and not trace:
                    managed.life.done(flow)
                    continue
                trace = trace or "the query ended"
                log.error(
                    "[connector %s] flow %s FAILED; restart the connector when that is mended: %s", name, flow, trace
                )
                managed.life.failed(flow, trace)

    # -- what is kept -------------------------------------------------------------------------------------------------

    def _folder(self, name: str) -> Path:
        return self._state / quote(name, safe="")

    def _kept(self, described: "list[files.Described]") -> "list[files.Described]":
        """Return the connectors that were created by requests."""
        names = {each.name for each in described}
        found = [files.described(json.loads(each.read_text())) for each in sorted(self._state.glob(f"*/{_FILE}"))]
        return [each for each in found if each.name not in names]

    def _kept_wish(self, name: str) -> State | None:
        file = self._folder(name) / _WANTED
        wish = file.read_text() if file.exists() else ""
        return State(wish) if wish in KEPT else None


async def _wait(stopping: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stopping.wait()
    except TimeoutError:
        pass
