"""Benchmarks beside Apache Kafka and Apache ZooKeeper: same machine, same client, same run."""

import os


def as_installed(folder: str) -> dict[str, str]:
    """Return the environment of a process of ours as after a pip installation: with compiled bytecode, in `folder`.

    A read-only checkout compiles every module at every start, which does not happen after an installation. The first start with
    this environment compiles; measure the second.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**environment, "PYTHONPYCACHEPREFIX": folder}
