"""Exploration finds a front that is nowhere worse than uniform rates, can be stopped, and evaluates nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from potluck.errors import SettingError
from potluck.explore import Exploration, ExplorationProgress, ExplorationResult, explore, settings_from_job
from potluck.explore.candidate_evaluator import CandidateEvaluator, EvaluationRequest
from potluck.explore.evaluation_cache import EvaluationCache
from potluck.explore.exploration_run import rank_correlation
from potluck.job import make
from potluck.model.weights_file import save_weights
from potluck.settings import decode_settings
from potluck.task import TaskSettings, build_task

TASK = decode_settings(
    {"model": "mlp", "data": {"kind": "synthetic", "train": 800, "noise": 2.0}, "options": {"hidden": [24, 16]}},
    TaskSettings,
)
SETTINGS = Exploration(
    batches=8, batch=16, warmup=8, held_out=200, measure="loss", repeats=2,
    uniform=4, population=8, generations=2, processes=0,
)  # fmt: skip


def run(cache: Path | None = None, **changes: object) -> tuple[ExplorationResult, list[ExplorationProgress]]:
    updates: list[ExplorationProgress] = []
    settings = decode_settings({**_plain(SETTINGS), **changes}, Exploration)
    return explore(TASK, settings, cache=cache, progress=updates.append), updates


def _plain(settings: Exploration) -> dict[str, object]:
    return {name: getattr(settings, name) for name in settings.__struct_fields__}


def test_the_front_is_nowhere_worse_than_uniform_rates() -> None:
    result, updates = run()
    for uniform in result.uniform.entries:
        assert any(entry.macs <= uniform.macs and entry.gain >= uniform.gain for entry in result.table.entries)
    assert result.hypervolume >= result.uniform_hypervolume > 0
    assert result.table.sets == ("linear1", "linear2")
    assert result.evaluations == len(updates)
    assert [progress.done for progress in updates] == [*range(1, len(updates) + 1)]


def test_the_same_seed_gives_the_same_result_and_cached_evaluations_are_reused(tmp_path: Path) -> None:
    cache = tmp_path / "evaluations.jsonl"
    first, progress = run(cache)
    second, no_progress = run(cache)
    fresh, _ = run()
    assert progress
    assert not no_progress
    assert first == second == fresh
    lines = cache.read_text().splitlines(keepends=True)
    cache.write_text("".join(lines[: len(lines) // 2]) + '["torn', encoding="utf-8")
    resumed, remaining = run(cache)
    assert resumed == first
    assert len(remaining) == len(lines) - len(lines) // 2


def test_another_experiment_does_not_use_these_cached_results(tmp_path: Path) -> None:
    question = EvaluationRequest("training", (3, 4), 0)
    EvaluationCache(tmp_path / "kept.jsonl", "one").store_score(question, 0.5)
    assert EvaluationCache(tmp_path / "kept.jsonl", "one").find_score(question) == 0.5
    assert EvaluationCache(tmp_path / "kept.jsonl", "other").find_score(question) is None


@pytest.mark.parametrize("proxy", ["alignment", "brief"])
def test_a_proxy_search_reports_its_rank_correlation(proxy: str) -> None:
    result, updates = run(proxy=proxy)
    assert result.correlation is not None
    assert -1 <= result.correlation <= 1
    assert {progress.request.judge for progress in updates} == {proxy, "training"}


def test_a_trial_does_not_depend_on_earlier_trials() -> None:
    trial = CandidateEvaluator(build_task(TASK, None), SETTINGS)
    full, half = EvaluationRequest("training", (24, 16), 0), EvaluationRequest("training", (12, 8), 0)
    first = trial.evaluate_candidate(half)
    assert trial.evaluate_candidate(full) > 0
    assert trial.evaluate_candidate(half) == first


def test_the_time_limit_ends_the_search() -> None:
    result, _ = run(minutes=1e-6, generations=50)
    assert result.table.entries
    assert result.evaluations <= 8 + 2 * (4 + 8)  # one generation, and the final evaluation of the best


def test_rank_correlation() -> None:
    assert rank_correlation([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 2, 2, 4], [1, 3, 2, 4]) == pytest.approx(0.9486833)


@pytest.mark.parametrize(
    ("recipe", "rounds", "expected"),
    [
        ("fedavg", {}, {"batch": 32, "lr": 0.05, "momentum": 0.0}),
        ("sync-sgd", {"server": {"lr": 0.2, "momentum": 0.8}}, {"batch": 32, "lr": 0.2, "momentum": 0.8}),
        ("sync-sgd", {"server": "adam", "batching": {"size": 1}}, {}),
        ("fedavg", {"local": "adamw"}, {"batch": 32}),  # not the coordinator's rate, which applies to the mean update
        (
            "uniform-dropout",
            {"submodel": {"grid": 8, "static": True}},
            {"batch": 32, "lr": 0.05, "momentum": 0.0, "scaled": True, "static": True, "grid": 8},
        ),
        (
            "distreal",
            {"submodel": {"units": "leading"}},
            {
                "batch": 32, "lr": 0.05, "momentum": 0.0,
                "units": "leading", "scaled": True, "static": False, "grid": 1,
            },
        ),
    ],
)  # fmt: skip
def test_settings_taken_from_the_job(recipe: str, rounds: dict[str, object], expected: dict[str, object]) -> None:
    tables = {"task": "pkg.mod:task", "fleet": "pi-shelf", "stop": {"rounds": 1}, "seed": 3}
    result = settings_from_job(make({**tables, "recipe": recipe, "rounds": rounds}))
    assert result == {"seed": 3, **expected}
    assert decode_settings(result, Exploration).seed == 3


def test_scaling_follows_the_units_unless_set() -> None:
    assert [Exploration(units=units).scales for units in ("random", "leading")] == [True, False]
    half = EvaluationRequest("training", (12, 8), 0)
    settings = [decode_settings({**_plain(SETTINGS), "scaled": scaled}, Exploration) for scaled in (None, True, False)]
    default, scaled, unscaled = (
        CandidateEvaluator(build_task(TASK, None), setting).evaluate_candidate(half) for setting in settings
    )
    assert default == scaled != unscaled
    assert settings[0].evaluation_settings == settings[1].evaluation_settings != settings[2].evaluation_settings


def test_unknown_methods_are_refused() -> None:
    with pytest.raises(SettingError, match="population"):
        decode_settings({"populaton": 3}, Exploration)


@pytest.mark.long
def test_worker_processes_give_the_same_results() -> None:
    assert run(processes=2)[0] == run()[0]


def test_the_cost_of_a_candidate_can_be_measured(tmp_path: Path) -> None:
    cache = tmp_path / "evaluations.jsonl"
    result, updates = run(cache, cost="seconds", repeats=1, generations=1)
    timed = {progress.request.counts: progress.score for progress in updates if progress.request.judge == "seconds"}
    assert all(seconds > 0 for seconds in timed.values())
    assert all(entry.macs <= result.table.baseline_macs for entry in result.table.entries)
    assert (result.table.cost, result.uniform.cost, run(generations=1)[0].table.cost) == ("seconds", "seconds", "macs")
    second, no_progress = run(cache, cost="seconds", repeats=1, generations=1)
    assert second == result
    assert not no_progress, "what was measured is kept"


def test_mixed_training_has_other_rates_in_every_other_mini_batch() -> None:
    """A single mini-batch is the candidate's own, and its time too; longer trainings differ, even the warm-up."""
    task = build_task(TASK, None)
    plain, mixed = (
        CandidateEvaluator(task, decode_settings({**_plain(SETTINGS), "mixed": mixed, "warmup": 1}, Exploration))
        for mixed in (False, True)
    )
    assert all((one == other).all() for one, other in zip(plain.weights, mixed.weights, strict=True))
    small = EvaluationRequest("training", (6, 4), 0)
    assert plain.evaluate_candidate(small) != mixed.evaluate_candidate(small)
    assert mixed.evaluate_candidate(small) == mixed.evaluate_candidate(small)
    digests = {str(Exploration(mixed=mixed, highest_rate=rate).evaluation_settings)
               for mixed, rate in ((False, 0.5), (False, 0.8), (True, 0.5), (True, 0.8))}  # fmt: skip
    assert len(digests) == 3


def test_a_search_may_start_from_trained_weights(tmp_path: Path) -> None:
    task = build_task(TASK, None)
    cold = decode_settings({**_plain(SETTINGS), "warmup": 0}, Exploration)
    module = task.build_module(99)
    weights = CandidateEvaluator(task, cold, start=save_weights(module, tmp_path / "model.safetensors")).weights
    trained = torch.cat([param.detach().reshape(-1) for param in module.parameters()])
    assert torch.equal(torch.from_numpy(weights[0]), trained)
    more = CandidateEvaluator(task, SETTINGS, start=tmp_path)
    assert more.weights_digest != CandidateEvaluator(task, cold, start=tmp_path).weights_digest


def test_evaluations_from_other_weights_are_not_reused(tmp_path: Path) -> None:
    cache, task = tmp_path / "evaluations.jsonl", build_task(TASK, None)
    files = [save_weights(task.build_module(seed), tmp_path / f"{seed}.safetensors") for seed in (98, 99)]
    first, other, again = (explore(TASK, SETTINGS, cache=cache, start=file) for file in (*files, files[0]))
    assert first == again
    assert [entry.gain for entry in first.table.entries] != [entry.gain for entry in other.table.entries]
