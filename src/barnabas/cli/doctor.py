"""`barnabas doctor`: what is wrong with settings or with a cluster, and what to do. It changes nothing."""

import asyncio
import sys
from typing import Annotated

import typer

from barnabas.cli._doctor_finding import Finding, in_order, is_wrong
from barnabas.cli._tool import Bootstrap, CommandConfig, Json, UsageError, options, say, say_json


def command(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE.properties]…", help="Settings of brokers, on the machine that they are for."),
    ] = None,
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Check settings or a running cluster: what is wrong, and what to do.

    Give properties files, --bootstrap-server, or both. Exit status 1 when something is wrong; notes alone are not.
    """
    findings: list[Finding] = []
    brokers: int | None = None
    if not files and bootstrap_server is None and command_config is None:
        raise UsageError("nothing to check: name a properties file, or a cluster with --bootstrap-server")
    if bootstrap_server is not None or command_config is not None:
        from barnabas.cli._doctor_cluster import check_cluster

        found, brokers = asyncio.run(check_cluster(options(bootstrap_server, command_config)))
        findings += found
    if files:
        from barnabas.cli._doctor_file import check_files

        findings += check_files(files, brokers=brokers)
    findings = in_order(findings)
    wrong = is_wrong(findings)
    if json:
        say_json({"ok": not wrong, "brokers": brokers, "findings": [finding.as_json() for finding in findings]})
    else:
        for finding in findings:
            say(str(finding))
        if not wrong:
            say("nothing is wrong" + (f" with these {brokers} brokers" if brokers else ""))
    sys.stdout.flush()
    if wrong:
        raise typer.Exit(1)
