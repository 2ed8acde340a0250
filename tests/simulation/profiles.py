"""Worlds with one kind of trouble: five seeds of six. Every sixth is a mix of everything.

A defect that needs two certain faults within a second hardly ever shows where twenty kinds take turns.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: A profile with seeds of its own has one of so many seeds.
EVERY = 24


@dataclass(frozen=True, slots=True)
class Profile:
    #: Fields of the scenario that the seed does not choose.
    fields: Mapping[str, Any] = field(default_factory=dict)
    #: Kind of fault -> its weight. Empty: a mix that the seed chooses.
    faults: Mapping[str, int] = field(default_factory=dict)
    #: Number of kinds of faults in one seed; the next seed of this profile has others. 0: all kinds.
    kinds: int = 0

    def faults_of(self, seed: int) -> Mapping[str, int]:
        names, turn = list(self.faults), seed // EVERY
        if not self.kinds:
            return self.faults
        # Combine different kinds each time.
        first = turn * self.kinds + turn * self.kinds // len(names)
        chosen = (names[(first + each) % len(names)] for each in range(self.kinds))
        return {name: self.faults[name] for name in chosen}


_FAST: Mapping[str, Any] = {"brokers": 3, "seconds": 15.0, "pace_s": (0.02, 0.3), "fault_every_s": (0.3, 1.5)}
#: One batch at a time: a follower that is behind stays behind for a while.
_SLOW_FETCH: Mapping[str, str] = {"replica.fetch.max.bytes": "1"}

#: Requests to a host without power wait as long as in Kafka, unless the controller announces that the broker is gone.
_PATIENT: Mapping[str, str] = {"request.timeout.ms": "30000"}

ANY = Profile()
PROFILES: dict[str, Profile] = {
    #: Leaders and controllers go and come back, while records are in flight.
    "elections": Profile(
        {**_FAST, "network_s": 0.03, "has_acks_one": True, "readers": 2, "transactional": 1, "group_members": 0,
         "guests": 1, "all_brokers": _SLOW_FETCH},
        {"kill": 2, "kill_leader": 5, "ambush": 4, "kill_controller": 2, "lose_controller": 1, "kill_all": 1, "restart": 2,
         "pause": 3, "isolate": 2},
    ),
    #: Followers fall behind and catch up; proposals to the controller are lost.
    "sync": Profile(
        {**_FAST, "network_s": 0.01, "replica_lag_ms": 1_000, "has_acks_one": True, "transactional": 0,
         "group_members": 0, "guests": 1, "has_reckless": True, "all_brokers": _SLOW_FETCH},
        {"cut_link": 4, "depose": 3, "isolate": 3, "pause": 3, "slow_network": 2, "reset_connections": 3, "expire": 2,
         "ambush": 2, "kill_controller": 1, "kill": 1, "look_dead": 3},
    ),
    #: Power cuts lose writes that were not synced.
    "power": Profile(
        {**_FAST, "network_s": 0.01, "group_members": 0, "has_keeper": True, "session_timeout_ms": 6_000,
         "transactional": 2, "all_brokers": _PATIENT},
        {"cut_power": 4, "cut_power_of_two": 5, "die_in_the_middle": 3, "kill": 2, "kill_controller": 2, "restart": 1,
         "kill_leader": 1, "lose_host": 2},
    ),
    #: Producers and coordinators come and go in mid-transaction.
    "transactions": Profile(
        {**_FAST, "network_s": 0.02, "transactional": 2, "guests": 2, "readers": 2, "producers": 1, "group_members": 0,
         "last_epoch": 5},
        {"kill_leader": 4, "kill": 2, "pause": 2, "reset_connections": 3, "isolate": 2, "restart": 1, "ambush": 2,
         "break_directory": 1, "kill_all": 2},
    ),
    #: Groups and their coordinators.
    "groups": Profile(
        {**_FAST, "network_s": 0.05, "transactional": 0, "guests": 2, "has_keeper": True, "group_members": 2,
         "producers": 1},
        {"kill_leader": 5, "kill": 2, "pause": 2, "cut_link": 2, "isolate": 3, "reset_connections": 2, "ambush": 1},
    ),
    #: Directories fail, now and across a restart; logs are moved, topics deleted, partitions reassigned.
    "directories": Profile(
        {**_FAST, "brokers": 4, "has_admin": True, "has_table": True, "transactional": 1, "admin_s": (0.3, 1.5)},
        {"break_directory": 4, "unplug_directory": 3, "lose_directory": 5, "fill_directory": 2, "kill": 1,
         "kill_controller": 1, "restart": 1},
    ),
    #: An administrator that never rests, and a controller that moves.
    "administrator": Profile(
        {**_FAST, "brokers": 4, "has_admin": True, "has_table": True, "admin_s": (0.1, 0.8), "segment_bytes": 1_500,
         "transactional": 1},
        {"kill_controller": 3, "kill": 3, "restart": 2, "pause": 2, "reset_connections": 2, "cut_link": 2, "expire": 1},
    ),
    #: ZooKeeper dies, forgets nothing, and expires sessions; strangers write into it.
    "zookeeper": Profile(
        {**_FAST, "session_timeout_ms": 2_000, "network_s": 0.01},
        {"kill_zookeeper": 4, "tear_a_flush": 6, "pause_zookeeper": 2, "expire": 5, "write_foreign_znode": 2,
         "kill_controller": 2, "isolate": 2, "cut_link": 2, "pause": 1, "restart": 1},
    ),
}  # fmt: skip
#: Profiles of seeds that are divisible by three: rare operations and faults, again and again.
RARE_PROFILES: dict[str, Profile] = {
    #: Logs are moved between directories and back, those of coordinators too.
    "moves": Profile(
        {**_FAST, "has_admin": True, "admin_s": (0.02, 0.3), "admin_kinds": ("move_back_and_forth", "move_log"),
         "guests": 1, "producers": 2},
        {"kill": 3, "kill_leader": 3, "die_in_the_middle": 2, "slow_disk": 4, "restart": 1, "kill_controller": 1},
    ),
    #: Brokers start: with ZooKeeper away, killed as they register, all at once.
    "starts": Profile(
        {**_FAST, "brokers": 5, "session_timeout_ms": 6_000, "transactional": 1, "group_members": 1, "has_keeper": True},
        {"kill_as_it_registers": 4, "lose_zookeeper_as_it_starts": 6, "kill_all": 3, "kill_controller": 1},
    ),
    #: The stranger overwrites data that brokers read in ZooKeeper, and restores it later.
    "strangers": Profile(
        {**_FAST, "brokers": 4, "has_admin": True, "admin_s": (0.1, 0.6), "has_coming": False,
         "admin_kinds": ("reassign", "elect", "change_topic", "make_twice")},
        {"spoil_a_topic": 8, "delete_a_root": 2, "write_foreign_znode": 1, "kill": 3, "kill_controller": 3, "restart": 1},
    ),
    #: Members of groups leave and return, change their protocol, and do not send what our clients send. Coordinators' records
    #: need all replicas, so they are often refused.
    "members": Profile(
        {**_FAST, "seconds": 25.0, "network_s": 0.01, "transactional": 0, "guests": 0, "producers": 1, "readers": 1,
         "group_members": 2, "static_members": 3, "visitors": 2, "fixed": {"min.insync.replicas": "3"}},
        {"kill": 3, "kill_leader": 2, "isolate": 4, "pause": 2, "cut_link": 2},
    ),
    #: Producers have several batches in flight, while now and then too few replicas are in sync.
    "refusals": Profile(
        {**_FAST, "replica_lag_ms": 1_000, "guests": 4, "guest_visits": ("comes_early", "leaves_a_gap"), "producers": 2,
         "transactional": 1, "group_members": 0},
        {"pause": 5, "isolate": 4, "kill": 4, "kill_leader": 2, "cut_link": 2, "restart": 1},
    ),
    #: Acknowledged records are on disk: all brokers lose power at once, and nothing is lost.
    "flushed": Profile(
        {**_FAST, "network_s": 0.005, "group_members": 0, "transactional": 1, "guests": 1, "has_keeper": True,
         "fixed": {"log.flush.interval.messages": "1"}},
        {"cut_all_power": 4, "slow_disk": 5, "kill": 2, "kill_leader": 2, "reset_connections": 3, "isolate": 2},
    ),
    #: The same, but a killed process leaves records in the page cache, on which the next process depends.
    "twice": Profile(
        {**_FAST, "network_s": 0.005, "group_members": 0, "transactional": 1, "guests": 1, "has_admin": False, "readers": 2,
         "fixed": {"log.flush.interval.messages": "1"}},
        {"kill_then_cut_all_power": 4, "slow_disk": 4, "kill": 1},
    ),
    #: Clients cause a fault at the very moment at which it hurts most. There are few other faults.
    "ambushes": Profile(
        {**_FAST, "seconds": 25.0, "fault_every_s": (1.5, 5.0), "network_s": 0.002, "replica_lag_ms": 5_000,
         "session_timeout_ms": 6_000, "producers": 1, "transactional": 1, "readers": 1, "group_members": 0, "guests": 0,
         "has_keeper": True, "has_admin": False, "has_table": False, "has_acks_one": False, "ambushers": 2,
         "load_step_bytes": 1,
         "fixed": {"log.flush.interval.messages": "9223372036854775807", "log.flush.interval.ms": "9223372036854775807",
                   "transaction.partition.verification.enable": "true"}},
        {"kill": 2, "kill_leader": 1, "pause": 1, "reset_connections": 1},
    ),
    #: Faults at the moment of a succession: of a producer, a coordinator, a leader (`succession_faults.py`).
    "successions": Profile(
        {**_FAST, "seconds": 25.0, "pace_s": (0.1, 0.5), "fault_every_s": (5.0, 9.0), "network_s": 0.002,
         "replica_lag_ms": 5_000, "session_timeout_ms": 6_000, "segment_bytes": 1_048_576, "producers": 1,
         "transactional": 1, "readers": 1, "group_members": 0, "guests": 0, "has_keeper": True, "has_admin": False,
         "has_table": False, "has_acks_one": False, "last_epoch": 2, "ambushers": 1,
         "ambushes": ("uses_up_its_epochs", "changes_its_assignor", "is_cut_while_it_is_copied")},
        {"kill": 1, "reset_connections": 1},
    ),
    #: Responses that clients read slowly, and clients that read at the wrong moment (`slow_readers.py`, `reader_faults.py`).
    "answers": Profile(
        {**_FAST, "brokers": 4, "seconds": 30.0, "pace_s": (0.1, 0.5), "fault_every_s": (5.0, 9.0), "network_s": 0.002,
         "replica_lag_ms": 10_000, "session_timeout_ms": 6_000, "segment_bytes": 1_048_576, "producers": 1,
         "transactional": 0, "readers": 1, "group_members": 0, "guests": 0, "has_keeper": True,
         "has_admin": False, "has_table": False, "has_acks_one": False, "ambushers": 1,
         "ambushes": ("is_cut_while_it_is_sent", "is_cut_while_it_is_sent", "commits_for_ever",
                      "cannot_learn_where_to_begin", "loses_sight_of_a_topic",
                      "comes_back_to_a_former_leader", "loses_its_power_as_it_is_asked"),
         "fixed": {"replica.socket.timeout.ms": "10000"}},
        {"kill": 1, "reset_connections": 1},
    ),
    #: Timed faults: each waits until an operation is half done, and strikes then (`timed_broker_faults.py`).
    "coincidences": Profile(
        {**_FAST, "brokers": 5, "seconds": 30.0, "pace_s": (0.1, 0.5), "network_s": 0.01, "fault_every_s": (0.2, 1.0),
         "session_timeout_ms": 3_000, "replica_lag_ms": 4_000, "transactional": 1, "producers": 2, "readers": 1,
         "group_members": 0, "has_keeper": True, "has_admin": False, "has_table": False, "has_acks_one": False,
         "snap_count": 60, "has_locked_znodes": True, "all_brokers": _PATIENT},
        {"spoil_the_state_of_a_returning_broker": 1, "cut_power_while_asked": 1, "tear_a_large_flush": 1,
         "damage_a_snapshot": 1, "spoil_a_reassignment": 1, "spoil_the_settings_of_a_dead_broker": 1,
         "lose_zookeeper_as_it_registers": 1,
         "hide_a_partition": 1, "hide_what_waits_for_a_marker": 1, "miss_a_deletion": 1, "miss_a_change": 1,
         "replace_a_plan": 1, "move_from_an_absent_broker": 1, "lose_a_whole_isr": 1, "miss_an_epoch": 2},
        kinds=3,
    ),
    #: ZooKeeper is three servers. A broker may be connected to one that is behind, that dies, or that is cut off
    #: (`ensemble.py`).
    "ensemble": Profile(
        {**_FAST, "has_ensemble": True, "brokers": 5, "fault_every_s": (0.5, 2.5), "session_timeout_ms": 3_000,
         "network_s": 0.002, "has_admin": True, "admin_s": (0.3, 1.5), "transactional": 1, "group_members": 1},
        {"kill_follower": 4, "cut_off_follower": 3, "pause_follower": 2, "leave_follower": 4, "kill": 3, "kill_leader": 2,
         "kill_controller": 3, "restart": 2, "expire": 2, "kill_all": 1, "kill_zookeeper": 1, "isolate": 1},
    ),
    #: Timed faults of all kinds in each seed, with clients of its own (`encounters.py`, `encounter_clients.py`).
    "meetings": Profile(
        {**_FAST, "brokers": 4, "seconds": 25.0, "pace_s": (0.1, 0.5), "network_s": 0.004, "fault_every_s": (0.2, 0.4),
         "session_timeout_ms": 3_000, "replica_lag_ms": 4_000, "segment_bytes": 1_048_576, "transactional": 0,
         "producers": 2, "readers": 1, "group_members": 0, "guests": 0, "has_keeper": False, "has_admin": False,
         "has_table": False, "has_acks_one": False, "has_witnesses": True, "snap_count": 60, "has_locked_znodes": True,
         "fixed": {"log.flush.interval.messages": "9223372036854775807", "log.flush.interval.ms": "9223372036854775807",
                   "replica.fetch.wait.max.ms": "1000",
                   "log.flush.start.offset.checkpoint.interval.ms": "500"}},
        {"meet": 1},
    ),
    #: Brokers run out of descriptors while they lead, follow, move and delete logs, and flush what coordinators write
    #: (`descriptor_limits.py`).
    "scarce": Profile(
        {**_FAST, "seconds": 25.0, "network_s": 0.004, "fault_every_s": (0.3, 2.0), "session_timeout_ms": 3_000,
         "replica_lag_ms": 2_000, "segment_bytes": 1_500, "transactional": 2, "producers": 1, "readers": 1,
         "group_members": 1, "guests": 0, "has_keeper": True, "has_table": True, "has_acks_one": False,
         "has_scarcity": True, "has_admin": True, "admin_s": (0.1, 0.6),
         "admin_kinds": ("delete_records", "delete_records", "move_back_and_forth", "move_log", "come_and_go",
                         "change_topic", "elect"),
         "fixed": {"log.flush.interval.messages": "1", "log.segment.delete.delay.ms": "500",
                   "log.retention.check.interval.ms": "500",
                   "offsets.topic.segment.bytes": "1500", "transaction.state.log.segment.bytes": "1500",
                   "log.flush.start.offset.checkpoint.interval.ms": "500"}},
        {"run_short_of_descriptors": 6, "run_short_as_a_transaction_ends": 3, "invite_the_needy": 2, "kill": 1,
         "kill_leader": 2, "restart": 1, "kill_controller": 1},
    ),
}  # fmt: skip
_NAMES = list(PROFILES)
#: These profiles take turns. The others have seeds that were a mix before, so that no other seed has changed.
_RARE_NAMES = ["moves", "starts", "strangers", "members", "refusals", "flushed"]
_OWN = {
    6: "coincidences",
    12: "twice",
    18: "ambushes",
    24: "meetings",
    30: "coincidences",
    36: "successions",
    42: "ambushes",
}
#: Further own seeds, except for the first seed of each.
_LATER = {0: "answers"}
#: Seeds of `scarce`, one in twice as many: every second seed of `twice` and of half of `ambushes` and `successions`, except for
#: the first ones.
_SCARCE_EVERY, _SCARCE = 96, (60, 84, 90)
#: Every second seed of `zookeeper`, except for the first ones, which keep their findings from before there was an ensemble.
_ENSEMBLE_EVERY, _ENSEMBLE_TURN, _ENSEMBLE_FIRST = 24, 23, 47


def name_of(seed: int) -> str:
    """Return the profile of a seed; empty for a mix."""
    if seed % _ENSEMBLE_EVERY == _ENSEMBLE_TURN and seed >= _ENSEMBLE_FIRST:
        return "ensemble"
    if seed % 3:
        return _NAMES[(seed - seed // 3 - 1) % len(_NAMES)]
    if seed % 6 == 3:
        return _RARE_NAMES[seed // 6 % len(_RARE_NAMES)]
    if seed % _SCARCE_EVERY in _SCARCE:
        return "scarce"
    own = _OWN if seed < 48 else {**_OWN, **_LATER}
    return own.get(seed % 48, "")


def profile_of(seed: int, *, has_rare: bool = True) -> Profile:
    profiles = {**PROFILES, **RARE_PROFILES} if has_rare else PROFILES
    return profiles.get(name_of(seed), ANY)
