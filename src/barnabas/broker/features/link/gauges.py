"""Gauges of links: how far mirrors are behind, and their errors."""

from collections.abc import Callable, Iterator, Mapping

from barnabas.base.metrics.registry import Registry, Row
from barnabas.broker.features.link.manager import Link
from barnabas.broker.features.link.replica import MirrorReplica
from barnabas.broker.features.link.source import MirrorSource


def add_gauges(registry: Registry, links: Callable[[], Mapping[str, Link]]) -> None:
    """Add gauges for the mirror partitions that this broker leads, and for the links. Without links they have no rows."""

    def of_mirrors(read: Callable[[MirrorReplica], float]) -> Callable[[], Iterator[Row]]:
        def rows() -> Iterator[Row]:
            for name, link in links().items():
                for tp, replica in link.source.replicas.items() if link.source is not None else ():
                    if replica is not None and replica.leads:
                        yield {"link": name, "topic": tp.topic, "partition": str(tp.partition)}, read(replica)

        return rows

    def of_links(read: Callable[[MirrorSource], float]) -> Callable[[], Iterator[Row]]:
        def rows() -> Iterator[Row]:
            for name, link in links().items():
                if link.source is not None:
                    yield {"link": name}, read(link.source)

        return rows

    registry.table(
        "barnabas_link_lag_records",
        "Records that a mirror partition is behind its source; -1: the source has not answered yet.",
        of_mirrors(lambda mirror: mirror.lag_records),
    )
    registry.table(
        "barnabas_link_lag_ms",
        "Age of the newest record of a mirror partition while the source has newer ones; -1: not known.",
        of_mirrors(lambda mirror: mirror.lag_ms_now()),
    )
    registry.table(
        "barnabas_link_truncated_records",
        "Records that a mirror partition dropped because its source had lost them.",
        of_mirrors(lambda mirror: mirror.truncated_records),
    )
    registry.table(
        "barnabas_link_fetched_bytes",
        "Bytes of records fetched from the source of a link since the broker started.",
        of_links(lambda source: source.bytes),
    )
    registry.table(
        "barnabas_link_errors",
        "Errors of the source of a link since the broker started: failed connections, refusals.",
        of_links(lambda source: source.errors),
    )
