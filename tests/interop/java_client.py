"""`java/Client.java`, compiled against a version of Apache Kafka's client, as a command."""

import hashlib
import subprocess
from pathlib import Path

import maven

SOURCE = Path(__file__).parent / "java" / "Client.java"
#: Names that Kafka 4 gave to what 3.9 has under another.
OLD_NAMES = {"inGroupStates": "inStates", "GroupState.EMPTY": "ConsumerGroupState.EMPTY"}
SCENARIOS = (
    "produce", "transactions", "classic", "consumer", "static", "cooperative",
    "topics", "configs", "offsets", "partitions", "groups", "hanging",
)  # fmt: skip


def compiled(version: str) -> list[str]:
    """Compiled once, into `.interop/`."""
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
        command = ["javac", "-nowarn", "-d", str(folder), "-cp", jars, str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
    return ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}:{folder}", "Client"]


def play(command: list[str], bootstrap: str, scenario: str, topic: str) -> None:
    done = subprocess.run(
        [*command, bootstrap, scenario, topic], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0 and done.stdout.endswith("OK\n"), f"{done.stdout}\n{done.stderr[-4000:]}"
