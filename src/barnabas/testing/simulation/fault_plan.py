"""Faults by profile: a plan that the seed makes before the run begins, so that single faults can be left out of it.

Each fault has its own chance. Without one of them, the others still come at their times and aim at the same things.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from barnabas.testing.simulation.disk_files import CHANGES
from barnabas.testing.simulation.process import BrokerProcess

if TYPE_CHECKING:
    from barnabas.testing.simulation.app_world import World
    from barnabas.testing.simulation.guests import Guest

#: Seconds between two faults.
EVERY_S = (1.5, 9.0)
#: How long a fault lasts: mostly short, at times longer than the sessions of members and brokers.
SHORT_S, LONG_S = (0.2, 4.0), (9.0, 22.0)
LONG_CHANCE = 0.4
#: A broker without power stays away longer than its session, so that none of its partitions waits for what it has lost.
POWER_S = (8.0, 15.0)
#: How often a broker that was down is looked at, until it is in sync again.
_LOOK_S = 0.25

PROFILES: Mapping[str, tuple[str, ...]] = {
    "calm": (),
    "rebalances": ("kill process", "pause process", "stop process", "cut process off"),
    "leaders": ("kill leader", "stop leader", "pause leader", "kill coordinator", "kill controller", "kill ZooKeeper"),
    "network": (
        "cut process from broker",
        "cut process off",
        "cut brokers apart",
        "reset connections",
        "slow network",
        "lossy network",
        "lose answers",
    ),
    "disks": ("slow disk", "full disk", "cut power"),
    "clocks": ("process clock", "broker clock"),
}
ALL = tuple(dict.fromkeys(kind for kinds in PROFILES.values() for kind in kinds))


@dataclass(frozen=True, slots=True)
class PlannedFault:
    number: int
    at_s: float
    kind: str
    lasts_s: float
    #: Seed of the choice of its target, which is made when the fault comes.
    aim: int


def kinds_of(faults: "str | Sequence[str]") -> tuple[str, ...]:
    """Return the kinds of faults of a profile, of several, or those that are named."""
    names = [faults] if isinstance(faults, str) else list(faults)
    kinds: dict[str, None] = {}
    for name in names:
        if name == "all":
            kinds |= dict.fromkeys(ALL)
        elif name in PROFILES:
            kinds |= dict.fromkeys(PROFILES[name])
        elif name in ALL:
            kinds[name] = None
        else:
            raise ValueError(
                f"unknown faults {name!r}: choose of the profiles {', '.join([*PROFILES, 'all'])},"
                f" or of the kinds {', '.join(ALL)}"
            )
    return tuple(kinds)


def plan(seed: int, faults: "str | Sequence[str]", seconds: float) -> list[PlannedFault]:
    chance = Random(seed * 7919 + 17)
    kinds = kinds_of(faults)
    if len(kinds) > 3:
        # Each seed has its own mix: some defects only show when other faults are absent.
        kinds = tuple(sorted(chance.sample(kinds, chance.randint(2, len(kinds)))))
    planned: list[PlannedFault] = []
    at_s = chance.uniform(*EVERY_S)
    while kinds and at_s < seconds:
        own = Random(chance.getrandbits(64))
        lasts_s = own.uniform(*(LONG_S if own.random() < LONG_CHANCE else SHORT_S))
        planned.append(PlannedFault(len(planned), at_s, own.choice(kinds), lasts_s, own.getrandbits(32)))
        at_s += chance.uniform(*EVERY_S)
    return planned


class Faults:
    """Carries the plan out. Owner: the world."""

    def __init__(self, world: "World", planned: Sequence[PlannedFault], skipped: frozenset[int]) -> None:
        self._world = world
        self._engine = world._engine
        self._servers = world.servers
        self._planned = [each for each in planned if each.number not in skipped]
        #: Numbers of those that have happened, with what they did in words.
        self.happened: dict[int, str] = {}
        self._has_ended = False
        #: The broker that a fault has taken away, until it is in sync again: others wait for their turn.
        self._away: BrokerProcess | None = None
        self._actions: dict[str, Callable[[Random, float], str]] = {
            "kill process": self._kill_process,
            "pause process": self._pause_process,
            "stop process": self._stop_process,
            "cut process off": self._cut_process_off,
            "cut process from broker": self._cut_process_from_broker,
            "kill leader": lambda aim, lasts_s: self._kill(self._leader(aim), lasts_s),
            "stop leader": self._stop_leader,
            "pause leader": self._pause_leader,
            "kill coordinator": lambda aim, lasts_s: self._kill(self._one(aim, self._servers.coordinators()), lasts_s),
            "kill controller": lambda aim, lasts_s: self._kill(self._servers.controller(), lasts_s),
            "kill ZooKeeper": self._kill_zookeeper,
            "cut brokers apart": self._cut_brokers_apart,
            "reset connections": self._reset_connections,
            "slow network": self._slow_network,
            "lossy network": self._lossy_network,
            "lose answers": self._lose_answers,
            "slow disk": self._slow_disk,
            "full disk": self._full_disk,
            "cut power": self._cut_power,
            "process clock": self._process_clock,
            "broker clock": self._broker_clock,
        }

    def begin(self) -> None:
        for fault in self._planned:
            self._world.at(fault.at_s, lambda fault=fault: self._do(fault))  # type: ignore[misc]

    def end(self) -> None:
        self._has_ended = True

    def _do(self, fault: PlannedFault) -> None:
        if self._has_ended:
            return
        what = self._actions[fault.kind](Random(fault.aim), fault.lasts_s)
        if what:
            self.happened[fault.number] = what
            self._engine.note("FAULT", what)

    def _later(self, seconds: float, action: Callable[[], object]) -> None:
        """Undo a fault, unless `calm` has."""
        self._engine.after(seconds, lambda: None if self._has_ended else action())

    def _one(self, aim: Random, candidates: Sequence[BrokerProcess]) -> BrokerProcess | None:
        return aim.choice(candidates) if candidates else None

    # -- processes of the application ---------------------------------------------------------------------------------

    def _guest(self, aim: Random) -> "Guest | None":
        guests = [each for each in self._world.processes.values() if each.is_up and not each.is_paused]
        return aim.choice(guests) if guests else None

    def _kill_process(self, aim: Random, lasts_s: float) -> str:
        guest = self._guest(aim)
        if guest is None:
            return ""
        guest.kill()
        guest.is_held_down = True
        self._later(lasts_s, guest.release)
        return f"{guest.name} is killed; it is started again {lasts_s:.1f} s later"

    def _stop_process(self, aim: Random, lasts_s: float) -> str:
        guest = self._guest(aim)
        if guest is None:
            return ""
        guest.is_held_down = True
        guest.stop()
        self._later(lasts_s, guest.release)
        return f"{guest.name} is asked to stop (SIGTERM); it is started again {lasts_s:.1f} s later"

    def _pause_process(self, aim: Random, lasts_s: float) -> str:
        guest = self._guest(aim)
        if guest is None:
            return ""
        guest.pause()
        self._later(lasts_s, guest.go_on)
        return f"{guest.name} stands still for {lasts_s:.1f} s, as by a long garbage collection or a moved machine"

    def _cut_process_off(self, aim: Random, lasts_s: float) -> str:
        guest = self._guest(aim)
        if guest is None:
            return ""
        others = sorted(each for each in self._world.network.hosts if each != guest.name)
        self._cut([(guest.name, each) for each in others] + [(each, guest.name) for each in others], lasts_s)
        return f"{guest.name} is cut off from everybody for {lasts_s:.1f} s"

    def _cut_process_from_broker(self, aim: Random, lasts_s: float) -> str:
        guest = self._guest(aim)
        if guest is None:
            return ""
        broker = aim.choice(list(self._servers.brokers.values()))
        ways = [(guest.name, broker.name), (broker.name, guest.name)]
        which = aim.choice([ways, ways[:1], ways[1:]])
        self._cut(which, lasts_s)
        if len(which) == 2:
            return f"{guest.name} and {broker.name} do not reach each other for {lasts_s:.1f} s"
        return f"nothing from {which[0][0]} arrives at {which[0][1]} for {lasts_s:.1f} s"

    def _cut(self, pairs: Sequence[tuple[str, str]], lasts_s: float) -> None:
        network = self._world.network
        for source, target in pairs:
            network.cut(source, target)

        def mend() -> None:
            for source, target in pairs:
                network.mend(source, target)

        self._later(lasts_s, mend)

    # -- brokers ------------------------------------------------------------------------------------------------------

    def _leader(self, aim: Random) -> BrokerProcess | None:
        topics = [name for name in self._servers.topics() if not name.startswith("__")]
        return self._one(aim, self._servers.leaders(*topics))

    def _takes_away(self, broker: BrokerProcess | None) -> bool:
        """Whether the broker may go now: one at a time, so that every record stays where the others have it."""
        if broker is None or not broker.is_serving or self._away is not None:
            return False
        self._away = broker
        return True

    def _comes_back(self) -> None:
        broker = self._away
        if broker is None:
            return
        self._servers.held_down.discard(broker.name)
        if broker.is_paused:
            broker.resume()
        self._servers.start_if_free(broker)
        self._look()

    def _look(self) -> None:
        if self._servers.trouble():
            self._later(_LOOK_S, self._look)
        else:
            self._away = None

    def _leads(self, broker: BrokerProcess) -> str:
        led = [str(each) for each in self._servers.led_partitions(broker.id) if not each.topic.startswith("__")]
        coordinates = broker in self._servers.coordinators()
        words = [f"leader of {', '.join(led[:4])}{' …' if len(led) > 4 else ''}"] if led else []
        words += ["a coordinator"] if coordinates else []
        words += ["the controller"] if broker is self._servers.controller() else []
        return f" ({', '.join(words)})" if words else ""

    def _kill(self, broker: BrokerProcess | None, lasts_s: float) -> str:
        if broker is None or not self._takes_away(broker):
            return ""
        what = f"broker {broker.name}{self._leads(broker)} is killed; it is started again {lasts_s:.1f} s later"
        self._servers.held_down.add(broker.name)
        broker.kill()
        self._later(lasts_s, self._comes_back)
        return what

    def _stop_leader(self, aim: Random, lasts_s: float) -> str:
        broker = self._leader(aim)
        if broker is None or not self._takes_away(broker):
            return ""
        what = f"broker {broker.name}{self._leads(broker)} is stopped as for an update; back {lasts_s:.1f} s later"
        self._servers.held_down.add(broker.name)
        broker.is_stopping = True
        broker.stop()
        self._later(lasts_s, self._comes_back)
        return what

    def _pause_leader(self, aim: Random, lasts_s: float) -> str:
        broker = self._leader(aim)
        if broker is None or not self._takes_away(broker):
            return ""
        broker.pause()
        self._later(lasts_s, self._comes_back)
        return f"broker {broker.name}{self._leads(broker)} stands still for {lasts_s:.1f} s"

    def _kill_zookeeper(self, aim: Random, lasts_s: float) -> str:
        zookeeper = self._servers.zookeeper
        if not zookeeper.is_serving:
            return ""
        self._servers.held_down.add(zookeeper.name)
        zookeeper.kill()

        def back() -> None:
            self._servers.held_down.discard(zookeeper.name)
            self._servers.start_if_free(zookeeper)

        self._later(lasts_s, back)
        return f"ZooKeeper is killed; it is started again {lasts_s:.1f} s later"

    def _cut_brokers_apart(self, aim: Random, lasts_s: float) -> str:
        brokers = list(self._servers.brokers.values())
        if len(brokers) < 2:
            return ""
        one, other = aim.sample(brokers, 2)
        if not self._takes_away(one):
            return ""
        self._cut([(one.name, other.name), (other.name, one.name)], lasts_s)
        self._later(lasts_s, self._comes_back)
        return f"brokers {one.name} and {other.name} do not reach each other for {lasts_s:.1f} s"

    def _cut_power(self, aim: Random, lasts_s: float) -> str:
        # What only its memory had must be on the others: the cluster is whole, and the broker comes back as a follower.
        if len(self._servers.brokers) < 3 or self._servers.trouble():
            return ""
        broker = self._leader(aim)
        if broker is None or not self._takes_away(broker):
            return ""
        lasts_s = aim.uniform(*POWER_S)
        what = f"broker {broker.name}{self._leads(broker)} loses power for {lasts_s:.1f} s"
        self._servers.held_down.add(broker.name)
        broker.cut_power()
        self._later(lasts_s, self._comes_back)
        return what

    # -- the network --------------------------------------------------------------------------------------------------

    def _reset_connections(self, aim: Random, lasts_s: float) -> str:
        guest = self._guest(aim)
        if guest is None:
            return ""
        lines = sorted(guest.host.connections, key=hash)
        for line in lines:
            line.reset_later()
            line.other.reset_later()
        return f"all {len(lines)} connections of {guest.name} break" if lines else ""

    def _slow_network(self, aim: Random, lasts_s: float) -> str:
        network, most_s = self._world.network, aim.choice([0.05, 0.3, 1.5])
        network.delay_s = (most_s / 10, most_s)
        self._later(lasts_s, network.calm)
        return f"the network is slow for {lasts_s:.1f} s: up to {most_s * 1000:.0f} ms a packet"

    def _lossy_network(self, aim: Random, lasts_s: float) -> str:
        network, loss = self._world.network, aim.choice([0.02, 0.1, 0.3])
        network.loss = loss
        self._later(lasts_s, network.calm)
        return f"the network loses {loss:.0%} of all packets for {lasts_s:.1f} s"

    def _lose_answers(self, aim: Random, lasts_s: float) -> str:
        world = self._world
        if not world.has_services:
            return ""
        world.lost_answers = aim.choice([0.1, 0.4])

        def usual() -> None:
            world.lost_answers = 0.0

        self._later(lasts_s, usual)
        return (
            f"services lose {world.lost_answers:.0%} of their answers for {lasts_s:.1f} s, and have done what was asked"
        )

    # -- disks and clocks ---------------------------------------------------------------------------------------------

    def _slow_disk(self, aim: Random, lasts_s: float) -> str:
        broker, factor = aim.choice(list(self._servers.brokers.values())), aim.choice([20, 200])
        broker.disk_slowness = factor

        def usual() -> None:
            broker.disk_slowness = 1

        self._later(lasts_s, usual)
        return f"the disk of broker {broker.name} is {factor} times slower for {lasts_s:.1f} s"

    def _full_disk(self, aim: Random, lasts_s: float) -> str:
        broker = self._leader(aim)
        if broker is None or len(self._servers.brokers) < 3 or not self._takes_away(broker):
            return ""
        what = f"the disk of broker {broker.name}{self._leads(broker)} is full for {lasts_s:.1f} s"
        broker.storage.fail("/data", CHANGES, error=28)
        self._servers.held_down.add(broker.name)

        def cleared() -> None:
            broker.storage.heal()
            if broker.is_up:
                broker.kill()
            self._comes_back()

        self._later(lasts_s, cleared)
        return what

    def _process_clock(self, aim: Random, lasts_s: float) -> str:
        guest = self._guest(aim)
        if guest is None:
            return ""
        seconds = _jump(aim)
        guest.clock.skew_ms += seconds * 1000
        return f"the wall clock of {guest.name} jumps by {seconds:+d} s"

    def _broker_clock(self, aim: Random, lasts_s: float) -> str:
        broker, seconds = aim.choice(list(self._servers.brokers.values())), _jump(aim)
        broker.clock.skew_ms += seconds * 1000
        return f"the wall clock of broker {broker.name} jumps by {seconds:+d} s"


def _jump(aim: Random) -> int:
    return aim.choice([-1, 1]) * aim.choice([1, 5, 30, 300, 3600])
