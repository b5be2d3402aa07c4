from __future__ import annotations

from collections.abc import Iterator

import pytest

from potluck.errors import SettingError
from potluck.model import autocast_probe
from potluck.run.local_training_checks import check_precision


@pytest.fixture(autouse=True)
def no_cache() -> Iterator[None]:
    autocast_probe.autocast_refusal.cache_clear()
    yield
    autocast_probe.autocast_refusal.cache_clear()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "SIGILL"),
        ("raise RuntimeError('no kernel for {precision}')", "no kernel for bfloat16"),
    ],
)
def test_a_precision_that_fails_in_a_child_process_is_refused_by_device(
    monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    monkeypatch.setattr(autocast_probe, "_SCRIPT", script)
    check_precision("float32", "pi")
    with pytest.raises(
        SettingError, match=rf"rounds.local.precision: bfloat16 does not work on pi: .*{reason}"
    ) as raised:
        check_precision("bfloat16", "pi")
    assert "\n" not in str(raised.value)


def test_a_precision_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autocast_probe, "_SCRIPT", "pass")
    check_precision("bfloat16", "pi")
    monkeypatch.setattr(autocast_probe, "_SCRIPT", "raise SystemExit(1)")
    check_precision("bfloat16", "pi")


def test_a_trial_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autocast_probe, "_SCRIPT", "import time; time.sleep(60)")
    monkeypatch.setattr(autocast_probe, "_TIMEOUT_S", 0.3)
    assert "took longer" in (autocast_probe.autocast_refusal("float16") or "")


def test_the_trial_itself_runs_in_full_precision() -> None:
    """Without what it is meant to find out, the script does not fail."""
    compile(autocast_probe._SCRIPT.replace("{precision}", "bfloat16"), "trial", "exec")
