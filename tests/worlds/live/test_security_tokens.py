"""Join tokens are valid for their job, devices and time, and cannot be forged or changed."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.errors import UserError
from potluck.worlds.live.security import join_tokens

NOW = datetime(2026, 11, 16, 3, 0, tzinfo=UTC)
ENDS = NOW + timedelta(hours=1)
SECRET = bytes(range(32))
LETTERS = st.characters(codec="ascii", categories=["L", "N", "P"])


def _check(token: str, *, job: str = "job", name: str = "pi-3", now: datetime = NOW) -> str | None:
    return join_tokens.check_token(token, SECRET, job, name, now)


def test_a_token_admits_until_it_expires() -> None:
    token = join_tokens.issue_token(SECRET, "job", ENDS)
    assert _check(token, now=ENDS - timedelta(seconds=1)) is None
    assert (
        _check(token, now=ENDS)
        == "the token has expired (2026-11-16 04:00 UTC); ask for a new one with `potluck serve`"
    )


def test_a_token_is_for_its_job() -> None:
    assert _check(join_tokens.issue_token(SECRET, "job", ENDS), job="another") == (
        "the token is for another job; ask for a new one with `potluck serve`"
    )


def test_a_token_may_be_for_some_devices_only() -> None:
    token = join_tokens.issue_token(SECRET, "job", ENDS, names=["pi-4", "pi-3"])
    assert _check(token) is None
    assert _check(token, name="pi-5") == (
        "the token is for pi-3, pi-4 and not for pi-5; ask for a new one with `potluck serve`"
    )
    assert _check(join_tokens.issue_token(SECRET, "job", ENDS, names=[])) is not None


def test_a_token_of_another_run_is_refused() -> None:
    assert "of another run" in str(_check(join_tokens.issue_token(bytes(32), "job", ENDS)))


@given(st.text(LETTERS, min_size=1, max_size=60), st.none() | st.lists(st.text(LETTERS, min_size=1), max_size=5))
def test_tokens_can_be_typed_into_a_shell(job: str, names: list[str] | None) -> None:
    token = join_tokens.issue_token(SECRET, job, ENDS, names)
    assert set(token) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.")
    assert names is not None or len(token) < 100


@given(st.data())
def test_changing_any_character_invalidates_a_token(data: st.DataObject) -> None:
    token = join_tokens.issue_token(SECRET, "job", ENDS)
    index = data.draw(st.integers(0, len(token) - 2))  # the last character has two unused bits
    character = data.draw(st.sampled_from("ABCxyz019-_.=+/ ").filter(lambda candidate: candidate != token[index]))
    assert _check(token[:index] + character + token[index + 1 :]) is not None


def test_a_missing_token_is_refused_with_the_flag_to_pass() -> None:
    assert _check("") == "this run requires a join token; pass --token (printed by `potluck serve`)"


@given(st.text(min_size=1, max_size=300) | st.binary(min_size=1, max_size=300).map(lambda raw: raw.decode("latin-1")))
def test_invalid_tokens_are_refused_and_never_raise(invalid: str) -> None:
    assert _check(invalid) == (
        "the token is damaged or of another run; copy all of it, or ask for a new one with `potluck serve`"
    )


def test_an_overlong_token_is_not_decoded() -> None:
    assert _check("A" * 10_000_000) is not None


def test_the_secret_is_private_and_outlives_a_restart(tmp_path: Path) -> None:
    secret = join_tokens.load_run_secret(tmp_path)
    assert len(secret) == 32
    assert join_tokens.load_run_secret(tmp_path) == secret
    assert [stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()] == [0o600]
    assert join_tokens.load_run_secret(_folder(tmp_path, "other")) != secret


def test_an_unusable_secret_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        join_tokens.load_run_secret(tmp_path / "nowhere")
    (tmp_path / "join.secret").write_bytes(b"short")
    with pytest.raises(UserError, match="is damaged"):
        join_tokens.load_run_secret(tmp_path)


def _folder(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name
