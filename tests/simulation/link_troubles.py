"""Trouble for mirrors: every fourth seed of the world `link` has one kind. `tier_troubles.py` is the same for tiers."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from barnabas.base.ids import TopicPartition
from barnabas.base.words import AclOperation, AclResourceType, PatternType, Permission
from barnabas.broker.features.link.feature import LinkPlugin
from barnabas.client.admin.acls import Ace, ResourcePattern, create_acls, delete_acls
from barnabas.client.errors import ClientError
from barnabas.testing.simulation.process import BrokerProcess
from tests.simulation.load import RECKLESS, Client
from tests.simulation.profiles import Profile
from tests.simulation.tier_troubles import Overrule

if TYPE_CHECKING:
    from tests.simulation.link_world import LinkedWorld

_FEW: Mapping[str, Any] = {
    "seconds": 14.0, "pace_s": (0.02, 0.25), "fault_every_s": (2.0, 5.0), "has_reckless": False, "session_timeout_ms": 2_000,
}  # fmt: skip

TROUBLES: dict[str, Profile] = {
    #: The source loses records. The mirror's leader cuts them, notes the new epochs, and dies before its followers have cut.
    "cut": Profile({**_FEW, "seconds": 18.0, "has_reckless": True, "replica_lag_ms": 4_000}, {"reset_connections": 1}),
    #: Brokers have run for a long time: one restarts during a promotion.
    "long": Profile({**_FEW, "seconds": 30.0, "pace_s": (0.3, 1.0)}, {"reset_connections": 1}),
    #: Records of some mirrors cannot be committed when all are promoted.
    "stuck": Profile({**_FEW, "seconds": 27.0, "pace_s": (0.05, 0.4)}, {"reset_connections": 1}),
    #: Mirrors begin at a timestamp, and the source does not always answer which offset that is.
    "later": Profile({**_FEW, "network_s": 0.02}, {"reset_connections": 2}),
}
_RECKLESS = TopicPartition(RECKLESS, 0)
LOOK_S = 0.001
#: How long the end of a mirror or of a promotion may take if nothing delays it.
SOON_S = 12.0


def trouble_of(seed: int) -> str:
    """Return the kind of trouble; empty for the usual faults only."""
    return list(TROUBLES)[seed // 4 % len(TROUBLES)] if seed % 4 == 3 else ""


class Trouble:
    """Owner: the world."""

    def __init__(self, linked: "LinkedWorld") -> None:
        self._linked = linked
        self._world = linked.world
        self.is_over = False

    def begin(self) -> None:
        """Start the trouble after the clusters have started."""

    def end(self) -> None:
        """Cause no fault from now on."""
        self.is_over = True

    def promotes(self, let: Callable[[], None]) -> None:
        """Delay the promotion of the mirrors until the trouble calls `let`."""
        let()

    def _leader(self, tp: TopicPartition) -> BrokerProcess | None:
        """Return the broker that leads the mirror."""
        mirror = self._linked.mirror
        state = mirror.partition_states().get(tp)
        process = None if state is None else mirror.brokers.get(state.leader)
        return process if process is not None and process.is_serving else None

    def _replica(self, process: BrokerProcess, tp: TopicPartition) -> Any:
        broker: Any = process.broker
        link = next(iter(broker.plugin(LinkPlugin).manager.links.values()), None)
        return None if link is None or link.source is None else link.source.replicas.get(tp)


class CutMirrors(Trouble):
    _watched: BrokerProcess | None = None
    _pairs: list[tuple[str, str]]
    _before = 0
    _until_s = 0.0

    def begin(self) -> None:
        self._state: Any = None
        self._pairs = []
        self._world.after(4.0, self._overrule)
        self._look()

    def _overrule(self) -> None:
        if self.is_over:
            return
        source = self._linked.source
        state = source.partition_states().get(_RECKLESS)
        is_possible = state is not None and len(state.isr) > 1 and state.leader in state.isr
        if is_possible:
            Overrule(source, _RECKLESS, lambda: self.is_over).begin()
        self._world.after(8.0 if is_possible else 0.3, self._overrule)

    def _look(self) -> None:
        if self.is_over:
            return
        self._world.after(LOOK_S, self._look)
        if self._watched is not None:
            self._wait(self._watched)
            return
        state = self._linked.source.partition_states().get(_RECKLESS)
        before, self._state = self._state, state if state is not None else self._state
        if state is not None and before is not None and state.leader >= 0 and state.leader not in before.isr:
            self._part()

    def _part(self) -> None:
        """Cut the mirror's leader off from its followers, after the source has lost records and before the mirror knows."""
        mirror, leader = self._linked.mirror, self._leader(_RECKLESS)
        replica = None if leader is None else self._replica(leader, _RECKLESS)
        if leader is None or replica is None:
            return
        controller = mirror.controller()
        state = mirror.partition_states()[_RECKLESS]
        others = [
            mirror.brokers[each].name
            for each in state.isr
            if each != leader.id and mirror.brokers[each] is not controller
        ]
        self._pairs = [pair for other in others for pair in ((leader.name, other), (other, leader.name))]
        self._watched, self._before = leader, replica.truncated_records
        self._until_s = self._world.now_s + 3.0
        self._world.note("network", f"{leader.name} is to cut {_RECKLESS} alone")
        for pair in self._pairs:
            mirror.network.cut(*pair)

    def _wait(self, leader: BrokerProcess) -> None:
        replica = self._replica(leader, _RECKLESS) if leader.is_up else None
        if replica is None or self._world.now_s > self._until_s:
            self._mend()
            return
        was_cut = replica.truncated_records > self._before and not replica.is_cut
        if was_cut and replica.recorded.noted_in == replica.partition.machine.leader_epoch:
            faults = self._linked.mirror.faults
            assert faults is not None
            if faults.may_kill(leader):
                self._world.note(leader.name, f"has cut {_RECKLESS}, and noted {replica.recorded}")
                leader.kill()
                self._world.after(self._world.between(4.0, 6.0), partial(_start, leader))
            self._mend()

    def _mend(self) -> None:
        for pair in self._pairs:
            self._linked.mirror.network.mend(*pair)
        self._watched, self._pairs = None, []


def _start(process: BrokerProcess) -> None:
    if not process.is_up:
        process.start()


class LongRun(Trouble):
    """A broker restarts when all mirrors of a topic have ended: its counts of the link's rounds begin again at 0."""

    _struck_s: float | None = None

    def promotes(self, let: Callable[[], None]) -> None:
        let()
        self._look()

    def _look(self) -> None:
        mirror = self._linked.mirror
        if self._linked.operator.is_done:
            return
        self._world.after(0.01, self._look)
        if self._struck_s is not None:
            if self._world.now_s > self._struck_s + SOON_S:
                self._world.violate(
                    "mirrors are promoted in time", f"not within {SOON_S:.0f} s after a broker has restarted"
                )
            return
        controller: Any = mirror.controller()
        if controller is None or not controller.is_serving:
            return
        steward = controller.broker.plugin(LinkPlugin).manager.endings[0].__self__
        others = [each for each in mirror.brokers.values() if each is not controller and each.is_serving]
        if steward._turns_at_end and others:
            victim = self._world.random.choice(others)
            self._world.note(victim.name, "restarts in a promotion")
            victim.kill()
            victim.start()
            self._struck_s = self._world.now_s


class StuckMirrors(Trouble):
    """One mirror's followers are down when it is promoted, so its records cannot be committed. A mirror of another topic that
    is promoted later must end all the same.
    """

    _waiting: tuple[TopicPartition, TopicPartition, BrokerProcess, list[BrokerProcess]] | None = None

    def promotes(self, let: Callable[[], None]) -> None:
        found = self._find()
        if found is None:
            let()
            return
        stuck, other, leader, followers = self._waiting = found
        self._world.note(leader.name, f"is to have the only replica of {stuck} in sync, and {other} with others")
        for each in followers:
            each.kill()
            self._world.after(SOON_S + 8.0, partial(_start, each))
        self._wait(let, self._world.now_s + 6.0)

    def _find(self) -> tuple[TopicPartition, TopicPartition, BrokerProcess, list[BrokerProcess]] | None:
        mirror, order = self._linked.mirror, self._linked.promoted
        states = {tp: state for tp, state in mirror.partition_states().items() if tp.topic in order}
        for stuck, state in states.items():
            followers = [each for each in state.isr if each != state.leader]
            for other, beside in states.items():
                is_later = order.index(stuck.topic) < order.index(other.topic)
                left = set(beside.isr) - set(followers)
                if is_later and beside.leader == state.leader and len(left) > 1 and len(state.isr) > 1:
                    brokers = [mirror.brokers[each] for each in {*followers, *left}]
                    if all(each.is_serving for each in brokers):
                        return stuck, other, mirror.brokers[state.leader], [mirror.brokers[each] for each in followers]
        return None

    def _wait(self, let: Callable[[], None], until_s: float) -> None:
        assert self._waiting is not None
        stuck, _, leader, _ = self._waiting
        log = self._linked.mirror.log_of(leader.id, stuck)
        is_stuck = log is not None and log.log_end_offset > log.high_watermark
        if not is_stuck and self._world.now_s < until_s:
            self._world.after(0.05, partial(self._wait, let, until_s))
            return
        if is_stuck:
            self._world.after(SOON_S, partial(self._look, leader.lives))
        let()

    def _look(self, life: int) -> None:
        assert self._waiting is not None
        stuck, other, leader, _ = self._waiting
        state = self._linked.mirror.partition_states().get(other)
        asked = self._linked.asked_s.get(other.topic)
        if leader.lives != life or not leader.is_serving or state is None or state.leader != leader.id or asked is None:
            return
        if self._world.now_s < asked + SOON_S:
            self._world.after(asked + SOON_S - self._world.now_s, partial(self._look, life))
        elif not self._linked.has_ended(other):
            self._world.violate(
                "a mirror ends in time even if other mirrors do not",
                f"{other} does not end, {stuck} of {leader.name} cannot",
            )


class LaterMirrors(Trouble):
    """The mirror's brokers get and lose the permission to describe the source's topics, by turns."""

    def begin(self) -> None:
        AclToggler(self._linked).start()


class AclToggler(Client):
    """A client that grants and revokes the mirror's permission to describe the source's topics."""

    def __init__(self, linked: "LinkedWorld") -> None:
        super().__init__(linked.source, "moody")
        self._linked = linked

    async def main(self) -> None:
        pattern = ResourcePattern(AclResourceType.TOPIC, "*", PatternType.LITERAL)
        everybody = Ace("User:*", "*", AclOperation.ALL, Permission.ALLOW)
        denied = [
            Ace("User:*", broker.name, AclOperation.DESCRIBE, Permission.DENY)
            for broker in self._linked.mirror.brokers.values()
        ]
        is_denied, rounds = True, 0
        while is_denied or (rounds < 120 and not self._linked.trouble.is_over):
            try:
                async with self.connect(api_timeout_ms=5_000) as client:
                    await create_acls(client, pattern, [everybody])
                    await delete_acls(client, pattern, denied)
                    is_denied = False
                    # Brokers keep notifications of ACL changes for a quarter of an hour: keep their number small.
                    while not self._linked.trouble.is_over and rounds < 120:
                        if self._linked.start_ms is None:
                            await self.pause(0.1, 0.1)
                            continue
                        rounds += 1
                        is_denied = True
                        await create_acls(client, pattern, denied)
                        await self.pause(0.0, 0.03)
                        await delete_acls(client, pattern, denied)
                        is_denied = False
                        await self.pause(0.0, 0.06)
            except ClientError as error:
                self.note(f"tries again: {error}")
                await self.pause(0.1, 0.3)


KINDS: dict[str, type[Trouble]] = {
    "": Trouble,
    "cut": CutMirrors,
    "long": LongRun,
    "stuck": StuckMirrors,
    "later": LaterMirrors,
}
