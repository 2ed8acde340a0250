"""librdkafka's own integration tests, as its authors run them against Apache Kafka.

The npm package node-rdkafka contains all of librdkafka's source, with its tests. It is built once into
`.interop/` (which git ignores). Needs npm, make and a C and C++ compiler.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.interop.archives import unpack

ROOT = Path(__file__).resolve().parents[2] / ".interop"
#: Contains librdkafka 2.12.0.
PACKAGE = "node-rdkafka@3.6.1"
_INSIDE = "package/deps/librdkafka/"
_BUILD_TIMEOUT_S = 1200
#: Tools of Kafka's distribution that the suite calls, and that ours replace with the same flags.
_TOOLS = ("acls", "topics")


class BuildFailed(RuntimeError):
    """A step of the build failed; the message holds the end of its output."""


def is_available() -> bool:
    return all(shutil.which(program) for program in ("npm", "make", "gcc", "g++", "bash"))


@dataclass(frozen=True)
class Outcome:
    """The result of one of the suite's tests."""

    name: str
    #: PASSED, FAILED, SKIPPED, or RUNNING if the whole suite was stopped.
    state: str
    duration_s: float


@dataclass(frozen=True)
class Suite:
    """The built suite: `folder` is librdkafka's source tree."""

    folder: Path

    @classmethod
    def built(cls) -> "Suite":
        """Return the suite in `.interop/`; fetch and build it first if it is missing."""
        folder = ROOT / PACKAGE.replace("@", "-") / "librdkafka"
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            _fetch(folder)
            # Without optimization: the tests wait for the broker, not for the library, and the build takes half the time.
            _step(folder, "bash", "configure", "--disable-optimization")
            _step(folder, "make", "-j2", "libs")
            _step(folder / "tests", "make", "-j2", "test-runner")
            (folder / "complete").touch()
        return cls(folder)

    @property
    def has_rapidjson(self) -> bool:
        return "#define WITH_RAPIDJSON 1" in (self.folder / "config.h").read_text()

    def run(
        self,
        bootstrap: str,
        tests: Sequence[str],
        *,
        work: Path,
        parallel: int = 4,
        timeout_s: float = 600,
        environment: Mapping[str, str] | None = None,
    ) -> list[Outcome]:
        """Run tests by their numbers, only those that need a broker. Their output is in `work`/suite.log."""
        (work / "test.conf").write_text(
            f"bootstrap.servers={bootstrap}\ntest.topic.random=true\ntest.timeout.multiplier=3\n"
        )
        report = work / "report.json"
        settings = {
            **os.environ,
            "RDKAFKA_TEST_CONF": str(work / "test.conf"),
            "TEST_REPORT": str(report),
            "TEST_KAFKA_VERSION": "3.9.0",
            "TESTS": ",".join(tests),
            "BROKERS": bootstrap,
            "KAFKA_PATH": str(_tools(work / "kafka")),
            "LD_LIBRARY_PATH": f"{self.folder}/src:{self.folder}/src-cpp",
            **(environment or {}),
        }
        with (work / "suite.log").open("wb") as log:
            subprocess.run(
                ["./test-runner", "-L", f"-p{parallel}"],
                cwd=self.folder / "tests",
                env=settings,
                stdout=log,
                stderr=log,
                timeout=timeout_s,
                check=False,  # the report lists the failed tests; without a report all have failed
            )
        if not report.exists():
            return [Outcome(number, "CRASHED", 0) for number in tests]
        found = json.loads(report.read_text())["tests"].values()
        return [
            Outcome(each["name"], each["state"], each["duration"])
            for each in found
            if each["name"][:4] in tests and each["state"] != "SKIPPED"
        ]


def failures(work: Path) -> str:
    """Return the suite's output about failed tests, for the message of an assertion."""
    lines = (work / "suite.log").read_text(errors="replace").splitlines()
    found = [number for number, line in enumerate(lines) if line.lstrip("\x1b[0123456789m").startswith("###")]
    return "\n".join("\n".join(lines[number : number + 2]) for number in found)


def _fetch(folder: Path) -> None:
    _step(folder.parent, "npm", "pack", "--silent", PACKAGE)
    [archive] = folder.parent.glob("node-rdkafka-*.tgz")
    with tarfile.open(archive) as tar:
        wanted = [member for member in tar.getmembers() if member.name.startswith(_INSIDE)]
        for member in wanted:
            member.name = member.name.removeprefix(_INSIDE)
        unpack(tar, folder, wanted)


def _step(folder: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise BuildFailed(f"{' '.join(command)}: {(done.stdout + done.stderr)[-2000:]}")


def _tools(folder: Path) -> Path:
    """Make a Kafka distribution with what the tests need: `bin/kafka-topics.sh` is `barnabas topics`."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    for tool in _TOOLS:
        script = folder / "bin" / f"kafka-{tool}.sh"
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m barnabas {tool} "$@"\n')
        script.chmod(0o755)
    return folder
