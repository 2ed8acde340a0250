"""Confluent's Java client of a schema registry against ours, and Avro records as Flink writes and reads them.

Confluent publishes its artifacts in a repository of its own. Flink's connector on Maven Central contains the client.
"""

import subprocess
from pathlib import Path

from barnabas.testing import Cluster
from tests.interop import java_client, maven

CONNECTOR = "org.apache.flink:flink-sql-avro-confluent-registry:1.19.1"


def test_java_client_registers_refuses_writes_reads_and_deletes(java: None, tmp_path: Path) -> None:
    jars = ":".join(
        str(jar) for jar in maven.jars(CONNECTOR, "org.slf4j:slf4j-api:1.7.36", "org.slf4j:slf4j-nop:1.7.36")
    )
    source = java_client.SOURCES / "RegistryClient.java"
    command = ["javac", "-nowarn", "-d", str(tmp_path), "-cp", jars, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    with Cluster(brokers=1, schema_registry=True) as cluster:
        java_client.play(["java", "-cp", f"{jars}:{tmp_path}", "RegistryClient"], cluster.schema_registry_url)
