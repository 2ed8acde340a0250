"""The process of a streaming source: it calls Spark before it imports anything, and is forked from one with all imports."""

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest

from barnabas.spark import early_worker, python_command
from barnabas.testing import wait_until

SECRET = "a secret"
#: Stands for Spark's module. Its import waits until the test lets it.
MODULE = """
import os, pathlib, struct, sys, time

while not pathlib.Path(__file__).with_name("go").exists():
    time.sleep(0.01)

def main(infile, outfile):
    [size] = struct.unpack("!i", infile.read(4))
    asked = infile.read(size).decode()
    print("a line for the log", flush=True)
    if asked == "fail":
        raise SystemExit(3)
    said = " ".join([asked, os.environ["MINE"], os.getcwd(), str(os.getppid())]).encode()
    outfile.write(struct.pack("!i", len(said)) + said)
    outfile.flush()
"""
#: Stands for Spark's JVM: starts a process for each line, and waits.
PARENT = "import subprocess, sys\nfor line in sys.stdin: subprocess.Popen(line.split(), stdin=subprocess.DEVNULL)"


class Spark:
    """The JVM's side of sources."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(60)
        (folder / "a_source.py").write_text(MODULE)
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}",
            "PYTHON_WORKER_FACTORY_PORT": str(self.listener.getsockname()[1]),
            "PYTHON_WORKER_FACTORY_SECRET": SECRET,
            "MINE": "mine",
        }
        with open(folder / "log", "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PARENT],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=folder,
            )

    def start(self, nursery: Path) -> IO[bytes]:
        """Start a source up to the end of Spark's time limit: it has called, and knows the secret."""
        assert self.process.stdin is not None
        command = f"{sys.executable} -P {early_worker.__file__} {nursery} -m a_source\n"
        self.process.stdin.write(command.encode())
        self.process.stdin.flush()
        source, _ = self.listener.accept()
        source.settimeout(60)
        file: IO[bytes] = source.makefile("rwb")  # type: ignore[assignment]
        source.close()
        assert text(file) == SECRET
        send(file, "ok")
        return file

    def go(self) -> None:
        (self.folder / "go").touch()


def text(file: IO[bytes]) -> str:
    [size] = struct.unpack("!i", file.read(4))
    return file.read(size).decode()


def number(file: IO[bytes]) -> int:
    [found] = struct.unpack("!i", file.read(4))
    return int(found)


def send(file: IO[bytes], what: str) -> None:
    file.write(struct.pack("!i", len(what)) + what.encode())
    file.flush()


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[Spark]:
    made = Spark(tmp_path)
    try:
        yield made
    finally:
        made.go()
        made.process.kill()
        made.process.communicate()
        made.listener.close()


def is_alive(process: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(process, 0)
        return True
    return False


@contextmanager
def source(spark: Spark, nursery: Path) -> Iterator[tuple[int, IO[bytes]]]:
    with spark.start(nursery) as file:
        yield number(file), file


def test_sources_call_before_they_import_and_share_a_nursery_that_ends_with_spark(spark: Spark) -> None:
    with spark.start(spark.folder) as one, spark.start(spark.folder) as other:
        # Spark's limit ends here. No import has been made yet.
        spark.go()
        parents = set()
        for file in (one, other):
            process = number(file)
            send(file, "asked")
            asked, mine, folder, parent = text(file).split()
            assert (asked, mine, folder) == ("asked", "mine", str(spark.folder))
            parents.add(int(parent))
            wait_until(lambda process=process: not is_alive(process))
    [nursery] = parents
    assert nursery != spark.process.pid
    spark.process.kill()
    spark.process.wait()
    wait_until(lambda: not is_alive(nursery))
    assert (spark.folder / "log").read_text() == "a line for the log\n" * 2


def test_a_source_without_a_nursery_runs_by_itself_and_says_why(spark: Spark) -> None:
    spark.go()
    with source(spark, spark.folder / "absent") as (_, file):
        send(file, "asked")
        assert text(file).split()[-1] == str(spark.process.pid)
    assert "a Python process of its own, which starts slowly" in (spark.folder / "log").read_text()


def test_a_source_that_fails_ends_and_the_next_one_starts(spark: Spark) -> None:
    spark.go()
    with source(spark, spark.folder) as (process, file):
        send(file, "fail")
        assert file.read() == b""
        wait_until(lambda: not is_alive(process))
    with source(spark, spark.folder) as (_, file):
        send(file, "asked")
        assert text(file).startswith("asked ")


def test_the_command_runs_its_arguments_without_sparks_archive(tmp_path: Path) -> None:
    command = python_command.python_command()
    paths = "/x/pyspark.zip:/x/py4j-0.10.9.9-src.zip"
    show = [command, "-c", "import os; print(os.environ['PYTHONPATH'])"]
    for given, wanted in ((f"{paths}:/mine:/yours", "/mine:/yours"), (paths, ""), ("/mine", "/mine")):
        environment = {**os.environ, "PYTHONPATH": given}
        assert subprocess.check_output(show, env=environment, text=True).strip() == wanted
    text = Path(command).read_text()
    assert "-m barnabas.spark.daemon" in text
    assert f"-m {python_command._SOURCE}" in text


def test_only_a_spark_on_this_machine_is_given_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for master, wanted in (("local[2]", python_command.python_command()), ("spark://host:7077", sys.executable)):
        monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
        monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "kept")
        python_command.set_python(master)
        assert (os.environ["PYSPARK_PYTHON"], os.environ["PYSPARK_DRIVER_PYTHON"]) == (wanted, "kept")
    monkeypatch.setenv("PYSPARK_PYTHON", "/my/python")
    python_command.set_python("local[2]")
    assert os.environ["PYSPARK_PYTHON"] == "/my/python"
