"""The wheel alone: with nothing but the base dependencies it runs the demo, a new job and its report."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_EXTRAS = (
    "sklearn", "PIL", "aiomqtt", "confluent_kafka", "starlette", "uvicorn", "tensorboard", "pymoo", "transformers",
    "peft", "datasets", "tokenizers", "torchmetrics", "matplotlib", "cloudpickle", "dill",
)  # fmt: skip
_HIDE_EXTRAS = f"""
from importlib.machinery import PathFinder

find_spec = PathFinder.find_spec
PathFinder.find_spec = staticmethod(
    lambda name, *more: None if name.partition(".")[0] in {_EXTRAS!r} else find_spec(name, *more)
)
"""
_SHORT = ["--set", "stop.rounds=2"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(folder), str(_ROOT)]
    subprocess.run(build, check=True, timeout=300)
    return next(folder.glob("*.whl"))


def test_the_wheel_contains_only_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"potluck"}
    assert "potluck/py.typed" in names
    assert any(name.startswith("potluck/cli/starter/") for name in names)


def test_the_wheel_runs_without_any_extra(wheel: Path, tmp_path: Path) -> None:
    package = tmp_path / "package"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(package)
    (package / "sitecustomize.py").write_text(_HIDE_EXTRAS)
    environment = {**os.environ, "PYTHONPATH": str(package)}
    for words in (
        ["new", "mine"],
        ["run", "mine/job.toml", "--out", "runs/mine", *_SHORT],
        ["plan", "mine/job.toml"],
        ["report", "runs/mine"],
        ["demo", "--quiet"],
    ):
        command = [sys.executable, "-m", "potluck", *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr


@pytest.mark.long
def test_the_wheel_installs_into_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "-q", "-c", str(_ROOT / "constraints.txt")]
    subprocess.run([*install, "torch"], check=True, timeout=900)
    subprocess.run([*install, str(wheel)], check=True, timeout=900)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for words in (["demo", "--quiet"], ["new", "mine"], ["run", "mine/job.toml", *_SHORT]):
        command = [str(tmp_path / "venv" / "bin" / "potluck"), *words]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=300)
