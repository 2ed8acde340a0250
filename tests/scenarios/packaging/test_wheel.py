"""The package as users get it: a wheel in an empty environment, without the development environment.

It is one test, because its setup takes seconds; each step has its own assertions.
"""

import json
import os
import signal
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
#: Size of everything that the broker installs, including itself. Measured: 19 packages, 38 MB, of which uvloop has 14.
INSTALLED_MB_MAX = 48
PACKAGES_MAX = 22
DEV_ONLY = {"aiokafka", "confluent_kafka", "hypothesis", "kafka", "kio", "mypy", "psutil", "pytest", "ruff"}
#: Modules that need an extra of pyproject.toml: pytest, spark, registry, console, fast.
OF_EXTRAS = (
    "barnabas.testing.plugin",
    "barnabas.spark",
    "barnabas.services.registry",
    "barnabas.services.http",
    "barnabas.services.console",
    "barnabas.cli._schema_values",
    "barnabas.base.compiled",
    "barnabas.wire.record_kernels",
    "barnabas.broker.storage.cleaner.compiled",
)

IMPORT_EVERYTHING = """
    import importlib, json, pkgutil, sys
    import barnabas

    def skipped(name):
        return any(name == each or name.startswith(each + ".") for each in {extras})

    def names(package):
        for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            if skipped(module.name) or module.name.endswith("__main__"):
                continue
            yield module.name
            if module.ispkg:
                yield from names(importlib.import_module(module.name))

    found = list(names(barnabas))
    for name in found:
        importlib.import_module(name)
    print(json.dumps([len(found), sorted(name for name in sys.modules if "." not in name)]))
"""

SIZES = """
    import importlib.metadata, json
    sizes = {}
    for each in importlib.metadata.distributions():
        if each.name not in ("pip", "setuptools"):
            paths = [each.locate_file(path) for path in each.files or ()]
            sizes[each.name] = sum(path.stat().st_size for path in paths if path.is_file())
    print(json.dumps(sizes))
"""


class Environment:
    """A virtual environment without PYTHONPATH and user packages, in another working directory."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        self.bin = folder / "venv" / "bin"
        keep = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        self.variables = keep | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PATH": f"{self.bin}:/usr/bin:/bin"}
        subprocess.run([python, "-m", "venv", folder / "venv"], check=True, timeout=300)

    def run(self, program: str, *arguments: str | Path, stdin: str = "", timeout_s: float = 300) -> str:
        done = subprocess.run(
            [self.bin / program, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd=self.folder,
            env=self.variables,
            check=False,
        )
        assert done.returncode == 0, f"{program} {arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def python(self, code: str) -> object:
        return json.loads(self.run("python", "-c", textwrap.dedent(code)))


@pytest.mark.pypi
@pytest.mark.timeout(900)
def test_wheel_in_an_empty_environment_is_small_complete_and_serves_records(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    environment = Environment(tmp_path, pytestconfig.getoption("--python", sys.executable))
    wheel = pytestconfig.getoption("--wheel", None) or _make_wheel(environment)
    holds = set(zipfile.ZipFile(wheel).namelist())
    assert "barnabas/py.typed" in holds
    # The console has its explanations without a network and without our repository.
    pages = {
        f"barnabas/services/console/markdown/{page.relative_to(ROOT / 'docs')}"
        for page in (ROOT / "docs").rglob("*.md")
    }
    assert {"barnabas/services/console/static/index.html"} | pages <= holds
    assert not [name for name in holds if name.startswith(("tests/", "bench/", "examples/"))]

    environment.run("python", "-m", "pip", "install", "--quiet", "--no-compile", wheel.absolute())
    _check_sizes(environment)
    _check_imports(environment)
    version = environment.run("python", "-m", "barnabas", "--version").strip()
    assert version == "barnabas " + wheel.name.split("-")[1]
    assert "console-producer" in environment.run("barnabas", "--help")
    _check_cluster(environment)


def _make_wheel(environment: Environment) -> Path:
    dist = environment.folder / "dist"
    environment.run("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", dist, ROOT)
    [wheel] = dist.glob("barnabas-*.whl")
    return wheel


def _check_sizes(environment: Environment) -> None:
    sizes = environment.python(SIZES)
    assert isinstance(sizes, dict)
    for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
        print(f"{name:24} {size / 1e6:6.1f} MB")
    total_mb = sum(sizes.values()) / 1e6
    print(f"{len(sizes)} packages, {total_mb:.1f} MB")
    assert len(sizes) <= PACKAGES_MAX
    assert total_mb <= INSTALLED_MB_MAX


def _check_imports(environment: Environment) -> None:
    imported = environment.python(IMPORT_EVERYTHING.format(extras=OF_EXTRAS))
    assert isinstance(imported, list)
    count, names = imported
    assert count > 300
    assert not DEV_ONLY & set(names)


def _check_cluster(environment: Environment) -> None:
    up = subprocess.Popen(
        [environment.bin / "barnabas", "up", "--brokers", "1", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=environment.folder,
        env=environment.variables,
    )
    try:
        assert up.stdout is not None
        ready, _, bootstrap = up.stdout.readline().strip().partition("=")
        assert ready == "ready bootstrap"
        cluster = ("--bootstrap-server", bootstrap, "--topic", "orders")
        environment.run("barnabas", "console-producer", *cluster, stdin="coffee\nbread\n")
        limits = ("--from-beginning", "--max-messages", "2", "--timeout-ms", "60000")
        assert environment.run("barnabas", "console-consumer", *cluster, *limits) == "coffee\nbread\n"
    finally:
        up.send_signal(signal.SIGINT)
        up.communicate(timeout=60)
    assert up.returncode == 0
