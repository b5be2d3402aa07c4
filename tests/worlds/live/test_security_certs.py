"""The authority's folder, and the errors for bundles that are missing, damaged, unprotected, expired or mixed up."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from cryptography import x509

from potluck.errors import UserError
from potluck.worlds.live.security.access_control import unadmitted_reason
from potluck.worlds.live.security.certificate_authority import CertificateAuthority
from potluck.worlds.live.security.certificate_register import admitted_common_names, load_register, revocation_reason
from potluck.worlds.live.security.tls_credentials import TlsCredentials, device_of_common_name, needs_tls
from tests.worlds.live.fleet_folder import NOW, make_authority


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_authority(tmp_path / "certs", "pi-3")
    return tmp_path / "certs"


def _certificate(folder: Path, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / name / "cert.pem").read_bytes())


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_bundle_is_complete_and_names_its_device(folder: Path) -> None:
    assert TlsCredentials.from_bundle(folder / "pi-3").check_files() == "pi-3"
    assert TlsCredentials.from_bundle(folder / "coordinator").check_files() == "coordinator"


def test_private_keys_are_private_even_under_a_lax_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_authority(tmp_path / "certs", "pi-3")
    finally:
        os.umask(before)
    keys = [tmp_path / "certs" / name for name in ("ca.key", "coordinator/key.pem", "pi-3/key.pem")]
    assert {_mode(key) for key in keys} == {0o600}
    assert _mode(tmp_path / "certs") == 0o700


def test_the_coordinator_s_certificate_has_the_given_hosts_and_loopback(folder: Path) -> None:
    names = _certificate(folder, "coordinator").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["coordinator.test", "localhost"]
    assert [str(host) for host in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]


def test_a_device_never_gets_an_address_of_the_coordinator(folder: Path) -> None:
    authority = CertificateAuthority.open(folder)
    with pytest.raises(UserError, match="could impersonate the coordinator"):
        authority.issue_certificate("pi-4", ["127.0.0.1"], 30, NOW)
    authority.issue_certificate("coordinator", ["laptop.local"], 30, NOW)
    authority.issue_certificate("laptop", None, 30, NOW)
    names = _certificate(folder, "laptop").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["laptop"]


def test_a_new_certificate_keeps_the_hosts_and_has_another_key(folder: Path) -> None:
    authority = CertificateAuthority.open(folder)
    authority.issue_certificate("pi-3", ["10.0.0.9"], 30, NOW)
    first = _certificate(folder, "pi-3")
    authority.issue_certificate("pi-3", None, 60, NOW)
    second = _certificate(folder, "pi-3")
    assert load_register(folder).latest_certificate("pi-3") == msgspec.structs.replace(
        load_register(folder).issued[-1], hosts=("10.0.0.9",)
    )
    assert first.public_key() != second.public_key()
    assert first.subject == second.subject


def test_no_certificate_outlives_the_authority(folder: Path) -> None:
    CertificateAuthority.open(folder).issue_certificate("pi-3", None, 10**6, NOW)
    ca = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    assert _certificate(folder, "pi-3").not_valid_after_utc <= ca.not_valid_after_utc
    with pytest.raises(UserError, match=r"authority in .* expired on"):
        CertificateAuthority.open(folder).issue_certificate("pi-3", None, 1, NOW + timedelta(days=4000))


def test_an_authority_is_never_overwritten(folder: Path) -> None:
    before = (folder / "ca.key").read_bytes()
    with pytest.raises(UserError, match="exists already"):
        make_authority(folder)
    assert (folder / "ca.key").read_bytes() == before


def test_an_invalid_host_leaves_no_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither a host name nor an IP address"):
        CertificateAuthority.create(tmp_path / "certs", ["10.0.0.1:7447"], 30, NOW)
    assert not (tmp_path / "certs").exists()


@pytest.mark.parametrize("name", ["", "a/b", "../up", ".hidden", "a b", "a*", "a$", "a~2", "pi\n", "ü", "x" * 49])
def test_unsafe_names_are_refused(folder: Path, name: str) -> None:
    with pytest.raises(UserError, match="cannot be used in a certificate"):
        CertificateAuthority.open(folder).issue_certificate(name, None, 30, NOW)


def test_a_revoked_common_name_is_never_issued_again(folder: Path) -> None:
    authority = CertificateAuthority.open(folder)
    issued_names = []
    for _ in range(3):
        issued_names.append(admitted_common_names(folder, ["pi-3"])["pi-3"])
        authority.revoke_certificate("pi-3", NOW)
        authority.issue_certificate("pi-3", None, 30, NOW)
    assert issued_names == ["pi-3", "pi-3~2", "pi-3~3"]
    assert {device_of_common_name(name) for name in issued_names} == {"pi-3"}
    assert TlsCredentials.from_bundle(folder / "pi-3").check_files() == "pi-3"


def test_a_running_run_sees_a_revocation(folder: Path) -> None:
    at_start = admitted_common_names(folder, ["pi-3", "pi-9"])
    assert revocation_reason(folder, "pi-3", at_start) is None
    CertificateAuthority.open(folder).revoke_certificate("pi-3", NOW)
    assert "the certificate of pi-3 was revoked on" in str(revocation_reason(folder, "pi-3", at_start))
    assert "issue a new one" in str(revocation_reason(folder, "pi-3", at_start))
    assert revocation_reason(folder, "pi-9", at_start) is None
    assert revocation_reason(folder, "pi-3", admitted_common_names(folder, ["pi-3"])) is None


def test_states_of_a_certificate(folder: Path) -> None:
    register = load_register(folder)
    assert register.certificate_state("pi-3", NOW) == "valid"
    assert register.certificate_state("pi-3", NOW + timedelta(days=31)) == "expired"
    CertificateAuthority.open(folder).revoke_certificate("pi-3", NOW)
    assert load_register(folder).certificate_state("pi-3", NOW) == "revoked"


@pytest.mark.parametrize("name", ["pi-3", "pi-9", "coordinator"])
def test_an_impossible_revocation_is_an_error(folder: Path, name: str) -> None:
    authority = CertificateAuthority.open(folder)
    if name == "pi-3":
        authority.revoke_certificate(name, NOW)
    with pytest.raises(UserError, match=r"revoked already|has no certificate|cannot be revoked"):
        authority.revoke_certificate(name, NOW)


def test_a_damaged_register_is_an_error(folder: Path) -> None:
    (folder / "register.json").write_text('{"issued": [')
    with pytest.raises(UserError, match="is damaged"):
        load_register(folder)


def test_a_missing_or_damaged_authority_is_an_error(folder: Path) -> None:
    with pytest.raises(UserError, match="potluck certs init"):
        CertificateAuthority.open(folder / "nowhere")
    (folder / "ca.key").write_bytes((folder / "pi-3" / "key.pem").read_bytes())
    with pytest.raises(UserError, match="does not belong"):
        CertificateAuthority.open(folder)


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no certificate": (lambda bundle: (bundle / "cert.pem").unlink(), "cert.pem is missing; copy the whole bundle"),
    "no authority": (lambda bundle: (bundle / "ca.pem").unlink(), "ca.pem is missing"),
    "no key": (lambda bundle: (bundle / "key.pem").unlink(), "key.pem is missing"),
    "damaged": (lambda bundle: (bundle / "cert.pem").write_text("rubbish"), "is not a PEM certificate"),
    "key damaged": (lambda bundle: (bundle / "key.pem").write_text("rubbish"), "is not an unencrypted private key"),
    "key open": (
        lambda bundle: (bundle / "key.pem").chmod(0o644),
        r"is accessible to other users \(mode 644\).*chmod 600",
    ),
    "key of another": (
        lambda bundle: shutil.copy(bundle.parent / "coordinator" / "key.pem", bundle / "key.pem"),
        "is not the key of pi-3's certificate",
    ),
    "authority of another": (
        lambda bundle: shutil.copy(bundle / "cert.pem", bundle / "ca.pem"),
        "was not signed by",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_problems_of_a_bundle_are_explained(folder: Path, fault: str) -> None:
    damage, reason = FAULTS[fault]
    damage(folder / "pi-3")
    with pytest.raises(UserError, match=reason) as excinfo:
        TlsCredentials.from_bundle(folder / "pi-3").check_files()
    assert "\n" not in str(excinfo.value)


def test_dates_are_checked_and_name_the_remedy(folder: Path) -> None:
    tls = TlsCredentials.from_bundle(folder / "pi-3")
    with pytest.raises(UserError, match=r"certificate of pi-3 expired on \d{4}-.* UTC; .*: potluck certs issue pi-3$"):
        tls.check_files(NOW + timedelta(days=31))
    with pytest.raises(UserError, match=r"this machine.s clock says .*set the clock"):
        tls.check_files(NOW - timedelta(days=300))


def test_a_missing_bundle_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such bundle"):
        TlsCredentials.from_bundle(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "locator",
    ["tcp/127.0.0.1:7447", "tls/127.9.9.9:1", "tcp/[::1]:7447", "tcp/localhost:0", "localhost", "::1", "unixpipe/x",
     "tcp/127.0.0.1:7447#iface=lo", "127.0.0.1:7447"],
)  # fmt: skip
def test_loopback_needs_no_tls(locator: str) -> None:
    assert not needs_tls(locator)


@pytest.mark.parametrize(
    "locator",
    ["tcp/0.0.0.0:7447", "tcp/[::]:7447", "192.168.1.5:7447", "tcp/localhost.evil.org:7447", "tcp/[fe80::1]:7447",
     "tcp/8.8.8.8:7447?x=127.0.0.1", "", "tcp/", "pi.local", "tcp/10.0.0.1:7447#127.0.0.1", "udp/224.0.0.1:7446"],
)  # fmt: skip
def test_other_addresses_need_tls(locator: str) -> None:
    assert needs_tls(locator)


def test_a_new_bundle_is_not_reported_as_revoked(folder: Path) -> None:
    """The run goes on with the names of its start; the operator learns that it must be started again."""
    authority = CertificateAuthority.open(folder)
    at_start = admitted_common_names(folder, ["pi-3"])
    authority.revoke_certificate("pi-3", NOW)
    authority.issue_certificate("pi-3", None, 30, NOW)
    reason = str(unadmitted_reason("pi-3~2", at_start))
    assert "revoked" not in reason
    assert "issued after this run started" in reason
    assert "potluck resume" in reason
    assert "its new one is admitted once the coordinator is started again" in str(
        revocation_reason(folder, "pi-3", at_start)
    )
    restarted = admitted_common_names(folder, ["pi-3"])
    assert unadmitted_reason("pi-3~2", restarted) is None
    assert "its certificate (pi-3) was revoked" in str(unadmitted_reason("pi-3", restarted))
