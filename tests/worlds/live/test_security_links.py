"""Mutual TLS between real sessions: only certificates of the fleet get a link; others get a reason."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
import zenoh

from potluck.errors import UserError
from potluck.worlds.live.security.certificate_authority import CertificateAuthority
from potluck.worlds.live.security.connection_diagnosis import diagnose_connection
from potluck.worlds.live.security.tls_credentials import TlsCredentials
from tests.worlds.live.fleet_folder import NOW, free_port, make_authority, open_coordinator, open_device


class Site:
    """A coordinator that listens, its fleet's folder, and another fleet's folder."""

    def __init__(self, folder: Path) -> None:
        self.ours, self.theirs = folder / "ours", folder / "theirs"
        make_authority(self.ours, "pi-1").issue_certificate("late", None, 1, NOW - timedelta(days=9))
        make_authority(self.theirs, "pi-1")
        self.session, self.locator = open_coordinator(self.ours, None)

    def links(self) -> list[str | None]:
        return [link.auth_identifier for link in self.session.info.links()]

    def refuses(self, tls: TlsCredentials) -> bool:
        """Whether neither end has a link."""
        try:
            with open_device(tls, self.locator, patience_s=0.5):
                return False
        except UserError:
            return self.links() == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    created = Site(tmp_path_factory.mktemp("site"))
    with created.session:
        yield created


def test_the_right_certificate_connects_and_is_known_by_its_name(site: Site) -> None:
    tls = TlsCredentials.from_bundle(site.ours / "pi-1")
    assert diagnose_connection(site.locator, tls) is None
    with open_device(tls, site.locator) as device, site.session.declare_subscriber("test") as subscriber:
        assert site.links() == ["pi-1"]
        device.put("test", b"hello")
        assert subscriber.recv().payload.to_bytes() == b"hello"


def test_no_certificate_is_refused(site: Site) -> None:
    trusting = zenoh.Config()
    trusting.insert_json5("mode", '"client"')
    trusting.insert_json5("connect", json.dumps({"endpoints": [site.locator], "timeout_ms": 500}))
    trusting.insert_json5("transport/link/tls/root_ca_certificate", json.dumps(str(site.ours / "ca.pem")))
    with pytest.raises(zenoh.ZError):
        zenoh.open(trusting)
    assert site.links() == []


def test_a_foreign_certificate_is_refused_with_a_reason(site: Site) -> None:
    ours, theirs = TlsCredentials.from_bundle(site.ours / "pi-1"), TlsCredentials.from_bundle(site.theirs / "pi-1")
    mixed = msgspec.structs.replace(
        theirs, ca=ours.ca
    )  # trusts our coordinator, but has another authority's certificate
    assert site.refuses(mixed)
    assert "does not know the authority of our certificate" in str(diagnose_connection(site.locator, mixed))


def test_a_foreign_coordinator_is_refused_with_a_reason(site: Site) -> None:
    theirs = TlsCredentials.from_bundle(site.theirs / "pi-1")
    assert site.refuses(theirs)
    assert "signed by another authority" in str(diagnose_connection(site.locator, theirs))


def test_an_expired_certificate_is_refused_with_a_reason(site: Site) -> None:
    late = TlsCredentials.from_bundle(site.ours / "late")
    assert site.refuses(late)
    assert "has expired; issue a new one" in str(diagnose_connection(site.locator, late))


def test_a_link_closes_when_its_certificate_expires(site: Site) -> None:
    soon = datetime.now(UTC) - timedelta(days=1) + timedelta(seconds=2)
    CertificateAuthority.open(site.ours).issue_certificate("brief", None, 1, soon)
    with open_device(TlsCredentials.from_bundle(site.ours / "brief"), site.locator):
        assert site.links() == ["brief"]
        patience = time.monotonic() + 10
        while site.links() and time.monotonic() < patience:
            time.sleep(0.1)
        assert site.links() == []


def test_a_device_cannot_impersonate_the_coordinator(tmp_path: Path) -> None:
    make_authority(tmp_path, "pi-1", "pi-2")
    (tmp_path / "coordinator").rename(tmp_path / "real")
    (tmp_path / "pi-2").rename(tmp_path / "coordinator")  # pi-2 listens where the coordinator should
    impostor, locator = open_coordinator(tmp_path, None)
    tls = TlsCredentials.from_bundle(tmp_path / "pi-1")
    with impostor:
        with pytest.raises(UserError, match="cannot be reached"):
            open_device(tls, locator, patience_s=0.5)
        assert "is not valid for 127.0.0.1" in str(diagnose_connection(locator, tls))


@pytest.mark.parametrize(
    ("locator", "reason"),
    [
        ("tls/no-such-host.invalid:7447", "no machine called no-such-host.invalid"),
        ("nonsense", "is not an address"),
        ("tls/:7447", "is not an address"),
    ],
)
def test_problems_of_an_address_are_explained(locator: str, reason: str) -> None:
    assert reason in str(diagnose_connection(locator, None))


def test_a_closed_port_is_explained(site: Site) -> None:
    assert "nobody listens at 127.0.0.1" in str(
        diagnose_connection(f"tls/127.0.0.1:{free_port()}", TlsCredentials.from_bundle(site.ours / "pi-1"))
    )
