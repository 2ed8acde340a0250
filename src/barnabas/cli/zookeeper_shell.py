"""`barnabas zookeeper-shell`: Kafka's `zookeeper-shell.sh`, for the embedded ZooKeeper and for Apache ZooKeeper."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from barnabas.cli._command import complain
from barnabas.cli._output import say, write
from barnabas.cli.tool import Argument, Option, Tool

if TYPE_CHECKING:
    from barnabas.cli.zookeeper_prompt import Shell

TOOL = Tool(
    note="See [embedded ZooKeeper](embedded-zookeeper.md).",
    kafka="zookeeper-shell.sh",
    about="""Commands: ls, get, set, create, delete, deleteall, stat, getAcl, setAcl, addauth, sync, watch, quit.""",
    arguments=(
        # The words after the address belong to the shell's command: `ls -R /` is not an option of this program.
        Argument(
            "address", "Servers, and a path as the root.", metavar="HOST:PORT[/PATH]", required=True, ends_options=True
        ),
        Argument("words", "What to do; without it, lines from standard input.", metavar="COMMAND", many=True),
    ),
    options=(
        Option("--timeout", "How long to wait for a connection.", float, metavar="SECONDS", default=15.0),
        Option(
            "--zk-tls-config-file",
            "zookeeper.ssl.* settings, and barnabas.zookeeper.digest, as a broker's.",
            metavar="FILE",
        ),
    ),
    examples=("barnabas zookeeper-shell localhost:2181 ls /brokers/ids",),
)


@TOOL.main
def _shell(address: str, words: Sequence[str], timeout: float, zk_tls_config_file: str | None) -> int:
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
        shell = Shell(client, say)
        if words:
            shell.execute(words)
            return 0
        return _interact(shell, address)
    finally:
        client.stop()
        client.close()


def _interact(shell: "Shell", address: str) -> int:
    from barnabas.cli.zookeeper_prompt import ShellError

    prompt = sys.stdin.isatty()
    if prompt:
        say(f"Connected to {address}. `help` lists the commands, `quit` ends.")
    failed = False
    while not shell.is_done:
        if prompt:
            write(f"[{address}] ")
            sys.stdout.flush()
        line = sys.stdin.readline()
        if not line:
            break
        try:
            shell.execute_line(line)
        except ShellError as error:
            failed = True
            complain(str(error))
    return int(failed and not prompt)
