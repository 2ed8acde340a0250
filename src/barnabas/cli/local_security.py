"""Security of a local cluster: certificates, users, ACLs, and the settings of its clients.

All files are in the cluster's folder under `security/`, readable only by their owner, and are created once: a cluster that
starts again on its data keeps its certificate authority and its passwords.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from barnabas.base.config.properties import format_properties
from barnabas.base.words import AclOperation, AclResourceType, PatternType, Permission
from barnabas.client.admin.acls import Ace, ResourcePattern, create_acls
from barnabas.client.admin.configs import ScramUpsert, alter_scram
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.blocking import BlockingConnection
from barnabas.client.config import client_config
from barnabas.client.errors import AuthenticationFailed
from barnabas.wire.auth.authority import LocalAuthority
from barnabas.wire.auth.jaas import SCRAM_MODULE
from barnabas.wire.auth.mechanisms.scram import ScramMechanism
from barnabas.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from barnabas.zookeeper.fourletter import WORDS_FOR_STRANGERS

#: ADMIN may do everything; CLIENT may use topics, groups and transactions only.
ADMIN, CLIENT = "admin", "client"
_BROKER: Final = "broker"
#: A certificate of a broker that has expired.
EXPIRED: Final = "expired.pem"
_MECHANISM: Final = ScramMechanism.SHA_512
_ITERATIONS: Final = 8192
_CLIENT_ACLS: Final = (
    (AclResourceType.TOPIC, "*", AclOperation.ALL),
    (AclResourceType.GROUP, "*", AclOperation.ALL),
    (AclResourceType.TRANSACTIONAL_ID, "*", AclOperation.ALL),
    (AclResourceType.CLUSTER, "kafka-cluster", AclOperation.IDEMPOTENT_WRITE),
)


@dataclass(frozen=True, slots=True, repr=False)
class LocalSecurity:
    """Has passwords, so its `repr` hides them."""

    folder: Path
    passwords: Mapping[str, str]
    zookeeper_password: str
    token_key: str
    #: `password.encoder.secret`: brokers encrypt passwords with it, those of links among them.
    encoder_secret: str

    @staticmethod
    def prepare(folder: Path, host: str, *, with_expired: bool = False) -> "LocalSecurity":
        """Load the files of the folder, or create them; for tests also an expired certificate.

        :raises ConfigError: if the package cryptography is not installed.
        """
        secret_file = folder / "secrets.json"
        if secret_file.exists():
            kept = json.loads(secret_file.read_text())
            if "encoder" not in kept:  # of an earlier release
                kept["encoder"] = secrets.token_urlsafe(18)
                LocalSecurity.write_secret(secret_file, json.dumps(kept))
            return LocalSecurity(folder, kept["passwords"], kept["zookeeper"], kept["tokens"], kept["encoder"])
        authority = LocalAuthority.create("barnabas local cluster")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        hosts = dict.fromkeys(("localhost", "127.0.0.1", "::1", host))
        (folder / "ca.pem").write_text(authority.certificate_pem)
        LocalSecurity.write_secret(folder / "broker.pem", authority.issue(_BROKER, list(hosts)))
        if with_expired:
            LocalSecurity.write_secret(folder / EXPIRED, authority.issue(_BROKER, list(hosts), days=-1))
        passwords = {user: secrets.token_urlsafe(12) for user in (ADMIN, CLIENT)}
        created = LocalSecurity(folder, passwords, *(secrets.token_urlsafe(18) for _ in range(3)))
        kept = {
            "passwords": passwords,
            "zookeeper": created.zookeeper_password,
            "tokens": created.token_key,
            "encoder": created.encoder_secret,
        }
        LocalSecurity.write_secret(secret_file, json.dumps(kept))
        return created

    def broker_settings(self, host: str, port: int, *, own_zookeeper: bool) -> dict[str, str]:
        """Clients log in with SCRAM over TLS; brokers use their certificates on a separate listener."""
        settings = {
            "listeners": f"CLIENT://{host}:{port},INTERNAL://{host}:0",
            "listener.security.protocol.map": "CLIENT:SASL_SSL,INTERNAL:SSL",
            "inter.broker.listener.name": "INTERNAL",
            "sasl.enabled.mechanisms": _MECHANISM.sasl_name,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.folder / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.folder / "ca.pem"),
            "listener.name.internal.ssl.client.auth": "required",
            "listener.name.internal.ssl.principal.mapping.rules": "RULE:^CN=([^,]*)$/$1/",
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": f"User:{_BROKER};User:{ADMIN}",
            "delegation.token.secret.key": self.token_key,
            "password.encoder.secret": self.encoder_secret,
        }
        if own_zookeeper:
            settings |= {"zookeeper.set.acl": "true", **self.zookeeper_client_settings()}
        return settings

    # -- ZooKeeper ----------------------------------------------------------------------------------------------------

    def zookeeper_client_settings(self) -> dict[str, str]:
        """Return the settings with which a broker, or an operator with `zookeeper-shell`, connects."""
        return {
            "barnabas.zookeeper.digest": f"{_BROKER}:{self.zookeeper_password}",
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
            "zookeeper.ssl.keystore.type": "PEM",
            "zookeeper.ssl.keystore.location": str(self.folder / "broker.pem"),
            "zookeeper.ssl.truststore.type": "PEM",
            "zookeeper.ssl.truststore.location": str(self.folder / "ca.pem"),
        }

    def write_zookeeper_files(self, port: str) -> Path:
        """Write the server's files and return the main one. Only clients with a certificate of this cluster's authority can
        connect, so even znodes whose ACLs an earlier run without security left open are protected."""
        LocalSecurity.write_secret(
            self.folder / "zookeeper-client.properties", format_properties(self.zookeeper_client_settings())
        )
        file = self.folder / "zookeeper.properties"
        settings = {
            "secureClientPort": port,
            "ssl.keyStore.location": str(self.folder / "broker.pem"),
            "ssl.trustStore.location": str(self.folder / "ca.pem"),
            "ssl.clientAuth": "need",
            "4lw.commands.whitelist": WORDS_FOR_STRANGERS,
        }
        LocalSecurity.write_secret(file, format_properties(settings))
        return file

    @staticmethod
    def write_secret(path: Path, text: str) -> None:
        """Write a file that only its owner can read, even if it existed with other permissions."""
        path.touch(mode=0o600)
        path.chmod(0o600)
        path.write_text(text)

    # -- clients ------------------------------------------------------------------------------------------------------

    def client_settings(self, user: str) -> dict[str, str]:
        """Return the settings for the Java client and barnabas's tools."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": _MECHANISM.sasl_name,
            "sasl.jaas.config": f'{SCRAM_MODULE} required username="{user}" password="{self.passwords[user]}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.folder / "ca.pem"),
        }

    def librdkafka_settings(self, user: str) -> dict[str, str]:
        """Return the settings for confluent-kafka and other clients that use librdkafka."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": _MECHANISM.sasl_name,
            "sasl.username": user,
            "sasl.password": self.passwords[user],
            "ssl.ca.location": str(self.folder / "ca.pem"),
        }

    def properties_file(self, user: str) -> Path:
        """Return the file for `--command-config`."""
        return self.folder / f"{user}.properties"

    def write_properties(self, bootstrap: str) -> None:
        for user in self.passwords:
            settings = {"bootstrap.servers": bootstrap, **self.client_settings(user)}
            LocalSecurity.write_secret(self.properties_file(user), format_properties(settings))

    # -- users and ACLs -----------------------------------------------------------------------------------------------

    def internal_settings(self) -> dict[str, str]:
        """Return the settings for the brokers' own listener, with the rights of a broker, which may do everything."""
        return {
            "security.protocol": "SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.folder / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.folder / "ca.pem"),
        }

    async def provision(self, internal_bootstrap: str) -> None:
        """Create users and ACLs through the brokers' own listener. Existing ones are written again."""
        async with AsyncClient(client_config(internal_bootstrap, self.internal_settings())) as cluster:
            for user, password in self.passwords.items():
                await alter_scram(cluster, user, upserts=[ScramUpsert(_MECHANISM, _ITERATIONS, password)])
            for kind, name, operation in _CLIENT_ACLS:
                pattern = ResourcePattern(kind, name, PatternType.LITERAL)
                await create_acls(cluster, pattern, [Ace(f"User:{CLIENT}", "*", operation, Permission.ALLOW)])

    def is_known_at(self, address: str) -> bool:
        """Return whether a broker knows all users and ACLs: it learns of changes through ZooKeeper."""
        host, _, port = address.rpartition(":")
        everything = DescribeAclsRequest(
            resource_type_filter=AclResourceType.ANY,
            resource_name_filter=None,
            pattern_type_filter=PatternType.ANY,
            principal_filter=f"User:{CLIENT}",
            host_filter=None,
            operation=AclOperation.ANY,
            permission_type=Permission.ANY,
        )
        try:
            for user in (CLIENT, ADMIN):
                with BlockingConnection(host, int(port), client_config(address, self.client_settings(user))) as broker:
                    known = broker.request(everything, DescribeAclsResponse).resources
        except AuthenticationFailed:
            return False
        return sum(len(resource.acls) for resource in known) >= len(_CLIENT_ACLS)
