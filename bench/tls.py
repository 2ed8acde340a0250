"""One broker beside Apache Kafka 3.9.1, both on TLS listeners with one certificate: throughput and CPU per GB.

Client: librdkafka, the same for both. Rounds are interleaved on topics of their own; the table shows medians. Kafka is warmed
up first. The certificate is an EC P-256 one, and both agree on TLS 1.3 with AES-256-GCM.
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from barnabas.cli.local_cluster import LocalCluster
from barnabas.wire.auth.authority import LocalAuthority
from bench.broker import Load, Target, create_topic, measure_consume, measure_produce
from bench.kafka import ApacheKafka, free_port
from bench.report import Row, write_report

LOADS = (
    Load("1 KB, acks=1", 1000, 300_000, "1"),
    Load("10 KB, acks=all", 10_000, 40_000, "all"),
)


def broker_settings(folder: Path, port: int) -> dict[str, str]:
    """The TLS settings, which have the same names for Kafka and ours."""
    return {
        "listeners": f"SSL://127.0.0.1:{port}",
        "security.inter.broker.protocol": "SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
    }


def one_round(target: Target, number: int, loads: tuple[Load, ...]) -> Iterator[tuple[str, float]]:
    for load in loads:
        topic = f"{load.name.replace(' ', '').replace(',', '-').replace('=', '')}-{number}"
        create_topic(target, topic)
        for name, value in measure_produce(target, topic, load).items():
            yield f"TLS produce {load.name} {name}", value
        for name, value in measure_consume(target, topic, load).items():
            yield f"TLS consume {load.name} {name}", value


def run(rounds: int, share: float) -> None:
    """`share`: the part of each load's records, for a short run."""
    loads = tuple(replace(each, count=int(each.count * share)) for each in LOADS)
    results: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        authority = LocalAuthority.create("bench")
        (folder / "ca.pem").write_text(authority.certificate_pem)
        (folder / "broker.pem").write_text(authority.issue("broker", ["localhost", "127.0.0.1"]))
        port = free_port()
        ours = stack.enter_context(LocalCluster(brokers=1, config=broker_settings(folder, 0)))
        kafka = stack.enter_context(ApacheKafka(brokers=1, config=broker_settings(folder, port), ports={1: port}))
        client = {"security.protocol": "SSL", "ssl.ca.location": str(folder / "ca.pem"), "log_level": "0"}
        targets = (
            Target("barnabas", ours.bootstrap, [ours.pid(1)], client),
            Target("Apache Kafka", kafka.bootstrap, [kafka.pid(1)], client),
        )
        for name, _ in one_round(targets[1], -1, loads):
            print(f"warm-up {name}", end="\r", flush=True)
        for number in range(rounds):
            for target in targets:
                for name, value in one_round(target, number, loads):
                    results.setdefault(name, {}).setdefault(target.name, []).append(value)
                print(f"round {number + 1} of {rounds}: {target.name} done" + " " * 20)
    rows = [
        Row(name, statistics.median(by_target["barnabas"]), statistics.median(by_target["Apache Kafka"]))
        for name, by_target in results.items()
    ]
    if share < 1:
        for row in rows:
            print(row)
        return
    write_report("tls", "One broker, one partition, TLS 1.3, librdkafka", rows, rounds=rounds, raw=results)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--share", type=float, default=1.0, help="Part of the records; below 1 nothing is written.")
    chosen = parser.parse_args(arguments)
    run(chosen.rounds, chosen.share)


if __name__ == "__main__":
    main()
