"""Check the needs of some commands beyond the broker before importing them: the packages of an extra, and Java."""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from barnabas.cli._command import UsageError

#: Spark's classes are compiled for this version.
_JAVA_MIN = 17


def need(extra: str, *modules: str) -> None:
    """:raises UsageError: if a module is missing; the message says how to install it."""
    for module in modules:
        try:
            is_here = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:  # not even its package is
            is_here = False
        if not is_here:
            raise UsageError(f"{module} is missing: pip install 'barnabas[{extra}]'")


def need_java() -> None:
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java")
    advice = f"Spark needs Java {_JAVA_MIN} or newer; on Debian or Ubuntu: apt-get install openjdk-17-jre-headless"
    if program is None or not Path(program).exists():
        raise UsageError(f"there is no {program or 'java'}. {advice}")
    output = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', output)
    if found is None or int(found[1]) < _JAVA_MIN:
        raise UsageError(f"{program} is {output.strip().splitlines()[0] if output.strip() else 'silent'}. {advice}")
