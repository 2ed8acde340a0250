"""The Java client and Kafka's own tools over SSL, SASL_SSL and SASL_PLAINTEXT: every mechanism, right and wrong credentials.

Brokers read key stores that keytool made, in Java's default format.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from barnabas.base.config.properties import format_properties
from barnabas.cli.local_cluster import LocalCluster, wait_until
from barnabas.cli.main import app
from barnabas.wire.auth.jaas import PLAIN_MODULE, SCRAM_MODULE
from barnabas.wire.auth.mechanisms.oauthbearer import OAUTH_MODULE
from tests.interop import java_client
from tests.interop.test_java_tools import Tools
from tests.oauth_provider import AUDIENCE, Provider, SigningKey, serving
from tests.pki import Authority
from tests.support.command_line import CliRunner

pytestmark = pytest.mark.usefixtures("java")

PASSWORD = "store-secret"
LISTENERS = {"PLAINTEXT": "PLAINTEXT", "MUTUAL": "SSL", "SECURE": "SASL_SSL", "CLEAR": "SASL_PLAINTEXT"}
LOGIN_HANDLER = "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler"


def keytool(*arguments: str) -> None:
    subprocess.run(["keytool", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority.create(tmp_path_factory.mktemp("pki"))
    made.issue("broker", subject="/O=Test/CN=broker")
    made.issue("alice", subject="/O=Test/CN=alice")
    made.issue("elsewhere", subject="/O=Test/CN=broker", hosts="DNS:elsewhere.example")
    # As an administrator does it: keytool imports into a store with another name.
    keytool("-importkeystore", "-noprompt", "-srckeystore", str(made.pkcs12("broker", PASSWORD, with_authority=True)),
            "-srcstoretype", "PKCS12", "-srcstorepass", PASSWORD, "-destkeystore", str(made.folder / "broker.jks"),
            "-deststoretype", "PKCS12", "-deststorepass", PASSWORD)  # fmt: skip
    keytool("-importcert", "-noprompt", "-alias", "ca", "-file", str(made.certificate), "-keystore",
            str(made.folder / "trust.jks"), "-storepass", PASSWORD)  # fmt: skip
    made.pkcs12("alice", PASSWORD)
    return made


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with serving(Provider(SigningKey("one", "RS256"))) as running:
        yield running


@pytest.fixture(scope="module")
def secured(authority: Authority, provider: Provider) -> Iterator[LocalCluster]:
    plain = f'{PLAIN_MODULE} required user_admin="admin-secret" user_alice="alice-secret";'
    config = {
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in LISTENERS),
        "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in LISTENERS.items()),
        "inter.broker.listener.name": "MUTUAL",
        "ssl.keystore.location": str(authority.folder / "broker.jks"),
        "ssl.keystore.password": PASSWORD,
        "ssl.truststore.location": str(authority.folder / "trust.jks"),
        "ssl.truststore.password": PASSWORD,
        "listener.name.mutual.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*?),O=Test$/$1/L,DEFAULT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.secure.plain.sasl.jaas.config": plain,
        "listener.name.clear.plain.sasl.jaas.config": plain,
        "sasl.oauthbearer.jwks.endpoint.url": f"{provider.url}/jwks",
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "delegation.token.secret.key": "token-key",
        "password.encoder.secret": "encoder-secret",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:broker;User:admin",
    }
    with LocalCluster(brokers=2, config=config) as running:
        admin = AdminClient({"bootstrap.servers": addresses(running, "PLAINTEXT")})
        for future in admin.alter_user_scram_credentials(
            [
                UserScramCredentialUpsertion("alice", ScramCredentialInfo(mechanism, 4096), b"alice-secret")
                for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
            ]
        ).values():
            future.result(30)
        yield running


def addresses(cluster: LocalCluster, listener: str) -> str:
    return ",".join(cluster.listener_address(broker_id, listener) for broker_id in cluster.broker_ids)


class Settings:
    """Properties files for the Java client."""

    def __init__(self, cluster: LocalCluster, authority: Authority, folder: Path) -> None:
        self._cluster, self._authority, self._folder = cluster, authority, folder

    def trust(self) -> dict[str, str]:
        return {
            "ssl.truststore.location": str(self._authority.folder / "trust.jks"),
            "ssl.truststore.password": PASSWORD,
        }

    def write(self, name: str, listener: str, **more: str) -> str:
        settings = {
            "bootstrap.servers": addresses(self._cluster, listener),
            "security.protocol": LISTENERS[listener],
            **(self.trust() if "SSL" in LISTENERS[listener] else {}),
            **{key.replace("_", "."): value for key, value in more.items()},
        }
        path = self._folder / f"{name}.properties"
        path.write_text(format_properties(settings))
        return str(path)

    def login(self, name: str, listener: str, mechanism: str, password: str, user: str = "alice", **more: str) -> str:
        module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
        token = ' tokenauth="true"' if more.pop("token", "") else ""
        line = f'{module} required username="{user}" password="{password}"{token};'
        return self.write(name, listener, sasl_mechanism=mechanism, sasl_jaas_config=line, **more)


@pytest.fixture
def settings(secured: LocalCluster, authority: Authority, tmp_path: Path) -> Settings:
    return Settings(secured, authority, tmp_path)


def outcomes(version: str, files: list[str], *options: str, artifact: str = "kafka-clients") -> dict[str, str]:
    java, *rest = java_client.compiled(version, "SecureClient", artifact)
    done = subprocess.run([java, *options, *rest, *files], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


@pytest.mark.parametrize("version", ["3.9.1", "4.1.0"])
def test_java_client_on_every_listener_with_right_and_wrong_credentials(
    settings: Settings, authority: Authority, version: str
) -> None:
    suffix = version.replace(".", "")
    own = str(authority.folder / "alice.p12")
    stranger = Authority.create(authority.folder / f"stranger-{suffix}")
    stranger.issue("mallory", subject="/O=Test/CN=alice")
    good = [
        settings.write(f"mutual-{suffix}", "MUTUAL", ssl_keystore_location=own, ssl_keystore_password=PASSWORD),
        settings.write(f"tls12-{suffix}", "MUTUAL", ssl_keystore_location=own, ssl_keystore_password=PASSWORD,
                       ssl_enabled_protocols="TLSv1.2", ssl_protocol="TLSv1.2"),
        *(
            settings.login(f"{mechanism.lower()}-{listener.lower()}-{suffix}", listener, mechanism, "alice-secret")
            for listener in ("SECURE", "CLEAR")
            for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
        ),
    ]  # fmt: skip
    bad = [
        settings.write(f"bad-none-{suffix}", "MUTUAL"),
        settings.write(f"bad-stranger-{suffix}", "MUTUAL", ssl_keystore_type="PKCS12",
                       ssl_keystore_location=str(stranger.pkcs12("mallory", PASSWORD)), ssl_keystore_password=PASSWORD),
        settings.login(f"bad-plain-{suffix}", "SECURE", "PLAIN", "guess"),
        settings.login(f"bad-scram-{suffix}", "CLEAR", "SCRAM-SHA-512", "guess"),
        settings.login(f"bad-trust-{suffix}", "SECURE", "PLAIN", "alice-secret", ssl_truststore_type="PEM",
                       ssl_truststore_location=str(stranger.certificate), ssl_truststore_password=""),
    ]  # fmt: skip
    text = Path(bad[-1]).read_text()
    Path(bad[-1]).write_text("\n".join(line for line in text.splitlines() if "truststore.password" not in line))
    seen = outcomes(version, good + bad)
    names = [Path(file).stem for file in good]
    assert {name: seen[name] for name in names} == dict.fromkeys(names, "OK")
    refused = {"REFUSED SaslAuthenticationException", "REFUSED SslAuthenticationException"}
    for file in bad:
        assert seen[Path(file).stem] in refused, (file, seen)


def test_java_client_with_oauthbearer(settings: Settings, provider: Provider) -> None:
    def oauth(name: str, secret: str, listener: str = "SECURE") -> str:
        return settings.write(
            name,
            listener,
            sasl_mechanism="OAUTHBEARER",
            sasl_jaas_config=f'{OAUTH_MODULE} required clientId="alice" clientSecret="{secret}" scope="kafka";',
            sasl_login_callback_handler_class=LOGIN_HANDLER,
            sasl_oauthbearer_token_endpoint_url=f"{provider.url}/token",
        )

    unsecured = settings.write(
        "oauth-unsecured",
        "CLEAR",
        sasl_mechanism="OAUTHBEARER",
        sasl_jaas_config=f'{OAUTH_MODULE} required unsecuredLoginStringClaim_sub="admin";',
    )
    files = [oauth("oauth", "alice-secret"), oauth("oauth-clear", "alice-secret", "CLEAR"), unsecured]
    seen = outcomes("3.9.1", files, artifact="kafka_2.13")
    assert seen["oauth"] == seen["oauth-clear"] == "OK"
    assert seen["oauth-unsecured"] == "REFUSED SaslAuthenticationException"


def test_kafkas_tools_come_in_and_make_delegation_tokens(
    secured: LocalCluster, settings: Settings, tmp_path: Path, topic: str
) -> None:
    admin = settings.login("admin", "SECURE", "PLAIN", "admin-secret", user="admin")
    tools = Tools(addresses(secured, "SECURE"), tmp_path)
    made = tools("TopicCommand", "--command-config", admin, "--create", "--topic", topic, "--partitions", "1")
    assert "Created topic" in made
    wrong = settings.login("wrong", "SECURE", "PLAIN", "guess", user="admin")
    assert "Authentication failed" in tools("TopicCommand", "--command-config", wrong, "--list", code=1)
    out = tools("DelegationTokenCommand", "--command-config", admin, "--create", "--max-life-time-period", "-1",
                "--renewer-principal", "User:alice")  # fmt: skip
    token, hmac = out.strip().splitlines()[-1].split()[:2]
    out = tools(
        "DelegationTokenCommand", "--command-config", admin, "--renew", "--hmac", hmac, "--renew-time-period", "-1"
    )
    assert "Completed renew operation" in out
    assert token in tools(
        "DelegationTokenCommand", "--command-config", admin, "--describe", "--owner-principal", "User:admin"
    )
    by_token = settings.login("token", "SECURE", "SCRAM-SHA-512", hmac, user=token, token="true")
    assert topic in tools("TopicCommand", "--command-config", by_token, "--list")
    # Our tool reads the token that Java made.
    shown = CliRunner().invoke(
        app, ["delegation-tokens", "--bootstrap-server", addresses(secured, "SECURE"), "--command-config", admin,
              "--describe", "--json"]
    ).output  # fmt: skip
    assert [each["tokenId"] for each in json.loads(shown)] == [token]
    out = tools(
        "DelegationTokenCommand", "--command-config", admin, "--expire", "--hmac", hmac, "--expiry-time-period", "-1"
    )
    assert "Completed expire operation" in out
    assert "uthentication failed" in tools("TopicCommand", "--command-config", by_token, "--list", code=1)


def test_kafka_configs_reloads_a_certificate_with_a_password(
    secured: LocalCluster, authority: Authority, settings: Settings, tmp_path: Path
) -> None:
    admin = settings.login("admin2", "SECURE", "PLAIN", "admin-secret", user="admin")
    authority.issue("renewed", subject="/O=Test/CN=broker")
    store = authority.pkcs12("renewed", PASSWORD)
    tools = Tools(addresses(secured, "SECURE"), tmp_path)
    prefix = "listener.name.secure.ssl.keystore"
    tools("kafka.admin.ConfigCommand", "--command-config", admin, "--alter", "--entity-type", "brokers",
          "--entity-name", "1", "--add-config", f"{prefix}.location={store},{prefix}.password={PASSWORD}")  # fmt: skip
    wait_until(lambda: "has a new certificate" in secured.log(1), what="the new certificate")
    described = tools("kafka.admin.ConfigCommand", "--command-config", admin, "--describe", "--entity-type", "brokers",
                      "--entity-name", "1")  # fmt: skip
    assert f"{prefix}.location={store}" in described and PASSWORD not in described
    assert PASSWORD not in secured.log(1)
