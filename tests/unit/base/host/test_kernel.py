"""The plain ways of POSIX do what Linux's do, and what only Linux has is called in one module."""

import ast
import contextlib
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from barnabas.base.host import kernel as linux

ROOT = Path(linux.__file__).parents[2]
#: Names that other POSIX systems' Python does not have, or has with another meaning.
LINUX_ALONE = {
    *("copy_file_range", "fdatasync", "memfd_create", "pidfd_open", "posix_fallocate", "preadv", "RWF_NOWAIT"),
    *("sched_getaffinity", "SEEK_DATA", "SEEK_HOLE", "sendfile", "MSG_MORE", "SOCK_CLOEXEC", "SOCK_NONBLOCK"),
    *("epoll", "eventfd", "O_TMPFILE", "O_DIRECT", "pipe2"),
}
LINUX_PATHS = ("/proc/", "/dev/shm")
#: Where such a name is something else, or is looked for and not relied on.
ALLOWED = {
    "base/host/kernel.py",
    "base/host/process_title.py",  # does nothing elsewhere
    "base/tls/contexts.py",  # a file in memory, else a private one
    "services/doctor/free_space.py",  # names of folders that do not last
}


@pytest.fixture(params=["linux", "posix"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    if request.param == "linux":
        yield linux
        return
    with monkeypatch.context() as patch:
        patch.setenv("BARNABAS_POSIX_ONLY", "1")
        patch.delitem(sys.modules, linux.__name__)
        for name in LINUX_ALONE:
            patch.delattr(os, name, raising=False)
            patch.delattr(socket, name, raising=False)
            patch.delattr(select, name, raising=False)
        yield importlib.import_module(linux.__name__)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"0123456789")
    yield fd
    os.close(fd)


def test_bytes_are_read_into_a_buffer(kernel: ModuleType, file: int) -> None:
    buffer = bytearray(4)
    assert kernel.preadinto(file, buffer, 8) == 2
    assert buffer == b"89\0\0"
    assert kernel.preadinto(file, memoryview(buffer)[1:], 3) == 3
    assert buffer == b"8345"


def test_reading_without_waiting_reads_or_says_that_it_cannot_tell(kernel: ModuleType, file: int) -> None:
    buffer = bytearray(4)
    try:
        assert kernel.read_now(file, buffer, 2) == 4
    except OSError as error:
        assert not isinstance(error, BlockingIOError)
    else:
        assert buffer == b"2345"


def test_reserved_bytes_have_blocks(kernel: ModuleType, file: int) -> None:
    kernel.reserve(file, 10, 3_000_000)
    state = os.fstat(file)
    assert state.st_size == 3_000_010
    assert state.st_blocks * 512 >= 3_000_000
    assert os.pread(file, 10, 0) == b"0123456789"


def test_file_is_synced(kernel: ModuleType, file: int) -> None:
    kernel.fdatasync(file)
    kernel.fsync(file)


def test_range_of_a_file_is_sent(kernel: ModuleType, file: int) -> None:
    near, far = socket.socketpair()
    with near, far:
        assert kernel.sendfile(near, file, 2, 5) == 5
        assert far.recv(100) == b"23456"


def test_nothing_is_sent_to_a_full_socket(kernel: ModuleType, file: int) -> None:
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                near.send(bytes(65536))
        with pytest.raises(BlockingIOError):
            kernel.sendfile(near, file, 0, 10)


@pytest.mark.parametrize("size", [0, 10, 2_500_000])
def test_data_is_copied(kernel: ModuleType, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "from").write_bytes(data + b"more")
    with (tmp_path / "from").open("rb") as source, (tmp_path / "to").open("xb") as target:
        kernel.copy_data(source.fileno(), target.fileno(), size)
    assert (tmp_path / "to").read_bytes() == data


def test_file_that_is_too_short_is_not_filled_up(kernel: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "from").write_bytes(b"abc")
    with (
        (tmp_path / "from").open("rb") as source,
        (tmp_path / "to").open("xb") as target,
        pytest.raises(OSError, match="7 too few"),
    ):
        kernel.copy_data(source.fileno(), target.fileno(), 10)


def test_end_of_a_child_is_seen(kernel: ModuleType) -> None:
    child = subprocess.Popen(["sleep", "60"])
    descriptor = kernel.watch_child(child.pid)
    heir = os.fork()
    if heir == 0:  # has all descriptors of this process
        time.sleep(60)
        os._exit(0)
    try:
        assert not select.select([descriptor], [], [], 0.05)[0]
        child.kill()
        assert select.select([descriptor], [], [], 10)[0]
        assert child.wait() == -signal.SIGKILL
    finally:
        os.kill(heir, signal.SIGKILL)
        os.waitpid(heir, 0)
        os.close(descriptor)


def test_end_of_another_process_is_waited_for(kernel: ModuleType) -> None:
    # A grandchild: the shell waits for it, and this process cannot.
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        pid = int(shell.stdout.readline())
        assert not kernel.wait_until_ended(pid, 0.1)
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            assert kernel.wait_until_ended(pid, 10)
    with pytest.raises(ProcessLookupError):
        kernel.wait_until_ended(pid, 1)


def test_stopped_process_is_recognized(kernel: ModuleType) -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert not kernel.is_stopped(child.pid)
        child.send_signal(signal.SIGSTOP)
        end_s = time.monotonic() + 10
        while not kernel.is_stopped(child.pid) and time.monotonic() < end_s:
            time.sleep(0.01)
        assert kernel.is_stopped(child.pid)
    finally:
        child.kill()
        child.wait()


def test_machine_is_counted(kernel: ModuleType) -> None:
    assert kernel.processors() >= 1
    assert kernel.open_descriptors() >= 3


@pytest.mark.parametrize("posix_only", ["0", "1"])
def test_process_ends_when_the_one_that_started_it_is_killed(posix_only: str) -> None:
    """The middle process starts a child that would sleep for a minute, and is killed."""
    child = "import time; from barnabas.base.host import kernel; kernel.end_with_parent(); print('ready', flush=True); "
    child += "time.sleep(60)"
    middle = (
        f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {child!r}]).pid, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", middle],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "BARNABAS_POSIX_ONLY": posix_only},
    ) as process:
        assert process.stdout is not None
        lines = {process.stdout.readline().strip() for _ in range(2)}
        assert "ready" in lines
        pid = int((lines - {"ready"}).pop())
        process.kill()
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        assert linux.wait_until_ended(pid, 20)


def _linux_alone(module: Path) -> list[str]:
    found: list[str] = []
    source = module.read_text()
    # Most modules have none of these words, and this is faster than reading them as Python.
    if not any(word in source for word in (*LINUX_ALONE, *LINUX_PATHS, "uvloop")):
        return found
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
            if node.value.id in ("os", "socket", "select", "signal", "fcntl") and node.attr in LINUX_ALONE:
                found.append(f"{name} in line {node.lineno}")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.name for alias in node.names}
            if "uvloop" in names or getattr(node, "module", "") == "uvloop":
                found.append(f"uvloop in line {node.lineno}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(LINUX_PATHS):
            found.append(f"{node.value} in line {node.lineno}")
    return found


def test_system_calls_of_linux_alone_are_in_one_module() -> None:
    found = {
        str(module.relative_to(ROOT)): names
        for module in sorted(ROOT.rglob("*.py"))
        if str(module.relative_to(ROOT)) not in ALLOWED and (names := _linux_alone(module))
    }
    assert found == {}, "call barnabas.base.host.kernel, which has a plain way for other systems"
