"""Listeners, connections and the requests that wait in them."""

from typing import Final

from barnabas.base.config.definition import INT_MAX, Setting
from barnabas.base.config.definitions import reasons
from barnabas.base.config.definitions.shorthand import (
    CLUSTER_WIDE,
    HIGH,
    INT,
    LONG,
    LOW,
    MEDIUM,
    PER_BROKER,
    READ_ONLY,
    STRING,
)
from barnabas.base.config.units import KIB, MIB, MINUTE_MS
from barnabas.base.config.validators import at_least

# A table: one line of facts and the meaning below it.
# fmt: off
SETTINGS: Final = (
    Setting("listeners", STRING, "PLAINTEXT://:9092", HIGH, None, PER_BROKER,
            "Where the broker listens: NAME://host:port, separated by commas. Names and ports are unique; an empty "
            "host is every interface."),
    Setting("advertised.listeners", STRING, None, HIGH, None, PER_BROKER,
            "Addresses for clients and other brokers, for some or all of the listeners; unset, the "
            "listeners themselves."),
    Setting("listener.security.protocol.map", STRING,
            "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT", LOW, None, PER_BROKER,
            "Security protocol of each listener name, as NAME:PROTOCOL pairs."),
    Setting("control.plane.listener.name", STRING, None, HIGH, None, READ_ONLY,
            "Listener through which the controller sends its requests to brokers; unset, the inter-broker listener."),
    Setting("socket.send.buffer.bytes", INT, 100 * KIB, HIGH, None, READ_ONLY,
            "Socket send buffer; -1 leaves it to the operating system."),
    Setting("socket.receive.buffer.bytes", INT, 100 * KIB, HIGH, None, READ_ONLY,
            "Socket receive buffer; -1 leaves it to the operating system."),
    Setting("socket.request.max.bytes", INT, 100 * MIB, HIGH, at_least(1), READ_ONLY,
            "Largest request; a connection that announces a larger one is closed."),
    Setting("socket.listen.backlog.size", INT, 50, MEDIUM, at_least(1), READ_ONLY,
            "Connections that may wait to be accepted."),
    Setting("max.connections.per.ip", INT, INT_MAX, MEDIUM, at_least(0), CLUSTER_WIDE,
            "Connections from one address at the same time; 0 is allowed where max.connections.per.ip.overrides "
            "says who may connect. Where neither this nor max.connections is set, one address gets half of what "
            "the limit of open files allows."),
    Setting("max.connections.per.ip.overrides", STRING, "", MEDIUM, None, CLUSTER_WIDE,
            "Other limits for single hosts or addresses, as host:number pairs."),
    Setting("max.connections", INT, INT_MAX, MEDIUM, at_least(0), CLUSTER_WIDE,
            "Connections at the same time, for the broker and, with a listener prefix, per listener. The longest "
            "idle connection of another listener makes room for the inter-broker one."),
    Setting("max.connection.creation.rate", INT, INT_MAX, MEDIUM, at_least(0), CLUSTER_WIDE,
            "New connections per second, for the broker and, with a listener prefix, per listener."),
    Setting("connections.max.idle.ms", LONG, 10 * MINUTE_MS, MEDIUM, None, READ_ONLY,
            "Time without traffic after which a connection is closed."),
    Setting("connection.failed.authentication.delay.ms", INT, 100, LOW, at_least(0), READ_ONLY,
            "Time that a failed authentication waits for its answer; less than connections.max.idle.ms."),
    Setting("queued.max.requests", INT, 500, HIGH, at_least(1), READ_ONLY,
            "Requests that wait for a handler before the broker stops reading."),
    Setting("queued.max.request.bytes", LONG, -1, MEDIUM, None, READ_ONLY,
            "Bytes of requests that are received or wait before the broker stops reading. -1: they may take a quarter of the "
            "machine's memory, then the connection that holds most is closed."),
    Setting("num.network.threads", INT, 3, HIGH, at_least(1), CLUSTER_WIDE,
            "Network threads in Kafka.", no_effect=reasons.LOOP),
)
# fmt: on
