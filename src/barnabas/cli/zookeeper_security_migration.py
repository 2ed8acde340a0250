"""`barnabas zookeeper-security-migration`: Kafka's `zookeeper-security-migration.sh`, for any ZooKeeper."""

from barnabas.cli._command import UsageError
from barnabas.cli._output import say
from barnabas.cli.tool import OneOf, Option, Tool

TOOL = Tool(
    note="See [security](security.md).",
    kafka="zookeeper-security-migration.sh",
    options=(
        Option(
            "--zookeeper.acl",
            "secure: brokers write, others read; unsecure: everybody does all. Required.",
            OneOf("secure", "unsecure"),
            required=True,
            name="acl",
        ),
        Option(
            "--zookeeper.connect",
            "Servers, and Kafka's root.",
            metavar="HOST:PORT[/PATH]",
            default="localhost:2181",
            name="connect",
        ),
        Option(
            "--zookeeper.connection.timeout",
            "How long to wait for a connection.",
            int,
            metavar="MS",
            default=30_000,
            name="timeout_ms",
        ),
        Option(
            "--zk-tls-config-file",
            "A broker's settings of ZooKeeper: barnabas.zookeeper.digest, zookeeper.ssl.*.",
            metavar="FILE",
            name="config_file",
        ),
    ),
    examples=("barnabas zookeeper-security-migration --zookeeper.acl secure --zk-tls-config-file server.properties",),
)


@TOOL.main
def _migrate(acl: str, connect: str, timeout_ms: int, config_file: str | None) -> None:
    from barnabas.broker.zookeeper_client.security_migration import connect as connect_to
    from barnabas.broker.zookeeper_client.security_migration import migrate
    from barnabas.cli._zookeeper_settings import session_settings

    config = session_settings(connect, config_file)
    if acl == "secure" and not config.auth and config.tls is None:
        raise UsageError(
            "no client could change the znodes any more: name the brokers' credentials with --zk-tls-config-file "
            "(barnabas.zookeeper.digest=user:password, or zookeeper.ssl.client.enable=true with a certificate)"
        )
    client = connect_to(config, timeout_s=timeout_ms / 1000)
    try:
        changed = migrate(client, secure=acl == "secure")
    finally:
        client.stop()
        client.close()
    say(f"{changed} znodes are {acl} now.")
