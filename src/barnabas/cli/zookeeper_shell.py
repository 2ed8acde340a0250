"""`barnabas zookeeper-shell`: Kafka's `zookeeper-shell.sh`, for the embedded ZooKeeper and for Apache ZooKeeper."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from barnabas.cli.zookeeper_prompt import Shell

#: Arguments after the address belong to the shell's command: `ls -R /` is not an option of this program.
CONTEXT_SETTINGS = {"allow_interspersed_args": False}


def command(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT[/PATH]", help="Servers, and a path as the root.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="What to do; without it, lines from standard input."),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for a connection.")] = 15.0,
    zk_tls_config_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="zookeeper.ssl.* settings, and barnabas.zookeeper.digest, as a broker's."),
    ] = None,
) -> None:
    """Look at and change znodes: ls, get, set, create, delete, deleteall, stat, getAcl, setAcl, addauth, sync, watch, quit."""
    from barnabas.cli.zookeeper_prompt import Shell, connect

    # Kafka's tool takes this option after the address.
    if words and words[0] in ("-zk-tls-config-file", "--zk-tls-config-file"):
        zk_tls_config_file, words = words[1] if len(words) > 1 else None, words[2:]
    options: dict[str, Any] = {}
    if zk_tls_config_file is not None:
        from barnabas.broker.zookeeper_client.kazoo_client import TlsHandler
        from barnabas.cli._zookeeper_settings import session_settings

        config = session_settings(address, zk_tls_config_file)
        options = {"handler": TlsHandler(config.tls), "auth_data": list(config.auth) or None}
    client = connect(address, timeout_s=timeout, **options)
    try:
        shell = Shell(client, typer.echo)
        if words:
            shell.execute(words)
        else:
            _interact(shell, address)
    finally:
        client.stop()
        client.close()


def _interact(shell: "Shell", address: str) -> None:
    from barnabas.cli.zookeeper_prompt import ShellError

    prompt = sys.stdin.isatty()
    if prompt:
        typer.echo(f"Connected to {address}. `help` lists the commands, `quit` ends.")
    failed = False
    while not shell.is_done:
        if prompt:
            typer.echo(f"[{address}] ", nl=False)
        line = sys.stdin.readline()
        if not line:
            break
        try:
            shell.execute_line(line)
        except ShellError as error:
            failed = True
            typer.echo(str(error), err=True)
    if failed and not prompt:
        raise typer.Exit(1)
