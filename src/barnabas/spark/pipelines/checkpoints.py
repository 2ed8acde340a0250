"""Finds the checkpoints of a project's flows: `<storage>/_checkpoints/<target>/<flow>/<start>`, as Spark lays them out."""

from barnabas.spark.checkpoint_files import CheckpointFiles, location_of


def checkpoints_of(storage: str) -> dict[str, CheckpointFiles]:
    """Return the checkpoints by TARGET/FLOW. A full refresh begins a folder with the next number; Spark uses the last."""
    root = CheckpointFiles(location_of(f"{storage}/_checkpoints"))
    names = [f"{target}/{flow}" for target in root.folders("") for flow in root.folders(target)]
    found = {name: _last_start(root, name) for name in sorted(names)}
    return {name: files for name, files in found.items() if files is not None}


def checkpoint_of(storage: str, target: str, flow: str) -> CheckpointFiles | None:
    """Return the checkpoint of a flow; None if the flow has not run yet."""
    return _last_start(CheckpointFiles(location_of(f"{storage}/_checkpoints")), f"{target}/{flow}")


def _last_start(root: CheckpointFiles, name: str) -> CheckpointFiles | None:
    starts = [int(each) for each in root.folders(name) if each.isdigit()]
    return CheckpointFiles(f"{root.location}/{name}/{max(starts)}") if starts else None
