"""Runs the process of a streaming source: `python early_worker.py FOLDER -m MODULE`, in place of `python -m MODULE`.

Spark waits ten seconds for the process to call, and no setting changes that. `python -m MODULE` imports pyspark first, which
takes longer where many streams start at once. This script calls first, as `pyspark.worker_util.get_sock_file_to_executor` does.

Then it hands the connection to a nursery: a process of this driver that has made all imports, and forks one for each source.
The first source of a driver starts the nursery, which ends with Spark. If it cannot be started, the script runs the module.

The script imports neither pyspark nor barnabas before it has called. `barnabas.spark.python_command` makes Spark run it.
"""

import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import zlib
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, NoReturn, cast

#: The nursery imports these beside the module itself.
_PRELOADED: Final = ("barnabas.spark.source", "barnabas.spark.reader", "barnabas.spark.fetching")
_LENGTH: Final = struct.Struct("!i")
_FORKED: Final = b"f"
_LOOK_EVERY_MS: Final = 1000
#: Higher than any descriptor that a process has open at its start.
_DESCRIPTORS: Final = 1024


def connected() -> socket.socket:
    """The connection to the JVM, which knows this process by the secret."""
    path = os.environ.get("PYTHON_WORKER_FACTORY_SOCK_PATH")
    if path is not None:
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        local.connect(path)
        return local
    host = "::1" if os.environ.get("SPARK_PREFER_IPV6", "false").lower() == "true" else "127.0.0.1"
    jvm = socket.create_connection((host, int(os.environ["PYTHON_WORKER_FACTORY_PORT"])))
    secret = os.environ["PYTHON_WORKER_FACTORY_SECRET"].encode()
    jvm.sendall(_LENGTH.pack(len(secret)) + secret)
    answer = _received(jvm, _LENGTH.unpack(_received(jvm, _LENGTH.size))[0])
    if answer != b"ok":
        raise SystemExit(f"Spark does not accept the secret that it gave to this process: {answer!r}")
    return jvm


def run(folder: str, module: str) -> None:
    jvm = connected()
    if not handed_over(folder, module, jvm):
        _serve(jvm, module)


def _serve(jvm: socket.socket, module: str) -> None:
    """Send the JVM the id of this process, and serve its requests."""
    import importlib

    with cast(IO[bytes], jvm.makefile("rwb", int(os.environ.get("SPARK_BUFFER_SIZE", "65536")))) as file:
        file.write(_LENGTH.pack(os.getpid()))
        file.flush()
        importlib.import_module(module).main(file, file)


def _received(from_: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = from_.recv(size - len(found))
        if not part:
            raise EOFError("the other side closed the connection")
        found += part
    return found


# -- the nursery ------------------------------------------------------------------------------------------------------------


def handed_over(folder: str, module: str, jvm: socket.socket) -> bool:
    """Pass the connection and this process's output on to the nursery; return whether it forked a process that serves them."""
    try:
        with _nursery(folder, module) as nursery:
            request = json.dumps({"environment": dict(os.environ), "folder": str(Path.cwd())}).encode()
            socket.send_fds(nursery, [_LENGTH.pack(len(request))], [jvm.fileno(), 1, 2])
            nursery.sendall(request)
            return _received(nursery, 1) == _FORKED
    except (OSError, EOFError) as error:
        sys.stderr.write(f"this streaming source has a Python process of its own, which starts slowly: {error}\n")
        return False


def _nursery(folder: str, module: str) -> socket.socket:
    """Return a connection to the nursery, which this starts if it does not run."""
    # Processes with another PYTHONPATH find other modules, so they have a nursery of their own.
    path = f"{folder}/{zlib.crc32(os.environ.get('PYTHONPATH', '').encode()):08x}.sock"
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with suppress(FileNotFoundError, ConnectionRefusedError):
            client.connect(path)
            return client
        with suppress(FileNotFoundError):
            Path(path).unlink()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(path)
            listener.listen(1024)
            spark = os.getppid()
            if os.fork() == 0:
                _run_nursery(listener, module, spark)
        client.connect(path)  # the socket's backlog accepts the connection while the nursery imports
        return client


def _run_nursery(listener: socket.socket, module: str, spark: int) -> NoReturn:
    """Run the nursery until the process with the id `spark`, Spark's JVM, has ended."""
    code = 1
    try:
        import importlib

        os.setsid()  # a Ctrl-C is for the driver
        # Otherwise the nursery would hold the lock and the connections of the process that started it for as long as it lives.
        os.closerange(3, listener.fileno())
        os.closerange(listener.fileno() + 1, _DESCRIPTORS)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        for name in (module, *_PRELOADED):
            importlib.import_module(name)
        poller = select.poll()
        poller.register(listener, select.POLLIN)
        while _is_alive(spark):
            if poller.poll(_LOOK_EVERY_MS):
                client, _ = listener.accept()
                with client:
                    _fork_one(listener, client, module)
        code = 0
    finally:
        os._exit(code)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _fork_one(listener: socket.socket, client: socket.socket, module: str) -> None:
    head, descriptors, _, _ = socket.recv_fds(client, _LENGTH.size, 3)
    try:
        request = json.loads(_received(client, _LENGTH.unpack(head)[0]))
        if os.fork() == 0:
            listener.close()
            _run_source(request, descriptors, client, module)
    except (EOFError, struct.error) as error:
        sys.stderr.write(f"a process that asked for a streaming source has ended: {error}\n")
    finally:
        for each in descriptors:
            os.close(each)


def _run_source(request: dict[str, object], descriptors: list[int], client: socket.socket, module: str) -> NoReturn:
    """Run a source's process, as if Spark had started it."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        jvm, out, err = descriptors
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.environ.clear()
        os.environ.update(cast(dict[str, str], request["environment"]))
        os.chdir(cast(str, request["folder"]))
        client.sendall(_FORKED)
        client.close()
        _serve(socket.socket(fileno=jvm), module)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xFF)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[3])
