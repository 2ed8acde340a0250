"""Java class paths by Maven coordinates, fetched once into `.interop/` (which git ignores).

`classpath("org.apache.zookeeper:zookeeper:3.8.4", …)` resolves the artifacts with their dependencies and returns what
`java -cp` takes. Needs `mvn` and `java`; tests that use it are marked `interop`.
"""

import hashlib
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / ".interop"

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>interop</groupId><artifactId>interop</artifactId><version>1</version>
<dependencies>
{dependencies}
</dependencies></project>
"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


class MavenFailed(RuntimeError):
    """Maven could not resolve the coordinates; the message holds the end of its output."""


def is_available() -> bool:
    return shutil.which("mvn") is not None and shutil.which("java") is not None


def classpath(*coordinates: str) -> str:
    """The class path of `group:artifact:version` coordinates and all that they need at run time."""
    key = hashlib.sha256("\n".join(sorted(coordinates)).encode()).hexdigest()[:16]
    folder = ROOT / f"classpath-{key}"
    jars = folder / "jars"
    if not (folder / "complete").exists():
        _fetch(folder, jars, coordinates)
    return ":".join(str(jar) for jar in sorted(jars.glob("*.jar")))


def _fetch(folder: Path, jars: Path, coordinates: tuple[str, ...]) -> None:
    jars.mkdir(parents=True, exist_ok=True)
    dependencies = "\n".join(_DEPENDENCY.format(*coordinate.split(":")) for coordinate in coordinates)
    (folder / "pom.xml").write_text(_POM.format(dependencies=dependencies))
    command = ["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={jars}", "-DincludeScope=runtime"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise MavenFailed(f"{' '.join(coordinates)}: {(done.stdout + done.stderr)[-2000:]}")
    (folder / "complete").touch()
