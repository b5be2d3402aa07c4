from __future__ import annotations

from pathlib import Path

from potluck.checkpoint_files import checkpoint_name, list_checkpoints, newest_version, version_of


def test_checkpoints_are_listed_from_the_highest_version(tmp_path: Path) -> None:
    assert (list_checkpoints(tmp_path / "none"), newest_version(tmp_path / "none")) == ([], -1)
    versions = [3, 20, 100, 9, 123_456_789]
    for version in versions:
        (tmp_path / checkpoint_name(version)).touch()
    for name in ("00000021-copy.safetensors", "1.safetensors", "٠٠٠٠٠٠٢٢.safetensors", "00000023.safetensors.unusable"):
        (tmp_path / name).touch()
    assert [version_of(path) for path in list_checkpoints(tmp_path)] == sorted(versions, reverse=True)
    assert newest_version(tmp_path) == 123_456_789
