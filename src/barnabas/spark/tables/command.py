"""The work behind `barnabas tables run`, with Spark."""

import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from barnabas.spark import WORKER_SETTINGS
from barnabas.spark.python_command import set_python
from barnabas.spark.tables.runner import Runner, RunOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
# The run itself reports a job that failed, once.
logger.tasks.name = org.apache.spark
logger.tasks.level = off
"""


@contextmanager
def session(master: str) -> "Iterator[SparkSession]":
    """Start the Spark of a run: quiet, with a fair share for each table."""
    from pyspark.sql import SparkSession

    set_python(master)
    with tempfile.TemporaryDirectory(prefix="barnabas-tables-") as folder:
        logging = Path(folder, "log4j2.properties")
        logging.write_text(_LOG4J)
        builder = SparkSession.builder.master(master).appName("barnabas-tables")
        for name, value in _configuration(master, logging).items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        try:
            yield spark
        finally:
            spark.stop()


def _configuration(master: str, logging: Path) -> dict[str, str]:
    ours = {
        "spark.scheduler.mode": "FAIR",
        "spark.sql.session.timeZone": "UTC",
        **WORKER_SETTINGS,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{logging}",
    }
    if master.startswith("local"):
        ours |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return ours


def run(settings: Mapping[str, str], options: RunOptions, *, master: str) -> bool:
    """Fill tables until all records are read, or until Ctrl-C or SIGTERM; return whether all went well. Reports go to
    stderr."""

    def tell(line: str) -> None:
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")
        sys.stderr.flush()

    with session(master) as spark:
        runner = Runner(spark, settings, options, tell=tell)
        sys.stdout.write(f"ready spark={master}\n")
        sys.stdout.flush()

        def end(number: int, frame: FrameType | None) -> None:
            runner.stop()

        before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            return runner.run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
