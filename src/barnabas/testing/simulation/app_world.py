"""The world that a simulated test gets: brokers, processes of the application, faults by hand, and what came of it."""

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from barnabas.base.ids import TopicPartition
from barnabas.cli.faults.names import check_topic_settings
from barnabas.cli.local_settings import SettingValue, setting_texts
from barnabas.client.admin.groups import committed_offsets, list_groups
from barnabas.client.admin.topics import NewTopic, create_topics
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import ClientConfig
from barnabas.client.errors import ClientError
from barnabas.client.producer import Delivery, Producer, ProducerConfig
from barnabas.testing.records import Given, Record, as_record, data_bytes, read_topic
from barnabas.testing.simulation.guests import Guest, current
from barnabas.testing.simulation.network import Network
from barnabas.testing.simulation.process import BrokerProcess, Process, ZooKeeperProcess
from barnabas.testing.simulation.servers import PORT, Servers
from barnabas.testing.simulation.services import Database, Handler, serve
from barnabas.testing.simulation.world import World as Engine

T = TypeVar("T")

#: Virtual time that the cluster has to be healthy again when faults have ended.
HEALTHY_WITHIN_S = 120.0
#: Nothing was committed and nothing was written for so long, and no group lags: the application has done its work.
QUIET_S = 10.0
#: The same, while a group lags: sessions of members that are gone must end, and it must be rebalanced.
LAGGING_S = 60.0
#: The longest time that `calm` waits for that.
SETTLED_WITHIN_S = 180.0
_LOOK_S = 2.0
_TEST = "test"


class World:
    """The argument `world` of a simulated test. Everything in it belongs to one seed."""

    def __init__(
        self, engine: Engine, *, brokers: int, virtual_minutes: float, config: Mapping[str, SettingValue]
    ) -> None:
        self._engine = engine
        self.network = Network(engine)
        self.network.calm()
        self.servers = Servers(engine, self.network, brokers=brokers, config=setting_texts(config))
        self.seed = engine.seed
        #: For chances of the test itself.
        self.random = random.Random(engine.seed)
        #: How long faults last, and `load` by default.
        self.virtual_minutes = virtual_minutes
        #: For `bootstrap_servers` of any client.
        self.bootstrap = ",".join(f"b{number}:{PORT}" for number in range(1, brokers + 1))
        #: By name: what `process` has started.
        self.processes: dict[str, Guest] = {}
        self._helpers: list[Guest] = []
        self._sent: dict[str, list[Record]] = {}
        self._on_calm: list[Callable[[], None]] = []
        self.is_calm = False
        #: Chance that a database or an HTTP service does something, and its answer gets lost.
        self.lost_answers = 0.0
        self.has_services = False
        #: Group -> virtual seconds from the last fault until it had committed everything.
        self.caught_up_s: dict[str, float] = {}
        self._owners: dict[Hashable, Guest] = {}
        #: When the last fault ended.
        self.calm_since_s: float | None = None

    # -- time and the story -------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Virtual seconds since the world began."""
        return self._engine.now_s - self._engine.began_s

    def note(self, what: str) -> None:
        """Add a line to the story, by the process that calls."""
        loop = asyncio._get_running_loop()
        self._engine.note(getattr(loop, "name", "world"), what)

    def at(self, seconds: float, action: Callable[[], object]) -> None:
        """Do something at a virtual time: `world.at(20, worker.kill)`."""
        self._engine.at(max(self._engine.began_s + seconds, self._engine.now_s), action)

    # -- the cluster --------------------------------------------------------------------------------------------------

    def broker(self, number: int) -> BrokerProcess:
        """Return a broker, to kill, pause, cut off: 1 is the first."""
        found = self.servers.brokers.get(number)
        if found is None:
            raise ValueError(f"there is no broker {number}: they are 1 to {len(self.servers.brokers)}")
        return found

    @property
    def zookeeper(self) -> ZooKeeperProcess:
        return self.servers.zookeeper

    def leader(self, topic: str, partition: int = 0) -> BrokerProcess:
        """Return the broker that leads the partition now."""
        for where, state in self.servers.states().items():
            if (where.topic, where.partition) == (topic, partition) and state.leader >= 0:
                return self.servers.brokers[state.leader]
        raise LookupError(f"{topic}-{partition} has no leader now")

    async def topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int = -1,
        config: Mapping[str, SettingValue] | None = None,
    ) -> str:
        """Create a topic, wait until all its partitions are led, and return its name."""
        check_topic_settings(config or {})
        new = NewTopic(
            name=name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=setting_texts(config or {}),
        )
        await self._until(lambda: not self.servers.trouble(), HEALTHY_WITHIN_S, self.servers.trouble)

        async def create(client: AsyncClient) -> None:
            await create_topics(client, [new])

        await self.ask(create)
        await self._until(
            lambda: (
                sum(1 for where, state in self.servers.states().items() if where.topic == name and state.leader >= 0)
                == partitions
            ),
            HEALTHY_WITHIN_S,
            lambda: f"{name} has partitions without a leader",
        )
        return name

    def client(self, name: str = _TEST) -> AsyncClient:
        """Return our own client for asyncio, connected to this world: `async with world.client() as client`."""
        return AsyncClient(
            ClientConfig(
                bootstrap=tuple((f"b{number}", PORT) for number in self.servers.brokers),
                client_id=name,
                request_timeout_ms=5_000,
                api_timeout_ms=60_000,
                connect_timeout_ms=2_000,
            )
        )

    async def ask(self, question: Callable[[AsyncClient], Awaitable[T]]) -> T:
        """Carry out something with a client of the cluster, as an administrator."""
        async with self.client() as client:
            return await question(client)

    async def records(self, topic: str) -> list[Record]:
        """Return the committed records of the topic, by partition and offset."""
        return await self.ask(lambda client: read_topic(client, topic))

    async def committed(self, group: str) -> dict[tuple[str, int], int]:
        """Return the offsets that a group has committed, by topic and partition."""
        found = await self.ask(lambda client: committed_offsets(client, group))
        return {(where.topic, where.partition): entry.offset for where, entry in sorted(found.items())}

    # -- processes ----------------------------------------------------------------------------------------------------

    def process(
        self,
        name: str,
        function: Callable[..., Coroutine[Any, Any, Any]],
        *args: Any,
        restart: bool = True,
        **options: Any,
    ) -> Guest:
        """Start a process of the application on a host of its own: `await function(*args, **options)` is its life.

        Faults kill it, stop it, cut it off, and it starts again with the same call. `restart=False`: a crash is its end.
        """
        if name in self.network.hosts:
            raise ValueError(f"the world has a host {name!r} already")
        guest = Guest(self._engine, self.network, name, function, args, options, restart=restart)
        self.processes[name] = guest
        guest.start()
        return guest

    def _helper(self, name: str, function: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Guest:
        """Start a process that no fault hits."""
        guest = Guest(self._engine, self.network, name, function, args, restart=False)
        self._helpers.append(guest)
        guest.start()
        return guest

    def cut(self, one: "str | Process", other: "str | Process", *, one_way: bool = False) -> None:
        """Let nothing pass between two hosts (`one_way`: from the first to the second), until `mend` or `calm`."""
        first, second = _name(one), _name(other)
        self.network.cut(first, second)
        if not one_way:
            self.network.cut(second, first)
        self._engine.note("world", f"cuts {first} {'→' if one_way else 'and'} {second} apart")

    def mend(self, one: "str | Process", other: "str | Process") -> None:
        """End a cut: packets that were sent meanwhile arrive."""
        first, second = _name(one), _name(other)
        self.network.mend(first, second)
        self.network.mend(second, first)
        self._engine.note("world", f"{first} and {second} reach each other again")

    def slow(self, seconds: float) -> None:
        """Let every packet take up to so long, until `calm`; 0.001 is usual."""
        self.network.delay_s = (seconds / 10, seconds)
        self._engine.note("world", f"the network is slow: up to {seconds:g} s a packet")

    # -- services -------------------------------------------------------------------------------------------------------

    def database(self, name: str = "database") -> Database:
        """Return a small transactional store on a host of its own. No fault loses what it has."""
        self.has_services = True
        return Database(self, name)

    def http(self, name: str, handler: Handler, *, port: int = 80) -> Guest:
        """Serve HTTP on the host `name`: `await handler(method, path, body)` returns the status and what to answer as JSON."""
        self.has_services = True
        return self._helper(name, serve, self, port, handler)

    def loses_answer(self) -> bool:
        return not self.is_calm and self._engine.chance(self.lost_answers)

    @contextmanager
    def owning(self, what: Hashable) -> Iterator[None]:
        """Say that the process works on `what`, such as a partition: no other that runs may at the same time."""
        guest = current()
        assert guest is not None, "`owning` is for processes of the application"
        other = self._owners.get(what)
        if other is not None and other is not guest and other.is_up and not other.is_paused:
            self._engine.violate(
                "one process at a time", f"{guest.name} begins with {what}, on which {other.name} works"
            )
        self._owners[what] = guest
        life = guest.lives
        try:
            yield
        finally:
            if self._owners.get(what) is guest and guest.lives == life:
                del self._owners[what]

    # -- load ---------------------------------------------------------------------------------------------------------

    async def load(
        self,
        topic: str,
        *,
        rate: float = 50,
        make: Callable[..., Given] | None = None,
        seconds: float | None = None,
        count: int | None = None,
    ) -> list[Record]:
        """Write records for `virtual_minutes`, `seconds`, or until there are `count`; return those that were acknowledged.

        `make` returns a value, a pair of key and value, or a `Record`; it may take the record's number. The producer is
        idempotent with acks=all, and no fault hits its process.
        """
        if count is None:
            count = round(rate * (self.virtual_minutes * 60 if seconds is None else seconds))
        made = _by_number(make if make is not None else lambda number: f"{topic}-{number}")
        acknowledged = self._sent.setdefault(topic, [])
        before = len(acknowledged)
        loader = self._helper(f"load-{len(self._helpers)}", _load, self, topic, made, 1 / rate, count, acknowledged)
        await self._until(lambda: loader.loop is None, count / rate + 300, lambda: f"the load on {topic} does not end")
        if loader.crashes:
            raise loader.crashes[-1][1]
        return acknowledged[before:]

    def acknowledged(self, topic: str) -> list[Record]:
        """Return the records that `load` has written and the cluster has acknowledged."""
        return list(self._sent.get(topic, ()))

    # -- the end ------------------------------------------------------------------------------------------------------

    async def calm(self, *, quiet_s: float = QUIET_S, within_s: float = SETTLED_WITHIN_S) -> None:
        """End all faults, heal everything, start what is down, and wait until the application has done its work.

        It has when, for `quiet_s`, no record was written to its topics and no group committed another offset; if a group has
        not committed all records of a topic that it reads, for a minute. `calm` waits for that no longer than `within_s`.
        """
        self.is_calm = True
        for action in self._on_calm:
            action()
        self.caught_up_s.clear()
        self._engine.note("world", "calm: faults end, everything is repaired and runs")
        self.network.mend_all()
        self.network.calm()
        self.servers.heal()
        for guest in self.processes.values():
            guest.heal()
        self.calm_since_s = self.now
        await self._until(lambda: not self.servers.trouble(), HEALTHY_WITHIN_S, self.servers.trouble)
        async with self.client() as client:
            await self._settle(client, quiet_s, self.now + within_s)

    async def _settle(self, client: AsyncClient, quiet_s: float, deadline_s: float) -> None:
        seen: object = None
        still_since_s = self.now
        while self.now < deadline_s:
            ends, offsets = self.servers.ends(), await _offsets(client)
            for group, committed in offsets.items():
                if group not in self.caught_up_s and not _lags(ends, {group: committed}):
                    self.caught_up_s[group] = self.now - (self.calm_since_s or self.now)
            if (ends, offsets) != seen:
                seen, still_since_s = (ends, offsets), self.now
            elif self.now - still_since_s >= (max(quiet_s, LAGGING_S) if _lags(ends, offsets) else quiet_s):
                return
            await asyncio.sleep(_LOOK_S)

    async def _until(self, is_met: Callable[[], bool], within_s: float, why: Callable[[], str]) -> None:
        deadline_s = self.now + within_s
        while not is_met():
            if self.now > deadline_s:
                raise TimeoutError(f"after {within_s:g} virtual seconds: {why()}")
            await asyncio.sleep(0.05)


def _lags(ends: Mapping[TopicPartition, int], offsets: Mapping[str, Mapping[TopicPartition, int]]) -> bool:
    """Whether a group has not committed all records of the topics that it reads, or has committed nothing."""
    for committed in offsets.values():
        topics = {where.topic for where in committed}
        if not topics or any(committed.get(where, 0) < end for where, end in ends.items() if where.topic in topics):
            return True
    return False


async def _offsets(client: AsyncClient) -> dict[str, dict[TopicPartition, int]]:
    """Return what every group has committed."""
    try:
        groups = await list_groups(client)
        found = {each.group_id: await committed_offsets(client, each.group_id) for each in groups}
    except ClientError:
        return {}
    return {group: {where: entry.offset for where, entry in offsets.items()} for group, offsets in found.items()}


def _by_number(make: Callable[..., Given]) -> Callable[[int], Given]:
    return make if inspect.signature(make).parameters else lambda number: make()


def _name(one: "str | Process") -> str:
    return one if isinstance(one, str) else one.name


async def _load(
    world: World, topic: str, make: Callable[[int], Given], every_s: float, count: int, acknowledged: list[Record]
) -> None:
    loop = asyncio.get_running_loop()
    config = ProducerConfig(delivery_timeout_ms=600_000, request_timeout_ms=5_000)
    async with world.client("load") as client, Producer(client, config) as producer:
        waiting: list[tuple[Record, Delivery]] = []
        next_s = loop.time()
        for number in range(count):
            record = as_record(make(number))
            delivery = await producer.send(
                topic, data_bytes(record.value), key=data_bytes(record.key), headers=record.headers
            )
            waiting.append((record, delivery))
            next_s += every_s
            await asyncio.sleep(max(0.0, next_s - loop.time()))
        await producer.flush()
        for record, delivery in waiting:
            offset = await delivery.offset()
            acknowledged.append(
                Record(
                    data_bytes(record.value),
                    data_bytes(record.key),
                    record.headers,
                    delivery.batch.partition.partition,
                    offset,
                )
            )
