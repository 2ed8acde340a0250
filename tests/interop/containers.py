"""Images and containers for tests, without a registry: base images are built from Debian's packages."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.interop.debian import program

ROOT = Path(__file__).parents[2]
#: vfs and chroot also work inside another container, where overlays and namespaces may not.
ENVIRONMENT = os.environ | {"STORAGE_DRIVER": "vfs"}
ENGINE = ("--runtime", "runc", "--cgroup-manager", "cgroupfs")
#: A container cannot get higher limits than this process may have.
LIMITS = ("--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096")
#: The build's pip uses the package index of this machine's pip.
BUILD_OPTIONS = (
    "--isolation=chroot",
    "--network=host",
    *(f"--volume={path}:{path}:ro" for path in ("/etc/pip.conf", "/etc/ssl/certs") if Path(path).exists()),
)


def need_programs() -> None:
    """Skip the test if a program cannot be installed."""
    for name in ("podman", "buildah", "mmdebstrap", "runc"):
        program(name)


def run(*command: str | Path, check: bool = True, timeout_s: float = 300, stdin: str | None = None) -> str:
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=timeout_s, env=ENVIRONMENT, check=False
    )
    assert done.returncode == 0 or not check, (
        f"{command}: {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    )
    return done.stdout


def podman(*arguments: str, check: bool = True, stdin: str | None = None) -> str:
    return run("podman", *ENGINE, *arguments, check=check, stdin=stdin)


def base(name: str, folder: Path, *, suite: str, packages: Sequence[str]) -> None:
    """Build a base image of Debian's packages once, and keep it."""
    if podman("image", "ls", "--quiet", name):
        return
    made = folder / "base.tar"
    # For a test, a mirror whose release file has expired is good enough.
    options = ("--quiet", "--variant=minbase", '--aptopt=Acquire::Check-Valid-Until "false"')
    run("mmdebstrap", *options, f"--include={','.join(packages)}", suite, made, timeout_s=900)
    podman("import", "--quiet", str(made), name)
    made.unlink()


def build(name: str, context: Path, containerfile: str) -> None:
    """Build an image of a folder, to which our wheel is added."""
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", context, ROOT)
    (context / "Containerfile").write_text(containerfile)
    run("buildah", "build", *BUILD_OPTIONS, "--quiet", "--format", "docker", "-t", name, context, timeout_s=900)
