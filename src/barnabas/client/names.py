"""The settings of Kafka's clients by name: used here, used by Kafka's clients only, or a mistake. Pure."""

from collections.abc import Collection, Mapping
from typing import Final

from barnabas.base.errors import ConfigError
from barnabas.base.names import did_you_mean


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CONNECTION: Final = _names(
    """
    bootstrap.servers client.id security.protocol request.timeout.ms default.api.timeout.ms
    socket.connection.setup.timeout.ms retry.backoff.ms retry.backoff.max.ms metadata.max.age.ms
    max.in.flight.requests.per.connection config.providers sasl.mechanism sasl.jaas.config
    sasl.oauthbearer.token.endpoint.url sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
    sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.retry.backoff.ms
    sasl.login.retry.backoff.max.ms ssl.keystore.type ssl.keystore.location ssl.keystore.password ssl.keystore.key
    ssl.keystore.certificate.chain ssl.key.password ssl.truststore.type ssl.truststore.location
    ssl.truststore.password ssl.truststore.certificates ssl.protocol ssl.enabled.protocols ssl.cipher.suites
    ssl.endpoint.identification.algorithm
    """
)
_PRODUCER: Final = _names(
    """
    acks enable.idempotence transactional.id transaction.timeout.ms compression.type batch.size linger.ms
    buffer.memory delivery.timeout.ms max.request.size partitioner.class partitioner.ignore.keys
    """
)
_CONSUMER: Final = _names(
    """
    group.id group.instance.id session.timeout.ms max.poll.interval.ms heartbeat.interval.ms auto.commit.interval.ms
    enable.auto.commit isolation.level fetch.min.bytes fetch.max.bytes max.partition.fetch.bytes fetch.max.wait.ms
    auto.offset.reset check.crcs client.rack
    """
)
_SHARE_CONSUMER: Final = _names(
    """
    group.id share.acknowledgement.mode share.acquire.mode max.poll.records fetch.min.bytes fetch.max.bytes
    fetch.max.wait.ms check.crcs client.rack
    """
)
#: Settings of Kafka's clients that have no effect here, and whose absence does no harm.
_WITHOUT_EFFECT: Final = _names(
    """
    client.dns.lookup send.buffer.bytes receive.buffer.bytes reconnect.backoff.ms reconnect.backoff.max.ms
    socket.connection.setup.timeout.max.ms connections.max.idle.ms metadata.max.idle.ms metadata.recovery.strategy
    metadata.recovery.rebootstrap.trigger.ms metric.reporters metrics.num.samples metrics.recording.level
    metrics.sample.window.ms auto.include.jmx.reporter enable.metrics.push retries max.block.ms interceptor.classes
    key.serializer value.serializer key.deserializer value.deserializer compression.gzip.level compression.lz4.level
    compression.zstd.level partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms
    max.poll.records exclude.internal.topics allow.auto.create.topics partition.assignment.strategy group.protocol
    group.remote.assignor security.providers ssl.provider ssl.keymanager.algorithm ssl.trustmanager.algorithm
    ssl.secure.random.implementation ssl.engine.factory.class sasl.kerberos.service.name sasl.kerberos.kinit.cmd
    sasl.kerberos.ticket.renew.window.factor sasl.kerberos.ticket.renew.jitter sasl.kerberos.min.time.before.relogin
    sasl.client.callback.handler.class sasl.login.callback.handler.class sasl.login.class
    sasl.login.refresh.min.period.seconds sasl.login.refresh.buffer.seconds sasl.oauthbearer.scope.claim.name
    sasl.oauthbearer.sub.claim.name
    """
)
CONNECTION: Final = _CONNECTION
PRODUCER: Final = _CONNECTION | _PRODUCER
CONSUMER: Final = _CONNECTION | _CONSUMER
SHARE_CONSUMER: Final = _CONNECTION | _SHARE_CONSUMER


def notices(settings: Mapping[str, str], known: Collection[str]) -> list[str]:
    """Return a sentence for each setting that has no effect."""
    return [
        f"{name} has no effect with this client"
        if name in _WITHOUT_EFFECT
        else f"{name} is not a setting of a client and is ignored{did_you_mean(name, known)}"
        for name in settings
        if name not in known and not name.startswith("config.providers.")
    ]


def require_known(settings: Mapping[str, str], known: Collection[str], *, what: str) -> None:
    """:raises ConfigError: for a setting that neither this client nor Kafka's knows."""
    for name in settings:
        if name not in known and name not in _WITHOUT_EFFECT and not name.startswith("config.providers."):
            raise ConfigError(f"{name} is not a setting of {what}{did_you_mean(name, known)}")
