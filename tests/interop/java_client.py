"""The programs in `java/`, compiled against a version of Apache Kafka's clients, as commands."""

import hashlib
import subprocess
from pathlib import Path

from tests.interop import maven

SOURCES = Path(__file__).parent / "java"
_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
#: Names in Kafka 4 -> names in 3.9.
OLD_NAMES = {"inGroupStates": "inStates", "GroupState.EMPTY": "ConsumerGroupState.EMPTY"}
SCENARIOS = (
    "produce", "transactions", "classic", "consumer", "static", "cooperative",
    "topics", "configs", "offsets", "partitions", "groups", "hanging",
)  # fmt: skip


def compiled(version: str, program: str = "Client", artifact: str = "kafka-clients") -> list[str]:
    """Compile the program once, into `.interop/`, and return its command."""
    jars = maven.classpath(f"org.apache.kafka:{artifact}:{version}", "org.slf4j:slf4j-nop:1.7.36")
    text = (SOURCES / f"{program}.java").read_text()
    if version.startswith("3."):
        for new, old in OLD_NAMES.items():
            text = text.replace(new, old)
    folder = maven.ROOT / f"java-{program}-{version}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if not (folder / f"{program}.class").exists():
        folder.mkdir(parents=True, exist_ok=True)
        source = folder / f"{program}.java"
        source.write_text(text)
        command = ["javac", "-nowarn", "-d", str(folder), "-cp", jars, str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
    return ["java", *_OPTIONS, "-cp", f"{jars}:{folder}", program]


def play(command: list[str], *arguments: str) -> None:
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0 and done.stdout.endswith("OK\n"), f"{done.stdout}\n{done.stderr[-4000:]}"
