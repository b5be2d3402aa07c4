"""The frozen jobs, as plain tables by name; each takes a fraction of a second.

    recipes     every recipe, on small uneven fleets
    rounds      one job for each kind of a part of a round
    streams     rates, buffers, batching
    fleets      faults, traces, availability
    submodels   tables of filter dropout, class groups
    pipelines   schedules, partitions, replication, recovery
    others      timing only, costs of another model, own tasks, weights to start from
    resumed     some of these jobs again, interrupted or ended early, and resumed

A job may name the files of `FILES` and the folder of any job above it. Devices are slow and links thin, so that
computing and sending both take tenths of seconds of simulated time and faults hit work in progress.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "EXPLORED",
    "EXTENDED",
    "FILES",
    "INTERRUPTED",
    "JOBS",
    "NAMES",
    "RECIPES",
    "SAME",
    "extended",
    "interrupted",
]

Tables = dict[str, Any]

RECIPES = (
    "sync-sgd", "dynacomm", "duplex", "layer-by-layer", "ibatch", "mg-wfbp",
    "fedavg", "fedavg-quorum", "fedprox", "fedbuff", "fedadam",
    "distreal", "distreal-ordered", "uniform-dropout", "federated-dropout", "heterofl", "fjord", "fedrolex", "small",
    "lora-rank",
    "decoupled", "central", "drop-stragglers",
    "scadles", "ddl", "scadles-weighted", "scadles-truncation", "scadles-compression", "scadles-injection",
    "scadles-plus",
    "ftpipehd", "ftpipehd-as-published", "pipedream", "gpipe", "respipe", "single",
)  # fmt: skip

_PIPELINES = ("ftpipehd", "ftpipehd-as-published", "pipedream", "gpipe", "respipe", "single")
_STREAMS = tuple(name for name in RECIPES if name == "ddl" or name.startswith("scadles"))

_DATA: Tables = {"kind": "synthetic", "classes": 4, "shape": [1, 4, 4], "train": 96, "test": 32, "owners": 6}
_PICTURES: Tables = {"kind": "synthetic", "classes": 4, "shape": [1, 6, 6], "train": 96, "test": 32}
_MLP: Tables = {"model": "mlp", "options": {"hidden": [12, 8]}, "data": _DATA}
_CONV: Tables = {"model": "tests.frozen.own:small_conv", "data": _PICTURES}
_BLOCKS: Tables = {"model": "tests.frozen.own:four_blocks", "data": _PICTURES}
_ADAPTED: Tables = {"model": "tests.frozen.own:adapted_net", "data": _PICTURES}
_DEEP: Tables = {"model": "mlp", "options": {"hidden": [16, 12, 12, 8]}, "data": _DATA}
_DIGITS: Tables = {"model": "mlp", "options": {"hidden": [16]}, "data": "digits"}

_LINK: Tables = {"up": "100 kbit/s", "down": "200 kbit/s", "latency": "10 ms", "overhead": "2 ms"}
_UNEVEN: Tables = {
    "lease": "2 s",
    "devices": [
        {"name": "slow", "flops": "200 kFLOP/s", "link": _LINK},
        {"name": "mid", "flops": "500 kFLOP/s", "link": _LINK, "count": 2},
        {"name": "fast", "flops": "1 MFLOP/s", "link": {**_LINK, "up": "400 kbit/s"}},
    ],
}
_WIDE: Tables = {"up": "2 Mbit/s", "down": "2 Mbit/s", "latency": "2 ms", "overhead": "1 ms"}
_CHAIN: Tables = {
    "lease": "1 s",
    "devices": [
        {"name": "head", "flops": "200 kFLOP/s", "link": _WIDE},
        {"name": "mid", "flops": "100 kFLOP/s", "link": _WIDE},
        {"name": "tail", "flops": "150 kFLOP/s", "link": _WIDE},
    ],
}
_FASTER = {**_UNEVEN, "devices": [{"name": "pi", "flops": "1 GFLOP/s", "count": 3, "link": _WIDE}]}

FILES: dict[str, str] = {
    "presence.csv": "seconds,level\n0,1\n1.5,0\n2.5,1\n",
    "speed.csv": "0,1.0\n0.7,0.3\n1.9,0.8\n",
    "explore.toml": """\
recipe = "distreal"
seed = 5

[task]
model = "mlp"
options = {hidden = [12, 8]}
data = {kind = "synthetic", classes = 4, shape = [1, 4, 4], train = 200, test = 32, noise = 2.0}

[rounds.batching]
size = 16

[[fleet.devices]]
name = "pi"
flops = "300 kFLOP/s"
count = 3
link = {up = "100 kbit/s", down = "200 kbit/s", latency = "10 ms"}
speed = {kind = "random-walk", low = 0.3, high = 1.0, every = "200 ms"}

[stop]
rounds = 3
""",
}

# `potluck explore` with these arguments; the table that it writes is hashed too, and jobs may name it.
EXPLORED: dict[str, tuple[str, ...]] = {
    "explored.json": (
        "explore.toml", "--quiet",
        "--with", "batches=4", "--with", "batch=16", "--with", "warmup=4", "--with", "held_out=40",
        "--with", "measure=loss", "--with", "repeats=1", "--with", "uniform=4", "--with", "population=4",
        "--with", "generations=2", "--with", "processes=0",
    ),
}  # fmt: skip


def _rounds(recipe: str, changes: Tables | None = None, /, **parts: Any) -> Tables:
    """Three rounds of the uneven fleet; `parts` go to `[rounds]`, and `changes` replace whole keys of the job."""
    job: Tables = {
        "recipe": recipe, "seed": 3, "task": _MLP, "fleet": _UNEVEN, "stop": {"rounds": 3},
        "rounds": {"batching": {"size": 16}, **parts},
    }  # fmt: skip
    return job | (changes or {})


def _stream(recipe: str, changes: Tables | None = None, /, **stream: Any) -> Tables:
    """Three rounds on data that streams in; `stream` goes to that table."""
    rate = {"kind": "uniform", "mean": 30.0, "deviation": 14.0}
    job: Tables = {
        "recipe": recipe, "seed": 4, "task": _MLP, "fleet": _UNEVEN, "stop": {"rounds": 3},
        "stream": {"rate": rate, **stream},
    }  # fmt: skip
    return job | (changes or {})


def _pipeline(recipe: str, changes: Tables | None = None, /, **pipeline: Any) -> Tables:
    """Ten batches over three devices; `pipeline` goes to that table."""
    job: Tables = {
        "recipe": recipe, "seed": 6, "task": _DEEP, "fleet": _CHAIN, "stop": {"rounds": 10},
        "evaluate": 5, "checkpoint": 4, "pipeline": {"batch": 16, **pipeline},
    }  # fmt: skip
    return job | (changes or {})


def _fleet(fleet: Tables, *faults: Tables, **every_device: Any) -> Tables:
    """The fleet with faults, and with more said of each device."""
    return {"fleet": {**fleet, "devices": [{**group, **every_device} for group in fleet["devices"]], "faults": faults}}


def _recipe(name: str) -> Tables:
    if name in _PIPELINES:
        return _pipeline(name)
    if name in _STREAMS:
        return _stream(name)
    return _rounds(name, {"task": _ADAPTED} if name == "lora-rank" else None)


_RECIPES = {f"recipe-{name}": _recipe(name) for name in RECIPES}

_SGD: Tables = {"kind": "sgd", "lr": 0.05, "steps": 3, "momentum": 0.5, "weight_decay": 0.001}

_ROUNDS: dict[str, Tables] = {
    "codec-fp16": _rounds("fedavg", codec="fp16"),
    "codec-int8": _rounds("fedavg", codec="int8"),
    "codec-int8-stochastic": _rounds("sync-sgd", codec={"kind": "int8", "block": 16, "rounding": "stochastic"}),
    "codec-top-k": _rounds("sync-sgd", codec={"kind": "top-k", "ratio": 0.1, "error_feedback": True}),
    "codec-top-k-momentum": _rounds(
        "sync-sgd", codec={"kind": "top-k", "ratio": 0.1, "momentum": 0.9}, server={"kind": "sgd", "momentum": 0.0}
    ),
    "codec-adaptive": _rounds("sync-sgd", codec={"kind": "adaptive", "ratio": 0.2, "delta": 0.4}),
    "codec-graded": _rounds("sync-sgd", codec={"kind": "graded", "ratios": [0.05, 0.2], "delta": 0.5}),
    "codec-warmup": _rounds("sync-sgd", codec={"kind": "graded", "ratios": [0.05, 0.2], "warmup": 2}),
    "codec-power-sgd": _rounds("sync-sgd", codec={"kind": "power-sgd", "rank": 1}),
    "pull-codec-top-k": _rounds("sync-sgd", {"stop": {"rounds": 6}}, pull_codec={"kind": "top-k", "ratio": 0.1}),
    "pull-codec-layers": _rounds(
        "dynacomm", {"stop": {"rounds": 6}}, codec={"kind": "graded"}, pull_codec={"kind": "power-sgd", "rank": 1}
    ),
    "barrier-quorum": _rounds("fedavg", {"stop": {"rounds": 5}}, barrier={"kind": "quorum", "share": 0.5}),
    "barrier-buffered": _rounds(
        "fedavg", {"stop": {"rounds": 6}}, barrier={"kind": "buffered", "size": 2}, merge={"kind": "staleness"}
    ),
    "merge-mean": _rounds("fedavg", {"split": {"kind": "power-law"}}, merge="mean"),
    "server-momentum": _rounds("fedavg", server={"kind": "sgd", "lr": 0.5, "momentum": 0.9, "nesterov": True}),
    "server-adam": _rounds("sync-sgd", server={"kind": "adam", "lr": 0.01, "weight_decay": 0.01}),
    "local-steps": _rounds("fedavg", local=_SGD, devices=2),
    "local-proximal": _rounds("fedavg", local={**_SGD, "kind": "proximal", "mu": 0.1}),
    "schedule-cosine": _rounds("sync-sgd", schedule={"kind": "cosine", "rounds": 5, "warmup": 2}),
    "schedule-steps": _rounds("fedavg", local_schedule={"kind": "steps", "at": [1, 2], "by": 0.5}),
    "scaling-linear": _rounds("sync-sgd", scaling={"kind": "linear", "base": 8, "warmup": 2}),
    "scaling-sqrt": _rounds("sync-sgd", scaling={"kind": "sqrt", "base": 8}),
    "skew-adjusted": _rounds("fedavg", {"split": {"kind": "dirichlet", "alpha": 0.3}}, skew="adjusted"),
    "skew-restricted": _rounds("fedavg", {"split": {"kind": "classes", "per_device": 2}}, skew="restricted"),
    "split-shards": _rounds("fedavg", {"split": {"kind": "shards", "per_device": 2}}),
    "split-owner": _rounds("fedavg", {"split": {"kind": "owner"}}),
    "split-class-groups": _rounds("fedavg", {"split": {"kind": "class-groups", "groups": 2, "rest": 0.5}}),
    "transfer-window-1": _rounds("dynacomm", transfer={"kind": "optimal", "window": 1}),
    "transfer-optimal-sgd": _rounds("dynacomm", local=_SGD, codec="fp16"),
    "duplex-sgd": _rounds("duplex", {"stop": {"rounds": 5}}, local=_SGD),
    "duplex-conv": _rounds("duplex", {"task": _CONV}),
    "duplex-losing": _rounds(
        "duplex",
        _fleet(_UNEVEN, {"kind": "lose", "every": "300 ms", "share": 0.3, "lasting": "200 ms"}),
        retry="300 ms",
    ),
    "stop-time": _rounds("fedavg", {"stop": {"time": "2 s", "rounds": 50}}),
    "stop-bytes": _rounds("fedavg", {"stop": {"bytes": "20 kB", "rounds": 50}}),
    "stop-accuracy": _rounds("fedavg", {"stop": {"accuracy": 0.4, "rounds": 50}}, local={**_SGD, "lr": 0.3}),
}  # fmt: skip

_LEVELS: Tables = {"kind": "piecewise", "at": ["0 s", "1 s", "2 s"], "levels": [30.0, 8.0, 50.0], "repeat": "3 s"}

_STREAMED: dict[str, Tables] = {
    "stream-constant": _stream("scadles", rate={"kind": "constant", "per_second": 24.0}),
    "stream-normal": _stream("scadles", rate={"kind": "normal", "mean": 24.0, "deviation": 8.0, "least": 4.0}),
    "stream-published-s1": _stream("scadles", rate={"kind": "scadles", "set": "S1"}),
    "stream-published-s2": _stream("scadles-weighted", rate={"kind": "scadles", "set": "S2'"}),
    "stream-trace": _stream("scadles", rate={"kind": "trace", "level": _LEVELS}),
    "stream-random-walk": _stream(
        "scadles-plus",
        rate={"kind": "constant", "per_second": 40.0, "level": {"kind": "random-walk", "low": 0.2, "every": "300 ms"}},
    ),
    "stream-persistence-most": _stream("ddl", buffer={"kind": "persistence", "most": 70}),
    "stream-truncation-seconds": _stream("scadles-truncation", buffer={"kind": "truncation", "seconds": "4 s"}),
    "stream-value-loss": _stream(
        "scadles-plus", {"split": {"kind": "dirichlet", "alpha": 0.5}}, buffer={"kind": "value", "worth": "loss"}
    ),
    "stream-fixed-batches": _stream("scadles", {"rounds": {"batching": {"kind": "fixed", "size": 12}}}),
    "stream-window-cap": _stream(
        "scadles", {"rounds": {"batching": {"kind": "stream", "low": 4, "high": 40, "cap": 8, "window": "500 ms"}}}
    ),
    "stream-line-rate-turns": _stream(
        "scadles-plus", {"rounds": {"batching": {"kind": "line-rate", "turns": True, "low": 2, "window": "100 ms"}}}
    ),
    "stream-injection": _stream(
        "scadles-injection",
        {"split": {"kind": "classes", "per_device": 1}},
        injection={"kind": "broadcast", "alpha": 0.5, "beta": 0.5},
    ),
    "stream-injection-classes": _stream(
        "scadles",
        {"split": {"kind": "classes", "per_device": 1}},
        injection={"kind": "missing-classes", "alpha": 0.5, "beta": 0.5},
    ),
    "stream-injection-buffered": _stream(
        "scadles",
        {
            "split": {"kind": "classes", "per_device": 2},
            "stop": {"rounds": 6},
            "rounds": {"barrier": {"kind": "buffered", "size": 2}, "merge": "staleness"},
        },
        injection={"kind": "broadcast", "alpha": 0.5, "beta": 0.5},
    ),
    "stream-faults": _stream(
        "scadles",
        _fleet(
            _UNEVEN,
            {"kind": "crash", "device": "mid-*", "at": "1.3 s", "restart": "1 s"},
            {"kind": "leave", "device": "fast", "at": "2 s", "back": "500 ms"},
        )
        | {"stop": {"rounds": 6}},
    ),
}

_FLEETS: dict[str, Tables] = {
    "fault-crash": _rounds("fedavg", _fleet(_UNEVEN, {"kind": "crash", "device": "slow", "at": "700 ms"})),
    "fault-crash-restart": _rounds(
        "fedavg", _fleet(_UNEVEN, {"kind": "crash", "device": "mid-*", "every": "2 s", "restart": "300 ms"})
    ),
    "fault-restart": _rounds("dynacomm", _fleet(_UNEVEN, {"kind": "restart", "device": "*", "every": "2 s"})),
    "fault-leave": _rounds(
        "fedavg-quorum", _fleet(_UNEVEN, {"kind": "leave", "device": "fast", "at": "300 ms", "back": "800 ms"})
    ),
    "fault-join": _rounds("sync-sgd", _fleet(_UNEVEN, {"kind": "join", "device": "mid-1", "at": "500 ms"})),
    "fault-partition": _rounds(
        "fedavg", _fleet(_UNEVEN, {"kind": "partition", "device": "mid-0", "at": "400 ms", "lasting": "3 s"})
    ),
    "fault-slow": _rounds(
        "fedbuff", _fleet(_UNEVEN, {"kind": "slow", "device": "fast", "at": "200 ms", "factor": 0.1, "lasting": "1 s"})
    ),
    "fault-lose": _rounds(
        "fedavg",
        _fleet(_UNEVEN, {"kind": "lose", "every": "500 ms", "share": 0.5, "lasting": "500 ms"}),
        retry="400 ms",
    ),
    "fault-all-gone": _rounds(
        "fedavg", _fleet(_UNEVEN, {"kind": "crash", "device": "*", "at": "900 ms"}), patience="5 s"
    ),
    "fault-many": _rounds(
        "fedbuff",
        _fleet(
            _UNEVEN,
            {"kind": "crash", "every": "4 s", "restart": "200 ms"},
            {"kind": "partition", "every": "5 s", "lasting": "300 ms"},
            {"kind": "slow", "every": "3 s", "lasting": "500 ms"},
            {"kind": "lose", "every": "3 s", "lasting": "500 ms"},
        )
        | {"stop": {"rounds": 8}},
        codec={"kind": "top-k", "ratio": 0.2},
        retry="500 ms",
    ),
    "trace-piecewise": _rounds(
        "dynacomm",
        _fleet(
            _UNEVEN,
            speed={"kind": "piecewise", "at": ["0 s", "400 ms"], "levels": [1.0, 0.3], "repeat": "700 ms"},
        ),
    ),
    "trace-random-walk": _rounds(
        "fedavg",
        _fleet(_UNEVEN, speed={"kind": "random-walk", "low": 0.2, "every": "150 ms"},
               link={**_LINK, "quality": {"kind": "random-walk", "low": 0.3, "every": "100 ms"}, "loss": 0.02}),
    ),
    "trace-csv": _rounds(
        "sync-sgd",
        _fleet(_UNEVEN, speed={"kind": "csv", "file": "speed.csv"}, available={"kind": "csv", "file": "presence.csv"})
        | {"stop": {"rounds": 8}},
    ),
    "fleet-kitchen-table": _rounds("fedavg", {"fleet": "kitchen-table"}),
    "fleet-pi-shelf-digits": _rounds("fedavg", {"fleet": "pi-shelf", "task": _DIGITS}, local={**_SGD, "steps": 8}),
}  # fmt: skip

_SLOWING = _fleet(_UNEVEN, speed={"kind": "random-walk", "low": 0.2, "every": "150 ms"})

_SUBMODELS: dict[str, Tables] = {
    "dropout-explored": _rounds("distreal", _SLOWING, submodel={"kind": "filter-dropout", "table": "explored.json"}),
    "dropout-conv": _rounds("distreal", {**_SLOWING, "task": _CONV}),
    "dropout-conv-ordered": _rounds("distreal-ordered", {**_SLOWING, "task": _CONV}, transfer="optimal"),
    "dropout-grid-slot": _rounds(
        "uniform-dropout", _SLOWING, submodel={"kind": "uniform-dropout", "grid": 2}, slot="100 ms"
    ),
    "heterofl-conv": _rounds("heterofl", {**_SLOWING, "task": _CONV}, submodel={"capacity": "least"}),
    "fjord-conv": _rounds("fjord", {**_SLOWING, "task": _CONV}),
    "fedrolex-conv": _rounds("fedrolex", {**_SLOWING, "task": _CONV}),
    "federated-dropout-codec": _rounds("federated-dropout", _SLOWING, codec="int8", server={"kind": "adam"}),
    "small-conv": _rounds("small", {"task": _CONV}, submodel={"share": 0.5}),
    "decoupled-conv": _rounds(
        "decoupled", {"task": _CONV, "split": {"kind": "class-groups"}}, submodel={"groups": 2, "calibration": 16}
    ),
    "decoupled-alike-generated": _rounds(
        "decoupled",
        {"task": _CONV, "split": {"kind": "class-groups", "rest": 0.0}},
        submodel={"groups": 2, "alike": True, "negatives": "generated", "depth": 2},
    ),
    "decoupled-held": _rounds(
        "decoupled", submodel={"groups": [[0, 3], [1], [2]], "held": {"slow": [1], "fast": [0, 1, 2]}}
    ),
    "decoupled-auto": _rounds("decoupled", submodel={"groups": "auto", "depth": "auto"}, slot="400 ms"),
    "decoupled-frozen": _rounds(
        "decoupled", {"start": "recipe-central"}, submodel={"groups": 2, "trunk": "frozen", "variant": "attributed"}
    ),
    "decoupled-cached": _rounds(
        "decoupled",
        {"task": _CONV, "split": {"kind": "class-groups"}},
        local={"kind": "sgd", "epochs": 3},
        submodel={"groups": 2, "trunk": "frozen", "cache": "1 MB", "saving": 1.5, "extent": "heads", "calibration": 16},
    ),
    "decoupled-several": _rounds(
        "decoupled",
        {"task": _CONV, "split": {"kind": "class-groups"}},
        submodel={"groups": 4, "each": 2, "distill": 0.3},
    ),
    "decoupled-stream": _rounds("decoupled", {"stream": {}}, submodel={"groups": 2}),
    "decoupled-residual": _rounds(
        "decoupled",
        {"task": {"model": "tests.frozen.own:residual_conv", "data": _PICTURES}},
        submodel={"groups": 2, "depth": 1},
    ),
}

_CRASH_MID: Tables = {"kind": "crash", "device": "mid", "at": "1.5 s", "restart": "2 s"}
_PIPED: dict[str, Tables] = {
    "pipeline-conv": _pipeline("ftpipehd", {"task": _CONV}),
    "pipeline-cuts": _pipeline("ftpipehd", partition={"kind": "cuts", "after": [1, 3]}),
    "pipeline-layers": _pipeline("ftpipehd", {"task": _BLOCKS}),
    "pipeline-blocks": _pipeline("ftpipehd", {"task": _BLOCKS}, between="blocks"),
    "pipeline-sync-off": _pipeline("ftpipehd", schedule={"kind": "1f1b", "vertical_sync": False}),
    "pipeline-aggregate": _pipeline("ftpipehd", schedule={"kind": "1f1b", "aggregate": 3, "most": 4}),
    "pipeline-gpipe-micro": _pipeline("gpipe", schedule={"kind": "gpipe", "micro_batches": 2}),
    "pipeline-adam": _pipeline("ftpipehd", optimizer={"kind": "adam", "lr": 0.01}, evaluation="pipeline"),
    "pipeline-lr-schedule": _pipeline("pipedream", lr_schedule={"kind": "cosine", "rounds": 10, "warmup": 2}),
    "pipeline-crash": _pipeline("ftpipehd", _fleet(_CHAIN, {"kind": "crash", "device": "mid", "at": "1.5 s"})),
    "pipeline-crash-restart": _pipeline("ftpipehd", _fleet(_CHAIN, _CRASH_MID) | {"stop": {"rounds": 20}}),
    "pipeline-crash-published": _pipeline(
        "ftpipehd-as-published",
        _fleet(_CHAIN, _CRASH_MID),
        replication={"kind": "periodic", "chain": 3, "central": 5},
        adaptation={"first": 3, "every": 5},
        retry="500 ms",
    ),
    "pipeline-crash-respipe": _pipeline(
        "respipe", _fleet(_CHAIN, _CRASH_MID), replication={"kind": "periodic", "chain": 2}
    ),
    "pipeline-crash-restarted": _pipeline("pipedream", _fleet(_CHAIN, _CRASH_MID)),
    "pipeline-crash-gpipe": _pipeline("gpipe", _fleet(_CHAIN, _CRASH_MID)),
    "pipeline-crash-source": _pipeline(
        "ftpipehd", _fleet(_CHAIN, {"kind": "crash", "device": "head", "at": "1.5 s"}), sources=["mid", "tail"]
    ),
    "pipeline-partition": _pipeline(
        "ftpipehd", _fleet(_CHAIN, {"kind": "partition", "device": "tail", "at": "1.2 s", "lasting": "3 s"})
    ),
    "pipeline-leave": _pipeline(
        "ftpipehd", _fleet(_CHAIN, {"kind": "leave", "device": "tail", "at": "1.2 s", "back": "1 s"})
    ),
    "pipeline-slow": _pipeline(
        "ftpipehd",
        _fleet(_CHAIN, {"kind": "slow", "device": "mid", "at": "1 s", "factor": 0.1, "lasting": "20 s"})
        | {"stop": {"rounds": 20}},
        adaptation={"first": 3, "every": 6},
    ),
    "pipeline-lose": _pipeline(
        "ftpipehd",
        _fleet(_CHAIN, {"kind": "lose", "every": "500 ms", "share": 0.3, "lasting": "500 ms"}),
        retry="300 ms",
    ),
    "pipeline-joined": _pipeline(
        "ftpipehd", _fleet(_CHAIN, {"kind": "join", "device": "tail", "at": "1 s"}) | {"stop": {"rounds": 20}}
    ),
    "pipeline-digits": _pipeline("ftpipehd", {"task": _DIGITS}, batch=32),
}

_OTHERS: dict[str, Tables] = {
    "timing-only-rounds": _rounds(
        "dynacomm", {"timing_only": True, "fleet": _FASTER, "task": {"model": "resnet20", "data": _PICTURES}}
    ),
    "timing-only-duplex": _rounds("duplex", {"timing_only": True, "samples": 64, "stop": {"rounds": 6}}),
    "timing-only-faults": _rounds(
        "fedbuff",
        _fleet(_UNEVEN, {"kind": "crash", "every": "2 s", "restart": "500 ms"})
        | {"timing_only": True, "samples": 40, "stop": {"rounds": 10}},
    ),
    "timing-only-streams": _stream("scadles-plus", {"timing_only": True}),
    "timing-only-pipeline": _pipeline("ftpipehd", _fleet(_CHAIN, _CRASH_MID) | {"timing_only": True}),
    "costs-of-resnet20": _rounds(
        "sync-sgd", {"fleet": _FASTER, "task": {**_MLP, "costs": "resnet20"}}, codec={"kind": "top-k"}
    ),
    "costs-of-resnet20-streams": _stream("scadles-plus", {"fleet": _FASTER, "task": {**_MLP, "costs": "resnet20"}}),
    "own-task": _rounds("fedavg", {"task": "tests.frozen.own:make_task"}),
    "own-task-pipeline": _pipeline("ftpipehd", {"task": "tests.frozen.own:make_task"}),
    "start-from-a-run": _rounds("fedavg", {"start": "recipe-fedavg"}),
    "group-norm": _rounds("sync-sgd", {"task": {**_CONV, "norm": "group"}}),
    "augmented": _rounds("fedavg", {"task": {**_CONV, "augment": True}}),
    "zoo-cnn": _rounds("fedavg", {"task": {"model": "cnn", "options": {"hidden": 8}, "data": _PICTURES}}),
    "zoo-ds-cnn": _rounds("sync-sgd", {"task": {"model": "ds-cnn", "data": _PICTURES}}),
    "digits-dirichlet": _rounds(
        "fedavg", {"fleet": _FASTER, "task": _DIGITS, "split": {"kind": "dirichlet", "alpha": 0.3}}
    ),
}  # fmt: skip

JOBS: dict[str, Tables] = {**_RECIPES, **_ROUNDS, **_STREAMED, **_FLEETS, **_SUBMODELS, **_PIPED, **_OTHERS}

# Runs that are stopped after so many rounds and resumed.
INTERRUPTED: dict[str, int] = {
    "recipe-fedavg": 1,
    "recipe-dynacomm": 2,
    "recipe-duplex": 1,
    "recipe-fedbuff": 2,
    "recipe-distreal": 1,
    "recipe-decoupled": 2,
    "recipe-scadles-plus": 1,
    "recipe-ftpipehd": 1,
    "recipe-gpipe": 1,
    "codec-top-k": 1,
    "codec-warmup": 1,
    "pull-codec-layers": 2,
    "fault-many": 3,
    "stream-faults": 3,
    "pipeline-crash": 1,
    "timing-only-rounds": 1,
}

# Runs that end after so many rounds and are resumed with the job's own `stop.rounds`.
EXTENDED: dict[str, int] = {"recipe-sync-sgd": 2, "recipe-scadles": 1, "stream-value-loss": 2, "recipe-pipedream": 8}


def interrupted(name: str) -> str:
    """The name of the run of that job that was stopped and resumed."""
    return f"{name}, interrupted"


def extended(name: str) -> str:
    """The name of the run of that job that ended early and was resumed."""
    return f"{name}, extended"


# By the name of a resumed run, that of the job which it resumes. The weights must be those of the job that was never
# stopped. Where the journal differs too, each has its own hash: a pipeline is drained where it stops, and records of
# one instant may change their order.
SAME = {interrupted(name): name for name in INTERRUPTED} | {extended(name): name for name in EXTENDED}

NAMES = (*EXPLORED, *JOBS, *SAME)
