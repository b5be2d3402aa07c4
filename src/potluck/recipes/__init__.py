"""The catalogue: a recipe names a composition of parts. What a job says itself goes on top.

A new method is one small file, where it needs new parts, and one entry here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from potluck.errors import SettingError
from potluck.recipes import class_group_recipes, pipeline_recipes, streaming_recipes
from potluck.recipes import fedprox as fedprox  # declares its part

__all__ = ["CATALOGUE", "Recipe", "find_recipe"]


class Recipe(NamedTuple):
    """A name for some settings."""

    summary: str
    source: str
    settings: Mapping[str, Any]


_SYNCHRONOUS = {"local": "gradient", "server": {"kind": "sgd", "lr": 0.1, "momentum": 0.9}}
_LOCAL = {"kind": "sgd", "lr": 0.05, "epochs": 1}
_ORDERED = {"kind": "filter-dropout", "units": "leading", "scaled": False, "mean": "trained"}

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
    "small": Recipe(
        "fedavg of one smaller network that every device can train",
        "baseline for sub-models",
        {"rounds": {"local": _LOCAL, "submodel": "small"}},
    ),
    "decoupled": Recipe(
        "fedavg in which a device trains the shared first layers and the groups of its own classes",
        "Chen and Qin 2020, Exploring decentralized collaboration in heterogeneous edge training",
        class_group_recipes.DECOUPLED,
    ),
    "central": Recipe(
        "one device passes over all of the data in every round: training on one machine",
        "plain stochastic gradient descent",
        class_group_recipes.CENTRAL,
    ),
    "drop-stragglers": Recipe(
        "fedavg that closes a round when half of the updates have arrived",
        "Bonawitz et al. 2019, Towards federated learning at scale",
        {"rounds": {"local": _LOCAL, "barrier": {"kind": "quorum", "share": 0.5, "tolerance": 0.0}}},
    ),
    "scadles": Recipe(
        "batches, weights and learning rate follow the streams; old data is dropped, gradients are sent as top-k",
        "Tyagi and Swany 2022, ScaDLES: scalable deep learning over streaming data at the edge",
        streaming_recipes.SCADLES,
    ),
    "ddl": Recipe(
        "sync-sgd on streams with one batch size for all: waits for the slowest stream, keeps everything",
        "Tyagi and Swany 2022, ScaDLES: scalable deep learning over streaming data at the edge",
        streaming_recipes.DDL,
    ),
    "scadles-weighted": Recipe(
        "ddl with batches, weights and learning rate that follow the streams",
        "Tyagi and Swany 2022, ScaDLES: scalable deep learning over streaming data at the edge",
        streaming_recipes.WEIGHTED,
    ),
    "scadles-truncation": Recipe(
        "ddl that keeps only the samples since the last batch",
        "Tyagi and Swany 2022, ScaDLES: scalable deep learning over streaming data at the edge",
        streaming_recipes.TRUNCATION,
    ),
    "scadles-compression": Recipe(
        "ddl that sends the largest tenth of a gradient while it has most of the norm",
        "Tyagi and Swany 2022, ScaDLES: scalable deep learning over streaming data at the edge",
        streaming_recipes.COMPRESSION,
    ),
    "scadles-injection": Recipe(
        "scadles for skewed classes: in every round some devices give raw samples to others",
        "Tyagi and Swany 2022, ScaDLES: scalable deep learning over streaming data at the edge",
        streaming_recipes.INJECTION,
    ),
    "scadles-plus": Recipe(
        "scadles with batches no larger than a device can train on, buffers divided by class, overlapped transfers",
        "Potluck; after Tyagi and Swany 2022 and Cai et al. 2022",
        streaming_recipes.PLUS,
    ),
    "ftpipehd": Recipe(
        "a pipeline over uneven devices: cuts follow the devices' speeds, a lost device costs about one batch",
        "Chen et al. 2023, FTPipeHD: a fault-tolerant pipeline-parallel distributed training framework",
        pipeline_recipes.FTPIPEHD,
    ),
    "ftpipehd-as-published": Recipe(
        "ftpipehd with a batch timer, copies every 100 batches without optimizer state, mixed versions",
        "Chen et al. 2023, FTPipeHD: a fault-tolerant pipeline-parallel distributed training framework",
        pipeline_recipes.FTPIPEHD_AS_PUBLISHED,
    ),
    "pipedream": Recipe(
        "a pipeline that is cut as if all devices were equally fast",
        "Narayanan et al. 2019, PipeDream: generalized pipeline parallelism for DNN training",
        pipeline_recipes.PIPEDREAM,
    ),
    "gpipe": Recipe(
        "a synchronous pipeline of micro-batches with a flush after every batch",
        "Huang et al. 2019, GPipe: efficient training of giant neural networks using pipeline parallelism",
        pipeline_recipes.GPIPE,
    ),
    "respipe": Recipe(
        "pipedream whose next stage takes over the layers of a lost one",
        "Li et al. 2021, ResPipe: resilient model-distributed DNN training at edge networks",
        pipeline_recipes.RESPIPE,
    ),
    "single": Recipe(
        "the whole model on one device",
        "plain stochastic gradient descent",
        pipeline_recipes.SINGLE,
    ),
}


def find_recipe(name: str) -> Recipe:
    """The recipe of this name."""
    try:
        return CATALOGUE[name]
    except KeyError:
        raise SettingError("recipe", f"{name!r} is not known; choose from {', '.join(CATALOGUE)}") from None
