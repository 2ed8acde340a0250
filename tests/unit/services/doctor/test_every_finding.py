"""No finding without a test that causes it: of a cluster on a real one, of a file on a real file."""

import re
from pathlib import Path

import barnabas.services.doctor

ROOT = Path(__file__).parents[4]
SOURCES = Path(barnabas.services.doctor.__file__).parent
#: Findings of `doctor --file`, what only a cluster with Apache Kafka shows, and what takes several hosts.
ELSEWHERE = [
    ROOT / "tests/unit/services/doctor/test_doctor_file.py",
    ROOT / "tests/unit/services/doctor/test_neighbour_checks.py",
    ROOT / "tests/interop/test_mixed_cluster.py",
]


def checks() -> set[str]:
    """A finding's name is the second thing that it is made of."""
    text = "\n".join(path.read_text() for path in SOURCES.rglob("*.py"))
    return set(re.findall(r'Finding\(\s*[\w.]+,\s*"([a-z-]+)"', text))


def test_every_finding_is_caused_by_a_test():
    tests = [*(ROOT / "tests/scenarios/docs").glob("test_doctor_*.py"), *ELSEWHERE]
    caused = {name for path in tests for name in re.findall(r'"([a-z-]+)"', path.read_text())}
    assert len(checks()) > 30
    assert checks() - caused == set()
