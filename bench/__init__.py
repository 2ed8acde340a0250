"""Benchmarks beside Apache Kafka and Apache ZooKeeper: same machine, same client, same run."""

import os


def as_installed(folder: str) -> dict[str, str]:
    """The environment of a process of ours as pip leaves it: with its bytecode compiled, in `folder`.

    A checkout that must not be written to compiles every module at every start, which nobody who installs it does.
    The first start with it compiles; measure the second.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**environment, "PYTHONPYCACHEPREFIX": folder}
