"""Apache Kafka's Java client, 3.9 and 4.1, against brokers of ours: `java/Client.java` plays each scenario."""

import hashlib
import subprocess
from pathlib import Path

import maven
import pytest

from barnabas.cli.local_cluster import LocalCluster

pytestmark = pytest.mark.usefixtures("java")
SOURCE = Path(__file__).parent / "java" / "Client.java"
VERSIONS = ("3.9.1", "4.1.0")
#: Names that Kafka 4 gave to what 3.9 has under another.
OLD_NAMES = {
    "inGroupStates": "inStates",
    "GroupState.EMPTY": "ConsumerGroupState.EMPTY",
}
SCENARIOS = (
    "produce", "transactions", "classic", "consumer", "static", "cooperative",
    "topics", "configs", "offsets", "partitions", "groups", "hanging",
)  # fmt: skip


@pytest.fixture(scope="module", params=VERSIONS)
def command(request: pytest.FixtureRequest, java: None) -> list[str]:
    """Compiled once against the client of that version."""
    version: str = request.param
    jars = maven.classpath(f"org.apache.kafka:kafka-clients:{version}", "org.slf4j:slf4j-nop:1.7.36")
    text = SOURCE.read_text()
    if version.startswith("3."):
        for new, old in OLD_NAMES.items():
            text = text.replace(new, old)
    folder = maven.ROOT / f"java-client-{version}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if not (folder / "Client.class").exists():
        folder.mkdir(parents=True, exist_ok=True)
        source = folder / "Client.java"
        source.write_text(text)
        done = subprocess.run(
            ["javac", "-nowarn", "-d", str(folder), "-cp", jars, str(source)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    return ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}:{folder}", "Client"]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_java_client(command: list[str], cluster: LocalCluster, topic: str, scenario: str) -> None:
    done = subprocess.run(
        [*command, cluster.bootstrap, scenario, topic], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0 and done.stdout.endswith("OK\n"), f"{done.stdout}\n{done.stderr[-4000:]}"
