"""`serve` refuses what does not fit together in one line, before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.calling import Shell

REFUSED = {
    "connect without standby": (("--connect", "a:1"), "--connect and --token are for a standby; add --standby"),
    "token without standby": (("--token", "x"), "--connect and --token are for a standby; add --standby"),
    "nobody to follow": (("--standby",), "--standby: whom to follow? pass --connect HOST:PORT"),
    "lease without etcd": (("--leader-lease", "3"), "add --etcd URL"),
    "etcd without a scheme": (("--etcd", "10.0.0.5:2379"), "it should look like http://192.168.1.5:2379"),
    "no etcd there": (("--etcd", "http://127.0.0.1:9"), "etcd cannot be used (http://127.0.0.1:9: "),
    "no etcd for a standby": (("--standby", "--etcd", "http://127.0.0.1:9"), "etcd cannot be used"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_options_are_refused(case: str, potluck: Shell, folder: Path) -> None:
    words, message = REFUSED[case]
    answer = potluck("serve", "job.toml", "--out", "run", *words)
    assert answer.code == 2
    assert message in answer.err
    assert len(answer.err.splitlines()) == 1
    assert not (folder / "run").exists()


def test_promote_names_a_folder_that_is_none(potluck: Shell, folder: Path) -> None:
    answer = potluck("promote", folder)
    assert answer.code == 2
    assert "is not the folder of a live run or of its standby" in answer.err
