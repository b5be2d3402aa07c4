"""`potluck certs`: the fleet's certificate authority, so that only its devices can join, each under its own name."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from potluck.cli.command_options import AsJson
from potluck.errors import UserError

__all__ = ["app"]

app = typer.Typer(help="Manage the certificates with which devices join a live run.", no_args_is_help=True)

Folder = Annotated[
    Path, typer.Option("--certs", envvar="POTLUCK_CERTS", help="The folder of the certificate authority.")
]
Days = Annotated[int, typer.Option("--days", min=1, help="Days until the certificate expires.")]
Names = Annotated[list[str], typer.Argument(metavar="NAME", help="Devices, by their names in the fleet.")]
Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="HOST", help="A host name or IP address that it is valid for; repeatable."),
]


@app.command("init")
def init_authority(
    hosts: Hosts = None, certs: Folder = Path("certs"), days: Days = 365, as_json: AsJson = False
) -> None:
    """Create a certificate authority. Includes the coordinator's certificate."""
    from potluck.worlds.live.security import certificate_signing
    from potluck.worlds.live.security.certificate_authority import COORDINATOR, CertificateAuthority

    CertificateAuthority.create(certs, hosts or certificate_signing.local_host_names(), days, _utc_now())
    issued = _describe_certificates(certs, [COORDINATOR])[0]
    if as_json:
        typer.echo(json.dumps(issued))
        return
    typer.echo(f"created an authority in {certs}; keep {certs / 'ca.key'} secret: it can issue certificates")
    typer.echo(
        f"the coordinator's certificate is valid until {issued['expires'][:10]} for {', '.join(issued['hosts'])}"
    )
    typer.echo("next, for each device: potluck certs issue NAME")


@app.command("issue")
def issue_certificates(
    names: Names, hosts: Hosts = None, certs: Folder = Path("certs"), days: Days = 365, as_json: AsJson = False
) -> None:
    """Issue a certificate for each device. A new one replaces the old one."""
    from potluck.worlds.live.security.certificate_authority import CertificateAuthority

    if hosts and len(names) > 1:
        raise UserError("--host applies to one device; issue the others with separate commands")
    authority = CertificateAuthority.open(certs)
    for name in names:
        authority.issue_certificate(name, hosts, days, _utc_now())
    issued = _describe_certificates(certs, names)
    if as_json:
        typer.echo(json.dumps(issued))
        return
    for entry in issued:
        typer.echo(
            f"{entry['name']}, valid until {entry['expires'][:10]}: copy the folder {entry['bundle']} to the device"
        )


@app.command("revoke")
def revoke_certificates(names: Names, certs: Folder = Path("certs"), as_json: AsJson = False) -> None:
    """Revoke all certificates that these devices have."""
    from potluck.worlds.live.security.certificate_authority import CertificateAuthority

    authority = CertificateAuthority.open(certs)
    for name in names:
        authority.revoke_certificate(name, _utc_now())
    if as_json:
        typer.echo(json.dumps(_describe_certificates(certs, names)))
        return
    for name in names:
        typer.echo(f"{name} is revoked; it is refused the next time it joins")


@app.command("list")
def list_certificates(certs: Folder = Path("certs"), as_json: AsJson = False) -> None:
    """List the certificates, with state and date of expiry."""
    from potluck.worlds.live.security.certificate_register import load_register

    entries = _describe_certificates(certs, load_register(certs).device_names())
    if as_json:
        typer.echo(json.dumps(entries))
    elif entries:
        _print_certificates(entries)
    else:
        typer.echo(f"no certificates in {certs}; create an authority with `potluck certs init`")


def _describe_certificates(certs: Path, names: list[str]) -> list[dict[str, Any]]:
    """The latest certificate of each of these devices, as the register has it, ready for JSON."""
    import msgspec

    from potluck.worlds.live.security.certificate_register import load_register

    register, now = load_register(certs), _utc_now()
    latest = [last for name in names if (last := register.latest_certificate(name)) is not None]
    return [
        {
            **msgspec.to_builtins(last),
            "state": register.certificate_state(last.name, now),
            "bundle": str(certs / last.name),
        }
        for last in latest
    ]


def _print_certificates(entries: list[dict[str, Any]]) -> None:
    from potluck.cli.console import open_console, plain_table

    table = plain_table("name", "state", "valid until", "hosts")
    for entry in entries:
        table.add_row(entry["name"], entry["state"], entry["expires"][:10], ", ".join(entry["hosts"]) or "-")
    open_console().print(table)


def _utc_now() -> datetime:
    return datetime.now(UTC)
