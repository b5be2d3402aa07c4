"""Resuming a run whose files are damaged: it says so once, goes on, and ends exactly as a run without damage."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import potluck
from potluck.checkpoint_files import list_checkpoints
from potluck.errors import PotluckWarning
from potluck.model import weights_file
from potluck.run.run_lock import LOCK_FILE, read_owner
from potluck.run.run_store import RunStore
from tests.simulation.runs import journal

TASK = {"model": "mlp", "data": {"kind": "synthetic", "train": 120, "test": 30}, "options": {"hidden": [8]}}
FLEET = {"devices": [{"name": "d", "count": 2, "flops": "20 MFLOP/s"}]}
JOB: dict[str, Any] = {
    "recipe": "fedavg", "task": TASK, "fleet": FLEET, "stop": {"rounds": 8}, "checkpoint": 2, "best": "accuracy"
}  # fmt: skip
PIPELINE: dict[str, Any] = {**JOB, "recipe": "ftpipehd", "best": "none", "evaluate": 2}
Damage = Callable[[Path], object]


def cut(fraction: float) -> Damage:
    return lambda path: path.write_bytes(path.read_bytes()[: int(fraction * path.stat().st_size)])


def flip(offset: int) -> Damage:
    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[offset] ^= 16
        path.write_bytes(content)

    return damage


DAMAGES: dict[str, Damage] = {
    "empty": lambda path: path.write_bytes(b""),
    "torn": cut(0.5),
    "garbage": lambda path: path.write_bytes(b"\xff" * 300),
    "bad header": flip(3),
    "flipped bit": flip(-2),
    "not a checkpoint": lambda path: path.write_bytes(b"\x02\0\0\0\0\0\0\0{}"),
}


def interrupt_after(folder: Path, job: dict[str, Any], rounds: int) -> list[Path]:
    """Run the first rounds; returns the checkpoints, the newest first."""
    done: list[float] = []
    potluck.simulate(
        job, folder=folder, watch=lambda store, now: done.append(now), stopping=lambda: len(done) >= rounds, threads=0
    )
    return list_checkpoints(folder / "checkpoints")


def outcome(folder: Path) -> tuple[Any, ...]:
    """Everything that must not depend on whether a run was damaged and resumed."""
    summary = (folder / "summary.json").read_text()
    models = [
        hashlib.sha256(file.read_bytes()).hexdigest()
        for name in (weights_file.WEIGHTS_FILE, weights_file.BEST_FILE)
        if (file := folder / name).exists()
    ]
    if '"ftpipehd"' in summary:  # a pipeline is laid out again when it is resumed, which takes time
        return (models,)
    return journal(folder), models, re.sub(r'"wall_s": [\d.]+', "", summary)


@pytest.fixture(scope="module", params=["rounds", "pipeline"])
def unbroken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Any]:
    job, folder = {"rounds": JOB, "pipeline": PIPELINE}[request.param], tmp_path_factory.mktemp("unbroken") / "run"
    potluck.simulate(job, folder=folder, threads=0)
    return job, outcome(folder)


def resume_with_notice(folder: Path, notice: str) -> None:
    with pytest.warns(PotluckWarning, match=notice) as caught:
        potluck.resume(folder, threads=0)
    assert len(caught) == 1, "it is said in one line"
    assert "\n" not in str(caught[0].message)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_newest_checkpoint_is_replaced_by_the_one_before(
    tmp_path: Path, damage: Damage, unbroken: tuple[dict[str, Any], Any]
) -> None:
    job, expected = unbroken
    newest, before, *_ = interrupt_after(tmp_path / "run", job, 6)
    damage(newest)
    resume_with_notice(
        tmp_path / "run", rf"checkpoint {newest.stem} is damaged \(.*; resuming from checkpoint {before.stem}$"
    )
    assert outcome(tmp_path / "run") == expected
    assert not list((tmp_path / "run").rglob("*.unusable")), "the run has replaced what was damaged"


def test_undecodable_metadata_is_damage(tmp_path: Path, unbroken: tuple[dict[str, Any], Any]) -> None:
    job, expected = unbroken
    newest, before, *_ = interrupt_after(tmp_path / "run", job, 6)
    tensors, _ = weights_file.read_checkpoint(newest)
    weights_file.write_checkpoint(newest.parent, int(newest.stem), tensors, '{"time": null}')
    resume_with_notice(tmp_path / "run", f"{newest.stem} is damaged .*resuming from checkpoint {before.stem}")
    assert outcome(tmp_path / "run") == expected


def test_without_a_whole_checkpoint_a_simulation_starts_again(
    tmp_path: Path, unbroken: tuple[dict[str, Any], Any]
) -> None:
    job, expected = unbroken
    for path in interrupt_after(tmp_path / "run", job, 6):
        path.write_bytes(b"")
    resume_with_notice(tmp_path / "run", "resuming from the beginning")
    assert outcome(tmp_path / "run") == expected


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(
    tmp_path: Path, unbroken: tuple[dict[str, Any], Any]
) -> None:
    job, expected = unbroken
    for path in interrupt_after(tmp_path / "run", job, 1):
        path.unlink()
    resume_with_notice(tmp_path / "run", "ended before its first checkpoint; resuming from the beginning")
    assert outcome(tmp_path / "run") == expected


@pytest.mark.parametrize("kept", [0.95, 0.1])
def test_a_journal_cut_short_takes_the_run_back(
    tmp_path: Path, kept: float, unbroken: tuple[dict[str, Any], Any]
) -> None:
    job, expected = unbroken
    interrupt_after(tmp_path / "run", job, 6)
    cut(kept)(tmp_path / "run" / "journal.jsonl")
    where = "checkpoint 00000004" if kept > 0.9 else "the beginning"
    resume_with_notice(tmp_path / "run", rf"journal\.jsonl is shorter than checkpoint .* says .*resuming from {where}$")
    assert outcome(tmp_path / "run") == expected


@pytest.mark.parametrize("content", [b"\0", b"\xff\n"])
def test_a_journal_of_other_content_is_noticed(tmp_path: Path, content: bytes) -> None:
    potluck.simulate(JOB, folder=tmp_path / "whole", threads=0)
    interrupt_after(tmp_path / "run", JOB, 6)
    path = tmp_path / "run" / "journal.jsonl"
    path.write_bytes((content * path.stat().st_size)[: path.stat().st_size])
    resume_with_notice(tmp_path / "run", r"journal\.jsonl is damaged where checkpoint .* was written")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("damage", [cut(0.5), flip(-1), Path.unlink], ids=["torn", "flipped bit", "missing"])
def test_a_damaged_best_model_is_trained_again(tmp_path: Path, damage: Damage) -> None:
    potluck.simulate(JOB, folder=tmp_path / "whole", threads=0)
    interrupt_after(tmp_path / "run", JOB, 6)
    damage(tmp_path / "run" / weights_file.BEST_FILE)
    resume_with_notice(tmp_path / "run", r"best\.safetensors, which checkpoint .* needs, is damaged")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_a_damaged_model_of_a_finished_run_is_written_again(tmp_path: Path) -> None:
    potluck.simulate(JOB, folder=tmp_path / "run", threads=0)
    expected = outcome(tmp_path / "run")
    flip(-1)(tmp_path / "run" / weights_file.WEIGHTS_FILE)
    potluck.resume(tmp_path / "run", threads=0)
    assert outcome(tmp_path / "run") == expected


def test_a_run_that_was_taken_over_writes_nothing_more(tmp_path: Path) -> None:
    run, journal_bytes = tmp_path / "run", list[int]()

    def take_over(store: RunStore, now: float) -> None:
        if store.progress.round == 3:
            owner = read_owner(run)
            assert owner is not None
            other = msgspec.structs.replace(owner, key="another's")
            (run / LOCK_FILE).write_bytes(msgspec.json.encode(other))
            journal_bytes.append((run / "journal.jsonl").stat().st_size)

    with pytest.raises(potluck.errors.RunError, match="was taken over by process"):
        potluck.simulate({**JOB, "checkpoint": 4}, folder=run, watch=take_over, threads=0)
    assert (run / "journal.jsonl").stat().st_size == journal_bytes[0]
    assert not (run / "summary.json").exists()
    assert (run / LOCK_FILE).exists()


def test_nothing_is_changed_by_a_refused_resume(tmp_path: Path) -> None:
    newest, *_ = interrupt_after(tmp_path / "run", JOB, 6)
    newest.write_bytes(b"")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(potluck.UserError, match=r"stop\.rounds"):
        potluck.resume(tmp_path / "run", overrides=["stop.rounds=x"])
    with pytest.raises(potluck.UserError, match=r"^task\.options\.hidden: cannot change in a run"):
        potluck.resume(tmp_path / "run", overrides=["task.options.hidden=[17]"])
    with pytest.raises(potluck.UserError, match="began with another model"):
        potluck.resume(
            tmp_path / "run", task=potluck.Task(torch.nn.Linear(3, 2), (torch.zeros(9, 3), torch.zeros(9).long()))
        )
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
