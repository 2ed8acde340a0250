"""Settings of the embedded ZooKeeper, with the names of `zoo.cfg` files, checked once."""

from dataclasses import dataclass, replace
from pathlib import Path

from barnabas.base.errors import ConfigError
from barnabas.base.tls.contexts import TlsSettings
from barnabas.zookeeper.wire import JUTE_MAX_BUFFER


@dataclass(frozen=True)
class ZooKeeperConfig:
    #: tickTime: the unit of session expiry.
    tick_time_ms: int = 2000
    #: minSessionTimeout, maxSessionTimeout: by default 2 and 20 ticks.
    min_session_timeout_ms: int | None = None
    max_session_timeout_ms: int | None = None
    #: maxClientCnxns: connections from one address; 0 means no limit.
    max_client_cnxns: int = 60
    #: maxCnxns: connections in total; 0 means as many as leave enough descriptors for files.
    max_cnxns: int = 0
    #: jute.maxbuffer: bytes of the longest request.
    jute_max_buffer: int = JUTE_MAX_BUFFER
    #: globalOutstandingLimit: requests waiting for the disk before the server stops reading.
    global_outstanding_limit: int = 1000
    #: The same limit in bytes, for requests and responses that wait for the disk.
    outstanding_bytes_max: int = 16 << 20
    #: Bytes that a client may leave unread before its connection is dropped.
    unread_bytes_max: int = 8 << 20
    #: snapCount: transactions between snapshots.
    snap_count: int = 100_000
    #: autopurge.snapRetainCount
    snap_retain_count: int = 3
    #: 4lw.commands.whitelist: `*` or comma-separated names. None: all words on a loopback address, else only those that reveal
    #: nothing about clients and data.
    four_letter_whitelist: str | None = None
    #: How long a connection may stay open without a session.
    sessionless_timeout_ms: int = 10_000
    #: znode.container.checkIntervalMs: how often empty containers and expired TTL nodes are deleted.
    container_check_interval_ms: int = 60_000
    #: zookeeper.DigestAuthenticationProvider.superDigest
    super_digest: str | None = None
    #: ssl.keyStore.location, …: the TLS settings of the secure port; None without such a port.
    tls: TlsSettings | None = None
    #: forceSync: whether to wait for the disk. Only tests that may lose data set it to false.
    force_sync: bool = True

    def __post_init__(self) -> None:
        if self.tick_time_ms <= 0:
            raise ConfigError(f"tickTime={self.tick_time_ms}: must be positive")
        if self.session_timeout_min_ms > self.session_timeout_max_ms:
            raise ConfigError(
                f"minSessionTimeout={self.session_timeout_min_ms} is above maxSessionTimeout={self.session_timeout_max_ms}"
            )
        for name, value, least in (
            ("jute.maxbuffer", self.jute_max_buffer, 1024),
            ("globalOutstandingLimit", self.global_outstanding_limit, 1),
            ("snapCount", self.snap_count, 2),
            ("autopurge.snapRetainCount", self.snap_retain_count, 1),
            ("maxClientCnxns", self.max_client_cnxns, 0),
            ("maxCnxns", self.max_cnxns, 0),
        ):
            if value < least:
                raise ConfigError(f"{name}={value}: must be at least {least}")

    @property
    def session_timeout_min_ms(self) -> int:
        return 2 * self.tick_time_ms if self.min_session_timeout_ms is None else self.min_session_timeout_ms

    @property
    def session_timeout_max_ms(self) -> int:
        return 20 * self.tick_time_ms if self.max_session_timeout_ms is None else self.max_session_timeout_ms


#: The field for each key of a `zoo.cfg`; the caller handles the address and the directory.
_KEYS: dict[str, str] = {
    "tickTime": "tick_time_ms",
    "minSessionTimeout": "min_session_timeout_ms",
    "maxSessionTimeout": "max_session_timeout_ms",
    "maxClientCnxns": "max_client_cnxns",
    "maxCnxns": "max_cnxns",
    "jute.maxbuffer": "jute_max_buffer",
    "globalOutstandingLimit": "global_outstanding_limit",
    "snapCount": "snap_count",
    "autopurge.snapRetainCount": "snap_retain_count",
    "4lw.commands.whitelist": "four_letter_whitelist",
    "forceSync": "force_sync",
    "znode.container.checkIntervalMs": "container_check_interval_ms",
    "DigestAuthenticationProvider.superDigest": "super_digest",
}
#: The field of `TlsSettings` for each setting of the secure port.
_TLS_KEYS: dict[str, str] = {
    "ssl.keyStore.location": "keystore_location",
    "ssl.keyStore.type": "keystore_type",
    "ssl.keyStore.password": "keystore_password",
    "ssl.trustStore.location": "truststore_location",
    "ssl.trustStore.type": "truststore_type",
    "ssl.trustStore.password": "truststore_password",
}
#: Values of ssl.clientAuth, and Kafka's names for them. As in ZooKeeper, the default demands a certificate.
_CLIENT_AUTH = {"need": "required", "want": "requested", "none": "none"}


@dataclass(frozen=True)
class ConfigFile:
    """The contents of a `zoo.cfg` (or of Kafka's `zookeeper.properties`)."""

    config: ZooKeeperConfig
    data_dir: Path | None
    host: str | None
    port: int | None
    #: secureClientPort: the port with TLS.
    secure_port: int | None = None


def read_config(path: Path, base: ZooKeeperConfig | None = None) -> ConfigFile:
    """Read a properties file. Unsupported keys (ensembles, the admin server) are ignored; invalid values are refused."""
    values: dict[str, str] = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"{path}:{number}: `{text}` is not key=value")
        values[key.strip()] = value.strip()
    if any(key.startswith("server.") for key in values):
        raise ConfigError(f"{path} describes an ensemble (server.N=…): that needs Apache ZooKeeper, this is one server")
    changes: dict[str, object] = {}
    for key, field in _KEYS.items():
        if key in values:
            changes[field] = _parse(path, key, values[key], getattr(ZooKeeperConfig(), field))
    port, secure_port = (
        int(str(_parse(path, key, values[key], 0))) if key in values else None
        for key in ("clientPort", "secureClientPort")
    )
    if secure_port is not None:
        changes["tls"] = _read_tls(path, values)
    return ConfigFile(
        config=replace(base or ZooKeeperConfig(), **changes),  # type: ignore[arg-type]
        data_dir=Path(values["dataDir"]) if "dataDir" in values else None,
        host=values.get("clientPortAddress") or values.get("secureClientPortAddress"),
        port=port,
        secure_port=secure_port,
    )


def _read_tls(path: Path, values: dict[str, str]) -> TlsSettings:
    wanted = values.get("ssl.clientAuth", "need").lower()
    if wanted not in _CLIENT_AUTH:
        raise ConfigError(f"{path}: ssl.clientAuth={wanted}: must be need, want or none")
    fields = {field: values[key] for key, field in _TLS_KEYS.items() if key in values}
    for store in ("keystore", "truststore"):
        if fields.get(f"{store}_location", "").lower().endswith(".pem"):
            fields.setdefault(f"{store}_type", "PEM")
    # ZooKeeper uses one password for the store and its key.
    if "keystore_password" in fields:
        fields["key_password"] = fields["keystore_password"]
    protocols = tuple(word.strip() for word in values.get("ssl.enabledProtocols", "").split(",") if word.strip())
    if protocols:
        return TlsSettings(client_auth=_CLIENT_AUTH[wanted], enabled_protocols=protocols, **fields)
    return TlsSettings(client_auth=_CLIENT_AUTH[wanted], **fields)


def _parse(path: Path, key: str, value: str, default: object) -> object:
    if isinstance(default, bool):
        if value.lower() not in ("yes", "no", "true", "false"):
            raise ConfigError(f"{path}: {key}={value}: must be yes or no")
        return value.lower() in ("yes", "true")
    if key.endswith(("superDigest", "whitelist")):
        return value
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"{path}: {key}={value}: must be a number") from None
