"""A program from Spark's guide to Kafka runs in a process that never imports us: Spark finds the format by itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.cli.local_cluster import LocalCluster


@pytest.mark.timeout(900)
def test_the_guide_works_with_the_name_of_the_format_changed(java: None, tmp_path: Path) -> None:
    with LocalCluster(brokers=1, config={"auto.create.topics.enable": "false"}) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        names = ("topic1", "topic2", "out1", "out2", "out3", "out4")
        for made in admin.create_topics([NewTopic(name, 2, 1) for name in names]).values():
            made.result(30)
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        for number in range(100):
            for name in ("topic1", "topic2"):
                producer.produce(name, f'{{"n": {number}}}', key=f"k{number}", partition=number % 2)
        assert producer.flush(30) == 0
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("spark_guide.py")), cluster.bootstrap, str(tmp_path)],
            env=os.environ | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "all of it works" in done.stdout
