"""An expired token still admits the device that joined with it, and no other."""

from __future__ import annotations

import stat
from datetime import timedelta
from pathlib import Path

import pytest

from potluck.errors import UserError
from potluck.worlds.live.security import join_tokens
from potluck.worlds.live.security.admission_policy import AdmissionPolicy, AdmittedDevices
from potluck.worlds.live.security.certificate_authority import CertificateAuthority
from tests.worlds.live.fleet_folder import NOW, make_authority

LATER = NOW + timedelta(hours=1)


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    make_authority(tmp_path / "certs", "pi-1", "pi-2")
    return tmp_path / "certs"


def _policy(run: Path, certs: Path | None = None) -> AdmissionPolicy:
    return AdmissionPolicy.for_run(run, "digest", ["pi-1", "pi-2"], certs)


def test_an_admitted_device_rejoins_with_an_expired_token(tmp_path: Path) -> None:
    policy = _policy(tmp_path)
    token = policy.issue_token(LATER)
    policy.admitted_devices.record_admission("pi-1", "body")
    assert policy.refusal_reason("pi-1", token, LATER, "body") is None
    assert _policy(tmp_path).refusal_reason("pi-1", token, LATER, "body") is None, "also after a resume"


def test_no_other_device_joins_with_an_expired_token(tmp_path: Path) -> None:
    policy = _policy(tmp_path)
    token = policy.issue_token(LATER)
    policy.admitted_devices.record_admission("pi-1", "body")
    for name, secret in (("pi-1", "other"), ("pi-1", ""), ("pi-2", "body"), ("pi-2", "")):
        assert "has expired" in str(policy.refusal_reason(name, token, LATER, secret))


def test_without_a_process_secret_no_device_is_recognised(tmp_path: Path) -> None:
    policy = _policy(tmp_path)
    policy.admitted_devices.record_admission("pi-1", "")
    assert "has expired" in str(policy.refusal_reason("pi-1", policy.issue_token(LATER), LATER, ""))


def test_only_the_latest_process_is_recognised(tmp_path: Path) -> None:
    known = AdmittedDevices(tmp_path, certified=False)
    known.record_admission("pi-1", "before")
    known.record_admission("pi-1", "after")
    assert (known.was_admitted("pi-1", "before"), known.was_admitted("pi-1", "after")) == (False, True)


def test_a_certified_device_is_recognised_after_a_restart(tmp_path: Path, certs: Path) -> None:
    policy = _policy(tmp_path, certs)
    token = policy.issue_token(LATER)
    policy.admitted_devices.record_admission("pi-1", "body")
    assert policy.refusal_reason("pi-1", token, LATER, "after a reboot") is None
    assert "has expired" in str(policy.refusal_reason("pi-2", token, LATER, "body"))


def test_a_rejoining_device_still_needs_a_token_of_this_run(tmp_path: Path, certs: Path) -> None:
    for policy in (_policy(tmp_path), _policy(tmp_path, certs)):
        policy.admitted_devices.record_admission("pi-1", "body")
        other = join_tokens.issue_token(b"another run's secret", "digest", LATER)
        for token in ("", "made.up", other, policy.issue_token(LATER, ["pi-2"])):
            assert policy.refusal_reason("pi-1", token, NOW, "body") is not None


def test_a_revoked_device_does_not_rejoin(tmp_path: Path, certs: Path) -> None:
    policy = _policy(tmp_path, certs)
    policy.admitted_devices.record_admission("pi-1", "body")
    CertificateAuthority.open(certs).revoke_certificate("pi-1", NOW)
    assert "was revoked on" in str(policy.refusal_reason("pi-1", policy.issue_token(LATER), NOW, "body"))


def test_the_file_contains_no_secret(tmp_path: Path) -> None:
    AdmittedDevices(tmp_path, certified=False).record_admission("pi-1", "body")
    path = tmp_path / "admitted.json"
    assert "body" not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "admitted.json").write_text("[]")
    with pytest.raises(UserError, match=r"admitted.json is damaged .* `potluck resume .*` sets it aside and goes on"):
        _policy(tmp_path)
