"""A Python for Spark's workers that starts in a third of the time: the installed pyspark is compiled, Spark's archive is not.

Spark puts its archive first on the path of every process that it starts, and each process compiles the imported modules again.
A streaming source has ten seconds from the start of its process until it must connect back, and no setting changes that: on a
busy machine it was too little.
"""

import shlex
import sys
from pathlib import Path


def spark_environment(folder: Path) -> dict[str, str]:
    """Return the environment variables for Spark on this machine. `folder` gets the script that stands for Python."""
    script = folder / "python-for-spark"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="${{PYTHONPATH#*-src.zip:}}"\nexec {shlex.quote(sys.executable)} "$@"\n')
    script.chmod(0o755)
    return {
        "PYSPARK_PYTHON": str(script),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Queries here are short, so the JVM compiles little, and it does not verify Spark's classes.
        "SPARK_SUBMIT_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData "
        "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
    }
