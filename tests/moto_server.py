"""moto's S3 server in a process of its own, because some clients hold Python's lock while they wait for an answer."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import boto3

REGION = "us-east-1"
LOGIN = "test"

_SERVE = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


@contextmanager
def s3_server(bucket: str) -> Iterator[dict[str, str]]:
    """Run the server with this bucket, and return the environment variables by which clients find it."""
    process = subprocess.Popen([sys.executable, "-c", _SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        endpoint = f"http://127.0.0.1:{int(process.stdout.readline())}"
        login = {"aws_access_key_id": LOGIN, "aws_secret_access_key": LOGIN, "region_name": REGION}
        client = boto3.client("s3", endpoint_url=endpoint, **login)
        client.create_bucket(Bucket=bucket)
        client.close()
        yield {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": LOGIN,
            "AWS_SECRET_ACCESS_KEY": LOGIN,
            "AWS_REGION": REGION,
            "AWS_ALLOW_HTTP": "true",
        }
    finally:
        process.communicate(timeout=60)
