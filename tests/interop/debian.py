"""Programs from Debian's packages, by name: they are installed if they are missing and this machine permits it."""

import os
import shutil
import subprocess

import pytest


def program(name: str, *packages: str) -> str:
    """Return the path of a program. Install these packages (by default the one of its name) if it is missing; skip if that
    fails.
    """
    if shutil.which(name) is None and shutil.which("apt-get") is not None and os.geteuid() == 0:
        options = ["-y", "-qq", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"]
        quiet = {"capture_output": True, "timeout": 600, "check": False}
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], env=environment, **quiet)
        subprocess.run(["apt-get", "install", *options, *(packages or (name,))], env=environment, **quiet)
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}")
    return found
