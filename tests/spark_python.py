"""A Python for Spark's workers that starts in a third of the time: the installed pyspark is compiled, Spark's archive is not.

Spark puts its archive first on the path of every process that it starts, and each of them compiles anew what it imports. A
streaming source has ten seconds from the start of its process until it calls back, which no setting changes: on a busy machine
that was too little.
"""

import shlex
import sys
from pathlib import Path


def spark_environment(folder: Path) -> dict[str, str]:
    """What to set for a Spark on this machine. `folder` gets the script that stands for Python."""
    script = folder / "python-for-spark"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="${{PYTHONPATH#*-src.zip:}}"\nexec {shlex.quote(sys.executable)} "$@"\n')
    script.chmod(0o755)
    return {
        "PYSPARK_PYTHON": str(script),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Queries here are short: the JVM that compiles least is done first, and nobody forges Spark's classes.
        "SPARK_SUBMIT_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData "
        "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
    }
