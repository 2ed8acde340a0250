"""Two clusters in one world: a source and a mirror, connected by a link until the mirrored topics are promoted.

Both clusters and the network between them have faults. Clients write to the source; others try to write to the mirrors from the
beginning, and no broker may accept their records before the promotion. The seed decides how the mirrors end (`Ending`). Every
fourth seed has one kind of trouble on purpose (`link_troubles.py`).
"""

from collections import ChainMap
from contextlib import ExitStack
from dataclasses import replace
from enum import Enum
from random import Random
from typing import Any

from barnabas.base.config.topic import LINK_NAME
from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.znodes_link import MirrorPartition
from barnabas.client.admin import links as admin
from barnabas.client.admin.groups import committed_offsets
from barnabas.client.errors import BrokerRefused, ClientError
from barnabas.wire.record_batch import LEADER_EPOCH_AT, iter_batches
from barnabas.wire.records import iter_records
from tests.simulation.cluster import SETTLE_S, SimCluster
from tests.simulation.link_troubles import KINDS, TROUBLES, trouble_of
from tests.simulation.load import RECKLESS, Client, OffsetKeeper
from tests.simulation.oracle import SEPARATOR, Fate, Sent
from tests.simulation.records import bytes_of
from tests.simulation.scenario import Scenario, vary

LINK = "from-source"
#: No power cuts: the profile `reckless` covers sources that lose records.
_FAULTS = {
    "kill": 3, "kill_leader": 4, "ambush": 3, "kill_controller": 2, "restart": 2, "pause": 3, "isolate": 3, "cut_link": 2,
    "expire": 2, "reset_connections": 3, "slow_network": 2, "look_dead": 1, "kill_zookeeper": 1,
}  # fmt: skip
_WITH_ACLS = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


class Ending(Enum):
    """When mirrors are promoted, and how."""

    #: Planned, after the last fault and the last write.
    CALM = "calm"
    #: Planned, under fire, while writers write.
    PLANNED = "planned"
    #: At once, under fire, while writers write.
    NOW = "now"


class Operator(Client):
    """Creates the link, promotes the mirrors, and repeats its requests until they succeed."""

    def __init__(self, linked: "LinkedWorld") -> None:
        super().__init__(linked.mirror, "operator")
        self._linked = linked
        self.is_done = False

    async def main(self) -> None:
        linked = self._linked
        source = ",".join(f"{host}:{port}" for host, port in linked.source.bootstrap)
        configs = {
            "bootstrap.servers": source,
            "link.replication.factor": "3",
            "link.refresh.interval.ms": self.chance.choice(["200", "1000", "5000"]),
            "request.timeout.ms": self.chance.choice(["3000", "30000"]),
        }
        if linked.trouble_name == "long":
            configs["link.refresh.interval.ms"] = "200"
        if linked.begins_later:
            # Producers that got their ids before the link existed could have ids of the source's producers.
            await self._insist(
                lambda client: admin.create_link(client, "first", configs=configs, topics="nothing"),
                but=ErrorCode.DUPLICATE_RESOURCE,
            )
            await self.pause(4.0, 6.0)
            linked.start_ms = self.clock.now_ms() - 2_000
        start = "earliest" if linked.start_ms is None else str(linked.start_ms)
        await self._insist(
            lambda client: admin.create_link(client, LINK, configs=configs, topics=".*", groups=".*", start=start),
            but=ErrorCode.DUPLICATE_RESOURCE,
        )
        self.note("has linked the clusters")
        while not linked.may_promote:
            await self.pause(0.1, 0.1)
        for topic in linked.promoted:
            linked.notes_promotion(topic)
            action = "promote-now" if linked.ending is Ending.NOW else "promote"
            await self._insist(lambda client, t=topic, a=action: admin.alter_link(client, LINK, a, topic=t))
            self.note(f"has asked for the promotion of {topic}")
        while not await self._insist(self._are_promoted):
            await self.pause(0.1, 0.5)
        self.note("all is promoted")
        self.is_done = True

    async def _insist(self, wish: Any, *, but: ErrorCode | None = None) -> Any:
        """Repeat a request until it succeeds. `but`: an error that also counts, because the first attempt may have succeeded
        without an answer.
        """
        while True:
            try:
                async with self.connect(api_timeout_ms=8_000) as client:
                    return await wish(client)
            except BrokerRefused as error:
                if error.code is but:
                    return None
                self.note(f"is refused: {error}")
            except ClientError as error:
                self.note(f"tries again: {error}")
            await self.pause(0.1, 0.5)

    async def _are_promoted(self, client: Any) -> bool:
        [link] = await admin.describe_links(client, [LINK])
        states = {topic.name: topic.state for topic in link.topics}
        return all(states.get(topic) == "promoted" for topic in self._linked.promoted)


class GroupAuditor(Client):
    """Reads the committed offsets of groups at the end."""

    def __init__(self, cluster: SimCluster, groups: list[str]) -> None:
        super().__init__(cluster, "groups")
        self._groups = groups
        self.found: dict[str, dict[TopicPartition, int]] | None = None

    async def main(self) -> None:
        while self.found is None:
            try:
                async with self.connect() as client:
                    self.found = {
                        group: {tp: each.offset for tp, each in (await committed_offsets(client, group)).items()}
                        for group in self._groups
                    }
            except ClientError as error:
                self.note(f"tries again: {error}")
                await self.pause(0.1, 0.5)


class LinkedWorld:
    def __init__(self, seed: int) -> None:
        chance = Random(seed * 7919 + 29)
        self.trouble_name = trouble_of(seed)
        #: Whether mirrors begin at a timestamp instead of the first record.
        self.begins_later = self.trouble_name == "later"
        self.start_ms: int | None = None
        self.ending = Ending.NOW if self.trouble_name == "stuck" else list(Ending)[seed % len(Ending)]
        if self.trouble_name == "long":
            self.ending = Ending.CALM
        has_reckless = chance.random() < 0.5
        scenario = Scenario(
            seconds=chance.choice([8.0, 12.0]),
            pace_s=chance.choice([(0.05, 0.4), (0.3, 1.0)]),
            fault_every_s=chance.choice([(0.3, 1.5), (0.5, 3.0)]),
            segment_bytes=chance.choice([1_048_576, 1_500]),
            # With a slow network the controller may not know the better replica, and may elect a worse one in the reckless
            # topic.
            faults={name: often for name, often in _FAULTS.items() if name != "slow_network" or not has_reckless},
            group_members=0,
            has_admin=False,
            has_reckless=has_reckless,
            settings={number: vary(chance) for number in range(1, 4)},
        )
        if self.trouble_name:
            profile = TROUBLES[self.trouble_name]
            scenario = replace(scenario, faults=profile.faults, **profile.fields)
        self.source = SimCluster(seed, replace(scenario, all_brokers=_WITH_ACLS) if self.begins_later else scenario)
        self.mirror = SimCluster(
            seed,
            replace(
                scenario,
                brokers=5 if self.trouble_name == "stuck" else scenario.brokers,
                has_keeper=False,
                has_reckless=False,
                settings={number: vary(chance) for number in range(1, 4)},
            ),
            beside=self.source,
        )
        self.mirror.may_begin_later = self.begins_later
        self.world = self.source.world
        # A reader of a mirror reads records that were sent to the source.
        self.mirror.oracle.sent = ChainMap({}, self.source.oracle.sent)  # type: ignore[assignment]
        self.mirror.oracle.on_offset_shown = self._shown_by_mirror
        self.operator = Operator(self)
        self.promote_after_s = chance.uniform(0.3, 0.9) * scenario.seconds
        if self.trouble_name == "stuck":
            self.promote_after_s = chance.uniform(4.0, 5.5)
            for cluster in (self.source, self.mirror):
                cluster.topics["many"] = (6, 3, {"min.insync.replicas": "2"})
        self.may_promote = False
        self._is_promoting = False
        #: Topic -> records of the source that were acknowledged when its promotion was requested.
        self._due: dict[str, list[Sent]] = {}
        #: Topic -> when its promotion was requested.
        self.asked_s: dict[str, float] = {}
        self._is_between_cut = False
        self.trouble = KINDS[self.trouble_name](self)

    @property
    def promoted(self) -> list[str]:
        """Return the topics that are promoted. The reckless one stays a mirror, unless all is calm."""
        is_whole = self.ending is Ending.CALM and self.source.scenario.has_reckless
        return [*self.source.topics, *([RECKLESS] if is_whole else [])]

    # -- a run ----------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        world, source, mirror = self.world, self.source, self.mirror
        with ExitStack() as stack:
            stack.enter_context(source.captured())
            stack.enter_context(mirror.captured())
            source.begin()
            mirror.begin()
            self.operator.start()
            self.trouble.begin()
            if not self.trouble_name:
                world.after(world.between(1.0, 3.0), self._part)
            if self.ending is not Ending.CALM:
                world.after(self.promote_after_s, self._promote)
            world.run_until(world.now_s + source.scenario.seconds)
            self._is_between_cut = True
            self.trouble.end()
            source.calm()
            mirror.calm()
            source.end_clients()
            self._promote()
            self._wait("mirrors are promoted in time", lambda: self.operator.is_done)
            world.run_until(world.now_s + 3.0)  # clients write to the former mirrors
            mirror.end_clients()
            source.audit()
            self._audit_mirrors()
            mirror.audit()
            self._audit_groups()
            mirror.rest()
            source.rest()

    def _promote(self) -> None:
        if not self._is_promoting:
            self._is_promoting = True
            self.trouble.promotes(self._let_promote)

    def _let_promote(self) -> None:
        self.may_promote = True

    def _wait(self, promise: str, condition: Any) -> None:
        deadline_s = self.world.now_s + SETTLE_S
        while not condition() and self.world.now_s < deadline_s:
            self.world.run_until(self.world.now_s + 0.5)
        if not condition():
            self._broken(promise, f"not within {SETTLE_S:.0f} s of calm")

    def _part(self) -> None:
        """Cut a broker of one cluster off from one of the other for a while, one way or both."""
        if self._is_between_cut:
            return
        world, network = self.world, self.source.network
        here = world.random.choice(list(self.mirror.brokers.values())).name
        there = [each.name for each in self.source.brokers.values()]
        some = world.random.choice([there, [world.random.choice(there)]])
        pairs = [(one, here) for one in some]
        if world.chance(0.5):
            pairs += [(here, one) for one in some]
        for pair in pairs:
            network.cut(*pair)
        world.note("network", f"cut {', '.join(f'{a}->{b}' for a, b in pairs)}")

        def mend() -> None:
            for pair in pairs if not self._is_between_cut else ():
                network.mend(*pair)

        world.after(world.between(0.1, 5.0), mend)
        world.after(world.between(0.5, 4.0), self._part)

    # -- what must hold -------------------------------------------------------------------------------------------------

    def _broken(self, name: str, detail: str) -> None:
        self.world.violate(name, detail)

    def notes_promotion(self, topic: str) -> None:
        self.asked_s[topic] = self.world.now_s
        acknowledged = (each for each in self.source.oracle.sent.values() if each.fate is Fate.DONE)
        self._due[topic] = [each for each in acknowledged if each.tp.topic == topic and each.is_durable]

    def _shown_by_mirror(self, whom: str, tp: TopicPartition, offset: int) -> None:
        """Check an offset that a client of the mirrors got, by a read or as the offset of its own record."""
        self.mirror.watch.shown(whom, tp, offset)
        record = next((each for each in self._own().values() if each.tp == tp and each.offset == offset), None)
        if record is not None and record.producer == whom and self._is_mirror(tp.topic):
            self._broken("a mirror is read-only until it is promoted", f"{tp} took {record.name} at offset {offset}")

    def _own(self) -> dict[str, Sent]:
        """Return the records that were sent to the mirrors."""
        sent: Any = self.mirror.oracle.sent
        return dict(sent.maps[0]) if isinstance(sent, ChainMap) else sent

    def _nodes(self) -> Any:
        server = self.mirror.zookeeper.server
        return None if server is None else server.service.machine.tree.nodes

    def _is_mirror(self, topic: str) -> bool:
        nodes = self._nodes()
        node = None if nodes is None else nodes.get(paths.config_entity(paths.TOPICS, topic))
        return node is not None and LINK_NAME.encode() in (node.data or b"")

    def _noted(self, tp: TopicPartition) -> MirrorPartition:
        path = paths.link_partition(LINK, tp)
        node = self._nodes().get(path)
        return MirrorPartition() if node is None else MirrorPartition.decode(path, node.data)

    def has_ended(self, tp: TopicPartition) -> bool:
        return self._noted(tp).is_done

    def _audit_start(self, tp: TopicPartition, final: int) -> None:
        """Check that mirrors that begin at a timestamp have every record from then on, and none before it."""
        number, log = max(self._logs(self.source, tp).items(), key=lambda pair: int(pair[1].high_watermark))
        with self.source.brokers[number].looked_at():
            data = bytes_of(log, log.log_start_offset, final)
        young = (
            record.offset
            for position, header in iter_batches(data, 0, len(data))
            for record in iter_records(data, position, header)
            if record.timestamp >= (self.start_ms or 0)
        )
        first = next(young, None)
        for here, mirror_log in self._logs(self.mirror, tp).items():
            if first is not None and mirror_log.log_start_offset != first:
                self._broken(
                    "a mirror begins at its configured time",
                    f"{tp} offset {first} is the first as young, and broker {here} begins at {mirror_log.log_start_offset}",
                )

    def _audit_mirrors(self) -> None:
        finals: dict[TopicPartition, int] = {}
        for tp in self.source.partitions:
            noted = self._noted(tp)
            if noted.final_offset is None or not noted.is_done or self._is_mirror(tp.topic):
                self._broken("a promoted mirror has ended", f"{tp}: {noted}")
                return
            finals[tp] = noted.final_offset
            self._audit_end(tp, noted)
            if self.start_ms is not None:
                self._audit_start(tp, noted.final_offset)
            self._compare(tp, noted.final_offset)
        if self.source.scenario.has_reckless:
            self._audit_reckless(TopicPartition(RECKLESS, 0))
        self._audit_producer_ids(finals)
        # From here on compare with the records that the mirrors must have, and those that were sent to the mirrors.
        theirs = {
            name: each
            for name, each in self.source.oracle.sent.items()
            if each.fate is not Fate.DONE or each.offset < finals.get(each.tp, 0)
        }
        self.mirror.oracle.sent = {**theirs, **self._own()}
        if self.ending is Ending.CALM:
            self.mirror.oracle.transactions += self.source.oracle.transactions

    def _audit_end(self, tp: TopicPartition, noted: MirrorPartition) -> None:
        assert noted.final_offset is not None
        if self.ending is Ending.NOW:
            return
        due = self._due[tp.topic]
        if self.ending is Ending.CALM:
            due = [each for each in self.source.oracle.sent.values() if each.fate is Fate.DONE and each.is_durable]
        for record in due:
            if record.tp == tp and record.offset >= noted.final_offset:
                self._broken(
                    "a planned promotion loses nothing",
                    f"{record.name} at {tp} offset {record.offset} of the source; the mirror ended at {noted.final_offset}",
                )

    def _logs(self, cluster: SimCluster, tp: TopicPartition) -> dict[int, Any]:
        found = {number: cluster.log_of(number, tp) for number in cluster.brokers}
        return {number: log for number, log in found.items() if log is not None}

    def _batches(self, cluster: SimCluster, number: int, log: Any, start: int, end: int) -> list[bytes]:
        """Return the batches without their leader epochs."""
        with cluster.brokers[number].looked_at():
            data = bytearray(bytes_of(log, start, end))
        found = []
        for position, header in iter_batches(data, 0, len(data)):
            data[position + LEADER_EPOCH_AT : position + LEADER_EPOCH_AT + 4] = bytes(4)
            found.append(bytes(data[position : position + header.size_bytes]))
        return found

    def _compare(self, tp: TopicPartition, end: int) -> None:
        """Check that every replica of the mirror has the source's batches up to `end`."""
        theirs, ours = self._logs(self.source, tp), self._logs(self.mirror, tp)
        number, log = max(theirs.items(), key=lambda pair: int(pair[1].high_watermark))
        if log.high_watermark < end:
            self._broken("a mirror has its source's records", f"{tp} ends at {end}, the source at {log.high_watermark}")
        for here, mirror_log in ours.items():
            if mirror_log.high_watermark < end:
                continue  # the cluster's own audit reports it if it lasts
            start = max(log.log_start_offset, mirror_log.log_start_offset)
            expected = self._batches(self.source, number, log, start, end)
            found = self._batches(self.mirror, here, mirror_log, start, end)
            if expected != found:
                first = next(
                    (at for at, pair in enumerate(zip(expected, found, strict=False)) if pair[0] != pair[1]), -1
                )
                self._broken(
                    "a mirror has its source's batches, byte for byte but for the leader epoch",
                    f"{tp} [{start}, {end}) on broker {here}: {len(found)} batches of {len(expected)}, "
                    f"the first that differs is {first}",
                )

    def _audit_reckless(self, tp: TopicPartition) -> None:
        """Check that the mirror of a source that lost records has what the source has now."""

        def end_of(cluster: SimCluster) -> int:
            return max((log.high_watermark for log in self._logs(cluster, tp).values()), default=-1)

        noted = self._noted(tp)
        if noted.final_offset is None:
            self._wait("a mirror catches up with its source", lambda: end_of(self.source) == end_of(self.mirror) >= 0)
        self._compare(tp, end_of(self.source) if noted.final_offset is None else noted.final_offset)

    def _audit_producer_ids(self, finals: dict[TopicPartition, int]) -> None:
        """Check that no producer of the mirror has the id of a producer of the source, or of another one of the mirror."""
        owners: dict[int, str] = {}
        for tp, final in finals.items():
            number, log = next(iter(self._logs(self.mirror, tp).items()))
            with self.mirror.brokers[number].looked_at():
                data = bytes_of(log, log.log_start_offset, log.log_end_offset)
            for position, header in iter_batches(data, 0, len(data)):
                if header.is_control or header.producer_id < 0:
                    continue
                for record in iter_records(data, position, header):
                    producer = bytes(record.value or b"").decode().partition(SEPARATOR)[0]
                    if producer.startswith(self.mirror.prefix) != (header.base_offset >= final):
                        self._broken("a mirror is read-only until it is promoted", f"{tp} {record.offset}: {producer}")
                    if owners.setdefault(header.producer_id, producer) != producer:
                        self._broken(
                            "no producer id is given twice",
                            f"{header.producer_id} is {owners[header.producer_id]}'s and {producer}'s",
                        )

    def _audit_groups(self) -> None:
        """Check that groups' offsets are mirrored, and that they equal the source's after a planned promotion in calm."""
        groups = [client.group for client in self.source.clients if isinstance(client, OffsetKeeper)]
        there, here = GroupAuditor(self.source, groups), GroupAuditor(self.mirror, groups)
        there.start()
        here.start()
        self._wait("a healthy cluster serves in time", lambda: there.found is not None and here.found is not None)
        assert there.found is not None
        assert here.found is not None
        for group, offsets in there.found.items():
            for tp, offset in offsets.items():
                found = here.found[group].get(tp, -1)
                final = self._noted(tp).final_offset or 0
                is_due = self.ending is Ending.CALM and offset <= final
                if found > offset or (is_due and found != offset):
                    self._broken(
                        "groups' offsets are mirrored", f"{group} has {tp} {offset} at the source and {found} here"
                    )
