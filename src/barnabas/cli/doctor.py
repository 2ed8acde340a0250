"""`barnabas doctor`: find problems in settings or in a cluster, and say how to solve them. It changes nothing."""

import asyncio
import logging
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import replace
from json import dumps

from barnabas.base.times import utc
from barnabas.cli._connection import options
from barnabas.cli._output import say, say_json
from barnabas.cli._progress import telling
from barnabas.cli.tool import BOOTSTRAP, COMMAND_CONFIG, JSON, Argument, Option, Tool, at_least_one
from barnabas.client.config import ClientConfig
from barnabas.services.doctor.finding import Finding, Severity, count, in_order, worst

#: Exit status by the worst finding. Notes alone count as success.
EXIT = {None: 0, Severity.ERROR: 1, Severity.WARNING: 3}
_INDENT = " " * 8


TOOL = Tool(
    note="Changes nothing; see [below](#doctor).",
    about="""Reports problems, since when they exist, their meaning for clients, and advice. Exit status 0: nothing is wrong;
    1: an error; 3: only warnings.""",
    arguments=(
        Argument(
            "files", "Settings of brokers, on the machine that they are for.", metavar="FILE.properties", many=True
        ),
    ),
    options=(
        replace(BOOTSTRAP, help="The cluster to check: the brokers to connect to first."),
        COMMAND_CONFIG,
        JSON,
        Option(
            "--watch",
            "Check again after this time, until Ctrl-C; print findings that begin and end.",
            float,
            metavar="SECONDS",
            least=1,
        ),
    ),
    rules=(
        at_least_one(
            "files",
            "--bootstrap-server",
            "--command-config",
            says="nothing to check: name a properties file, or a cluster with --bootstrap-server",
        ),
    ),
    examples=(
        "barnabas doctor --bootstrap-server localhost:9092",
        "barnabas doctor server.properties",
        "barnabas doctor --bootstrap-server localhost:9092 --watch 10",
    ),
)


@TOOL.main
def _diagnose(
    files: Sequence[str], bootstrap_server: str | None, command_config: str | None, json: bool, watch: float | None
) -> int:
    logging.getLogger("barnabas").addHandler(logging.NullHandler())  # the findings already report what the log would
    config = None
    if bootstrap_server is not None or command_config is not None:
        config = options(bootstrap_server, command_config)
    if watch is not None:
        _watch(files, config, watch, as_json=json)
    findings, brokers = _look(files, config)
    severity = worst(findings)
    if json:
        say_json({"ok": severity is None, "brokers": brokers, "findings": [finding.as_json() for finding in findings]})
    else:
        for finding in findings:
            show(finding)
        if severity is None:
            say("nothing is wrong" + (f" with {_these(brokers)}" if brokers else ""))
    sys.stdout.flush()
    return EXIT[severity]


def _look(files: Sequence[str], config: ClientConfig | None) -> tuple[list[Finding], int | None]:
    findings: list[Finding] = []
    brokers: int | None = None
    if config is not None:
        from barnabas.services.doctor.cluster import check_cluster

        with telling("waiting for brokers or ZooKeeper that do not answer"):
            report = asyncio.run(check_cluster(config))
        findings, brokers = list(report.findings), report.brokers
    if files:
        from barnabas.services.doctor.files import check_files

        findings += check_files(files, brokers=brokers)
    return in_order(findings), brokers


def _watch(files: Sequence[str], config: ClientConfig | None, period_s: float, *, as_json: bool) -> None:
    """Repeat the check until Ctrl-C. Print the time and the changes, and say when no problem is left."""
    present: list[Finding] | None = None
    while True:
        findings, brokers = _look(files, config)
        over, begins = _changes(present or [], findings)
        is_well = worst(findings) is None and (present is None or worst(present) is not None)
        at = utc(time.time_ns() // 1_000_000)
        if as_json:
            for what, changed in (("over", over), ("begins", begins)):
                for finding in changed:
                    say(dumps({"time": at, "change": what, **finding.as_json()}, ensure_ascii=False))
        elif over or begins or is_well:
            say(at)
            for finding in over:
                say(_wrapped(f"{'OVER':7} ", f"{finding.subject}: {finding.message}"))
            for finding in begins:
                show(finding)
            if is_well:
                say("nothing is wrong" + (f" with {_these(brokers)}" if brokers else ""))
        sys.stdout.flush()
        present = findings
        time.sleep(period_s)


def _changes(before: list[Finding], after: list[Finding]) -> tuple[list[Finding], list[Finding]]:
    """Return findings that ended and findings that began. A finding with other words, or a note about other subjects, is the
    same finding."""

    def news(findings: list[Finding], others: list[Finding]) -> list[Finding]:
        known = {_identity(other) for other in others}
        return [finding for finding in findings if _identity(finding) not in known]

    return news(before, after), news(after, before)


def _identity(finding: Finding) -> tuple[str, ...]:
    subject = () if finding.severity is Severity.NOTE else (finding.subject,)
    return (finding.check, finding.severity, *subject)


def _these(brokers: int | None) -> str:
    return "this broker" if brokers == 1 else f"these {count(brokers or 0, 'broker')}"


def show(finding: Finding) -> None:
    """Print the finding with its age, its meaning and the advice, folded to the terminal's width."""
    say(_wrapped(f"{finding.severity.upper():7} ", f"{finding.subject}: {finding.message}"))
    parts = [
        ("since", "" if finding.since_ms is None else utc(finding.since_ms)),
        ("means", finding.means),
        ("do", finding.advice),
    ]
    for name, text in parts:
        if text:
            say(_wrapped(f"{_INDENT}{name + ':':7}", text))


def _wrapped(first: str, text: str) -> str:
    if not sys.stdout.isatty():
        return first + text
    width = max(40, shutil.get_terminal_size().columns)
    return textwrap.fill(
        text,
        width,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )
