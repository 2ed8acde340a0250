"""Each server starts on the other's files and finds its contents."""

from pathlib import Path

from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from tests.interop.zookeeper.zk_apache import apache_zookeeper
from tests.scenarios.zookeeper.zk_process import connected, running


def fill(client: KazooClient) -> None:
    client.create("/a", b"1")
    client.set("/a", b"2")
    for number in range(50):
        client.create(f"/a/n{number}", b"x" * number)
    client.delete("/a/n7")
    client.create("/a/s-", sequence=True)
    client.create("/acl", b"p", acl=[make_digest_acl("joe", "secret", all=True)])
    transaction = client.transaction()
    transaction.create("/m", b"")
    transaction.set_data("/a", b"3")
    transaction.commit()
    transaction = client.transaction()
    transaction.create("/never", b"")
    transaction.check("/a", 99)
    transaction.commit()
    client.create("/e", ephemeral=True)


def tree(client: KazooClient, path: str = "/") -> dict[str, object]:
    data, stat = client.get(path)
    found: dict[str, object] = {path: (data, stat, client.get_acls(path)[0])}
    for name in sorted(client.get_children(path)):
        child = path.rstrip("/") + "/" + name
        if child not in ("/zookeeper", "/e"):
            found |= tree(client, child)
    return found


def contents(address: str) -> dict[str, object]:
    with connected(address, auth_data=[("digest", "joe:secret")]) as client:
        return tree(client)


def without_pzxid_of_root(found: dict[str, object]) -> dict[str, object]:
    """Remove the root's pzxid and cversion, which ephemeral znodes of other sessions change."""
    return {path: value for path, value in found.items() if path != "/"}


def test_apache_zookeeper_starts_on_our_files(java: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(data, "--snap-count", "40") as server:
        with connected(server.address) as client:
            fill(client)
        expected = contents(server.address)
        server.kill()
    with apache_zookeeper(data) as port:
        found = contents(f"127.0.0.1:{port}")
    assert without_pzxid_of_root(found) == without_pzxid_of_root(expected)
    assert (found["/a"][0], found["/a"][1].numChildren) == (b"3", 50)
    assert "/never" not in found
    # Our server then reads the log and the snapshot that Apache added.
    with running(data) as server:
        assert without_pzxid_of_root(contents(server.address)) == without_pzxid_of_root(expected)


def test_we_start_on_apache_zookeepers_files(java: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with apache_zookeeper(data) as port, connected(f"127.0.0.1:{port}") as client:
        fill(client)
        expected = contents(f"127.0.0.1:{port}")
    with running(data) as server:
        assert without_pzxid_of_root(contents(server.address)) == without_pzxid_of_root(expected)
