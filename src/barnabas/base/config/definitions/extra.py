"""Settings that Kafka's broker passes on to its authorizer without defining them, those of later Kafka, and our own."""

from typing import Final

from barnabas.base.config.definition import Setting
from barnabas.base.config.definitions.shorthand import (
    BOOLEAN,
    CLUSTER_WIDE,
    DOUBLE,
    INT,
    LIST,
    LONG,
    LOW,
    MEDIUM,
    PASSWORD,
    READ_ONLY,
    STRING,
)
from barnabas.base.config.units import GIB, KIB, MIB
from barnabas.base.config.validators import HttpUrls, NonEmptyString, at_least, between

# fmt: off
SETTINGS: Final = (
    Setting("super.users", STRING, "", MEDIUM, None, READ_ONLY,
            "Principals to whom the authorizer refuses nothing, separated by semicolons: User:alice;User:CN=broker."),
    Setting("allow.everyone.if.no.acl.found", BOOLEAN, False, MEDIUM, None, READ_ONLY,
            "Whether all users may use a resource that has no ACL."),
    Setting("transaction.two.phase.commit.enable", BOOLEAN, False, LOW, None, READ_ONLY,
            "Whether a producer may have transactions that never time out and that it ends after a restart (KIP-939)."),
    Setting("barnabas.zookeeper.digest", PASSWORD, None, MEDIUM, None, READ_ONLY,
            "user:password with which this broker proves itself to ZooKeeper (scheme digest), the same on every broker; "
            "zookeeper.set.acl needs it."),
    Setting("barnabas.request.max.elements", INT, 10_000, LOW, at_least(1_000), CLUSTER_WIDE,
            "Topics, partitions, groups and the like that one request may name. Questions about more are answered in slices, "
            "up to ten times as many; what brokers send each other has no such limit; the rest is refused."),
    Setting("barnabas.record.framing.check", BOOLEAN, False, LOW, None, CLUSTER_WIDE,
            "Whether a leader decompresses and walks the records of every batch that a client sends, as Kafka does, and "
            "refuses one that is not what its header says. Costs about a microsecond a record."),
    Setting("barnabas.schema.registry.url", LIST, (), LOW, HttpUrls(), CLUSTER_WIDE,
            "URLs of the schema registry that is asked about topics with barnabas.key.schema.validation or "
            "barnabas.value.schema.validation; the next one where one cannot be reached."),
    Setting("barnabas.schema.registry.basic.auth.user.info", PASSWORD, None, LOW, None, READ_ONLY,
            "name:password with which this broker signs in at the schema registry."),
    Setting("barnabas.schema.registry.bearer.auth.token", PASSWORD, None, LOW, None, READ_ONLY,
            "Token with which this broker signs in at the schema registry, instead of a password."),
    Setting("barnabas.schema.registry.ssl.ca.location", STRING, None, LOW, None, READ_ONLY,
            "PEM file of the authorities that the schema registry's certificate is checked against; unset, the system's."),
    Setting("barnabas.ssl.crl.location", STRING, None, LOW, None, READ_ONLY,
            "PEM file of the client authority's revoked certificates (CRL), read at the start and with a new key store; also "
            "with a listener's prefix. A client certificate must then be of an authority with such a list."),
    Setting("barnabas.audit.log", STRING, None, LOW, None, READ_ONLY,
            "File to which changes and denials are written, one JSON object a line; none where it is not set."),
    Setting("barnabas.audit.log.max.bytes", LONG, 100 * 1024 * 1024, LOW, at_least(1_024), READ_ONLY,
            "Size at which a new file is begun; ten older ones are kept."),
    Setting("barnabas.metrics.host", STRING, "127.0.0.1", LOW, None, READ_ONLY,
            "Address on which metrics are offered over HTTP, where barnabas.metrics.port is set."),
    Setting("barnabas.metrics.port", INT, -1, LOW, between(-1, 65535), READ_ONLY,
            "Port on which metrics are offered over HTTP in Prometheus' text format; -1 for none, 0 for a free one."),
    Setting("barnabas.inside.enable", BOOLEAN, False, LOW, None, READ_ONLY,
            "Whether the metrics port also shows the inside of this broker as JSON, at /inside: replicas, waiting requests, "
            "the controller's decisions, producers, znodes; no records and no secrets. The console reads it."),
    Setting("barnabas.client.metrics.max.series", INT, 10_000, LOW, at_least(1), READ_ONLY,
            "How many series of metrics that clients push a broker keeps; the clients whose last push is the oldest go first."),
    Setting("barnabas.client.metrics.otlp.endpoint", STRING, None, LOW, None, READ_ONLY,
            "Where metrics that clients push are forwarded: an OpenTelemetry collector that takes OTLP over HTTP, "
            "http://collector:4318. None: they are not forwarded."),
    Setting("barnabas.client.metrics.otlp.queue.bytes", INT, 16 * MIB, LOW, at_least(64 * KIB), READ_ONLY,
            "Memory for pushes that wait for the collector. When it is full, the oldest ones are dropped."),
    Setting("barnabas.otel.endpoint", STRING, None, LOW, None, READ_ONLY,
            "Where traces go: an OpenTelemetry collector that takes OTLP over HTTP, http://collector:4318. None: no traces. "
            "Needs the extra otel."),
    Setting("barnabas.otel.sample.ratio", DOUBLE, 0.01, LOW, between(0.0, 1.0), READ_ONLY,
            "The share of batches, and of requests other than Produce, that have traces; the same on every broker."),
    Setting("barnabas.remote.storage.url", STRING, None, MEDIUM, NonEmptyString(), READ_ONLY,
            "Where tiered storage keeps segments: s3://bucket/path, gs://bucket/path, az://account/container/path or "
            "file:///directory; the same on every broker. Needs the extra tiered."),
    Setting("barnabas.remote.chunk.bytes", INT, 4 * MIB, LOW, between(64 * KIB, 256 * MIB), READ_ONLY,
            "How much of a segment in remote storage is read by one request."),
    Setting("barnabas.remote.chunk.cache.bytes", LONG, GIB, LOW, at_least(0), READ_ONLY,
            "Disk space for what was read of segments in remote storage; those not read for the longest time go first."),
    Setting("barnabas.remote.read.ahead.bytes", LONG, 32 * MIB, LOW, at_least(0), READ_ONLY,
            "How much is read ahead in remote storage for a consumer that reads in order."),
)
# fmt: on
