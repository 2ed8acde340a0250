"""The connection to ZooKeeper."""

from typing import Final

from barnabas.base.config.definition import Setting
from barnabas.base.config.definitions import reasons
from barnabas.base.config.definitions.shorthand import (
    BOOLEAN,
    HIGH,
    INT,
    LIST,
    LOW,
    MEDIUM,
    PASSWORD,
    READ_ONLY,
    STRING,
)
from barnabas.base.config.validators import at_least

# A table: one line of facts and the meaning below it.
# fmt: off
SETTINGS: Final = (
    Setting("zookeeper.connect", STRING, None, HIGH, None, READ_ONLY,
            "The ensemble, as host:port pairs separated by commas, with an optional /path that holds all of the "
            "cluster's nodes. Required."),
    Setting("zookeeper.session.timeout.ms", INT, 18_000, HIGH, None, READ_ONLY,
            "Time without contact after which ZooKeeper ends this broker's session, and with it its registration."),
    Setting("zookeeper.connection.timeout.ms", INT, None, HIGH, None, READ_ONLY,
            "How long the broker waits for ZooKeeper at start; unset, zookeeper.session.timeout.ms."),
    Setting("zookeeper.set.acl", BOOLEAN, False, HIGH, None, READ_ONLY,
            "Whether nodes are created so that only brokers may change them."),
    Setting("zookeeper.max.in.flight.requests", INT, 10, HIGH, at_least(1), READ_ONLY,
            "Requests to ZooKeeper that may be in flight at the same time, up to 128, which is also what a broker takes "
            "where this is not set."),
    Setting("zookeeper.ssl.client.enable", BOOLEAN, False, MEDIUM, None, READ_ONLY,
            "Whether the connection to ZooKeeper uses TLS."),
    Setting("zookeeper.clientCnxnSocket", STRING, None, MEDIUM, None, READ_ONLY,
            "Java socket class of the connection to ZooKeeper.", no_effect=reasons.JAVA),
    Setting("zookeeper.ssl.keystore.location", STRING, None, MEDIUM, None, READ_ONLY,
            "Key store with this broker's certificate for ZooKeeper."),
    Setting("zookeeper.ssl.keystore.password", PASSWORD, None, MEDIUM, None, READ_ONLY,
            "Password of that key store."),
    Setting("zookeeper.ssl.keystore.type", STRING, None, MEDIUM, None, READ_ONLY,
            "Type of that key store; unset, by the file's ending."),
    Setting("zookeeper.ssl.truststore.location", STRING, None, MEDIUM, None, READ_ONLY,
            "Trust store with the certificates that ZooKeeper's is checked against."),
    Setting("zookeeper.ssl.truststore.password", PASSWORD, None, MEDIUM, None, READ_ONLY,
            "Password of that trust store."),
    Setting("zookeeper.ssl.truststore.type", STRING, None, MEDIUM, None, READ_ONLY,
            "Type of that trust store; unset, by the file's ending."),
    Setting("zookeeper.ssl.protocol", STRING, "TLSv1.2", LOW, None, READ_ONLY,
            "TLS version for the connection to ZooKeeper."),
    Setting("zookeeper.ssl.enabled.protocols", LIST, None, LOW, None, READ_ONLY,
            "TLS versions that may be agreed on; unset, zookeeper.ssl.protocol."),
    Setting("zookeeper.ssl.cipher.suites", LIST, None, LOW, None, READ_ONLY,
            "Cipher suites that may be agreed on; unset, the library's own."),
    Setting("zookeeper.ssl.endpoint.identification.algorithm", STRING, "HTTPS", LOW, None, READ_ONLY,
            "HTTPS checks ZooKeeper's host name against its certificate, empty does not."),
    Setting("zookeeper.ssl.crl.enable", BOOLEAN, False, LOW, None, READ_ONLY,
            "Whether revocation lists are consulted.", no_effect=reasons.REVOCATION),
    Setting("zookeeper.ssl.ocsp.enable", BOOLEAN, False, LOW, None, READ_ONLY,
            "Whether OCSP is consulted.", no_effect=reasons.REVOCATION),
)
# fmt: on
