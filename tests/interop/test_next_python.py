"""The wheel on a Python that this machine may not have: a container with Debian's next release."""

import pytest

from tests.interop.containers import LIMITS, base, build, need_programs, podman

VERSION = "3.14"
BASE = f"localhost/barnabas-python-{VERSION}-base"
IMAGE = f"localhost/barnabas-python-{VERSION}-test"
CONTAINERFILE = f"""
FROM {BASE}
COPY . /setup
RUN python{VERSION} -m venv /opt/barnabas && /opt/barnabas/bin/pip install --quiet --no-cache-dir /setup/*.whl
ENV PATH=/opt/barnabas/bin:/usr/bin:/bin HOME=/tmp
"""
WALK = """
set -e
python --version
barnabas up --brokers 3 --port 0 --data /tmp/cluster --detach >/dev/null
bootstrap=$(barnabas status --json | python -c 'import json, sys; print(json.load(sys.stdin)[0]["bootstrap"])')
at="--bootstrap-server $bootstrap --topic orders"
printf 'coffee\\nbread\\n' | barnabas console-producer $at
barnabas console-consumer $at --from-beginning --max-messages 2 --timeout-ms 60000
barnabas down --data /tmp/cluster
"""
pytestmark = pytest.mark.timeout(1800)


def test_wheel_serves_records_on_the_newest_python(tmp_path_factory: pytest.TempPathFactory) -> None:
    need_programs()
    packages = (f"python{VERSION}", f"python{VERSION}-venv", "ca-certificates")
    base(BASE, tmp_path_factory.mktemp("base"), suite="forky", packages=packages)
    build(IMAGE, tmp_path_factory.mktemp("context"), CONTAINERFILE)
    said = podman("run", "--rm", "--network=host", *LIMITS, IMAGE, "sh", "-c", WALK).splitlines()
    assert said[0].startswith(f"Python {VERSION}.")
    assert said[1:3] == ["coffee", "bread"]
