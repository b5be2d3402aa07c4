from __future__ import annotations

from typing import Any

from potluck.report.run_labels import label_runs


def _view(id: str, recipe: str = "fedavg", world: str = "simulated", job: str = "") -> dict[str, Any]:
    return {"id": id, "recipe": recipe, "world": world, "job": job}


def _labels(*views: dict[str, Any]) -> list[str]:
    return [view["label"] for view in label_runs(views)]


def test_runs_of_different_recipes_are_labelled_by_recipe_only() -> None:
    assert _labels(_view("a", job="evaluate = 1"), _view("b", "gpipe", job="evaluate = 100")) == ["fedavg", "gpipe"]


def test_runs_of_one_recipe_are_labelled_by_the_settings_that_differ() -> None:
    first, second = (
        'seed = 1\n[rounds.local]\nlr = 0.1\nkind = "sgd"',
        'seed = 2\n[rounds.local]\nlr = 0.2\nkind = "sgd"',
    )
    labels = _labels(_view("a", job=first), _view("b", job=second), _view("c", "fedbuff", job=first))
    assert labels == ["fedavg, seed 1, lr 0.1", "fedavg, seed 2, lr 0.2", "fedbuff"]


def test_live_runs_are_marked() -> None:
    assert _labels(_view("a"), _view("b", world="live"), _view("c", "fedbuff", "live")) == [
        "fedavg",
        "fedavg (live)",
        "fedbuff (live)",
    ]


def test_identical_runs_are_labelled_by_their_folders() -> None:
    assert _labels(_view("a"), _view("b")) == ["fedavg, a", "fedavg, b"]


def test_long_labels_are_truncated_and_a_damaged_job_has_no_differences() -> None:
    texts = ["\n".join(f"key{key} = {key + add}" for key in range(9)) for add in (0, 1)]
    assert _labels(*(_view(str(index), job=text) for index, text in enumerate(texts))) == [
        "fedavg, key0 0, key1 1, key2 2, …",
        "fedavg, key0 1, key1 2, key2 3, …",
    ]
    assert _labels(_view("a", job="= ="), _view("b", "")) == ["fedavg", "b"]
