"""The address that `serve` prints: its certificate carries it, and devices can reach it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from potluck.errors import UserError
from potluck.run import join_address
from potluck.run.join_address import choose_join_locator
from potluck.worlds.live.security.certificate_authority import CertificateAuthority
from potluck.worlds.live.security.tls_credentials import TlsCredentials

OWN = {"192.168.7.5", "10.0.0.5", "fd00::5", "127.0.0.1", "127.0.0.2", "::1"}
NAMES = {"box": {"192.168.7.5"}, "localhost": {"127.0.0.1"}, "elsewhere": {"203.0.113.9"}}


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two interfaces; its route to the world is the first."""
    monkeypatch.setattr(join_address, "local_address", lambda: "192.168.7.5")
    monkeypatch.setattr(join_address, "_is_own_address", lambda address: address in OWN)
    monkeypatch.setattr(
        join_address,
        "_resolve_addresses",
        lambda host: {host} if join_address._is_address(host) else NAMES.get(host, set()),
    )


def _tls(folder: Path, *hosts: str) -> TlsCredentials:
    CertificateAuthority.create(folder / "certs", hosts, 30, datetime.now(UTC))
    return TlsCredentials.from_bundle(folder / "certs" / "coordinator")


@pytest.mark.parametrize(
    ("hosts", "printed"),
    [
        (("192.168.7.5", "box"), "192.168.7.5"),
        (("box",), "box"),
        (("10.0.0.5",), "10.0.0.5"),
        (("elsewhere", "10.0.0.5"), "10.0.0.5"),
        (("203.0.113.9",), "203.0.113.9"),
        (("unknown.example",), "unknown.example"),
        ((), "127.0.0.1"),
    ],
)
def test_a_wildcard_listener_is_joined_at_a_certified_address(
    tmp_path: Path, hosts: tuple[str, ...], printed: str
) -> None:
    assert choose_join_locator("tls/0.0.0.0:7447", _tls(tmp_path, *hosts)) == f"tls/{printed}:7447"


def test_an_ipv6_address_is_written_in_brackets_and_only_where_it_is_listened_on(tmp_path: Path) -> None:
    tls = _tls(tmp_path, "fd00::5")
    assert choose_join_locator("tls/[::]:7447", tls) == "tls/[fd00::5]:7447"
    assert choose_join_locator("tls/0.0.0.0:7447", tls) == "tls/127.0.0.1:7447"


def test_a_listener_that_the_certificate_does_not_carry_is_refused(tmp_path: Path) -> None:
    tls = _tls(tmp_path, "box")
    assert choose_join_locator("tls/192.168.7.5:1", tls) == "tls/box:1"
    with pytest.raises(UserError, match=r"not valid for 10\.0\.0\.5.*certs issue coordinator --host 10\.0\.0\.5"):
        choose_join_locator("tls/10.0.0.5:1", tls)


def test_without_certificates_it_is_the_machines_address() -> None:
    assert choose_join_locator("tcp/0.0.0.0:7447", None) == "tcp/192.168.7.5:7447"
    assert choose_join_locator("tcp/127.0.0.1:7447", None) == "tcp/127.0.0.1:7447"
