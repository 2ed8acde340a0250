"""`barnabas zookeeper-security-migration`: Kafka's `zookeeper-security-migration.sh`, for any ZooKeeper."""

from enum import StrEnum
from typing import Annotated

import typer


class Acl(StrEnum):
    SECURE = "secure"
    UNSECURE = "unsecure"


def command(
    acl: Annotated[
        Acl, typer.Option("--zookeeper.acl", help="secure: brokers write, others read; unsecure: everybody does all.")
    ],
    connect: Annotated[
        str, typer.Option("--zookeeper.connect", metavar="HOST:PORT[/PATH]", help="Servers, and Kafka's root.")
    ] = "localhost:2181",
    timeout_ms: Annotated[
        int, typer.Option("--zookeeper.connection.timeout", help="Milliseconds to wait for a connection.")
    ] = 30_000,
    config_file: Annotated[
        str | None,
        typer.Option(
            "--zk-tls-config-file",
            metavar="FILE",
            help="A broker's settings of ZooKeeper: barnabas.zookeeper.digest, zookeeper.ssl.*.",
        ),
    ] = None,
) -> None:
    """Allow only the brokers to change the znodes of a Kafka cluster, or allow everybody again."""
    from barnabas.broker.zookeeper_client.security_migration import connect as connect_to
    from barnabas.broker.zookeeper_client.security_migration import migrate
    from barnabas.cli._zookeeper_settings import session_settings

    config = session_settings(connect, config_file)
    if acl is Acl.SECURE and not config.auth and config.tls is None:
        from barnabas.cli._command import UsageError

        raise UsageError(
            "no client could change the znodes any more: name the brokers' credentials with --zk-tls-config-file "
            "(barnabas.zookeeper.digest=user:password, or zookeeper.ssl.client.enable=true with a certificate)"
        )
    client = connect_to(config, timeout_s=timeout_ms / 1000)
    try:
        changed = migrate(client, secure=acl is Acl.SECURE)
    finally:
        client.stop()
        client.close()
    typer.echo(f"{changed} znodes are {acl.value} now.")
