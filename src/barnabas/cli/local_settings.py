"""Settings of the brokers of a local cluster: those given by a test or a user, and those that suit its size."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

#: The value of a setting as a test may write it; True means `true`.
SettingValue: TypeAlias = str | int | float | Path


def setting_texts(settings: Mapping[str, SettingValue]) -> dict[str, str]:
    """Format values as in a properties file. :raises TypeError: for a value that has no such form."""
    texts: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, bool):
            texts[name] = "true" if value else "false"
        elif isinstance(value, str | int | float | Path):
            texts[name] = str(value)
        else:
            raise TypeError(f"{name} is {value!r}: give a string, a number, True or False")
    return texts


def warn_of_unknown(names: Iterable[str]) -> None:
    """Warn of unknown names of settings: most likely they are mistakes."""
    given = dict.fromkeys(names)
    if given:
        from barnabas.base.config.usage import broker_notices  # slow: imports the catalogue of all settings

        for notice in broker_notices(given):
            sys.stderr.write(f"warning: {notice}\n")


def suiting_settings(brokers: int, *, min_insync_replicas: int) -> dict[str, str]:
    """Return settings that suit this many brokers on one machine."""
    replicas, min_isr = str(min(3, brokers)), str(min_insync_replicas)
    return {
        "zookeeper.session.timeout.ms": "6000",
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": min_isr,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": min_isr,
        "rlmm.config.remote.log.metadata.topic.replication.factor": replicas,
        "default.replication.factor": replicas,
        "min.insync.replicas": min_isr,
        "group.initial.rebalance.delay.ms": "0",
        # KIP-939: a transaction that the Spark sink has prepared must not expire while its driver is down.
        "transaction.two.phase.commit.enable": "true",
        # When all brokers stop at once, no broker can take over partitions: retry soon, not after Kafka's five seconds.
        "controlled.shutdown.retry.backoff.ms": "200",
    }
