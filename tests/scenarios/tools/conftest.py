"""The command-line tools, as a person uses them, against a cluster of ours.

Set BARNABAS_TOOLS_BOOTSTRAP to run them against any other cluster, also Apache Kafka: they use only the protocol.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from barnabas.cli.main import app
from barnabas.testing import wait_until
from tests.support.command_line import CliRunner


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Tool = Callable[..., Outcome]


@pytest.fixture
def bootstrap(request: pytest.FixtureRequest) -> str:
    other = os.environ.get("BARNABAS_TOOLS_BOOTSTRAP")
    if other:
        return other
    cluster = request.getfixturevalue("shared_cluster")
    return str(cluster.bootstrap)


@pytest.fixture
def tool(bootstrap: str) -> Tool:
    """`tool("topics", "--list")`, in this process. The test fails unless the tool ends with `status` (None: any)."""
    runner = CliRunner()

    def run(name: str, *arguments: str, status: int | None = 0, stdin: str | None = None) -> Outcome:
        result = runner.invoke(app, [name, "--bootstrap-server", bootstrap, *arguments], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        outcome = Outcome(result.exit_code, result.stdout, result.stderr)
        assert status in (None, outcome.status), outcome
        return outcome

    return run


@pytest.fixture
def process(bootstrap: str) -> Tool:
    """The same in a separate process, for tools that read standard input or move data."""

    def run(name: str, *arguments: str, status: int = 0, stdin: str = "") -> Outcome:
        done = subprocess.run(
            [sys.executable, "-m", "barnabas", name, "--bootstrap-server", bootstrap, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        outcome = Outcome(done.returncode, done.stdout, done.stderr)
        assert outcome.status == status, outcome
        return outcome

    return run


@pytest.fixture
def wait_for_topic(tool: Tool) -> Callable[[str, int], None]:
    """Wait until every partition has a known leader: brokers learn of a topic a moment after its creation."""

    def wait(topic: str, partitions: int) -> None:
        def known() -> bool:
            described = tool("topics", "--describe", "--topic", topic, "--if-exists", "--json").json
            return (
                bool(described) and sum(part["leader"] is not None for part in described[0]["partitions"]) == partitions
            )

        wait_until(known)

    return wait


@pytest.fixture
def new_topic(tool: Tool, topic: str, wait_for_topic: Callable[[str, int], None]) -> Callable[..., str]:
    def make(partitions: int = 1, replicas: int = 3, **settings: str) -> str:
        options = [
            text for name, value in settings.items() for text in ("--config", f"{name.replace('_', '.')}={value}")
        ]
        sizes = ["--partitions", str(partitions), "--replication-factor", str(replicas)]
        tool("topics", "--create", "--topic", topic, *sizes, *options)
        wait_for_topic(topic, partitions)
        return topic

    return make
