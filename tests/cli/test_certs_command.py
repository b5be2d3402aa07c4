from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from potluck.cli.certs_command import app
from potluck.errors import UserError
from potluck.worlds.live.security.tls_credentials import TlsCredentials


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POTLUCK_CERTS", raising=False)
    return tmp_path


def _call(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return str(result.output)


def _json(*arguments: str) -> Any:
    return json.loads(_call(*arguments, "--json"))


def test_init_and_issue_produce_a_bundle(folder: Path) -> None:
    output = _call("init", "--host", "10.0.0.1", "--host", "desk.local")
    assert "for 10.0.0.1, desk.local, localhost" in output
    assert "keep certs/ca.key secret" in output
    assert "copy the folder certs/pi-3 to the device" in _call("issue", "pi-3", "pi-4")
    assert [
        TlsCredentials.from_bundle(folder / "certs" / name).check_files() for name in ("coordinator", "pi-3", "pi-4")
    ] == [
        "coordinator",
        "pi-3",
        "pi-4",
    ]


def test_without_hosts_the_local_addresses_are_used() -> None:
    assert {"localhost", "127.0.0.1"} < set(_json("init")["hosts"])


def test_the_list_shows_revoked_certificates() -> None:
    _call("init", "--host", "10.0.0.1")
    _call("issue", "pi-3", "pi-4", "--days", "20")
    assert "pi-3 is revoked" in _call("revoke", "pi-3")
    assert {one["name"]: one["state"] for one in _json("list")} == {
        "coordinator": "valid", "pi-3": "revoked", "pi-4": "valid",
    }  # fmt: skip
    assert _json("issue", "pi-3")[0]["common_name"] == "pi-3~2"
    lines = [line.split()[:2] for line in _call("list").splitlines()]
    assert lines == [["name", "state"], ["coordinator", "valid"], ["pi-3", "valid"], ["pi-4", "valid"]]


def test_the_validity_in_days_is_applied() -> None:
    _call("init", "--host", "10.0.0.1")
    short, long = (_json("issue", "pi-3", "--days", days)[0]["expires"] for days in ("1", "100"))
    assert short < long
    assert CliRunner().invoke(app, ["issue", "pi-3", "--days", "0"]).exit_code == 2


def test_an_empty_folder_is_refused_with_instructions() -> None:
    assert "potluck certs init" in _call("list")
    assert _json("list") == []
    with pytest.raises(UserError, match="potluck certs init"):
        _call("issue", "pi-3")


def test_a_host_belongs_to_one_device_only() -> None:
    _call("init", "--host", "10.0.0.1")
    with pytest.raises(UserError, match="--host applies to one device"):
        _call("issue", "pi-3", "pi-4", "--host", "10.0.0.3")


def test_the_folder_can_be_chosen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _call("init", "--host", "10.0.0.1", "--certs", "mine")
    monkeypatch.setenv("POTLUCK_CERTS", "mine")
    _call("issue", "pi-3")
    assert (folder / "mine" / "pi-3" / "key.pem").exists()
