"""TLS."""

from typing import Final

from barnabas.base.config.definition import Setting
from barnabas.base.config.definitions import reasons
from barnabas.base.config.definitions.shorthand import (
    BOOLEAN,
    CLASS,
    LIST,
    LOW,
    MEDIUM,
    PASSWORD,
    PER_BROKER,
    READ_ONLY,
    STRING,
)
from barnabas.base.config.validators import one_of

# A table: one line of facts and the meaning below it.
# fmt: off
SETTINGS: Final = (
    Setting("security.providers", STRING, None, LOW, None, READ_ONLY,
            "Java security providers.", no_effect=reasons.JAVA),
    Setting("principal.builder.class", CLASS,
            "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder", MEDIUM, None, PER_BROKER,
            "Java class that makes a principal of a connection.", no_effect=reasons.PRINCIPAL),
    Setting("ssl.client.auth", STRING, "none", MEDIUM, one_of("required", "requested", "none"), PER_BROKER,
            "Whether clients show a certificate: required, requested or none."),
    Setting("ssl.principal.mapping.rules", STRING, "DEFAULT", LOW, None, READ_ONLY,
            "Rules that turn a certificate's name into a principal's, the first match counts; DEFAULT takes the "
            "name as it is."),
    Setting("ssl.allow.dn.changes", BOOLEAN, False, LOW, None, READ_ONLY,
            "Whether a dynamically updated key store may have another distinguished name."),
    Setting("ssl.allow.san.changes", BOOLEAN, False, LOW, None, READ_ONLY,
            "Whether a dynamically updated key store may have other alternative names."),
    Setting("ssl.protocol", STRING, "TLSv1.3", MEDIUM, None, PER_BROKER,
            "Highest TLS version that is offered."),
    Setting("ssl.provider", STRING, None, MEDIUM, None, PER_BROKER,
            "Java security provider for TLS.", no_effect=reasons.JAVA),
    Setting("ssl.enabled.protocols", LIST, ("TLSv1.2", "TLSv1.3"), MEDIUM, None, PER_BROKER,
            "TLS versions that may be agreed on."),
    Setting("ssl.keystore.type", STRING, "JKS", MEDIUM, None, PER_BROKER,
            "Type of the key store: PEM, PKCS12 or JKS."),
    Setting("ssl.keystore.location", STRING, None, MEDIUM, None, PER_BROKER,
            "File with this broker's key and certificate."),
    Setting("ssl.keystore.password", PASSWORD, None, MEDIUM, None, PER_BROKER,
            "Password of the key store file."),
    Setting("ssl.key.password", PASSWORD, None, MEDIUM, None, PER_BROKER,
            "Password of the private key in the key store, or of a PEM key."),
    Setting("ssl.keystore.key", PASSWORD, None, MEDIUM, None, PER_BROKER,
            "Private key as PEM text, in place of a file."),
    Setting("ssl.keystore.certificate.chain", PASSWORD, None, MEDIUM, None, PER_BROKER,
            "Certificate chain as PEM text, in place of a file."),
    Setting("ssl.truststore.type", STRING, "JKS", MEDIUM, None, PER_BROKER,
            "Type of the trust store: PEM, PKCS12 or JKS."),
    Setting("ssl.truststore.location", STRING, None, MEDIUM, None, PER_BROKER,
            "File with the certificates that peers are checked against."),
    Setting("ssl.truststore.password", PASSWORD, None, MEDIUM, None, PER_BROKER,
            "Password of the trust store file."),
    Setting("ssl.truststore.certificates", PASSWORD, None, MEDIUM, None, PER_BROKER,
            "Trusted certificates as PEM text, in place of a file."),
    Setting("ssl.keymanager.algorithm", STRING, "SunX509", MEDIUM, None, PER_BROKER,
            "Java key manager algorithm.", no_effect=reasons.JAVA),
    Setting("ssl.trustmanager.algorithm", STRING, "PKIX", MEDIUM, None, PER_BROKER,
            "Java trust manager algorithm.", no_effect=reasons.JAVA),
    Setting("ssl.endpoint.identification.algorithm", STRING, "https", LOW, None, PER_BROKER,
            "https checks a server's host name against its certificate when this broker connects; empty does not."),
    Setting("ssl.secure.random.implementation", STRING, None, LOW, None, PER_BROKER,
            "Java source of random numbers.", no_effect=reasons.JAVA),
    Setting("ssl.cipher.suites", LIST, (), MEDIUM, None, PER_BROKER,
            "Cipher suites that may be agreed on; empty takes the library's own."),
    Setting("ssl.engine.factory.class", CLASS, None, LOW, None, PER_BROKER,
            "Java class that makes TLS engines.", no_effect=reasons.JAVA),
)
# fmt: on
