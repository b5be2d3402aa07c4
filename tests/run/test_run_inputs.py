"""A run is resumed with the model and the data that it began with; another one is refused with what differs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

import potluck
from potluck.errors import PotluckWarning, RunError
from potluck.run.run_inputs import INPUTS_FILE

X = torch.linspace(-1, 1, 120).reshape(60, 2)
Y = (X[:, 0] > 0).long()
ROUNDS: dict[str, Any] = {
    "recipe": "fedavg",
    "task": "mine",
    "fleet": {"devices": [{"name": "d", "count": 2, "flops": "20 MFLOP/s"}]},
    "stop": {"rounds": 2},
}
JOBS = {"rounds": ROUNDS, "pipeline": {**ROUNDS, "recipe": "ftpipehd", "pipeline": {"batch": 8}}}


def build_model(*, hidden: int = 4, activation: type[nn.Module] = nn.ReLU, frozen: float | None = None) -> nn.Module:
    torch.manual_seed(0)
    first = nn.Linear(2, hidden)
    model = nn.Sequential(first, activation(), nn.Linear(hidden, 2))
    if frozen is not None:
        first.requires_grad_(False).bias.data.fill_(frozen)
    return model


def keep_run(folder: Path, job: dict[str, Any], model: nn.Module, data: Any) -> None:
    potluck.simulate(job, task=potluck.Task(model, data), folder=folder, threads=0)


def resume(folder: Path, model: nn.Module, data: Any) -> potluck.Result:
    return potluck.resume(folder, task=potluck.Task(model, data), overrides=["stop.rounds=4"], threads=0)


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"hidden": 5}, r"tensor '0\.weight': now float32 \(5, 2\), then float32 \(4, 2\)"),
        ({"activation": nn.Tanh}, r"layer '1': now Tanh\(\), then ReLU\(\)"),
    ],
)
def test_another_model_is_refused(tmp_path: Path, job: dict[str, Any], change: dict[str, Any], difference: str) -> None:
    keep_run(tmp_path / "run", job, build_model(), (X, Y))
    with pytest.raises(RunError, match=f"began with another model: .*{difference}.*resume it with the same"):
        resume(tmp_path / "run", build_model(**change), (X, Y))
    assert resume(tmp_path / "run", build_model(), (X, Y)).summary["rounds"] == 4


def test_other_frozen_weights_are_refused(tmp_path: Path) -> None:
    keep_run(tmp_path / "run", ROUNDS, build_model(frozen=0.5), (X, Y))
    with pytest.raises(RunError, match=r"began with another model: frozen values of '0\.bias'"):
        resume(tmp_path / "run", build_model(frozen=0.6), (X, Y))


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Read when needed."""

    def __init__(self, x: Tensor, y: Tensor, noise: float = 0.0, seeded: bool = True) -> None:
        self.x, self.y, self.noise = x, y, noise
        self.generator = None if seeded else torch.Generator().manual_seed(0)
        self.read: set[int] = set()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.read.add(index)
        return self.x[index] + self.noise * torch.randn(2, generator=self.generator), self.y[index]


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
@pytest.mark.parametrize("kind", ["tensors", "data set"])
@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ((X[:50], Y[:50]), r"training samples: now \d+, then \d+"),
        ((X + 1e-3, Y), "contents of the training samples"),
    ],
    ids=["fewer", "other values"],
)
def test_other_data_is_refused(tmp_path: Path, job: dict[str, Any], kind: str, other: Any, difference: str) -> None:
    def pack(x: Tensor, y: Tensor) -> Any:
        return (x, y) if kind == "tensors" else Rows(x, y)

    keep_run(tmp_path / "run", job, build_model(), pack(X, Y))
    with pytest.raises(RunError, match=f"began with other data: .*{difference}"):
        resume(tmp_path / "run", build_model(), pack(*other))
    assert resume(tmp_path / "run", build_model(), pack(X.clone(), Y)).summary["rounds"] == 4


@pytest.mark.parametrize("seeded", [True, False])
def test_random_transforms_are_no_other_data(tmp_path: Path, seeded: bool) -> None:
    keep_run(tmp_path / "run", ROUNDS, build_model(), Rows(X, Y, noise=0.1, seeded=seeded))
    assert resume(tmp_path / "run", build_model(), Rows(X, Y, noise=0.1, seeded=seeded)).summary["rounds"] == 4


class Endless(IterableDataset[tuple[Tensor, Tensor]]):
    def __init__(self, shift: float, width: int = 2) -> None:
        self.shift, self.width = shift, width

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number in itertools.count():
            yield torch.full((self.width,), number % 7 + self.shift), torch.tensor(number % 2)


def test_another_stream_is_a_warning(tmp_path: Path) -> None:
    stream = {"rate": {"kind": "constant", "per_second": 40.0}}
    test = Rows(X, Y)
    keep_run(tmp_path / "run", {**ROUNDS, "stream": stream}, build_model(), (Endless(0.0), test))
    assert resume(tmp_path / "run", build_model(), (Endless(0.0), test)).summary["rounds"] == 4
    with pytest.warns(PotluckWarning, match="began with another stream: first training sample"):
        resume(tmp_path / "run", build_model(), (Endless(0.5), test))


def test_a_run_of_an_older_version_is_resumed_and_gets_digests(tmp_path: Path) -> None:
    keep_run(tmp_path / "run", ROUNDS, build_model(), (X, Y))
    (tmp_path / "run" / INPUTS_FILE).unlink()
    assert resume(tmp_path / "run", build_model(), (X, Y)).summary["rounds"] == 4
    with pytest.raises(RunError, match="began with another model"):
        resume(tmp_path / "run", build_model(activation=nn.Tanh), (X, Y))


def test_damaged_digests_are_said_and_do_not_keep_a_run_from_being_resumed(tmp_path: Path) -> None:
    keep_run(tmp_path / "run", ROUNDS, build_model(), (X, Y))
    (tmp_path / "run" / INPUTS_FILE).write_bytes(b"\xff{")
    with pytest.warns(PotluckWarning, match=r"inputs\.json cannot be read"):
        assert resume(tmp_path / "run", build_model(), (X, Y)).summary["rounds"] == 4
    with pytest.raises(RunError, match="began with another model"):
        resume(tmp_path / "run", build_model(hidden=5), (X, Y))


@pytest.mark.parametrize("part", ["training", "test"])
def test_a_single_other_value_in_memory_is_refused(tmp_path: Path, part: str) -> None:
    def data(change: float) -> potluck.data.Dataset:
        train, test = X.clone(), X[:20].clone()
        (train if part == "training" else test)[17, 1] += change
        return potluck.data.from_tensors(train, Y, test, Y[:20])

    keep_run(tmp_path / "run", ROUNDS, build_model(), data(0.0))
    with pytest.raises(RunError, match=f"began with other data: values of all {part} samples: now"):
        resume(tmp_path / "run", build_model(), data(1e-6))
    assert resume(tmp_path / "run", build_model(), data(0.0)).summary["rounds"] == 4


def test_a_run_with_fewer_digests_is_resumed_and_gets_the_others(tmp_path: Path) -> None:
    """As an earlier version wrote them: without those of all values."""
    keep_run(tmp_path / "run", ROUNDS, build_model(), (X, Y))
    path = tmp_path / "run" / INPUTS_FILE
    content = msgspec.json.decode(path.read_bytes())
    content["format"] = 1
    content["data"] = {name: fact for name, fact in content["data"].items() if not name.startswith("values of all")}
    path.write_bytes(msgspec.json.encode(content))
    with pytest.raises(RunError, match="began with other data: contents of the training samples"):
        resume(tmp_path / "run", build_model(), (X + 1e-3, Y))
    assert resume(tmp_path / "run", build_model(), (X, Y)).summary["rounds"] == 4
    other = X.clone()
    other[11] += 1e-6
    with pytest.raises(RunError, match="began with other data: values of all training samples"):
        resume(tmp_path / "run", build_model(), (other, Y))


def test_only_a_few_samples_are_read_for_a_digest(tmp_path: Path) -> None:
    from potluck.run.prepared_job import prepare_job
    from potluck.run.run_inputs import describe_inputs

    rows = Rows(torch.randn(5000, 2), torch.zeros(5000, dtype=torch.long))
    prepared = prepare_job(ROUNDS, potluck.Task(build_model(), rows), None)
    rows.read.clear()
    describe_inputs(prepared)
    assert len(rows.read) <= 16
