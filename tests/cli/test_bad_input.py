"""Invalid jobs and fleets are refused with exit code 2 and one line that names the key or the file."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.calling import FLEET, JOB, Shell


class Wrong(NamedTuple):
    message: str  # text that the error line must contain: the key, the file or the problem
    job: str | bytes | None = JOB
    fleet: str | None = FLEET
    more: tuple[str, ...] = ()


def job(old: str, new: str) -> str:
    assert old in JOB
    return JOB.replace(old, new)


def sets(*assignments: str) -> tuple[str, ...]:
    return tuple(argument for assignment in assignments for argument in ("--set", assignment))


TASK = '[task]\nmodel = "mlp"\ndata = "synthetic"\noptions = {hidden = [8]}\n'

WRONG = {
    "no job": Wrong("job.toml: No such file", job=None),
    "no fleet": Wrong("fleet: cannot read fleet.toml", fleet=None),
    "job is not TOML": Wrong("job.toml is not TOML: Invalid value (at line 1", job="recipe = \n"),
    "job is not text": Wrong("job.toml is not TOML", job=b"\xff\xfe"),
    "fleet is not TOML": Wrong("fleet.toml is not TOML", fleet="[[devices]\n"),
    "unknown key": Wrong("receipe: unknown key", job=job("recipe =", "receipe =")),
    "unknown key in a table": Wrong("rounds.batch: unknown key", job=JOB + "[rounds]\nbatch = 2\n"),
    "no task": Wrong("task: this key is missing", job=job(TASK, "")),
    "no data": Wrong("task.data: this key is missing", job=job('data = "synthetic"\n', "")),
    "no stop": Wrong("stop: this key is missing", job=job("[stop]\nrounds = 3\n", "")),
    "no budget": Wrong("stop: give at least one budget", job=job("rounds = 3", "accuracy = 0.9")),
    "accuracy in percent": Wrong("stop.accuracy", job=JOB + "accuracy = 95\n"),
    "no rounds": Wrong("stop.rounds", job=job("rounds = 3", "rounds = 0")),
    "wrong type": Wrong("stop.rounds", job=job("rounds = 3", 'rounds = "three"')),
    "wrong unit": Wrong("stop.time: unknown unit 'MB'", job=JOB + 'time = "10 MB"\n'),
    "negative time": Wrong("stop.time: '-1 s'", job=JOB + 'time = "-1 s"\n'),
    "unknown recipe": Wrong("recipe: 'fedavgg' is not known", job=job("fedavg", "fedavgg")),
    "recipe is a number": Wrong("recipe: expected a name, got 3", job=job('"fedavg"', "3")),
    "unknown model": Wrong("task.model: no model 'mpl'", job=job('"mlp"', '"mpl"')),
    "unknown option": Wrong("option 'hiden'", job=job("hidden", "hiden")),
    "bad option": Wrong("option 'hidden'", job=job("[8]", "[-8]")),
    "own model not there": Wrong("task.model: cannot import 'no_such'", job=job('"mlp"', '"no_such:net"')),
    "own model has no name": Wrong("task.model: module 'json' has no 'net'", job=job('"mlp"', '"json:net"')),
    "own model is no model": Wrong("json:JSONDecoder on synthetic", job=job('"mlp"', '"json:JSONDecoder"')),
    "model too big for the data": Wrong(
        "option 'side': 8 is too small",
        job=job(TASK, '[task]\nmodel = "lenet"\ndata = "digits"\n'),
    ),
    "model of another shape": Wrong(
        "the model does not fit the data",
        job=job(
            TASK, '[task]\nmodel = "torch.nn:Linear"\ndata = "digits"\noptions = {in_features = 3, out_features = 2}\n'
        ),
    ),
    "own task is none": Wrong(
        "task: 'json:JSONDecoder'", job=job(TASK, "").replace("fleet =", 'task = "json:JSONDecoder"\nfleet =')
    ),
    "unknown data": Wrong("task.data: 'synthetics' is not known", job=job("synthetic", "synthetics")),
    "data not here": Wrong("mnist was not found (tried", job=job("synthetic", "mnist")),
    "unknown data option": Wrong("task.data.clases: unknown key", job=job("synthetic", "synthetic:clases=4")),
    "unknown loss": Wrong("task.loss", job=job("[task]", '[task]\nloss = "l1"')),
    "loss does not fit": Wrong("task.loss: 'mse'", job=job("[task]", '[task]\nloss = "mse"')),
    "unknown split": Wrong("split: 'iid2' is not known", job=JOB + '[split]\nkind = "iid2"\n'),
    "split without kind": Wrong("split.alpha: unknown key", job=JOB + "[split]\nalpha = 0.5\n"),
    "bad split": Wrong("split.alpha", job=JOB + '[split]\nkind = "dirichlet"\nalpha = -1\n'),
    "too few classes": Wrong("cannot hold all 10 classes", job=JOB + '[split]\nkind = "classes"\nper_device = 1\n'),
    "more devices than samples": Wrong(
        "devices share 10 samples of 'synthetic'",
        job=job("synthetic", "synthetic:train=10"),
        fleet=FLEET.replace("2", "20"),
    ),
    "unknown fleet": Wrong("fleet: 'kitchen' is neither", job=job("fleet.toml", "kitchen")),
    "fleet is a number": Wrong("fleet: expected a table", job=job('"fleet.toml"', "3")),
    "empty fleet": Wrong("fleet.devices: this key is missing", fleet=""),
    "no devices": Wrong("fleet: `devices` is empty", fleet="devices = []\n"),
    "zero devices": Wrong("fleet.devices[0].count", fleet=FLEET.replace("2", "0")),
    "unknown preset": Wrong("preset 'pi9' is not known", fleet=FLEET.replace("pi4", "pi9")),
    "no speed": Wrong("fleet.devices[0]: give a `preset`", fleet='[[devices]]\nname = "x"\n'),
    "no speed at all": Wrong("`flops` must be above 0", fleet='[[devices]]\nname = "x"\nflops = 0\n'),
    "two of one name": Wrong("device name 'pi4-0' is used twice", fleet=FLEET + FLEET),
    "name of the coordinator": Wrong("name 'coordinator'", fleet='[[devices]]\npreset = "pi4"\nname = "coordinator"\n'),
    "name with spaces": Wrong("name 'my pi'", fleet='[[devices]]\npreset = "pi4"\nname = "my pi"\n'),
    "unknown link": Wrong("link 'wify' is not known", fleet=FLEET + 'link = "wify"\n'),
    "negative bandwidth": Wrong("fleet.devices[0].link.up: '-3 Mbit/s'", fleet=FLEET + 'link = {up = "-3 Mbit/s"}\n'),
    "bandwidth in ms": Wrong("link.down: unknown unit 'ms'", fleet=FLEET + 'link = {down = "20 ms"}\n'),
    "all messages lost": Wrong("fleet.devices[0].link.loss", fleet=FLEET + "link = {loss = 1.0}\n"),
    "no trace file": Wrong("no.csv", fleet=FLEET + 'speed = {kind = "csv", file = "no.csv"}\n'),
    "trace file is no CSV": Wrong(
        "fleet.toml' needs two columns", fleet=FLEET + 'speed = {kind = "csv", file = "fleet.toml"}\n'
    ),
    "trace file is binary": Wrong(
        "binary.csv' is not a CSV", fleet=FLEET + 'speed = {kind = "csv", file = "binary.csv"}\n'
    ),
    "bad trace": Wrong("fleet.devices[0].speed: `low`", fleet=FLEET + 'speed = {kind = "random-walk", low = 1.0}\n'),
    "fault of nobody": Wrong(
        "fleet.faults[0].device: no device is called 'pi9'",
        fleet=FLEET + '[[faults]]\nkind = "crash"\ndevice = "pi9"\nat = "1 s"\n',
    ),
    "fault at no time": Wrong("fleet.faults[0]: give either `at`", fleet=FLEET + '[[faults]]\nkind = "crash"\n'),
    "unknown fault": Wrong("fleet.faults[0]: 'crush'", fleet=FLEET + '[[faults]]\nkind = "crush"\nat = 1\n'),
    "share out of range": Wrong(
        "fleet.faults[0].share", fleet=FLEET + '[[faults]]\nkind = "lose"\nat = 1\nshare = 2.0\n'
    ),
    "set without value": Wrong("--set: 'rounds'", more=sets("rounds")),
    "set without key": Wrong("--set: 'rounds..x=3'", more=sets("rounds..x=3")),
    "set what is unknown": Wrong("rounds.bathcing: unknown key", more=sets("rounds.bathcing=3")),
    "set below a number": Wrong("seed: expected `int`", more=sets("seed.x=3")),
    "set markup": Wrong("[red]x: unknown key", more=sets("[red]x=3")),
    "unknown barrier": Wrong("rounds.barrier: 'quorom'", more=sets("rounds.barrier=quorom")),
    "barrier's share": Wrong(
        "rounds.barrier.share", more=sets("rounds.barrier.kind=quorum", "rounds.barrier.share=1.5")
    ),
    "own barrier is none": Wrong("rounds.barrier: 'json:dumps'", more=sets("rounds.barrier=json:dumps")),
    "no batch": Wrong("rounds.batching.size", more=sets("rounds.batching.size=0")),
    "negative rate": Wrong("rounds.local.lr", more=sets("rounds.local.lr=-0.1")),
    "too many needed": Wrong("rounds.least: 5 devices", more=sets("rounds.least=5")),
    "no pause between retries": Wrong("rounds.retry", more=sets("rounds.retry=0")),
    "out is in use": Wrong(". is not empty", more=("--out", ".")),
    "out is below a file": Wrong("cannot keep the run in job.toml/x", more=("--out", "job.toml/x")),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_wrong_input_is_one_line_and_exit_2(
    potluck: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Wrong
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POTLUCK_DATA", str(tmp_path))
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x81")
    if wrong.job is not None:
        text = wrong.job.encode() if isinstance(wrong.job, str) else wrong.job
        (tmp_path / "job.toml").write_bytes(text)
    if wrong.fleet is not None:
        (tmp_path / "fleet.toml").write_text(wrong.fleet)
    result = potluck("run", "job.toml", *wrong.more)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    assert wrong.message in result.err
    assert not (tmp_path / "runs").exists()


def test_at_least_35_bad_inputs_are_covered() -> None:
    assert len(WRONG) >= 35


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "job.toml", "--device", "nobody"), "--device: no device is called 'nobody'"),
        (("profile", "lennet"), "no model 'lennet'"),
        (("profile", "lenet", "--device", "pi9"), "--device 'pi9' is not known"),
        (("profile", "lenet", "--shape", "3,32"), "--shape '3,32'"),
        (("profile", "torch.nn:Linear"), "--shape is needed"),
        (("profile", "mlp", "--out", "no/such/file.json"), "no/such/file.json"),
        (("new", "."), "job.toml already exists"),
        (("data", "check", "nothing"), "'nothing' is not known"),
        (("profile", "json:dumps", "--shape", "3x3"), "cannot build 'json:dumps': TypeError"),
        (("explore", "job.toml", "--with", "population"), "--with: 'population' does not have the form key=value"),
        (("join", "127.0.0.1:1", "--token", "t", "--memory", "1 B"), "--memory 1 B: PyTorch does not load in less"),
        (("join", "127.0.0.1:1"), "this run requires a join token; pass --token (printed by `potluck serve`)"),
        (("run", "job.toml", "--threads", "x"), "(see `potluck run --help`)"),
        (("--nonsense",), "No such option: --nonsense"),
        (("data", "nonsense"), "No such command 'nonsense'"),
        (("run",), "Missing argument 'JOB'"),
    ],
)
def test_other_commands_report_the_same_error(
    potluck: Shell, folder: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = potluck(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    assert message in result.err


def test_an_export_that_cannot_be_written_is_one_line(potluck: Shell, folder: Path) -> None:
    assert potluck("run", "job.toml", "--timing-only", "--out", "run", "-q").code == 0
    result = potluck("export", "run", "--to", "csv", "--out", "job.toml")
    assert result == (2, "", "error: cannot write to job.toml: File exists; choose another folder with --out\n")
