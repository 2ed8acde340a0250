"""Secured clusters for tests: listeners and users."""

import json
import subprocess
import sys

from barnabas.cli.local_cluster import LocalCluster

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
ADMIN, ALICE = ("admin", "admin-secret"), ("alice", "alice-secret")

#: One listener of each kind that needs no certificate; brokers use PLAIN between each other.
SASL_CONFIG = {
    "listeners": "INTERNAL://127.0.0.1:0,CLIENT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
    "listener.security.protocol.map": "INTERNAL:SASL_PLAINTEXT,CLIENT:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "inter.broker.listener.name": "INTERNAL",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.internal.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.internal.plain.sasl.jaas.config": (
        f'{PLAIN_MODULE} required username="broker" password="broker-secret" user_broker="broker-secret";'
    ),
    "listener.name.client.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.client.plain.sasl.jaas.config": (
        f'{PLAIN_MODULE} required user_{ADMIN[0]}="{ADMIN[1]}" user_{ALICE[0]}="{ALICE[1]}";'
    ),
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    # Tests prepare the cluster through the plain listener.
    "super.users": "User:broker;User:admin;User:ANONYMOUS",
}


def bootstrap_of(cluster: LocalCluster, listener: str) -> str:
    """Return the addresses of one listener, from the ready lines of the brokers."""
    found = []
    for broker_id in cluster.broker_ids:
        line = cluster.member(broker_id).ready_line or ""
        listeners = dict(part.split("=", 1) for part in line.split()[1:])["listeners"]
        for endpoint in listeners.split(","):
            name, _, address = endpoint.partition("://")
            if name == listener:
                found.append(address)
    return ",".join(found)


_KAFKA_PYTHON = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
import kafka, kafka.errors
from kafka.net.sasl.oauth import AbstractTokenProvider

class Tokens(AbstractTokenProvider):
    def __init__(self, token): self._token = token
    def token(self): return self._token

def comes_in(settings):
    if "token" in settings:
        settings["sasl_oauth_token_provider"] = Tokens(settings.pop("token"))
    try:
        kafka.KafkaProducer(**settings, bootstrap_timeout_ms=4000).close()
    except kafka.errors.KafkaError:
        return False
    return True

with ThreadPoolExecutor(8) as pool:
    print(json.dumps(list(pool.map(comes_in, json.loads(sys.argv[1])))))
"""


def kafka_python_comes_in(*attempts: dict[str, object]) -> list[bool]:
    """Run in a process of its own: a refused kafka-python client leaves sockets open."""
    command = [sys.executable, "-W", "ignore", "-c", _KAFKA_PYTHON, json.dumps(attempts)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    found: list[bool] = json.loads(done.stdout.splitlines()[-1])
    return found
