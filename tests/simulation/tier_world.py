"""A cluster whose history is in an object store that fails.

Beside all checks of a cluster: no record is lost at the border between disk and store, and the store keeps no object that the
cluster does not know.

Local retention removes every copied segment at once: clients and the audit mostly read from the store. Every fourth seed has
one kind of trouble on purpose (`tier_troubles.py`).
"""

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import barnabas.broker.features.tiered.feature  # noqa: F401 - brokers import it late, and each seed would compile it again
from barnabas.base.host.disk import Disk
from barnabas.base.ids import TopicPartition
from barnabas.broker.features.tiered import layout
from barnabas.broker.features.tiered.feature import TieredPlugin
from barnabas.broker.features.tiered.lineage import piece_at, touches
from barnabas.broker.features.tiered.store import FilePart, StoreFault
from barnabas.testing.simulation.process import BrokerProcess
from tests.memory_store import MemoryStore
from tests.simulation.cluster import SETTLE_S, SimCluster
from tests.simulation.load import Client
from tests.simulation.lossy_tiered_topic import TP as RECKLESS_TP
from tests.simulation.lossy_tiered_topic import AbortAuditor, HistoryAuditor, HistoryReader, LineageWatch
from tests.simulation.recreated_topics import RecklessProducer
from tests.simulation.scenario import Scenario
from tests.simulation.tier_deposed_leader import KINDS as OVERRULED
from tests.simulation.tier_disconnects import KINDS as LEAVERS
from tests.simulation.tier_restarted_leader import KINDS as RETURNS
from tests.simulation.tier_troubles import HISTORY, KINDS, SETTINGS, TOPIC_SETTINGS, TROUBLES, WEATHERS, trouble_of

TOPIC = {"remote.storage.enable": "true", "local.retention.bytes": "1", "retention.ms": "-1", "segment.bytes": "1500"}
BROKERS = {
    "remote.log.storage.system.enable": "true",
    "barnabas.remote.storage.url": "memory://tier",
    "remote.log.manager.task.interval.ms": "400",
    "remote.log.manager.task.retry.backoff.ms": "50",
    "remote.log.manager.task.retry.backoff.max.ms": "500",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "3",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "3",
    "log.retention.check.interval.ms": "500",
}
#: Pause between two records of the topic that may lose records: short, so that there is history.
HISTORY_PACE_S = (0.01, 0.15)
#: States of the store, with their frequencies.
WEATHER = ("well", "well", "well", "away", "slow", "fails", "loses")
#: How often one process may get one object: the topic that may lose records is read from its beginning a few times in a second.
GETS_MAX = 300


class Noted(MemoryStore):
    """One broker's access to the store. It notes which broker puts an object, and which objects were deleted."""

    def __init__(self, weather: "Weather", process: BrokerProcess) -> None:
        super().__init__(weather.objects)
        self._weather = weather
        self._writer = (process, process.lives)

    async def put(self, key: str, data: bytes | FilePart) -> None:
        trouble, process = self._weather.trouble, self._writer[0]
        if not trouble.takes(process, key):
            await super().put(key, data)
            return
        content = data if isinstance(data, bytes) else self.read(data.path, data.size_bytes)
        await trouble.put_late(process, key, content)

    async def _begin(self, kind: str, key: str) -> None:
        await super()._begin(kind, key)
        if kind == "get":
            await self._weather.trouble.gets(self._writer[0], key)

    def _end(self, kind: str, key: str) -> None:
        if kind == "put":
            self._weather.writers[key] = self._writer
            self._weather.puts += 1
        elif kind == "get":
            self._weather.counts(self._writer[0], key)
        elif kind == "delete":
            self._weather.deleted.add(key)
        super()._end(kind, key)


class Weather:
    """The current state of the store, for all brokers alike. After `end` the store works."""

    def __init__(self, cluster: "TieredCluster", name: str) -> None:
        """`name`: the kind of trouble of the seed, if it has one."""
        self._cluster = cluster
        self._chance = cluster.world.random
        self._kinds = WEATHERS.get(name, WEATHER)
        self.trouble = {**KINDS, **RETURNS, **OVERRULED, **LEAVERS}[name](cluster)
        self.objects: dict[str, bytes] = {}
        #: Object -> the process that put it, and its life.
        self.writers: dict[str, tuple[BrokerProcess, int]] = {}
        #: Objects that were deleted, even if they exist again.
        self.deleted: set[str] = set()
        self.puts = 0
        #: (broker, life, object) -> how often the broker has asked for it.
        self._gets: Counter[tuple[str, int, str]] = Counter()
        self.now = "well"
        self._is_over = False

    def begin(self) -> None:
        self._change()
        self.trouble.begin()

    def end(self) -> None:
        self._is_over, self.now = True, "well"
        self.trouble.end()

    def _change(self) -> None:
        if self._is_over:
            return
        self.now = self._chance.choice(self._kinds)
        self._cluster.world.note("store", self.now)
        self._cluster.world.after(self._chance.uniform(0.3, 4.0), self._change)

    def open(self, process: BrokerProcess, disk: Disk) -> MemoryStore:
        """Open the store for one broker."""
        store = Noted(self, process)
        store.read = lambda path, size: disk.read_file(path)[:size]
        store.delay = self._delay
        store.fails = lambda kind, key: self._fault("away", 1.0) or self._fault("fails", 0.5)
        store.loses = lambda kind, key: self._fault("loses", 0.5)
        return store

    async def _delay(self) -> None:
        await asyncio.sleep(self._chance.uniform(0.5, 3.0) if self.now == "slow" else self._chance.uniform(0.0, 0.05))

    def counts(self, process: BrokerProcess, key: str) -> None:
        """Count a read. Readers come and go, and caches may be small, so an object may be read often, but not without end."""
        self._gets[process.name, process.lives, key] += 1
        if self._gets[process.name, process.lives, key] > GETS_MAX:
            self._cluster.world.violate(
                "no object is fetched without end", f"{process.name} has asked {GETS_MAX} times for {key}"
            )

    def is_excused(self, key: str) -> bool:
        """Whether the put took effect after another leader had removed the object, and its broker has died since: no broker
        knows the object.
        """
        process, life = self.writers[key]
        return key in self.deleted and process.lives != life

    def _fault(self, kind: str, share: float) -> Exception | None:
        return StoreFault(f"the store {kind}") if self.now == kind and self._chance.random() < share else None


class TieredCluster(SimCluster):
    def __init__(self, seed: int, *, without: frozenset[str] = frozenset()) -> None:
        scenario = replace(
            Scenario.of(seed, has_rare=False),
            has_admin=False,
            has_table=False,
            has_reckless=True,
            has_old_brokers=False,
            features={},
        )
        trouble = trouble_of(seed)
        if trouble:
            profile = TROUBLES[trouble]
            scenario = replace(scenario, faults=profile.faults, all_brokers={}, **profile.fields)
        scenario = replace(
            scenario, all_brokers={**scenario.all_brokers, **BROKERS, **SETTINGS.get(trouble, {})}, has_reckless=True
        )
        super().__init__(seed, scenario, without=without)
        for name, (count, factor, configs) in self.topics.items():
            self.topics[name] = (count, factor, {**configs, **TOPIC, **TOPIC_SETTINGS.get(trouble, {})})
        self._history_pace_s, segment_bytes = HISTORY.get(trouble, (HISTORY_PACE_S, "400"))
        self.reckless_settings = {**TOPIC, "segment.bytes": segment_bytes}
        #: Partitions whose history goes to the store.
        self.tiered_partitions: list[TopicPartition] = [*self.partitions, RECKLESS_TP]
        self.lineages = LineageWatch(self)
        self.weather = Weather(self, trouble)
        for process in self.brokers.values():
            process.open_store = partial(self.weather.open, process)

    def begin(self) -> None:
        super().begin()
        self.weather.begin()
        self.lineages.start()

    def reckless_clients(self) -> list[Client]:
        return [
            RecklessProducer(self, "reckless", self._history_pace_s),
            HistoryReader(self, "history"),
            *self.weather.trouble.clients(),
        ]

    def calm(self) -> None:
        self.weather.end()
        super().calm()

    def audit(self) -> None:
        super().audit()
        world = self.world
        deadline_s = world.now_s + SETTLE_S
        auditors: list[HistoryAuditor | AbortAuditor] = [HistoryAuditor(self, "historian")]
        if self.weather.trouble.has_transactions:
            auditors.append(AbortAuditor(self, "notary"))
        for auditor in auditors:
            auditor.start()
            while not auditor.is_done and world.now_s < deadline_s:
                world.run_until(world.now_s + 0.5)
            if not auditor.is_done:
                world.violate("a healthy cluster serves in time", f"history was not read within {SETTLE_S:.0f} s")
        while (wrong := self._wrong()) and world.now_s < deadline_s:
            world.run_until(world.now_s + 0.5)
        if wrong:
            world.violate("the tier becomes complete", wrong)
        puts = self.weather.puts
        world.run_until(world.now_s + 2.0)
        if self.weather.puts > puts:
            world.violate("the tier comes to rest", f"{self.weather.puts - puts} objects were put though all was there")

    def is_in_store(self, tp: Any, offset: int) -> bool:
        """Whether a replica that knows the record to be committed says so, and the store has it."""
        for process in self.brokers.values():
            log = self.log_of(process.id, tp)
            if log is None or not log.is_tiered or offset >= log.high_watermark:
                continue
            broker: Any = process.broker
            view = broker.plugin(TieredPlugin).manager.view(tp)
            piece = None if view is None else piece_at(view, log.epochs, offset)
            if piece is not None and all(key in self.weather.objects for key in layout.keys(piece.segment)):
                return True
        return False

    def _wrong(self) -> str:
        """Describe what is wrong in the tier; empty if all is well."""
        known: set[str] = set()
        for tp in self.tiered_partitions:
            leaders = [each for each in self.brokers.values() if _leads(each, tp)]
            if len(leaders) != 1:
                return f"{tp} has {len(leaders)} leaders"
            broker: Any = leaders[0].broker
            view, log = broker.plugin(TieredPlugin).manager.view(tp), broker.replicas.hosted.get(tp).log
            if view is None:
                return f"{tp}: nothing is known of the tier"
            unfinished = [each for each in view.all() if not each.is_finished]
            if unfinished:
                return f"{tp}: {unfinished[0]} is left"
            # A transaction that lost its coordinator to power cuts stays open: records above it are not copied.
            stable = [each.base_offset for each in log.segments if each.base_offset <= log.last_stable_offset]
            if not stable and tp not in self.oracle.excused:
                return (
                    f"{tp}: begins here at {log.local_log_start_offset}, above what is stable, {log.last_stable_offset}"
                )
            rolled = max(stable, default=0)
            if rolled > log.log_start_offset and log.highest_copied_offset < rolled - 1:
                return f"{tp}: copied up to {log.highest_copied_offset}, rolled at {rolled}"
            strangers = [each for each in view.all() if not touches(each, log.epochs, log.log_end_offset)]
            if strangers and len(strangers) < len(view):
                return f"{tp}: {strangers[0]} is of a leader that was overruled"
            known.update(key for each in view.all() for key in layout.keys(each))
        # Power cuts may have taken the metadata, too: then the cluster does not know the objects.
        wrong = {key for key in known ^ set(self.weather.objects) if key in known or not self.weather.is_excused(key)}
        if wrong and not self.oracle.excused:
            return f"objects: {sorted(wrong)[:4]}"
        return ""


def _leads(process: BrokerProcess, tp: Any) -> bool:
    replicas = getattr(process.broker, "replicas", None)
    partition = None if replicas is None or not process.is_up else replicas.hosted.get(tp)
    return partition is not None and bool(partition.is_leader)
