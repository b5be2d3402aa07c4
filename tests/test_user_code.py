"""Errors of the user's own code name its file and line, wherever a job meets it, and in one line."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import potluck
from potluck.errors import UserError
from potluck.user_code import describe_user_error, raised_by_user_code

HEAD = "import torch, potluck\nfrom torch import nn\n"
DATA = "(torch.randn(24, 4), torch.arange(24) % 3)"
WRONG = {
    "a missing module": ("import no_such_library\n", r"task: .*No module named 'no_such_library' \({file}:3\)"),
    "a syntax error": ("def task(:\n", r"task: .*SyntaxError.* \({file}:3\)"),
    "an error on import": ("raise RuntimeError('not today')\n", r"task: .*RuntimeError: not today \({file}:3\)"),
    "no such function": ("", "has no 'task'"),
    "an error in the function": ("def task():\n    return {}['x']\n", r"task: .*KeyError: 'x' \({file}:4\)"),
    "not a task": ("def task():\n    return 3\n", "must be a potluck.Task"),
    "an error in the factory": (
        f"def build():\n    raise OSError('no weights')\ndef task():\n    return potluck.Task(build, {DATA})\n",
        r"cannot be built: OSError: no weights \({file}:4\)",
    ),
    "a missing module in the factory": (
        f"def build():\n    import no_such_library\ndef task():\n    return potluck.Task(build, {DATA})\n",
        r"cannot be built: ModuleNotFoundError: No module named 'no_such_library' \({file}:4\)",
    ),
    "a missing module in forward": (
        "class Net(nn.Linear):\n    def forward(self, x):\n        import no_such_library\n"
        f"def task():\n    return potluck.Task(lambda: Net(4, 3), {DATA})\n",
        r"the model or its loss fails: ModuleNotFoundError: No module named 'no_such_library' \({file}:5\)",
    ),
    "an error of the standard library in forward": (
        "class Net(nn.Linear):\n    def forward(self, x):\n        import json\n        json.loads('{')\n"
        f"def task():\n    return potluck.Task(lambda: Net(4, 3), {DATA})\n",
        r"the model or its loss fails: JSONDecodeError: .* \({file}:6\)",
    ),
    "a model that does not fit": (
        f"def task():\n    return potluck.Task(lambda: nn.Linear(5, 3), {DATA})\n",
        r"the model does not fit the data \(inputs of shape \(4,\)\): RuntimeError: ",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_error_in_the_module_of_a_job_names_its_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, pattern = WRONG[name]
    module = f"strange_{re.sub('[^a-z]', '_', name)}"
    file = tmp_path / f"{module}.py"
    file.write_text(HEAD + code)
    monkeypatch.syspath_prepend(tmp_path)
    job = {"task": f"{module}:task", "fleet": "kitchen-table", "stop": {"rounds": 1}}
    with pytest.raises(UserError, match=pattern.replace("{file}", re.escape(str(file)))) as error:
        potluck.simulate(job)
    assert "\n" not in str(error.value)
    sys.modules.pop(module, None)


def test_a_module_that_is_not_there_is_to_be_installed() -> None:
    job = {"task": "no_such_package.tasks:task", "fleet": "kitchen-table", "stop": {"rounds": 1}}
    with pytest.raises(UserError, match=r"task: cannot import 'no_such_package\.tasks' .* install it on every device"):
        potluck.simulate(job)


def caught(function: object) -> Exception:
    try:
        function()  # type: ignore[operator]
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_a_library_given_what_does_not_fit_is_not_the_users_error() -> None:
    error = caught(lambda: nn.Linear(2, 2)(torch.zeros(1, 3)))
    assert not raised_by_user_code(error)
    assert re.search(r"test_user_code\.py:\d+\)$", describe_user_error(error))


class Misspelt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layre(x)  # type: ignore[operator, no-any-return]


@pytest.mark.parametrize("recipe", ["fedavg", "dynacomm", "ftpipehd", "heterofl", "distreal"])
def test_a_misspelt_layer_keeps_its_line_and_is_no_misfit(recipe: str) -> None:
    task = potluck.Task(Misspelt, (torch.rand(50, 5), torch.arange(50) % 3))
    job = {"recipe": recipe, "task": "own", "fleet": "kitchen-table", "stop": {"rounds": 1}}
    with pytest.raises(UserError, match=r"no attribute 'layre' \(.*test_user_code\.py:\d+\)") as error:
        potluck.simulate(job, task=task)
    assert "does not fit" not in str(error.value)
    assert "\n" not in str(error.value)


def test_an_error_without_a_message_is_named() -> None:
    def fail() -> None:
        raise NotImplementedError

    assert describe_user_error(caught(fail)).startswith("NotImplementedError (")
