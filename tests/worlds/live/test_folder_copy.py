"""A copy of a run's folder is at every instant one from which the run can be resumed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from potluck.errors import RunError
from potluck.worlds.live.folder_copy import CopyFrozenError, FolderCopy
from potluck.worlds.live.replica_messages import (
    CHUNK_BYTES,
    ChunkRequest,
    FileChunk,
    FileEntry,
    FolderManifest,
    FollowRequest,
)
from potluck.worlds.live.replica_server import ReplicaServer, ReplicaSource


class Leader:
    """A folder that is served without a network; `fetched` counts the bytes that were asked for."""

    def __init__(self, folder: Path, term: int = 1) -> None:
        self.folder = folder
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        self.followed: list[FollowRequest] = []
        source = ReplicaSource(
            folder=folder, run="run", term=term, digest="job", check_token=lambda token: None,
            on_follow=self.followed.append,
        )  # fmt: skip
        self.server = ReplicaServer(source)
        self.fetched = 0
        self.fails_after = 10**9

    def commit(self, version: int, size: int = 1000) -> None:
        with (self.folder / "journal.jsonl").open("ab") as journal:
            journal.write(f"round {version}\n".encode())
        content = hashlib.sha256(f"{self.folder} {version}".encode()).digest() * (size // 32 + 1)
        (self.folder / "checkpoints" / f"{version:08d}.safetensors").write_bytes(content[:size])

    def manifest(self) -> FolderManifest:
        return self.server._build_manifest()

    def fetch(self, name: str, digest: str, offset: int) -> bytes:
        if self.fetched >= self.fails_after:
            raise ConnectionError("the link broke")
        answer = self.server._answer(ChunkRequest(name=name, digest=digest, offset=offset))
        if not isinstance(answer, FileChunk):
            raise RunError(str(answer))
        self.fetched += len(answer.data)
        return answer.data

    def prefix(self, length: int) -> str:
        return hashlib.sha256((self.folder / "journal.jsonl").read_bytes()[:length]).hexdigest()


def follow(copy: FolderCopy, leader: Leader) -> None:
    manifest = leader.manifest()
    if copy.session != manifest.session:
        copy.begin_session(manifest, leader.prefix)
    copy.update(manifest, leader.fetch)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def test_a_copy_has_what_the_leader_has(tmp_path: Path) -> None:
    leader, copy = Leader(tmp_path / "leader"), FolderCopy(tmp_path / "copy")
    (leader.folder / "join.secret").write_bytes(b"secret")
    for version in (1, 2):
        leader.commit(version)
        follow(copy, leader)
    assert contents(copy.folder) == contents(leader.folder)
    assert (copy.folder / "join.secret").stat().st_mode & 0o077 == 0
    assert copy.version == 2
    fetched = leader.fetched
    follow(copy, leader)
    assert leader.fetched == fetched, "what has not changed is not copied again"


def test_files_beside_the_checkpoints_are_neither_copied_nor_deleted(tmp_path: Path) -> None:
    leader, copy = Leader(tmp_path / "leader"), FolderCopy(tmp_path / "copy")
    name = "checkpoints/00000007-copy.safetensors"
    (leader.folder / name).write_bytes(b"the leader's")
    (copy.folder / name).write_bytes(b"the copy's")
    for version in (1, 2, 3):
        leader.commit(version)
        follow(copy, leader)
    assert copy.version == leader.manifest().version == 3
    assert contents(copy.folder)[name] == b"the copy's"


def test_an_interrupted_checkpoint_continues_where_it_stopped(tmp_path: Path) -> None:
    leader, copy = Leader(tmp_path / "leader"), FolderCopy(tmp_path / "copy")
    size = 3 * CHUNK_BYTES + 5
    leader.commit(1, size)
    leader.fails_after = CHUNK_BYTES
    with pytest.raises(ConnectionError):
        follow(copy, leader)
    assert not list((copy.folder / "checkpoints").glob("[0-9]*")), "a part of a checkpoint looks like one"
    leader.fails_after = 10**9
    follow(copy, leader)
    assert contents(copy.folder) == contents(leader.folder)
    assert leader.fetched <= size + 100, "chunks were copied twice"


def test_a_checkpoint_that_the_leader_deletes_meanwhile_is_still_copied(tmp_path: Path) -> None:
    leader, copy = Leader(tmp_path / "leader"), FolderCopy(tmp_path / "copy")
    leader.commit(1)
    manifest = leader.manifest()
    (leader.folder / "checkpoints" / "00000001.safetensors").unlink()
    copy.begin_session(manifest, leader.prefix)
    copy.update(manifest, leader.fetch)
    assert (copy.folder / "checkpoints" / "00000001.safetensors").exists()


def test_a_damaged_file_is_not_kept(tmp_path: Path) -> None:
    leader, copy = Leader(tmp_path / "leader"), FolderCopy(tmp_path / "copy")
    leader.commit(1)
    manifest = leader.manifest()
    copy.begin_session(manifest, leader.prefix)
    with pytest.raises(RunError, match="arrived damaged"):
        copy.update(manifest, lambda name, digest, offset: leader.fetch(name, digest, offset)[::-1])
    assert not list((copy.folder / "checkpoints").glob("[0-9]*"))


def test_what_a_former_leader_committed_beyond_the_present_one_is_dropped(tmp_path: Path) -> None:
    former, present = Leader(tmp_path / "former"), Leader(tmp_path / "present", term=2)
    for version in (1, 2, 3):
        former.commit(version)
    for version in (1, 2):
        present.commit(version)
    copy = FolderCopy(former.folder)
    follow(copy, present)
    assert copy.version == 2
    assert contents(copy.folder)["journal.jsonl"] == contents(present.folder)["journal.jsonl"]
    assert not (copy.folder / "checkpoints" / "00000003.safetensors").exists()


def test_a_journal_with_another_beginning_is_copied_anew(tmp_path: Path) -> None:
    leader, copy = Leader(tmp_path / "leader"), FolderCopy(tmp_path / "copy")
    (copy.folder / "journal.jsonl").write_bytes(b"other 1\nother 2\n")
    leader.commit(1)
    follow(copy, leader)
    assert contents(copy.folder)["journal.jsonl"] == b"round 1\n"


def test_a_frozen_copy_does_not_change(tmp_path: Path) -> None:
    leader, copy = Leader(tmp_path / "leader"), FolderCopy(tmp_path / "copy")
    leader.commit(1)
    follow(copy, leader)
    before = contents(copy.folder)
    leader.commit(2)
    copy.freeze()
    with pytest.raises(CopyFrozenError):
        follow(copy, leader)
    assert contents(copy.folder) == before


@pytest.mark.parametrize("name", ["../job.toml", "/etc/passwd", "run.lock", "checkpoints/../../x", "job.toml"])
def test_no_other_file_is_written_or_read(tmp_path: Path, name: str) -> None:
    leader, copy = Leader(tmp_path / "leader"), FolderCopy(tmp_path / "copy")
    leader.commit(1)
    manifest = leader.manifest()
    forged = FolderManifest(
        run="run", session=manifest.session, term=1, version=1, journal_bytes=0, files=[FileEntry(name, 1, "0")]
    )
    copy.begin_session(manifest, leader.prefix)
    with pytest.raises(RunError, match="no run has"):
        copy.update(forged, leader.fetch)
    with pytest.raises(RunError, match="replaced"):
        leader.fetch(name, "0", 0)
