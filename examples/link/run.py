"""A Kafka cluster in KRaft mode moves into a cluster of barnabas, while a producer and a consumer run.

`make demo-link` runs it. Kafka 4.3.0 comes from Maven, so it needs `mvn` and `java`. Each step says what happens; at the end
every record is counted.
"""

import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "interop")]

from confluent_kafka import Consumer, TopicPartition  # noqa: E402
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402
from kinds import wait_until  # noqa: E402
from kraft import KraftCluster  # noqa: E402
from load import GroupReader, Writer  # noqa: E402

from barnabas.cli.local_cluster import LocalCluster  # noqa: E402

TOPIC, GROUP, PARTITIONS = "orders", "warehouse", 3
LINK = "from-kafka"
PATIENCE_S = 180.0

_began_s = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - _began_s:6.1f} s  {text}", flush=True)


def barnabas(*arguments: str, show: bool = False) -> None:
    """As a person types it; what it prints is shown with a margin."""
    say(f"$ barnabas {' '.join(arguments)}")
    command = [sys.executable, "-m", "barnabas", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    # `link check` ends with 3 where something is left behind.
    if done.returncode not in (0, 3):
        sys.exit(f"barnabas {arguments[0]} failed: {done.stderr or done.stdout}")
    if show:
        for line in done.stdout.splitlines():
            print(f"            {line}", flush=True)


def committed(bootstrap: str) -> dict[int, int]:
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "log_level": 0})
    try:
        found = reader.committed([TopicPartition(TOPIC, number) for number in range(PARTITIONS)], timeout=30)
        return {each.partition: each.offset for each in found}
    finally:
        reader.close()


def tell(kafka: KraftCluster, ours: LocalCluster, file: str) -> bool:
    here = ("--bootstrap-server", ours.bootstrap)
    writer = Writer(kafka.bootstrap, TOPIC).start()
    reader = GroupReader(kafka.bootstrap, TOPIC, GROUP).start()
    say(f"a producer writes {TOPIC} at Kafka, the group {GROUP} reads it there")
    wait_until(lambda: len(reader.seen) > 1000, PATIENCE_S, what="records flow")

    say("what would carry over?")
    barnabas("link", "check", "--config", file, "--topics", TOPIC, *here, show=True)
    barnabas("link", "create", LINK, "--config", file, "--topics", TOPIC, "--groups", GROUP, *here)
    target = AdminClient({"bootstrap.servers": ours.bootstrap, "log_level": 0})
    wait_until(lambda: TOPIC in target.list_topics(timeout=10).topics, PATIENCE_S, what="the mirror is there")
    wait_until(lambda: len(reader.seen) > 2000, PATIENCE_S, what="records flow")
    barnabas("link", "describe", LINK, *here, show=True)

    reader.stop()
    at = committed(kafka.bootstrap)
    say(f"the consumer stops at Kafka; it has committed {at}")
    wait_until(lambda: committed(ours.bootstrap) == at, PATIENCE_S, what="the offsets are here")
    moved = GroupReader(ours.bootstrap, TOPIC, GROUP).start()
    say(
        "its offsets are here, the same numbers: it starts here, and reads the mirror while the producer still writes there"
    )
    wait_until(lambda: len(moved.seen) > 500, PATIENCE_S, what="records come over")

    writer.stop()
    say(f"the producer stops at Kafka, at record {writer.number:,}; the mirror is promoted when it has the last")
    barnabas("link", "promote", LINK, *here, show=True)
    successor = Writer(ours.bootstrap, TOPIC, first=writer.number).start()
    say("the producer goes on here")
    wait_until(lambda: len(successor.acked) > 1000, PATIENCE_S, what="records are taken here")
    for node in kafka.ids:
        kafka.kill(node)
    say("Kafka is gone")
    successor.stop()
    return count([writer, successor], [reader, moved])


def count(writers: list[Writer], readers: list[GroupReader]) -> bool:
    acknowledged = {value for writer in writers for value in writer.acked.values()}
    refused = [error for writer in writers for error in writer.refused]

    def seen() -> Counter[bytes]:
        return sum((reader.seen for reader in readers), Counter())

    wait_until(lambda: acknowledged <= seen().keys(), PATIENCE_S, what="everything is read")
    readers[-1].stop()
    times = seen()
    lost, twice = acknowledged - times.keys(), [value for value, number in times.items() if number > 1]
    say(f"{len(acknowledged):,} records acknowledged, {len(refused)} refused: {len(lost)} lost, {len(twice)} twice")
    return not lost and not twice and not refused


def main() -> None:
    say("Kafka 4.3.0 in KRaft mode starts, three nodes; and three brokers of barnabas")
    with KraftCluster(nodes=3) as kafka, LocalCluster(brokers=3) as ours, tempfile.TemporaryDirectory() as folder:
        say(f"Kafka is at {kafka.bootstrap}, barnabas at {ours.bootstrap}")
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(60)
        file = Path(folder) / "source.properties"
        file.write_text(f"bootstrap.servers={kafka.bootstrap}\nlink.refresh.interval.ms=500\n")
        is_well = tell(kafka, ours, str(file))
    sys.exit(0 if is_well else 1)


if __name__ == "__main__":
    main()
