"""A token ends, but not for the device that has come in with it; and for nobody else."""

from __future__ import annotations

import stat
from datetime import timedelta
from pathlib import Path

import pytest

from potluck.errors import UserError
from potluck.worlds.live.security import join_tokens
from potluck.worlds.live.security.admission_policy import AdmissionPolicy
from potluck.worlds.live.security.admitted_devices import AdmittedDevices
from potluck.worlds.live.security.certificate_authority import CertificateAuthority
from tests.worlds.live.fleet_folder import NOW, make_authority

LATER = NOW + timedelta(hours=1)


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    make_authority(tmp_path / "certs", "pi-1", "pi-2")
    return tmp_path / "certs"


def _gate(run: Path, certs: Path | None = None) -> AdmissionPolicy:
    return AdmissionPolicy.for_run(run, "digest", ["pi-1", "pi-2"], certs)


def test_who_was_let_in_comes_back_with_an_expired_token(tmp_path: Path) -> None:
    gate = _gate(tmp_path)
    token = gate.issue_token(LATER)
    gate.admitted_devices.record_admission("pi-1", "body")
    assert gate.refusal_reason("pi-1", token, LATER, "body") is None
    assert _gate(tmp_path).refusal_reason("pi-1", token, LATER, "body") is None, "also after a resume"


def test_nobody_else_comes_in_with_an_expired_token(tmp_path: Path) -> None:
    gate = _gate(tmp_path)
    token = gate.issue_token(LATER)
    gate.admitted_devices.record_admission("pi-1", "body")
    for name, body in (("pi-1", "other"), ("pi-1", ""), ("pi-2", "body"), ("pi-2", "")):
        assert "has expired" in str(gate.refusal_reason(name, token, LATER, body))


def test_without_a_body_nobody_is_known(tmp_path: Path) -> None:
    gate = _gate(tmp_path)
    gate.admitted_devices.record_admission("pi-1", "")
    assert "has expired" in str(gate.refusal_reason("pi-1", gate.issue_token(LATER), LATER, ""))


def test_the_process_that_came_in_last_is_the_one_that_is_known(tmp_path: Path) -> None:
    known = AdmittedDevices(tmp_path, certified=False)
    known.record_admission("pi-1", "before")
    known.record_admission("pi-1", "after")
    assert (known.was_admitted("pi-1", "before"), known.was_admitted("pi-1", "after")) == (False, True)


def test_with_a_certificate_a_device_may_even_have_been_restarted(tmp_path: Path, certs: Path) -> None:
    gate = _gate(tmp_path, certs)
    token = gate.issue_token(LATER)
    gate.admitted_devices.record_admission("pi-1", "body")
    assert gate.refusal_reason("pi-1", token, LATER, "after a reboot") is None
    assert "has expired" in str(gate.refusal_reason("pi-2", token, LATER, "body"))


def test_it_must_still_be_a_token_of_this_run(tmp_path: Path, certs: Path) -> None:
    for gate in (_gate(tmp_path), _gate(tmp_path, certs)):
        gate.admitted_devices.record_admission("pi-1", "body")
        other = join_tokens.issue_token(b"another run's secret", "digest", LATER)
        for token in ("", "made.up", other, gate.issue_token(LATER, ["pi-2"])):
            assert gate.refusal_reason("pi-1", token, NOW, "body") is not None


def test_who_was_revoked_does_not_come_back(tmp_path: Path, certs: Path) -> None:
    gate = _gate(tmp_path, certs)
    gate.admitted_devices.record_admission("pi-1", "body")
    CertificateAuthority.open(certs).revoke_certificate("pi-1", NOW)
    assert "was revoked on" in str(gate.refusal_reason("pi-1", gate.issue_token(LATER), NOW, "body"))


def test_what_is_kept_gives_nothing_away(tmp_path: Path) -> None:
    AdmittedDevices(tmp_path, certified=False).record_admission("pi-1", "body")
    path = tmp_path / "admitted.json"
    assert "body" not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "admitted.json").write_text("[]")
    with pytest.raises(UserError, match=r"admitted.json cannot be read .* give the devices new tokens"):
        _gate(tmp_path)
