"""The command with which a Spark on this machine starts Python: a small script in place of the interpreter.

Each streaming source is a process that Spark waits ten seconds for, whatever its settings say. Two things take that time when
many streams start at once, and the script avoids both. Spark puts its own archive of pyspark first on the path of every
process, which compiles it each time; an installed pyspark is compiled already. And a process imports pyspark and the
source before it calls Spark back (`early_worker`).
"""

import atexit
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from barnabas.spark import early_worker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SOURCE: Final = "pyspark.sql.streaming.python_streaming_source_runner"


def set_python(master: str) -> None:
    """Set the command that starts Python for a Spark that this process is about to start, unless the environment sets one.

    Executors on other machines do not have our script: they run the interpreter of this process, by its path.
    """
    os.environ.setdefault("PYSPARK_PYTHON", python_command() if master.startswith("local") else sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


@contextmanager
def early_python(spark: "SparkSession") -> Iterator[None]:
    """Run data sources that are registered within the block by our command, if this machine is all that the session has."""
    context = getattr(spark, "_sc", None)  # a session of Spark Connect has none
    if context is None or not context.master.startswith("local"):
        yield
        return
    before = context.pythonExec
    context.pythonExec = python_command(before)
    try:
        yield
    finally:
        context.pythonExec = before


@cache
def python_command(python: str = sys.executable) -> str:
    """Return the path of a script that runs `python`; `python` itself if scripts cannot be run here."""
    folder = Path(tempfile.mkdtemp(prefix="barnabas-python-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return python
    script = folder / "python"
    script.write_text(_script(python, folder))
    script.chmod(0o700)
    return str(script)


def _script(python: str, folder: Path) -> str:
    installed = 'case "$PYTHONPATH" in *-src.zip) PYTHONPATH= ;; *) PYTHONPATH="${PYTHONPATH#*-src.zip:}" ;; esac\n'
    command = shlex.quote(python)
    early = shlex.quote(str(Path(early_worker.__file__).resolve()))
    return (
        "#!/bin/sh\n"
        f"{installed if _has_pyspark(python) else ''}"
        f'if [ "$1 $2" = "-m {_SOURCE}" ]; then exec {command} -P {early} {shlex.quote(str(folder))} "$@"; fi\n'
        # Processes that plan a query or run its tasks are forked from a daemon. Ours has the imports made.
        f'if [ "$1 $2" = "-m pyspark.daemon" ]; then shift 2; exec {command} -m barnabas.spark.daemon "$@"; fi\n'
        f'exec {command} "$@"\n'
    )


def _has_pyspark(python: str) -> bool:
    """Whether this interpreter has the same pyspark installed as Spark's archive."""
    import pyspark
    from pyspark.find_spark_home import _find_spark_home

    found = shutil.which(python)
    is_this = found is not None and Path(found).parent == Path(sys.executable).parent
    return is_this and Path(_find_spark_home()).resolve() == Path(pyspark.__file__).resolve().parent
