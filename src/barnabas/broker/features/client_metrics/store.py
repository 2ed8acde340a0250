"""The latest metrics of each client, within a bound, and their page for Prometheus.

Owner: the event loop. The bound is a number of series: the clients whose last push is the oldest go first.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from barnabas.base.ids import format_uuid
from barnabas.base.recent import Recent
from barnabas.broker.features.client_metrics.instances import SILENCE_MS_LEAST, SILENT_INTERVALS, Client
from barnabas.broker.features.client_metrics.otlp import Labels, Pushed

#: Begins the names of all metrics of clients: none of them can pass for one of the broker's.
PREFIX: Final = "kafka_client_"
INFO: Final = "kafka_server_client_metrics_client_info"
#: Kafka's prefix of all standard metrics, which Prometheus's names leave out.
_STANDARD: Final = "org.apache.kafka."
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_]+")


@dataclass(slots=True)
class Point:
    name: str
    labels: Labels
    value: float
    pushed_ms: int
    #: Name and labels for Prometheus.
    family: str
    line: str


@dataclass(slots=True)
class ClientSeries:
    """The series of one client instance."""

    client: Client
    interval_ms: int
    pushed_ms: int
    #: Whether the client has said that it ends.
    is_ended: bool = False
    points: dict[tuple[str, Labels], Point] = field(default_factory=dict)

    def is_silent(self, now_ms: int) -> bool:
        return now_ms - self.pushed_ms > max(SILENCE_MS_LEAST, SILENT_INTERVALS * self.interval_ms)


class Store:
    def __init__(self, series_max: int, *, on_empty: Callable[[], None] = lambda: None) -> None:
        """`on_empty` is called when the last client has gone."""
        self._on_empty = on_empty
        #: By instance id. The client whose last push is the oldest comes first.
        self.clients: Recent[bytes, ClientSeries] = Recent(series_max, weigh=lambda _, client: 1 + len(client.points))
        #: Series that were left out or dropped because of a bound.
        self.dropped = 0

    def add(self, client: Client, pushed: Pushed, *, interval_ms: int, now_ms: int, is_ended: bool) -> None:
        """Add what a client has pushed. Series that it no longer sends go after three intervals."""
        known = self.clients.pop(client.instance_id) or ClientSeries(client, interval_ms, now_ms)
        known.client, known.interval_ms, known.pushed_ms, known.is_ended = client, interval_ms, now_ms, is_ended
        since_ms = now_ms - SILENT_INTERVALS * interval_ms
        points = {key: point for key, point in known.points.items() if point.pushed_ms >= since_ms}
        for series in pushed.series:
            point = points.get((series.name, series.labels))
            if point is None:
                family, line = _line(client, series.name, series.labels)
                points[series.name, series.labels] = Point(
                    series.name, series.labels, series.value, now_ms, family, line
                )
            else:
                point.value = point.value + series.value if series.is_delta else series.value
                point.pushed_ms = now_ms
        most = max(1, int(self.clients.limit) - 1)
        while len(points) > most:
            points.popitem()
            self.dropped += 1
        known.points = points
        dropped = self.clients.put(client.instance_id, known)
        self.dropped += pushed.left_out + sum(len(each.points) for _, each in dropped)

    def series_count(self) -> int:
        return self.clients.weight - len(self.clients)

    def current(self, now_ms: int) -> Iterable[ClientSeries]:
        """Forget the clients that have not pushed for a long time, and return the others."""
        for key in [key for key, each in self.clients.items() if each.is_silent(now_ms)]:
            self.clients.pop(key)
            if not self.clients:
                self._on_empty()
        return self.clients.values()

    def page(self, now_ms: int) -> bytes:
        """Return the metrics in Prometheus's text format."""
        clients = list(self.current(now_ms))
        families: dict[str, list[str]] = {}
        for client in clients:
            lines = {point.line: point.value for point in client.points.values()}
            for point in client.points.values():
                # Names that differ only in characters that Prometheus does not have get the same line: the last one counts.
                if (value := lines.pop(point.line, None)) is not None:
                    families.setdefault(point.family, []).append(f"{point.line} {value!r}\n")
        pieces = [
            f"# HELP {INFO} The clients whose metrics this broker has; always 1.\n# TYPE {INFO} gauge\n",
            *(_info(each.client) for each in clients),
        ]
        for family, rows in families.items():
            pieces += (f"# HELP {family} A metric that clients push.\n# TYPE {family} untyped\n", *rows)
        return "".join(pieces).encode()


def prometheus_name(name: str) -> str:
    """Return the name of a client's metric for Prometheus: `kafka_client_producer_connection_creation_total`."""
    return PREFIX + _NOT_IN_NAMES.sub("_", name.removeprefix(_STANDARD)).strip("_")


def _line(client: Client, name: str, labels: Labels) -> tuple[str, str]:
    family = prometheus_name(name)
    own = {_label_name(key): value for key, value in labels}
    return family, family + _braces(own | _identity(client))


def _label_name(key: str) -> str:
    """Return a valid label name. Prometheus has names that begin with two underscores for itself."""
    name = _NOT_IN_NAMES.sub("_", key).lstrip("_")
    return name if name and not name[0].isdigit() else f"_{name}"


def _identity(client: Client) -> dict[str, str]:
    return {"client_instance_id": format_uuid(client.instance_id), "client_id": client.client_id or ""}


def _info(client: Client) -> str:
    labels = _identity(client) | {
        "client_software_name": client.software_name,
        "client_software_version": client.software_version,
        "client_source_address": client.address,
        "principal": client.principal,
    }
    return f"{INFO}{_braces(labels)} 1\n"


def _braces(labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items()))
    return f"{{{inside}}}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
