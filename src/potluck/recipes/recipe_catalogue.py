"""The built-in recipes: published methods, their baselines and our variants, each a name for some settings.

A new method is one entry in `CATALOGUE`, plus one small file where it needs a part of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

# These modules declare the parts that the recipes name.
from potluck.loops.parts import stream_batching as stream_batching
from potluck.model.decoupled import class_groups as class_groups
from potluck.model.submodels import lora_rank as lora_rank

__all__ = ["CATALOGUE", "Recipe"]


_TRACEABLE = "a model whose forward torch.fx can trace, to be cut between its layers"
_NARROWABLE = (
    "a model whose forward torch.fx can trace; channels are dropped, in transformers heads and feed-forward units"
)
_WIDTH_METHODS = (
    "filter-dropout", "uniform-dropout", "federated-dropout", "heterofl", "fjord", "fedrolex", "small",
)  # fmt: skip
_SUBMODEL_NEEDS = {
    **dict.fromkeys(_WIDTH_METHODS, _NARROWABLE),
    "class-groups": "a classifier of convolutions and linear layers that torch.fx can trace: no transformer",
}


class Recipe(NamedTuple):
    """A name for some settings."""

    summary: str
    source: str  # the publication; may be empty
    settings: Mapping[str, Any]
    origin: str = "built in"  # or the distribution that registers it

    @property
    def needs(self) -> str:
        """What the model must be like; empty if any model will do."""
        if "pipeline" in self.settings:
            return _TRACEABLE if self.settings["pipeline"].get("schedule") != {"kind": "single"} else ""
        submodel = self.settings.get("rounds", {}).get("submodel", "whole")
        return _SUBMODEL_NEEDS.get(submodel["kind"] if isinstance(submodel, Mapping) else submodel, "")


_SERVER = {"kind": "sgd", "lr": 0.1, "momentum": 0.9}
_SYNCHRONOUS = {"local": "gradient", "server": _SERVER}
_LOCAL = {"kind": "sgd", "lr": 0.05, "epochs": 1}
_ORDERED = {"kind": "filter-dropout", "units": "leading", "scaled": False, "mean": "trained"}

# Data that streams in.
_FIXED_BATCH = {**_SYNCHRONOUS, "batching": {"kind": "fixed", "size": 64}, "merge": "mean"}
_STREAM_BATCH = {**_SYNCHRONOUS, "batching": "stream", "scaling": "linear", "merge": "samples"}
_LINE_RATE_BATCH = {
    **_STREAM_BATCH,
    # At most what a device can process, so that fast streams do not make slow rounds. A batch that is larger than
    # 512 all the same is accumulated in steps, so that it needs no more memory.
    "batching": {"kind": "line-rate", "cap": 512},
    "scaling": {"kind": "capped", "most": 2.0, "warmup": 50},
    "transfer": "optimal",
    "codec": {"kind": "power-sgd", "rank": 4},
    "pull_codec": {"kind": "power-sgd", "rank": 4},
}
_TOP_K = {"kind": "adaptive", "ratio": 0.1, "delta": 0.3}
_SCADLES = "Tyagi and Swany 2022, ScaDLES: scalable deep learning over streaming data at the edge"

# Layers spread over a chain of devices.
_PIPELINE_SGD = {"kind": "sgd", "lr": 0.05, "momentum": 0.9}
_FTPIPEHD = "Chen et al. 2023, FTPipeHD: a fault-tolerant pipeline-parallel distributed training framework"
_EQUAL_1F1B = {
    "schedule": {"kind": "1f1b", "vertical_sync": False},
    "partition": {"kind": "equal"},
    "adaptation": {"every": 0, "on_change": False, "join": False},
}
_UNPROTECTED = {"replication": {"kind": "none"}, "recovery": {"kind": "restart"}}


def _streaming(rounds: Mapping[str, Any], buffer: str | Mapping[str, str], **stream: Any) -> Mapping[str, Any]:
    return {"rounds": rounds, "stream": {"buffer": buffer, **stream}}


def _pipeline(**pipeline: Any) -> Mapping[str, Any]:
    """Evaluates and checkpoints every 100 batches: both have to drain the pipeline, which costs time."""
    return {"pipeline": {"optimizer": _PIPELINE_SGD, **pipeline}, "evaluate": 100, "checkpoint": 100}


CATALOGUE: Mapping[str, Recipe] = {
    "sync-sgd": Recipe(
        "one batch per device and round, gradients averaged by samples; a round waits for all devices",
        "Chen et al. 2016, Revisiting distributed synchronous SGD",
        {"rounds": _SYNCHRONOUS},
    ),
    "dynacomm": Recipe(
        "sync-sgd whose transfers are cut between layers to hide behind computation, replanned for every turn",
        "Cai et al. 2022, Accelerating distributed CNN training through dynamic communication scheduling",
        {"rounds": {**_SYNCHRONOUS, "transfer": "optimal"}},
    ),
    "duplex": Recipe(
        "dynacomm whose layers return for the next round as soon as they are merged, while others are pushed",
        "Potluck; after Cai et al. 2022",
        {"rounds": {**_SYNCHRONOUS, "transfer": "duplex"}},
    ),
    "layer-by-layer": Recipe(
        "sync-sgd with one transfer for every layer",
        "Zhang et al. 2017, Poseidon",
        {"rounds": {**_SYNCHRONOUS, "transfer": "layer-by-layer"}},
    ),
    "ibatch": Recipe(
        "sync-sgd with transfers batched greedily",
        "Wang, Pi and Zhou 2019, Scalable distributed DL training: batching communication and computation",
        {"rounds": {**_SYNCHRONOUS, "transfer": "ibatch"}},
    ),
    "mg-wfbp": Recipe(
        "sync-sgd with gradients of adjacent layers merged if that saves a start-up",
        "Shi, Chu and Li 2019, MG-WFBP",
        {"rounds": {**_SYNCHRONOUS, "transfer": "mg-wfbp"}},
    ),
    "fedavg": Recipe(
        "local epochs, models averaged by samples",
        "McMahan et al. 2017, Communication-efficient learning of deep networks from decentralized data",
        {"rounds": {"local": _LOCAL}},
    ),
    "fedavg-quorum": Recipe(
        "fedavg that closes a round without devices that are much later than the others",
        "Bonawitz et al. 2019, Towards federated learning at scale",
        {"rounds": {"local": _LOCAL, "barrier": "quorum"}},
    ),
    "fedprox": Recipe(
        "fedavg with a pull back towards the model that was sent out",
        "Li et al. 2020, Federated optimization in heterogeneous networks",
        {"rounds": {"local": {"kind": "proximal", "lr": 0.05, "mu": 0.01}}},
    ),
    "fedbuff": Recipe(
        "asynchronous: a new model for every few updates, whatever version they started from",
        "Nguyen et al. 2022, Federated learning with buffered asynchronous aggregation",
        {"rounds": {"local": _LOCAL, "barrier": "buffered", "merge": "staleness"}},
    ),
    "fedadam": Recipe(
        "fedavg whose coordinator applies updates with Adam",
        "Reddi et al. 2021, Adaptive federated optimization",
        {"rounds": {"local": _LOCAL, "server": {"kind": "adam", "lr": 0.01, "epsilon": 0.001}}},
    ),
    "distreal": Recipe(
        "fedavg in which each mini-batch drops as many random filters as the device's present speed requires",
        "Rapp et al. 2022, DISTREAL: distributed resource-aware learning in heterogeneous systems",
        {"rounds": {"local": _LOCAL, "submodel": "filter-dropout"}},
    ),
    "distreal-ordered": Recipe(
        "distreal that keeps the leading filters and averages each weight over the updates that trained it",
        "Potluck; after Rapp et al. 2022 and Horváth et al. 2021",
        {"rounds": {"local": _LOCAL, "submodel": _ORDERED}},
    ),
    "uniform-dropout": Recipe(
        "distreal with one rate for all layers, so that no exploration is needed",
        "Potluck; an ablation of Rapp et al. 2022",
        {"rounds": {"local": _LOCAL, "submodel": "uniform-dropout"}},
    ),
    "federated-dropout": Recipe(
        "fedavg of random sub-models, drawn for each device and round",
        "Caldas et al. 2018, Expanding the reach of federated learning by reducing client resource requirements",
        {"rounds": {"local": _LOCAL, "submodel": "federated-dropout"}},
    ),
    "heterofl": Recipe(
        "fedavg of the leading channels, as many as a device can afford; batch norm without running statistics",
        "Diao, Ding and Tarokh 2021, HeteroFL: computation and communication efficient federated learning",
        {"rounds": {"local": _LOCAL, "submodel": "heterofl"}},
    ),
    "fjord": Recipe(
        "fedavg of the leading channels, in each mini-batch of any width up to what a device can afford",
        "Horváth et al. 2021, FjORD: fair and accurate federated learning with ordered dropout",
        {"rounds": {"local": _LOCAL, "submodel": "fjord"}},
    ),
    "fedrolex": Recipe(
        "fedavg of a window of channels that moves on from round to round",
        "Alam et al. 2022, FedRolex: model-heterogeneous federated learning with rolling sub-model extraction",
        {"rounds": {"local": _LOCAL, "submodel": "fedrolex"}},
    ),
    "lora-rank": Recipe(
        "fedavg of LoRA adapters: the leading ranks, as many as a device can afford",
        "Potluck; after Horváth et al. 2021 and Cho et al. 2024, Heterogeneous LoRA for federated fine-tuning",
        {"rounds": {"local": _LOCAL, "submodel": "lora-rank"}},
    ),
    "small": Recipe(
        "fedavg of one smaller network that every device can train",
        "the baseline that sub-models have to beat",
        {"rounds": {"local": _LOCAL, "submodel": "small"}},
    ),
    "decoupled": Recipe(
        "fedavg in which a device trains the shared first layers and the groups of its own classes",
        "Chen and Qin 2020, Exploring decentralized collaboration in heterogeneous edge training",
        {"rounds": {"local": _LOCAL, "submodel": "class-groups"}},
    ),
    "central": Recipe(
        "one device passes over all of the data in every round: training on one machine",
        "plain stochastic gradient descent",
        {"rounds": {"local": _LOCAL, "devices": 1}, "split": "everything"},
    ),
    "drop-stragglers": Recipe(
        "fedavg that closes a round when half of the updates have arrived",
        "Bonawitz et al. 2019, Towards federated learning at scale",
        {"rounds": {"local": _LOCAL, "barrier": {"kind": "quorum", "share": 0.5, "tolerance": 0.0}}},
    ),
    "scadles": Recipe(
        "batches, weights and learning rate follow the streams; old data is dropped, gradients are sent as top-k",
        _SCADLES,
        _streaming({**_STREAM_BATCH, "codec": _TOP_K}, "truncation"),
    ),
    "ddl": Recipe(
        "sync-sgd on streams with one batch size for all: waits for the slowest stream, keeps everything",
        _SCADLES,
        _streaming(_FIXED_BATCH, "persistence"),
    ),
    "scadles-weighted": Recipe(
        "ddl with batches, weights and learning rate that follow the streams",
        _SCADLES,
        _streaming(_STREAM_BATCH, "persistence"),
    ),
    "scadles-truncation": Recipe(
        "ddl that keeps only the samples since the last batch",
        _SCADLES,
        _streaming(_FIXED_BATCH, "truncation"),
    ),
    "scadles-compression": Recipe(
        "ddl that sends the largest tenth of a gradient while it has most of the norm",
        _SCADLES,
        _streaming({**_FIXED_BATCH, "codec": _TOP_K}, "persistence"),
    ),
    "scadles-injection": Recipe(
        "scadles for skewed classes: in every round some devices send raw samples to all others",
        _SCADLES,
        _streaming(
            {**_STREAM_BATCH, "codec": _TOP_K},
            "truncation",
            injection={"kind": "broadcast", "alpha": 0.25, "beta": 0.25},
        ),
    ),
    "scadles-plus": Recipe(
        "scadles with batches that a device can train on, buffers divided by class, low-rank transfers that overlap",
        "Potluck; after Tyagi and Swany 2022, Cai et al. 2022 and Vogels et al. 2019",
        _streaming(_LINE_RATE_BATCH, {"kind": "value", "worth": "same"}),
    ),
    "ftpipehd": Recipe(
        "a pipeline over uneven devices: cuts follow the devices' speeds, a lost device costs about one batch",
        _FTPIPEHD,
        _pipeline(
            # Every stage uses its newest weights, so that only the first one's gradients are as old as all in flight.
            schedule={"kind": "1f1b", "vertical_sync": False, "fill": "filling", "speed": 0.95, "predict": True},
            partition={"kind": "optimal", "order": "search"},
            replication={"kind": "incremental"},
            recovery={"kind": "repartition"},
        ),
    ),
    "ftpipehd-as-published": Recipe(
        "ftpipehd with a batch timer, copies every 100 batches without optimizer state, mixed versions",
        _FTPIPEHD,
        _pipeline(
            schedule={"kind": "1f1b", "vertical_sync": True, "aggregate": 5},
            partition={"kind": "published"},
            replication={"kind": "periodic", "chain": 100, "central": 200, "optimizer_state": False},
            recovery={"kind": "repartition", "notice": "timer", "factor": 2.0, "consistent": False},
            adaptation={"first": 10, "every": 100, "on_change": False, "layers": False, "horizon": 0},
        ),
    ),
    "pipedream": Recipe(
        "a pipeline that is cut as if all devices were equally fast",
        "Narayanan et al. 2019, PipeDream: generalized pipeline parallelism for DNN training",
        _pipeline(**_EQUAL_1F1B, **_UNPROTECTED),
    ),
    "gpipe": Recipe(
        "a synchronous pipeline of micro-batches with a flush after every batch",
        "Huang et al. 2019, GPipe: efficient training of giant neural networks using pipeline parallelism",
        _pipeline(**{**_EQUAL_1F1B, **_UNPROTECTED, "schedule": {"kind": "gpipe"}}),
    ),
    "respipe": Recipe(
        "pipedream whose next stage takes over the layers of a lost one",
        "Li et al. 2021, ResPipe: resilient model-distributed DNN training at edge networks",
        _pipeline(
            **_EQUAL_1F1B,
            replication={"kind": "periodic", "chain": 100, "central": 0},
            recovery={"kind": "neighbour", "consistent": False},
        ),
    ),
    "single": Recipe(
        "the whole model on one device",
        "plain stochastic gradient descent",
        _pipeline(schedule={"kind": "single"}, **_UNPROTECTED),
    ),
}
