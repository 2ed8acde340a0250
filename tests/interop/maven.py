"""Java class paths by Maven coordinates, fetched once into `.interop/` (which git ignores).

`classpath("org.apache.zookeeper:zookeeper:3.8.4", …)` resolves the artifacts with their dependencies. Its result is for
`java -cp`. Needs `mvn` and `java`; tests that use it are marked `interop`.
"""

import hashlib
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

from tests.interop.archives import unpack

ROOT = Path(__file__).resolve().parents[2] / ".interop"

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>interop</groupId><artifactId>interop</artifactId><version>1</version>
<dependencies>
{dependencies}
</dependencies></project>
"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{{}}</dependency>"
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


class MavenFailed(RuntimeError):
    """Maven could not resolve the coordinates; the message holds the end of its output."""


#: Spark's official Kafka connector, in the versions that run with pyspark 4.3.
SPARK_KAFKA = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.13.1",
)
#: The library for `from_avro`.
SPARK_AVRO = ("org.apache.spark:spark-avro_2.13:4.1.1",)


def is_available() -> bool:
    return shutil.which("mvn") is not None and shutil.which("java") is not None


def classpath(*coordinates: str) -> str:
    """Return the class path of `group:artifact:version` coordinates and all their run-time dependencies."""
    key = hashlib.sha256("\n".join(sorted(coordinates)).encode()).hexdigest()[:16]
    folder = ROOT / f"classpath-{key}"
    jars = folder / "jars"
    if not (folder / "complete").exists():
        _fetch(folder, jars, coordinates)
    return ":".join(str(jar) for jar in sorted(jars.glob("*.jar")))


def jars(*coordinates: str) -> list[Path]:
    """Return only these artifacts, without dependencies: for a program that has the rest, such as Spark."""
    key = hashlib.sha256("\n".join(sorted(coordinates)).encode()).hexdigest()[:16]
    folder = ROOT / f"jars-{key}"
    if not (folder / "complete").exists():
        _fetch(folder, folder / "jars", coordinates, _ALONE)
    return sorted((folder / "jars").glob("*.jar"))


def unpacked(coordinate: str, prepare: Callable[[Path], None]) -> Path:
    """Return the folder of a distribution, `group:artifact:version:tar.gz`, after `prepare` has changed it."""
    folder = ROOT / "-".join(coordinate.split(":")[1:3])
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _run(coordinate, "dependency:copy", f"-Dartifact={coordinate}", f"-DoutputDirectory={folder}", cwd=folder)
        [archive] = folder.glob("*.tar.gz")
        with tarfile.open(archive) as opened:
            unpack(opened, folder)
        archive.unlink()
        prepare(folder)
        (folder / "complete").touch()
    return folder


def _fetch(folder: Path, jars: Path, coordinates: tuple[str, ...], exclusions: str = "") -> None:
    jars.mkdir(parents=True, exist_ok=True)
    dependencies = "\n".join(
        _DEPENDENCY.format(*coordinate.split(":")).format(exclusions) for coordinate in coordinates
    )
    (folder / "pom.xml").write_text(_POM.format(dependencies=dependencies))
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}", "-DincludeScope=runtime"]
    _run(" ".join(coordinates), "-f", str(folder / "pom.xml"), *goal, cwd=folder)
    (folder / "complete").touch()


def _run(wanted: str, *arguments: str, cwd: Path) -> None:
    command = ["mvn", "-q", "-B", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise MavenFailed(f"{wanted}: {(done.stdout + done.stderr)[-2000:]}")
