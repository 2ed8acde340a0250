"""`barnabas broker`: one broker in the foreground."""

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from barnabas.cli.tool import Argument, Option, Tool, WrongUse

TOOL = Tool(
    note="See [operating](operating.md).",
    kafka="kafka-server-start.sh",
    about="Prints `ready broker=ID …` when clients can connect. SIGTERM or Ctrl-C stops it cleanly.",
    arguments=(Argument("properties", "Kafka's server.properties.", Path, metavar="FILE.properties"),),
    options=(
        Option(
            "--environment",
            "Read settings from KAFKA_… variables, too, as the image apache/kafka does: KAFKA_LOG_DIRS is log.dirs. "
            "They win over the file's, and the file may be left out.",
            bool,
        ),
        Option("--override", "A setting that wins over the file's.", metavar="K=V", many=True),
    ),
    examples=("barnabas broker server.properties --override log.dirs=/data",),
)


@TOOL.main
def _broker(properties: Path | None, environment: bool, override: Sequence[str]) -> int:
    if properties is None and not environment:
        raise WrongUse("a properties file is needed: barnabas broker FILE.properties, or --environment")
    from barnabas.base.config import properties as files
    from barnabas.base.log_format import log_to
    from barnabas.broker.process import run_broker

    file = str(properties) if properties else None
    settings = {
        **files.of_opentelemetry(os.environ),
        **files.load(file, override, with_environment=environment),
    }
    log_to(sys.stderr, level=logging.INFO)
    return run_broker(settings)
