"""What can go wrong on three hosts, and the first thing that doctor, the alerts and the runbook must say about it.

The table in docs/runbook.md is made of this list (`python -m tests.interop.bad_day_causes`), `test_bad_days` causes each line.
"""

import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import Producer

from barnabas.testing import wait_until
from tests.interop.debian import program
from tests.interop.network import HERE
from tests.interop.three_hosts import BROKERS, MEMBERS, ThreeHosts, jaas

RUNBOOK: Final = Path(__file__).parents[2] / "docs/runbook.md"
BEGIN: Final = "<!-- made by tests/interop/bad_day_causes.py -->"
END: Final = "<!-- end -->"
#: The broker that suffers, its host, and the others.
VICTIM: Final = 2
HOST: Final = BROKERS[VICTIM]
OTHERS: Final = tuple(host for host in BROKERS.values() if host != HOST)


@dataclass(frozen=True)
class Cause:
    name: str
    #: The check and the subject of doctor's first finding.
    check: str
    subject: str
    #: The alert that fires, which is also the section of the runbook.
    alert: str
    #: What to do, in a few words.
    action: str
    make: Callable[[ThreeHosts], None]
    undo: Callable[[ThreeHosts], None]
    #: Words that doctor's first line must have, and words that no first line may have.
    says: str = ""
    never: str = ""


def restarted(hosts: ThreeHosts) -> None:
    """Start the victim with its usual settings, whatever it does now."""
    hosts.settings[VICTIM], hosts.wrapped[VICTIM] = {}, []
    if hosts.is_running(HOST):
        hosts.stop(HOST)
    hosts.start(VICTIM)


def _healed(hosts: ThreeHosts) -> None:
    hosts.network.heal()


def _member_down(hosts: ThreeHosts) -> None:
    hosts.stop(MEMBERS[hosts.followers()[0]], kill=True)


def _members_up(hosts: ThreeHosts) -> None:
    for member, host in MEMBERS.items():
        if not hosts.is_running(host):
            hosts.start_member(member)


def _members_continue(hosts: ThreeHosts) -> None:
    for host in MEMBERS.values():
        hosts.signal(host, signal.SIGCONT)


def _member_cut_off(hosts: ThreeHosts) -> None:
    lonely = MEMBERS[hosts.followers()[0]]
    hosts.network.cut(lonely, *(host for host in (*BROKERS.values(), *MEMBERS.values()) if host != lonely))


def _majority_gone(hosts: ThreeHosts) -> None:
    for member in (2, 3):
        hosts.stop(MEMBERS[member], kill=True)


def _ballast(hosts: ThreeHosts) -> Path:
    return hosts.data(VICTIM) / "ballast"


def _filled_up_to(hosts: ThreeHosts, left_bytes: int) -> None:
    free = shutil.disk_usage(hosts.data(VICTIM)).free
    subprocess.run(["fallocate", "-l", str(free - left_bytes), str(_ballast(hosts))], check=True, timeout=60)


def _disk_full(hosts: ThreeHosts) -> None:
    _filled_up_to(hosts, 2 << 20)
    _write(hosts)


def _write(hosts: ThreeHosts) -> None:
    """Write to every partition, until the victim has noticed that it cannot."""
    producer = Producer({**hosts.librdkafka(), "message.timeout.ms": 20_000, "linger.ms": 0, "log_level": 0})

    def has_failed() -> bool:
        for partition in range(12):
            producer.produce("orders", b"x" * 50_000, partition=partition)
        producer.poll(0.2)
        return str(hosts.data(VICTIM)) in _failures(hosts)

    wait_until(has_failed, 60, what="a write that fails")
    producer.purge()


def _failures(hosts: ThreeHosts) -> str:
    return "\n".join(line for line in hosts.log(HOST).splitlines() if "offline" in line)


def _room_again(hosts: ThreeHosts) -> None:
    _ballast(hosts).unlink(missing_ok=True)
    restarted(hosts)


def _disk_read_only(hosts: ThreeHosts) -> None:
    # What ext4 does after an error of the device. An ordinary remount refuses while files are open.
    subprocess.run(["mount", "-o", "remount,abort", str(hosts.data(VICTIM))], check=False, timeout=60)
    _write(hosts)


def _disk_replaced(hosts: ThreeHosts) -> None:
    if hosts.is_running(HOST):
        hosts.stop(HOST)
    hosts.replace_disk(VICTIM)
    hosts.start(VICTIM)


def _clock_off(hosts: ThreeHosts) -> None:
    hosts.stop(HOST)
    program("faketime")
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    hosts.wrapped[VICTIM] = ["env", f"LD_PRELOAD={library}", "FAKETIME=+1h", "FAKETIME_DONT_FAKE_MONOTONIC=1"]
    hosts.start(VICTIM)
    hosts.wait_ready(VICTIM)


def _certificate_ends(hosts: ThreeHosts) -> None:
    hosts.issue_certificate(VICTIM, days=1)
    restarted(hosts)
    hosts.wait_ready(VICTIM)


def _certificate_renewed(hosts: ThreeHosts) -> None:
    hosts.issue_certificate(VICTIM)
    restarted(hosts)


def _password_changed(hosts: ThreeHosts) -> None:
    hosts.stop(HOST)
    hosts.settings[VICTIM] = {"listener.name.sasl_ssl.plain.sasl.jaas.config": jaas("rotated")}
    hosts.start(VICTIM)


def _disk_of_another(hosts: ThreeHosts) -> None:
    hosts.stop(HOST)
    foreign = hosts.data(VICTIM).parent / "foreign"
    foreign.mkdir(exist_ok=True)
    shutil.copy(hosts.data(3) / "meta.properties", foreign)
    hosts.settings[VICTIM] = {"log.dirs": str(foreign)}
    hosts.start(VICTIM)


CAUSES: Final = (
    Cause(
        "a broker's process was killed",
        "broker-down",
        "broker 2",
        "BrokerDown",
        "start it",
        lambda hosts: hosts.stop(HOST, kill=True),
        restarted,
    ),
    Cause(
        "a broker is cut off from ZooKeeper only",
        "zookeeper-cut-off",
        "broker 2",
        "ZooKeeperAway",
        "mend the network between it and ZooKeeper; restart nothing",
        lambda hosts: hosts.network.cut(HOST, *MEMBERS.values()),
        _healed,
    ),
    Cause(
        "a broker is cut off from the other brokers only",
        "brokers-cannot-reach-each-other",
        "broker 2",
        "BrokersCutApart",
        "mend the network between the brokers; restart nothing",
        lambda hosts: hosts.network.cut(HOST, *OTHERS),
        _healed,
    ),
    Cause(
        "a broker's packets to the other brokers are lost, theirs arrive",
        "brokers-cannot-reach-each-other",
        "broker 2",
        "BrokersCutApart",
        "mend the network between the brokers; restart nothing",
        lambda hosts: hosts.network.cut(HOST, *OTHERS, one_way=True),
        _healed,
    ),
    Cause(
        "a broker is cut off from clients only",
        "advertised-listener-unreachable",
        "broker 2",
        "BrokerDown",
        "doctor says that the other brokers reach it: mend the network between clients and it",
        lambda hosts: hosts.network.cut(HOST, HERE),
        _healed,
        says="brokers 1, 3 reach it",
    ),
    Cause(
        "a broker's host is away",
        "advertised-listener-unreachable",
        "broker 2",
        "BrokerDown",
        "doctor says that no other broker reaches it either: look at the host and its network",
        lambda hosts: hosts.network.cut(HOST, HERE, *OTHERS, *MEMBERS.values()),
        _healed,
        never="brokers 1, 3 reach it",
    ),
    Cause(
        "a broker's process hangs",
        "advertised-listener-unreachable",
        "broker 2",
        "BrokerDown",
        "doctor says that no other broker reaches it either: look at the process, and restart it",
        lambda hosts: hosts.signal(HOST, signal.SIGSTOP),
        lambda hosts: hosts.signal(HOST, signal.SIGCONT),
        never="brokers 1, 3 reach it",
    ),
    Cause(
        "the way to a broker takes 300 ms",
        "brokers-answer-late",
        "broker 2",
        "BrokersAnswerLate",
        "mend the network between the brokers",
        lambda hosts: hosts.network.delay(HOST, *OTHERS, seconds=0.3),
        _healed,
    ),
    Cause(
        "a member of ZooKeeper is down",
        "zookeeper-member-down",
        "ZooKeeper's",
        "ZooKeeperMemberDown",
        "start it; leave the other members and the brokers alone",
        _member_down,
        _members_up,
    ),
    Cause(
        "a member of ZooKeeper is cut off",
        "zookeeper-member-down",
        "ZooKeeper's",
        "ZooKeeperMemberDown",
        "mend the network to its host",
        _member_cut_off,
        _healed,
    ),
    Cause(
        "a member of ZooKeeper hangs",
        "zookeeper-member-down",
        "ZooKeeper's",
        "ZooKeeperMemberDown",
        "restart it; leave the other members and the brokers alone",
        lambda hosts: hosts.signal(MEMBERS[hosts.followers()[0]], signal.SIGSTOP),
        _members_continue,
    ),
    Cause(
        "two of three members of ZooKeeper are down",
        "zookeeper-no-majority",
        "ZooKeeper at",
        "ZooKeeperHasNoMajority",
        "start the members; do not restart brokers",
        _majority_gone,
        _members_up,
    ),
    Cause(
        "a disk is nearly full",
        "disk-nearly-full",
        "broker 2",
        "DiskFills",
        "shorten retention, or enlarge the disk",
        lambda hosts: _filled_up_to(hosts, 100 << 20),
        lambda hosts: _ballast(hosts).unlink(),
    ),
    Cause(
        "a disk is full",
        "log-dir-offline",
        "broker 2",
        "DiskFailed",
        "make room, then restart this broker",
        _disk_full,
        _room_again,
    ),
    Cause(
        "a disk has become read-only",
        "log-dir-offline",
        "broker 2",
        "DiskFailed",
        "mount an empty disk, then restart this broker: it copies its replicas again",
        _disk_read_only,
        _disk_replaced,
    ),
    Cause(
        "a broker's clock is an hour off",
        "clock-skew",
        "broker 2",
        "ClocksDiffer",
        "start chrony on its host",
        _clock_off,
        restarted,
    ),
    Cause(
        "a certificate ends tomorrow",
        "certificate-ends",
        "broker 2",
        "CertificateEnds",
        "replace the files, and run the command that doctor prints",
        _certificate_ends,
        _certificate_renewed,
    ),
    Cause(
        "a broker has another password than the others",
        "broker-login-refused",
        "broker 2",
        "BrokersCutApart",
        "correct the password on the side that changed last",
        _password_changed,
        restarted,
    ),
    Cause(
        "a broker was started with the disk of another one",
        "broker-down",
        "broker 2",
        "BrokerDown",
        "its log names the two ids: mount the right disk, and start it",
        _disk_of_another,
        restarted,
    ),
)


def table() -> str:
    """The table of docs/runbook.md."""
    lines = ["| what happened | `doctor`'s first line | alert | what to do |", "|---|---|---|---|"]
    for cause in CAUSES:
        link = f"[{cause.alert}](#{cause.alert.lower()})"
        lines.append(f"| {cause.name} | `{cause.check}` | {link} | {cause.action} |")
    return "\n".join([BEGIN, *lines, END])


def with_table(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    return before + table() + rest.partition(END)[2]


if __name__ == "__main__":
    RUNBOOK.write_text(with_table(RUNBOOK.read_text()))
