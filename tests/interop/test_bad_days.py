"""Each cause of a bad day, made on three hosts: doctor's first line, the alert and the runbook name it within 30 seconds.

Real brokers with TLS, passwords and ACLs, and Apache's ensemble of three, each process in a network namespace of its own.
"""

import asyncio
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from barnabas.client.errors import ClientError
from barnabas.services.doctor.cluster import check_cluster
from barnabas.services.doctor.finding import Finding, Severity
from barnabas.testing import wait_until
from tests.interop import debian
from tests.interop.bad_day_causes import CAUSES, RUNBOOK, Cause
from tests.interop.prometheus import Prometheus, running_prometheus
from tests.interop.three_hosts import ThreeHosts, fresh_folder

pytestmark = pytest.mark.timeout(600)

SEEN_WITHIN_S = 30
#: Alerts that send a person to a wrong place, unless they are the expected ones.
MISLEADING = {"ReplicaDoesNotFollow", "UncleanElection", "RequestBug", "DiskFailed", "CompactionStands", "MarkersWait"}


@dataclass
class Scene:
    hosts: ThreeHosts
    prometheus: Prometheus

    def findings(self) -> list[Finding]:
        """Return the problems in doctor's order, without notes."""
        try:
            report = asyncio.run(check_cluster(self.hosts.client()))
        except ClientError as error:
            return [Finding(Severity.ERROR, "no-answer", "cluster", str(error), "")]
        return [finding for finding in report.findings if finding.severity is not Severity.NOTE]


@pytest.fixture(scope="module")
def scene(java: None) -> Iterator[Scene]:
    folder = fresh_folder()
    debian.program("prometheus")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        hosts = stack.enter_context(ThreeHosts(folder))
        (folder / "prometheus").mkdir()
        prometheus = stack.enter_context(running_prometheus(hosts.metrics(), folder / "prometheus"))
        scene = Scene(hosts, prometheus)
        admin = AdminClient({**hosts.librdkafka(), "log_level": 0})
        wait_until(lambda: len(admin.list_topics(timeout=30).brokers) == 3, 120, what="three brokers")
        for created in admin.create_topics([NewTopic("orders", 12, 3)]).values():
            created.result(60)
        wait_until_healthy(scene)
        yield scene


def wait_until_healthy(scene: Scene) -> None:
    last: list[Finding] = []

    def is_healthy() -> bool:
        last[:] = scene.findings()
        return not last

    try:
        wait_until(is_healthy, 120, what="a healthy cluster")
    except TimeoutError as error:
        raise AssertionError([str(finding) for finding in last]) from error


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
def test_cause_is_named_first(scene: Scene, cause: Cause) -> None:
    try:
        cause.make(scene.hosts)
        began_s = time.monotonic()
        first = wait_for_first_line(scene, cause, began_s)
        assert first.advice
        wait_until(lambda: cause.alert in scene.prometheus.firing(), SEEN_WITHIN_S, what=cause.alert)
        assert scene.prometheus.firing() & MISLEADING <= {cause.alert}
        assert f"\n## {cause.alert}\n" in RUNBOOK.read_text()
    finally:
        cause.undo(scene.hosts)
    wait_until_healthy(scene)


def is_named(first: Finding, cause: Cause) -> bool:
    return first.check == cause.check and first.subject.startswith(cause.subject) and cause.says in first.message


def wait_for_first_line(scene: Scene, cause: Cause, began_s: float) -> Finding:
    found: list[Finding] = []
    looked_s = time.monotonic()
    while looked_s - began_s < SEEN_WITHIN_S:
        found = scene.findings()
        assert not cause.never or all(cause.never not in finding.message for finding in found)
        if found and is_named(found[0], cause):
            print(f"{cause.name}: {time.monotonic() - began_s:.0f} s: {found[0]}")
            return found[0]
        time.sleep(0.5)
        looked_s = time.monotonic()
    raise AssertionError([str(finding) for finding in found])
