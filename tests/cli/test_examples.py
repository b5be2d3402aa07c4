from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.cli.calling import ROOT, Shell

# rounds of a shortened run, and the accuracy it must reach
SHORT = {
    "decoupled": (2, 0.7), "digits": (8, 0.85), "distreal": (3, 0.25), "dynacomm": (8, 0.55), "ftpipehd": (20, 0.45),
    "scadles": (12, 0.7), "streams": (10, 0.8),
}  # fmt: skip


def test_own_model(capsys: pytest.CaptureFixture[str]) -> None:
    names = runpy.run_path(str(ROOT / "examples/own_model.py"))
    assert names["result"].status == "done"
    assert names["result"].summary["accuracy"] >= 0.9
    assert "Linear(in_features=20" in capsys.readouterr().out
    assert len((ROOT / "examples/own_model.py").read_text().splitlines()) <= 25


def test_digits_with_faults(potluck: Shell, tmp_path: Path) -> None:
    result = potluck("run", ROOT / "examples/digits", "--json", "--out", tmp_path / "run")
    assert result.code == 0
    assert result.json["accuracy"] >= 0.93
    assert any(device.get("lost") for device in result.json["devices"].values())


def test_class_groups_start_from_a_briefly_trained_network(potluck: Shell, folder: Path) -> None:
    assert potluck("run", ROOT / "examples/decoupled/pretrain.toml", "--out", "runs/brief").code == 0
    changes = ("--set", "start=runs/brief", "--set", "rounds.submodel.trunk=frozen", "--set", "stop.rounds=1")
    assert potluck("run", ROOT / "examples/decoupled", *changes, "--out", "runs/parts").code == 0
    brief = load_file(folder / "runs/brief/model.safetensors")
    assembled = load_file(folder / "runs/parts/assembled.safetensors")
    trunk = [value for name, value in assembled.items() if name.startswith("trunk.") and value.dim() == 2]
    assert [any(value.equal(trained) for trained in brief.values()) for value in trunk] == [True]


def test_every_example_job_is_tested() -> None:
    assert {path.parent.name for path in (ROOT / "examples").glob("*/job.toml")} == SHORT.keys()


@pytest.mark.parametrize("name", SHORT)
def test_an_example_runs_and_learns(potluck: Shell, tmp_path: Path, name: str) -> None:
    rounds, accuracy = SHORT[name]
    short = (f"stop.rounds={rounds}", f"evaluate={rounds}")
    result = potluck("run", ROOT / "examples" / name, "--json", "--out", tmp_path / "run", *_sets(short))
    assert (result.code, result.json["status"]) == (0, "done")
    assert result.json["rounds"] == rounds
    assert result.json["accuracy"] >= accuracy


def _sets(settings: tuple[str, ...]) -> list[str]:
    return [argument for setting in settings for argument in ("--set", setting)]


# rounds of a shortened run, a metric, and what it must be at least or at most
SCRIPTS = {
    "char_gpt": (1, "perplexity", 30.0), "lora_llama": (4, "perplexity", 8.0), "segmentation": (6, "mean-iou", 0.4),
    "tabular_regression": (4, "rmse", 0.6), "text_classifier": (3, "accuracy", 0.9),
}  # fmt: skip


def test_every_example_script_is_tested() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {*SCRIPTS, "own_model"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_script_runs_and_learns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    if name == "lora_llama":
        pytest.importorskip("peft")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path, (rounds, metric, needed) = ROOT / f"examples/{name}.py", SCRIPTS[name]
    monkeypatch.setattr("sys.argv", [str(path), str(rounds)])
    result = runpy.run_path(str(path), run_name="__main__")["result"]
    assert (result.status, result.summary["rounds"]) == ("done", rounds)
    reached = result.summary["metrics"][metric] if metric != "accuracy" else result.summary["accuracy"]
    assert reached >= needed if metric in ("accuracy", "mean-iou") else reached <= needed
    assert f"test_{metric}" in capsys.readouterr().out
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60
