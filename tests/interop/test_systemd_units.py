"""The units under a real systemd, in a container of its own: start, crash, hang, stop."""

import json
import shutil
import uuid
from collections.abc import Iterator

import pytest

from barnabas.testing import wait_until
from tests.interop.containers import LIMITS, ROOT, base, build, need_programs, podman

BASE = "localhost/barnabas-systemd-base"
IMAGE = "localhost/barnabas-systemd-test"
CONTAINERFILE = f"""
FROM {BASE}
COPY . /setup
RUN python3 -m venv /opt/barnabas && /opt/barnabas/bin/pip install --quiet --no-cache-dir /setup/*.whl
RUN useradd --system --home-dir /var/lib/barnabas --shell /usr/sbin/nologin barnabas
RUN cp /setup/*.service /etc/systemd/system/ && mkdir /etc/barnabas && cp /setup/1.properties /etc/barnabas/
# A watchdog of five seconds, for the test. The rest of the unit is as shipped.
RUN mkdir /etc/systemd/system/barnabas@.service.d && cp /setup/test.conf /etc/systemd/system/barnabas@.service.d/
CMD ["/sbin/init"]
"""
PROPERTIES = """
broker.id=1
listeners=PLAINTEXT://127.0.0.1:9092
zookeeper.connect=127.0.0.1:2181
log.dirs=/var/lib/barnabas/1
offsets.topic.replication.factor=1
"""
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    need_programs()
    packages = ("systemd", "systemd-sysv", "dbus", "python3-venv", "ca-certificates", "procps")
    base(BASE, tmp_path_factory.mktemp("base"), suite="bookworm", packages=packages)
    context = tmp_path_factory.mktemp("context")
    for unit in (ROOT / "deploy/systemd").glob("*.service"):
        shutil.copy(unit, context)
    (context / "1.properties").write_text(PROPERTIES)
    (context / "test.conf").write_text("[Service]\nWatchdogSec=5\n")
    build(IMAGE, context, CONTAINERFILE)
    return IMAGE


class Machine:
    """A container whose first process is systemd. It has only a loopback network."""

    def __init__(self, image: str) -> None:
        self.name = f"barnabas-systemd-{uuid.uuid4().hex[:8]}"
        options = ("--systemd=always", "--privileged", "--network=none")
        podman("run", "--detach", f"--name={self.name}", *options, *LIMITS, image)
        wait_until(lambda: "running" in self.do("systemctl", "is-system-running", check=False), 120, what="systemd")

    def do(self, *command: str, check: bool = True) -> str:
        return podman("exec", self.name, *command, check=check)

    def barnabas(self, *arguments: str, stdin: str = "") -> list[str]:
        path = "/opt/barnabas/bin/barnabas"
        return podman("exec", "--interactive", self.name, path, *arguments, stdin=stdin).splitlines()

    def show(self, unit: str) -> dict[str, str]:
        lines = self.do("systemctl", "show", unit).splitlines()
        return dict(line.partition("=")[::2] for line in lines)

    def wait_until_restarted(self, unit: str, former: dict[str, str]) -> dict[str, str]:
        def is_new() -> bool:
            found = self.show(unit)
            return found["ActiveState"] == "active" and found["MainPID"] not in ("0", former["MainPID"])

        wait_until(is_new, 120, what=f"a new process of {unit}")
        return self.show(unit)


@pytest.fixture(scope="module")
def machine(image: str) -> Iterator[Machine]:
    made = Machine(image)
    try:
        yield made
    finally:
        podman("rm", "--force", made.name, check=False)


def test_units_start_restart_and_stop(machine: Machine) -> None:
    at = ("--bootstrap-server", "127.0.0.1:9092")
    machine.do("systemctl", "start", "barnabas-zookeeper", "barnabas@1")
    first = machine.show("barnabas@1")
    # Type=notify: the unit counts as started when the broker serves, so the next command need not wait.
    assert (first["ActiveState"], first["SubState"]) == ("active", "running")
    assert first["StatusText"].startswith("broker 1 of cluster ")
    machine.barnabas("console-producer", *at, "--topic", "t", stdin="one\ntwo\n")

    machine.do("kill", "-9", first["MainPID"])
    second = machine.wait_until_restarted("barnabas@1", first)
    assert second["NRestarts"] == "1"

    # A stopped process does not notify the watchdog any more.
    machine.do("kill", "-STOP", second["MainPID"])
    third = machine.wait_until_restarted("barnabas@1", second)
    assert third["NRestarts"] == "2"
    journal = machine.do("journalctl", "--no-pager", "--unit", "barnabas@1")
    assert "Watchdog timeout (limit 5s)!" in journal

    zookeeper = machine.show("barnabas-zookeeper")
    machine.do("kill", "-9", zookeeper["MainPID"])
    machine.wait_until_restarted("barnabas-zookeeper", zookeeper)
    machine.barnabas("console-producer", *at, "--topic", "t", stdin="three\n")
    read = machine.barnabas("console-consumer", *at, "--topic", "t", "--from-beginning", "--max-messages", "3")
    assert read == ["one", "two", "three"]

    machine.do("systemctl", "restart", "barnabas@1")
    machine.do("systemctl", "stop", "barnabas@1")
    stopped = machine.show("barnabas@1")
    assert (stopped["ActiveState"], stopped["Result"], stopped["ExecMainStatus"]) == ("inactive", "success", "0")
    files = machine.do("ls", "-A", "/var/lib/barnabas/1").split()
    assert ".kafka_cleanshutdown" in files
    assert machine.do("stat", "--format=%a %U", "/var/lib/barnabas/1").strip() == "700 barnabas"


def test_service_sees_little_of_its_machine(machine: Machine) -> None:
    judged = json.loads(machine.do("systemd-analyze", "security", "--json=short", "barnabas@1"))
    exposure = sum(float(each["exposure"] or 0) for each in judged)
    print(f"{exposure:.1f}")
    machine.do("systemctl", "start", "barnabas@1")
    pid = machine.show("barnabas@1")["MainPID"]
    status = machine.do("cat", f"/proc/{pid}/status")
    assert "NoNewPrivs:\t1" in status and "CapEff:\t0000000000000000" in status and "Seccomp:\t2" in status
