"""`barnabas connect` as a process, for tests with a real database."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Message

#: A start of Spark, on a machine that may be busy.
TIMEOUT_S = 500


def run_once(folder: Path, bootstrap: str, *documents: Mapping[str, Any]) -> None:
    """Run connectors from their files until everything that is there has been written."""
    files = folder / "connectors"
    files.mkdir(exist_ok=True)
    for document in documents:
        (files / f"{document['name']}.json").write_text(json.dumps(document))
    command = [sys.executable, "-m", "barnabas", "connect", str(files), "--bootstrap-server", bootstrap]
    options = ["--state", str(folder / "state"), "--master", "local[2]", "--once"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr


def jdbc(uri: str) -> str:
    """Return the URL of a test's server as Java's drivers have it."""
    return uri.replace("postgresql://me@", "jdbc:postgresql://") + "?user=me"


def records(bootstrap: str, topic: str, count: int) -> list[Message]:
    """Return the first records of a topic that has one partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"test-{topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[Message] = []
    try:
        while len(found) < count:
            message = consumer.poll(60)
            assert message is not None, f"{topic}: {len(found)} of {count} records"
            assert message.error() is None, message.error()
            found.append(message)
    finally:
        consumer.close()
    return found
