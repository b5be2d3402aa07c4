from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import measured_code
from benchmarks.measured_code import code_digest, code_of_benchmark


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "src/cli").mkdir(parents=True)
    (tmp_path / "src/model.py").write_text('"""A model."""\n\n\ndef f(x):\n    """Doubles it."""\n    return 2 * x\n')
    (tmp_path / "src/cli/app.py").write_text("print(1)\n")
    (tmp_path / "src/presets.toml").write_text("speed = 1\n")
    return tmp_path


def _digest(checkout: Path, *paths: str) -> str:
    measured_code._file_digest.cache_clear()
    return code_digest(paths, checkout)


def test_comments_docstrings_and_formatting_do_not_count_but_code_does(checkout: Path) -> None:
    before = _digest(checkout, "src")
    (checkout / "src/model.py").write_text("def f( x ):\n    '''Twice.'''\n    # as documented\n    return (2*x)\n")
    assert _digest(checkout, "src") == before
    (checkout / "src/model.py").write_text("def f(x):\n    return 3 * x\n")
    assert _digest(checkout, "src") != before


@pytest.mark.parametrize("path", ["src/presets.toml", "src/cli/app.py", "src/added.py"])
def test_any_file_below_a_path_counts(checkout: Path, path: str) -> None:
    before = _digest(checkout, "src")
    (checkout / path).write_text("speed = 2\n")
    assert _digest(checkout, "src") != before


def test_what_is_left_out_and_hidden_folders_do_not_count(checkout: Path) -> None:
    before = _digest(checkout, "src", "!src/cli", "!src/presets.toml")
    (checkout / "src/cli/app.py").write_text("print(2)\n")
    (checkout / "src/presets.toml").write_text("speed = 2\n")
    (checkout / "src/.venvs/x").mkdir(parents=True)
    (checkout / "src/.venvs/x/y.py").write_text("1")
    assert _digest(checkout, "src", "!src/cli", "!src/presets.toml") == before


def test_a_renamed_file_counts(checkout: Path) -> None:
    before = _digest(checkout, "src")
    (checkout / "src/model.py").rename(checkout / "src/network.py")
    assert _digest(checkout, "src") != before


def test_a_benchmark_measures_its_own_files_and_by_default_the_whole_package() -> None:
    assert code_of_benchmark("benchmarks.live") == ("src/potluck", "benchmarks/live")
    assert code_of_benchmark("benchmarks.networks", ["src/potluck/units.py"]) == (
        "benchmarks/networks.py",
        "src/potluck/units.py",
    )
    assert code_of_benchmark("benchmarks.live", ["!src/potluck/cli"])[0] == "src/potluck"
