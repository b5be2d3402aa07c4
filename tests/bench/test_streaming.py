from __future__ import annotations

import pytest

from potluck.bench.experiment import Context, Results
from potluck.bench.streaming import BENCHMARK
from potluck.bench.streaming.compress import compression_speed
from potluck.bench.streaming.compression import CODECS, figures
from potluck.bench.streaming.volume import DIGITS, compressed_job, measure

TINY = DIGITS._replace(rounds=2, devices=2)


def test_both_sides_of_the_speed_are_timed() -> None:
    ours, reference = compression_speed(100_000, 0.01, seed=1)
    assert ours > 0
    assert reference > 0


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_stands_in_its_job(codec: str) -> None:
    job = compressed_job(TINY, CODECS[codec], seed=0)
    assert job.rounds.codec.__struct_config__.tag == CODECS[codec]["kind"]


def test_a_run_tells_what_was_pushed() -> None:
    dense = measure(TINY, {"kind": "dense"}, 0, None)
    sparse = measure(TINY, {"kind": "top-k", "ratio": 0.01, "values": "f16"}, 0, None)
    never = measure(TINY, {"kind": "adaptive", "ratio": 0.1, "delta": 0.0}, 0, None)
    assert dense["pushed_bytes"] == dense["dense_bytes"] == sparse["dense_bytes"] == never["pushed_bytes"]
    assert 120 < sparse["dense_bytes"] / sparse["pushed_bytes"] < 140
    assert (dense["cnc"], sparse["cnc"], never["cnc"]) == (0, 1, 0)
    assert never["accuracy"] == dense["accuracy"]
    assert sparse["time_s"] < dense["time_s"]


def _results(best: dict[str, float]) -> Results:
    plain = {"accuracy": 0.7, "time_s": 9.0, "pushed_bytes": 1000.0, "dense_bytes": 1000.0, "cnc": 0.0}
    runs = {f"{name}/{repeat}": plain for name in CODECS for repeat in range(2)}
    spoken = {f"graded, error feedback/{repeat}": {**plain, **best} for repeat in range(2)}
    return {**runs, **spoken, "speed": {"ours_s": [1.0, 2.0], "reference_s": [1.0, 1.0]}}


@pytest.mark.parametrize(
    ("best", "verdicts"),
    [
        ({"pushed_bytes": 8.0, "accuracy": 0.699}, [True, True, True]),
        ({"pushed_bytes": 20.0, "accuracy": 0.695}, [True, False, False]),
    ],
)
def test_goals_are_held_against_the_dense_run(best: dict[str, float], verdicts: list[bool]) -> None:
    found = figures(_results(best))
    assert [figure.held for figure in found if figure.goal is not None] == verdicts
    assert len(BENCHMARK.charts(_results(best))) == 1


def test_pieces_have_their_own_names() -> None:
    for quick in (True, False):
        names = [piece.name for piece in BENCHMARK.pieces(Context(quick=quick))]
        assert len(set(names)) == len(names)
