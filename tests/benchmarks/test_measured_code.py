from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import measured_code
from benchmarks.benchmark_catalogue import find_benchmark
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
    assert code_of_benchmark("benchmarks.transport") == ("src/potluck", "benchmarks/transport")
    assert code_of_benchmark("benchmarks.networks", ["src/potluck/units.py"]) == (
        "benchmarks/networks.py",
        "src/potluck/units.py",
    )
    assert code_of_benchmark("benchmarks.transport", ["!src/potluck/cli"])[0] == "src/potluck"


FILES = {
    "own/__init__.py": "from benchmarks.own.drawing import draw\nfrom benchmarks.other import fleet, SIZE\n",
    "own/drawing.py": "import benchmarks.pictures\nfrom benchmarks.benchmark_figures import Figure\n",
    "own/job.py": 'MODEL = "benchmarks.networks:narrow"\nRUN = "python -m benchmarks.unused"\n',
    "other/__init__.py": "from benchmarks.other.sizes import SIZE\n",
    "other/sizes.py": "",
    "other/fleet.py": "def start():\n    from benchmarks.processes import Group\n",
    "other/unused.py": "", "processes.py": "", "networks.py": "", "pictures.py": "", "benchmark_figures.py": "",
    "unused.py": "",
}  # fmt: skip


def test_modules_of_other_benchmarks_that_it_imports_or_names_are_measured_too(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / "benchmarks" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "benchmarks" / name).write_text(text)
    found = ["networks.py", "other/__init__.py", "other/fleet.py", "other/sizes.py", "pictures.py", "processes.py"]
    paths = code_of_benchmark("benchmarks.own", ["src"], tmp_path)
    assert paths == ("benchmarks/own", "src", *(f"benchmarks/{name}" for name in found))
    without = code_of_benchmark("benchmarks.own", ["src", "!benchmarks/own/drawing.py"], tmp_path)
    assert set(paths) - set(without) == {"benchmarks/pictures.py"}


def test_live_measures_what_starts_its_processes_and_reads_its_rounds() -> None:
    helpers = {"peers/potluck_commands.py", "peers/process_group.py", "faults/committed_rounds.py"}
    assert {f"benchmarks/{name}" for name in helpers} <= set(find_benchmark("live").code_paths)
    assert {f"benchmarks/{name}" for name in ("networks.py", "shaped_network.py")} <= set(
        find_benchmark("live").code_paths
    )
    assert "benchmarks/overlap/overlap_figures.py" not in find_benchmark("overlap").code_paths
