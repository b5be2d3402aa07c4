"""`potluck certs`: the fleet's own certificate authority, so that only its devices can join, each as itself."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from potluck.errors import UserError

__all__ = ["app"]

app = typer.Typer(help="Certificates of the fleet: who may join a live run, each as itself.", no_args_is_help=True)

Folder = Annotated[Path, typer.Option("--certs", envvar="POTLUCK_CERTS", help="The folder of the authority.")]
Days = Annotated[int, typer.Option("--days", min=1, help="How long the certificate holds.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Devices, as they are called in the fleet.")]
Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="HOST", help="A name or an IP address by which it is called; may be repeated."),
]


@app.command("init")
def init_authority(
    hosts: Hosts = None, certs: Folder = Path("certs"), days: Days = 365, as_json: AsJson = False
) -> None:
    """Make an authority, and a certificate for the coordinator."""
    from potluck.worlds.live.security import local_addresses
    from potluck.worlds.live.security.certificate_authority import COORDINATOR, CertificateAuthority

    CertificateAuthority.create(certs, hosts or local_addresses.local_host_names(), days, _utc_now())
    made = _describe_certificates(certs, [COORDINATOR])[0]
    if as_json:
        typer.echo(json.dumps(made))
        return
    typer.echo(f"authority in {certs}; keep {certs / 'ca.key'} to yourself: it makes devices")
    typer.echo(f"coordinator until {made['expires'][:10]}, called as {', '.join(made['hosts'])}")
    typer.echo("next: potluck certs issue NAME, for each device")


@app.command("issue")
def issue_certificates(
    names: Names, hosts: Hosts = None, certs: Folder = Path("certs"), days: Days = 365, as_json: AsJson = False
) -> None:
    """Make a certificate for each device, or a new one in place of an old one."""
    from potluck.worlds.live.security.certificate_authority import CertificateAuthority

    if hosts and len(names) > 1:
        raise UserError("--host is for one device; issue the others by themselves")
    authority = CertificateAuthority.open(certs)
    for name in names:
        authority.issue_certificate(name, hosts, days, _utc_now())
    made = _describe_certificates(certs, names)
    if as_json:
        typer.echo(json.dumps(made))
        return
    for one in made:
        typer.echo(f"{one['name']} until {one['expires'][:10]}: copy the folder {one['bundle']} to it")


@app.command("revoke")
def revoke_certificates(names: Names, certs: Folder = Path("certs"), as_json: AsJson = False) -> None:
    """Let no certificate that these devices got so far into a run any more."""
    from potluck.worlds.live.security.certificate_authority import CertificateAuthority

    authority = CertificateAuthority.open(certs)
    for name in names:
        authority.revoke_certificate(name, _utc_now())
    made = _describe_certificates(certs, names)
    if as_json:
        typer.echo(json.dumps(made))
        return
    for name in names:
        typer.echo(f"{name} is revoked; it is turned away the next time it asks to join")


@app.command("list")
def list_certificates(certs: Folder = Path("certs"), as_json: AsJson = False) -> None:
    """Who has a certificate, until when, and who lost it."""
    from potluck.worlds.live.security.certificate_register import load_register

    found = _describe_certificates(certs, load_register(certs).device_names())
    if as_json:
        typer.echo(json.dumps(found))
        return
    if not found:
        typer.echo(f"no certificates in {certs}; make an authority with `potluck certs init`")
        return
    _print_certificates(found)


def _describe_certificates(certs: Path, names: list[str]) -> list[dict[str, Any]]:
    """What the register knows of these devices, ready for JSON."""
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


def _print_certificates(found: list[dict[str, Any]]) -> None:
    from potluck.cli.console import open_console, plain_table

    table = plain_table("name", "state", "until", "called as")
    for one in found:
        table.add_row(one["name"], one["state"], one["expires"][:10], ", ".join(one["hosts"]) or "-")
    open_console().print(table)


def _utc_now() -> datetime:
    return datetime.now(UTC)
