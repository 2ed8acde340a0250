"""Tools take their credentials for the schema registry from a file or the environment, never from arguments."""

from pathlib import Path

import pytest

from barnabas.cli._registry import registry_config
from barnabas.client.registry import RegistryClient

URL = "http://localhost:8081"


def test_a_file_has_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEMA_REGISTRY_TOKEN", "of-the-environment")
    file = tmp_path / "registry.properties"
    file.write_text("basic.auth.user.info=alice:secret\nssl.ca.location=/ca.pem\n")
    assert registry_config(URL, file) == {"basic.auth.user.info": "alice:secret", "ssl.ca.location": "/ca.pem"}


def test_the_environment_has_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEMA_REGISTRY_USER", "alice:secret")
    monkeypatch.delenv("SCHEMA_REGISTRY_TOKEN", raising=False)
    assert registry_config(URL, None) == {"basic.auth.user.info": "alice:secret"}
    assert registry_config(None, None) == {}, "without a registry they are not the console's"


def test_a_setting_that_is_not_known_is_refused() -> None:
    with pytest.raises(Exception, match=r"basic\.auth\.user: not a setting"):
        RegistryClient.from_config(URL, {"basic.auth.user": "alice"})
    assert RegistryClient.from_config(URL, {"bearer.auth.token": "x"}).signs_in
