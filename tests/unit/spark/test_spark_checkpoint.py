"""The id of a checkpoint, its location, and its planned batch."""

import json
import os
from pathlib import Path

import pytest

from barnabas.spark import checkpoint
from barnabas.spark.batch_identity import UNKNOWN, BatchIdentity, fingerprint, refusal
from barnabas.spark.checkpoint import BY_CALLER, BY_CHECKPOINT, FILE, NOT_KNOWN, Planned, planned_once, read_planned
from barnabas.spark.checkpoint_files import CannotRead, CheckpointFiles, location_of
from barnabas.spark.pipelines.checkpoints import checkpoint_of, checkpoints_of

PLANNED = b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":77,"conf":{}}\n{"in":{"0":9}}'


@pytest.fixture
def here(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    (folder / "offsets").mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"q"}')
    (folder / "offsets" / "9").write_bytes(b"nine")
    (folder / "offsets" / "10").write_bytes(PLANNED)
    (folder / "offsets" / ".10.crc").write_bytes(b"crc")
    return folder


def test_a_checkpoint_says_what_its_last_batch_is(here: Path) -> None:
    found = read_planned(str(here))
    named = json.loads((here / FILE).read_text())
    assert (found.query, found.checkpoint, found.known_as) == ("q", named["id"], "")
    assert (found.batch, found.offsets, found.planned_at_ms) == (10, fingerprint(PLANNED), 77)
    assert found.offsets_of(9) == UNKNOWN
    assert (found.previous_of(10), found.previous_of(9)) == (fingerprint(b"nine"), UNKNOWN)
    assert read_planned(str(here)) == found


def test_all_spellings_of_a_folder_have_one_location(here: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(here)
    names = [str(here), f"file://{here}", f"file:{here}/", f"{here}/../checkpoint", str(tmp_path / "link")]
    assert len({location_of(name) for name in names}) == 1
    assert len({read_planned(name).checkpoint for name in names}) == 1
    assert location_of("s3a://bucket/state/orders/") == "s3a://bucket/state/orders"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda here: (here / "metadata").unlink(), "has no file metadata"),
        (lambda here: [path.unlink() for path in (here / "offsets").iterdir()], "has no planned batch"),
        (lambda here: (here / FILE).write_text("[]"), "is damaged"),
        (lambda here: (here / FILE).write_text('{"version": 1}'), "is damaged"),
        (
            lambda here: (here / FILE).write_text('{"version":2,"id":"i","known_as":"q","location":"/","replaces":[]}'),
            "newer",
        ),
    ],
)
def test_a_checkpoint_that_cannot_be_read_says_why(here: Path, damage: object, words: str) -> None:
    read_planned(str(here))
    damage(here)  # type: ignore[operator]
    found = read_planned(str(here))
    assert words in found.reason
    assert UNKNOWN in (found.checkpoint, found.offsets)


def test_an_object_store_that_cannot_be_opened_says_why() -> None:
    assert "cannot open nostore://bucket/state" in read_planned("nostore://bucket/state").reason


def test_a_file_is_written_whole_or_not_at_all(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = CheckpointFiles(location_of(str(here)))
    files.write("barnabas/x", b"one")
    files.write("barnabas/x", b"two", only_if_new=True)
    assert files.read("barnabas/x") == b"one"

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CannotRead, match="No space left on device"):
        files.write("barnabas/x", b"three")
    assert files.read("barnabas/x") == b"one"
    assert files.names("barnabas") == ["x"]


def test_a_write_with_once_is_known_by_its_caller_or_by_the_checkpoint_around_it(here: Path) -> None:
    around = planned_once(BY_CHECKPOINT, str(here))
    assert (around.query, around.offsets_of(1), around.previous_of(10)) == ("q", fingerprint(PLANNED), UNKNOWN)
    assert planned_once(BY_CALLER, "").offsets_of(3) == BY_CALLER
    assert "checkpoint=" in planned_once(NOT_KNOWN, "").reason


def test_batches_that_came_again_are_counted(here: Path) -> None:
    for batch, rows in ((3, 10), (4, 5)):
        checkpoint.note_repeated(str(here), batch, rows)
    found = checkpoint.repeated(CheckpointFiles(location_of(str(here))))
    assert (found.batches, found.rows, found.last_batch) == (2, 15, 4)


def test_the_last_start_of_a_flow_counts(tmp_path: Path) -> None:
    for name in ("lake/orders/0", "lake/orders/2", "lake/orders/10", "topic/orders/0", "lake/new"):
        (tmp_path / "_checkpoints" / name).mkdir(parents=True)
    found = checkpoints_of(f"file://{tmp_path}")
    assert {name: files.location.rpartition("/")[2] for name, files in found.items()} == {
        "lake/orders": "10",
        "topic/orders": "0",
    }
    assert checkpoint_of(f"file://{tmp_path}", "lake", "new") is None


def test_an_identity_says_what_differs_and_is_the_same_after_a_round_trip() -> None:
    one = BatchIdentity(query="q", checkpoint="c", batch=4, offsets="o", target="t")
    assert BatchIdentity.of_text(one.as_text()) == one and one.is_same(one)
    other = BatchIdentity(query="q", checkpoint="d", batch=4, offsets=UNKNOWN, target="t")
    assert one.differences(other) == ("checkpoint", "offsets")
    assert not other.is_same(other), "an unknown part never matches"
    said = refusal(one, other, remedy="Do this.", reason="The folder is gone")
    assert "differs in the checkpoint and the planned offsets. The folder is gone. Written before: batch 4" in said
    assert said.endswith("Do this.")
    assert Planned().checkpoint == UNKNOWN
