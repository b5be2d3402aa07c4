"""Strange models, data and losses under every kind of recipe: each trains, or is refused in one line. None crashes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import potluck
from potluck.data import from_tensors, from_torch
from potluck.errors import UserError
from potluck.model.losses import LOSSES
from tests.simulation import strange_data as data
from tests.simulation import strange_models as models
from tests.simulation.strange_data import COUNT, images, labels, tokens, vectors

FLEET = {"devices": [{"name": "fast", "flops": "2 GFLOP/s"}, {"name": "slow", "flops": "1 GFLOP/s", "count": 2}]}
BATCHES = {"rounds": {"batching": {"kind": "fixed", "size": 4}}}


@dataclass(frozen=True)
class Case:
    """What is trained, by which recipe, and what comes of it: it trains, or a line that matches `refused`."""

    name: str
    model: Any
    data: Callable[[], Any]
    recipe: str = "fedavg"
    loss: Any = None
    refused: str | None = None
    failed: str | None = None
    metrics: Any = ()
    job: dict[str, Any] = field(default_factory=dict)


def plain() -> Any:
    return vectors(), labels()


def pictures() -> Any:
    return images(), labels()


def text() -> Any:
    return tokens(), labels()


def word_labels() -> Any:
    return tokens(), tokens() % models.CLASSES


WHOLE_AND_CUT = ("fedavg", "dynacomm", "ftpipehd", "heterofl", "distreal")
CUT = ("heterofl", "fjord", "fedrolex", "distreal")
TO_DENSE = r"layout torch.sparse_(coo|csr); call \.to_dense\(\)"
STREAM = {"stream": {"rate": {"kind": "constant", "per_second": 40.0}}}
HERE = r"strange_models\.py:\d+\)"
LOSSES_HERE = r"strange_data\.py:\d+\)"

INPUTS = [
    Case("integers into an embedding", models.tagger, word_labels, loss=LOSSES["token-cross-entropy"]),
    Case("integers under dynacomm", models.Attention, text, "dynacomm"),
    Case("integers in a pipeline", models.tagger, word_labels, "gpipe", loss=LOSSES["token-cross-entropy"]),
    Case("dict inputs", models.DictInput, data.dict_inputs),
    Case("dict inputs under duplex", models.DictInput, data.dict_inputs, "duplex"),
    Case("dict inputs in a pipeline", models.DictInput, data.dict_inputs, "ftpipehd"),
    Case("dict inputs that stream", models.DictInput, data.dict_inputs, "scadles", job=STREAM),
    Case("dict inputs under heterofl", models.DictInput, data.dict_inputs, "heterofl"),
    Case("a dict of one key as one argument", models.SingleKey, lambda: ({"features": vectors()}, labels())),
    Case("a dict of one key under dynacomm", models.SingleKey, lambda: ({"features": vectors()}, labels()), "dynacomm"),
    Case("keys that forward does not take", models.Body, data.dict_inputs, refused="model|takes"),
    Case("a pair of inputs", models.PairInput, lambda: ((vectors(), vectors()), labels()), "fedbuff"),
    Case("a pair of inputs in a pipeline", models.PairInput, lambda: ((vectors(), vectors()), labels()), "gpipe"),
    Case("a list of inputs", models.ListInput, lambda: ([vectors()[:, :2], vectors()[:, 2:]], labels())),
    Case("nested inputs", models.NestedInput, data.nested_inputs, "sync-sgd"),
    Case("nested inputs in a pipeline", models.NestedInput, data.nested_inputs, "ftpipehd"),
    Case("nested inputs that stream", models.NestedInput, data.nested_inputs, "scadles", job=STREAM),
    Case("nested inputs under distreal", models.NestedInput, data.nested_inputs, "distreal"),
    Case("numpy's float64", models.mlp, lambda: (vectors().double().numpy(), labels().numpy())),
    Case("plain lists", models.mlp, lambda: (vectors().tolist(), labels().tolist())),
    Case("images in uint8", models.conv_net, lambda: ((images() * 40 + 128).to(torch.uint8), labels()), "fjord"),
    Case("images in uint8 that stream", models.conv_net,
         lambda: ((images() * 40 + 128).to(torch.uint8), labels()), "scadles", job=STREAM),
    Case("half-precision inputs", models.mlp, lambda: (vectors().half(), labels())),
    Case("inputs that are not finite", models.mlp, lambda: (vectors() / 0, labels()), refused="not finite"),
    Case("inputs without a batch", models.mlp, lambda: (torch.tensor(1.0), labels()), refused="one row for each"),
    Case("inputs of one number each", models.mlp, lambda: (torch.arange(COUNT).float(), labels()),
         refused=r"does not fit"),
    Case("more inputs than targets", models.mlp, lambda: (vectors(), labels()[:-1]), refused="each input needs one"),
    Case("complex inputs", models.mlp, lambda: (vectors().to(torch.complex64), labels()), refused="view_as_real"),
    Case("sparse inputs", models.mlp, lambda: (vectors().to_sparse(), labels()), refused=TO_DENSE),
    Case("sparse rows", models.mlp, lambda: (vectors().to_sparse_csr(), labels()), refused=TO_DENSE),
    Case("sparse targets", models.mlp, lambda: (vectors(), vectors()[:, :3].to_sparse()), loss=F.mse_loss,
         refused=TO_DENSE),
    Case("sparse batches", models.mlp, lambda: from_torch(data.Listed(data.pairs()), collate=data.collate_sparse),
         refused=TO_DENSE),
    Case("a sparse TensorDataset", models.mlp, lambda: TensorDataset(vectors().to_sparse(), labels()),
         refused=TO_DENSE),
    Case("nested tensors", models.mlp,
         lambda: (torch.nested.nested_tensor(list(vectors())), labels()), refused="nested tensor; .*padded"),
    Case("nested tensors of ragged rows", models.mlp,
         lambda: (torch.nested.nested_tensor(list(vectors()), layout=torch.jagged), labels()),
         refused="nested tensor; .*padded"),
    Case("tokens in uint8", models.tagger, lambda: (tokens().to(torch.uint8), labels()), refused="tokens in int64"),
    Case("tokens in int16", models.tagger, lambda: (tokens().to(torch.int16), labels()), refused="tokens in int64"),
]  # fmt: skip

TARGETS = [
    Case("a label for each token", models.tagger, word_labels, "sync-sgd"),
    Case("a label for each pixel", models.segmenter, lambda: (images(), images()[:, 0].argsort(-1) % 3)),
    Case("a label for each pixel, in a pipeline", models.segmenter, lambda: (images(), images()[:, 0].argsort(-1) % 3),
         "ftpipehd"),
    Case("a label for each pixel, by class", models.segmenter, lambda: (images(), images()[:, 0].argsort(-1) % 3),
         job={"split": {"kind": "dirichlet", "alpha": 0.5}}, refused="split: 'dirichlet' goes by class labels"),
    Case("regression", models.mlp, lambda: (vectors(), vectors()[:, :3]), "fedprox", loss=F.mse_loss),
    Case("regression by class", models.mlp, lambda: (vectors(), vectors()[:, :3]), loss=F.mse_loss,
         job={"split": {"kind": "shards"}}, refused="split"),
    Case("regression with skew correction", models.mlp, lambda: (vectors(), vectors()[:, :3]), loss=F.mse_loss,
         job={"rounds": {"skew": "adjusted"}}, refused="rounds.skew"),
    Case("regression in class groups", models.conv_net, lambda: (images(), vectors()[:, :3]), "decoupled",
         loss=F.mse_loss, refused="class|label|loss"),
    Case("several labels each", models.mlp, lambda: (vectors(), vectors()[:, :3] > 0), loss=LOSSES["bce"]),
    Case("class probabilities", models.mlp, lambda: (vectors(), vectors()[:, :3].softmax(1)), "fedadam"),
    Case("bool labels", models.mlp, lambda: (vectors(), labels() > 0), refused="fit|bool|targets"),
    Case("dict targets", models.mlp, lambda: (vectors(), {"class": labels(), "value": vectors()[:, 0]}),
         loss=data.dict_target_loss),
    Case("dict targets in a pipeline", models.mlp,
         lambda: (vectors(), {"class": labels(), "value": vectors()[:, 0]}), "gpipe", loss=data.dict_target_loss),
    Case("dict targets that stream", models.mlp, lambda: (vectors(), {"class": labels(), "value": vectors()[:, 0]}),
         "scadles", loss=data.dict_target_loss, job=STREAM),
    Case("labels without class 0", models.mlp, lambda: (vectors(), labels().clamp(min=1))),
    Case("labels beyond the outputs", models.mlp, lambda: (vectors(), labels() + 5), refused="fit|class"),
    Case("string labels", models.mlp, lambda: (vectors(), ["a", "b", "c"] * 8), refused="cannot become tensors"),
    Case("ignored labels", models.mlp, lambda: (vectors(), torch.where(labels() == 0, -100, labels())),
         refused="from -100"),
    Case("ignored tokens", models.tagger,
         lambda: (tokens(), torch.where(tokens() < 4, -100, tokens() % 3)), loss=LOSSES["token-cross-entropy"]),
    Case("small integers as labels", models.mlp, lambda: (vectors(), labels().to(torch.uint8)), "dynacomm"),
    Case("labels in a column", models.mlp, lambda: (vectors(), labels()[:, None]), refused="fit"),
]  # fmt: skip

SETS = [
    Case("(x, y, x_test, y_test)", models.mlp, lambda: (vectors(), labels(), vectors()[:5], labels()[:5])),
    Case("an empty test set", models.mlp, lambda: (vectors(), labels(), vectors()[:0], labels()[:0])),
    Case("an empty test set in a pipeline", models.mlp, lambda: (vectors(), labels(), vectors()[:0], labels()[:0]),
         "ftpipehd"),
    Case("an empty training set", models.mlp, lambda: (vectors()[:0], labels()[:0], *plain()), refused="no training"),
    Case("nothing at all", models.mlp, lambda: (vectors()[:0], labels()[:0]), refused="hold out"),
    Case("fewer samples than devices", models.mlp, lambda: (vectors()[:2], labels()[:2]) * 2,
         refused="3 devices share 2 samples"),
    Case("one sample for each device", models.mlp, lambda: (vectors()[:3], labels()[:3], *plain()), "sync-sgd"),
    Case("ragged data", models.Recurrent, lambda: data.Listed(data.ragged()), refused="reading samples|stack"),
    Case("ragged data with a collate", models.Recurrent, data.padded),
    Case("ragged data in a pipeline", models.Recurrent, data.padded, "gpipe"),
    Case("a collate that raises", models.mlp,
         lambda: from_torch(data.Listed(data.pairs()), collate=data.collate_raising),
         refused=f"ArithmeticError: my collate fails .*{LOSSES_HERE}"),
    Case("a DataLoader", models.mlp, lambda: DataLoader(data.Listed(data.pairs()), batch_size=4, shuffle=True)),
    Case("a DataLoader with a sampler", models.mlp, data.weighted_loader, refused="WeightedRandomSampler"),
    Case("a TensorDataset", models.mlp, lambda: TensorDataset(*plain()), "fedrolex"),
    Case("random transforms", models.mlp, lambda: data.Augmented(data.pairs()), "dynacomm"),
    Case("random transforms in a pipeline", models.mlp, lambda: data.Augmented(data.pairs()), "ftpipehd"),
    Case("a damaged sample", models.mlp, lambda: data.Unreadable(data.pairs()),
         refused=f"OSError: sample 10 is damaged .*{LOSSES_HERE}"),
    Case("an IterableDataset that streams", models.mlp, data.streamed, "scadles", job=STREAM),
    Case("an IterableDataset without a stream", models.mlp, data.streamed, refused="stream: .* add a .stream. table"),
    Case("an IterableDataset in a pipeline", models.mlp, data.streamed, "gpipe", refused="iterable"),
    Case("an IterableDataset and no test set", models.mlp, data.Streamed, "scadles", refused="test set of its own"),
    Case("a Hugging Face data set", models.Body, data.hugging_face, "fedavg-quorum"),
    Case("a Hugging Face data set that streams", models.Body, data.hugging_face_stream, "scadles", job=STREAM),
    Case("a Hugging Face stream without a stream", models.Body, data.hugging_face_stream,
         refused="stream: .* add a .stream. table"),
    Case("data that is none", models.mlp, lambda: "cifar10", refused="`data` is a str"),
    Case("data that is a number", models.mlp, lambda: 3, refused="`data` is a int"),
    Case("no data", models.mlp, lambda: None, refused="`data` is a NoneType"),
    Case("samples of three parts", models.PairInput,
         lambda: data.Listed([(x, x, y) for x, y in data.pairs()]), "sync-sgd"),
    Case("samples that are no pair", models.mlp, lambda: data.Listed(list(vectors())), refused="expected .input"),
    Case("owners of samples", models.mlp, lambda: from_tensors(*plain(), owner=np.arange(COUNT) % 4),
         job={"split": "owner"}),
    Case("no owners of samples", models.mlp, plain, job={"split": "owner"}, refused="whose each sample is"),
]  # fmt: skip

MODELS = [
    Case("float64", lambda: models.mlp().double(), plain, "ftpipehd"),
    Case("float64 under top-k", lambda: models.mlp().double(), plain, "scadles", job=STREAM),
    Case("float16", lambda: models.mlp().half(), plain),
    Case("bfloat16", lambda: models.mlp().bfloat16(), plain, refused="bfloat16 .*model.float"),
    Case("bfloat16 in a pipeline", lambda: models.mlp().bfloat16(), plain, "gpipe", refused="bfloat16 .*model.float"),
    Case("mixed dtypes", models.MixedDtypes, plain, refused="different dtypes"),
    Case("lazy layers", models.lazy_mlp, plain),
    Case("lazy layers under heterofl", models.lazy_mlp, plain, "heterofl"),
    Case("lazy layers in a pipeline", models.lazy_mlp, plain, "ftpipehd"),
    Case("lazy convolutions", models.lazy_conv, pictures, "dynacomm"),
    Case("a lazy module given as an object", models.lazy_mlp(), plain),
    Case("a branch on data", models.Branching, plain),
    Case("a branch on data under dynacomm", models.Branching, plain, "dynacomm"),
    Case("a branch on data in a pipeline", models.Branching, plain, "gpipe"),
    Case("a branch on data under heterofl", models.Branching, plain, "heterofl",
         refused=r"control flow .*strange_models\.py:\d+.* without branches on data, or use a recipe"),
    Case("side effects", models.SideEffects, plain),
    Case("side effects in a pipeline", models.SideEffects, plain, "gpipe"),
    Case("locks", models.Locked, plain, refused="cop(y|ied)"),
    Case("locks in a pipeline", models.Locked, plain, "ftpipehd", refused="cop(y|ied)"),
    Case("things that are no tensors", models.Holding, plain, "duplex"),
    Case("an error of its own", models.Raising, plain, refused=f"LookupError: my own problem .*{HERE}"),
    Case("an error of its own in a pipeline", models.Raising, plain, "gpipe",
         refused=f"LookupError: my own problem .*{HERE}"),
    Case("an error of its own, later", models.RaisingLater, plain,
         failed=f"LookupError: my own problem, later .*{HERE}"),
    Case("an error of its own, later, in a pipeline", models.RaisingLater, plain, "gpipe",
         failed=f"LookupError: my own problem, later .*{HERE}", job={"stop": {"rounds": 9}, "pipeline": {"batch": 12}}),
    Case("functional dropout", models.FunctionalDropout, plain, "sync-sgd"),
    Case("functional dropout in a pipeline", models.FunctionalDropout, plain, "ftpipehd"),
    Case("unused parameters", models.UnusedParameters, plain, "dynacomm"),
    Case("unused parameters in a pipeline", models.UnusedParameters, plain, "ftpipehd"),
    Case("tied parameters", models.TiedParameters, lambda: (tokens(), tokens()), loss=LOSSES["token-cross-entropy"]),
    Case("tied parameters in a pipeline", models.TiedParameters, lambda: (tokens(), tokens()), "ftpipehd",
         loss=LOSSES["token-cross-entropy"]),
    Case("complex parameters", models.ComplexParameters, plain, refused="complex"),
    Case("buffers of integers", models.IntegerBuffer, plain, "dynacomm"),
    Case("no parameters", models.NoParameters, plain, refused="nothing to train"),
    Case("everything frozen", models.frozen_everything, plain, refused="frozen|nothing to train|requires_grad"),
    Case("everything frozen, in a pipeline", models.frozen_everything, plain, "gpipe",
         refused="frozen|nothing to train|requires_grad"),
    Case("a frozen layer", models.frozen_body, plain),
    Case("a frozen layer in a pipeline", models.frozen_body, plain, "gpipe"),
    Case("batch norm on single samples", models.batch_normed, plain,
         job={"rounds": {"batching": {"kind": "fixed", "size": 1}}},
         refused="rounds.batching: .*larger batches"),
    Case("an LSTM", models.Recurrent, text, "dynacomm"),
    Case("an RNN", lambda: models.Recurrent(nn.RNN), text, "fedbuff"),
    Case("a GRU in a pipeline", lambda: models.Recurrent(nn.GRU), text, "gpipe"),
    Case("an LSTM under fedrolex", models.Recurrent, text, "fedrolex", refused="rounds.submodel: .*can be dropped"),
    Case("attention under fjord", models.Attention, text, "fjord"),
    Case("attention in class groups", models.Attention, text, "decoupled", refused="Sequential|class groups|layer"),
    *(Case(f"RoBERTa under {recipe}", models.roberta, text, recipe) for recipe in WHOLE_AND_CUT),
    *(Case(f"sparse embeddings under {recipe}", models.SparseEmbedding, text, recipe)
      for recipe in ("fedavg", "dynacomm", "ftpipehd")),
    *(Case(f"T5 under {recipe}", models.t5, data.text_to_text, recipe, loss=LOSSES["model"]) for recipe in CUT),
    *(Case(f"an encoder and a decoder under {recipe}", models.Seq2Seq, data.pairs_of_texts, recipe) for recipe in CUT),
    *(Case(f"a fixed number of channels under {recipe}", models.FixedReshape, text, recipe,
           refused="rounds.submodel: the model cannot be cut .*RuntimeError: shape .* as fedavg") for recipe in CUT),
    Case("branches in a ModuleDict", models.Dispatch, plain, "duplex"),
    Case("recursion", models.Recursive, plain, "dynacomm"),
    Case("recursion in a pipeline", models.Recursive, plain, "gpipe"),
    Case("a loop over samples", models.MapsSamples, plain),
    Case("a loop over samples in a pipeline", models.MapsSamples, plain, "gpipe"),
    Case("weight norm", models.weight_normed, plain, "dynacomm"),
    Case("weight norm in a pipeline", models.weight_normed, plain, "ftpipehd"),
    Case("weight norm under heterofl", models.weight_normed, plain, "heterofl", refused="parametri|weight|channel"),
    Case("a scripted module", models.scripted, plain),
    Case("a compiled module", lambda: torch.compile(models.mlp(), backend="eager"), plain),
    Case("a module given as an object", models.mlp(), plain, "fedbuff"),
    Case("options besides the inputs", models.KeywordOptions, plain, "dynacomm"),
    Case("a factory that returns none", lambda: 3, plain, refused="must return a torch.nn.Module"),
    Case("a factory that raises", lambda: [][1], plain, refused=r"IndexError.*test_strange_cases\.py:\d+"),
    Case("a factory that wants arguments", nn.Linear, plain, refused="cannot be built"),
    Case("a model that is none", "resnet", plain, refused="`model` is a str"),
]  # fmt: skip

OUTPUTS = [
    Case("a tuple of outputs", models.TupleOutput, plain, loss=data.first_output_loss),
    Case("a tuple of outputs in a pipeline", models.TupleOutput, plain, "gpipe", loss=data.first_output_loss),
    Case("a tuple of outputs and the usual loss", models.TupleOutput, plain, refused="fit|tuple"),
    Case("a dict of outputs", models.DictOutput, plain, "dynacomm", loss=data.dict_output_loss),
    Case("a dict of outputs in a pipeline", models.DictOutput, plain, "ftpipehd", loss=data.dict_output_loss),
    Case("a named tuple with logits", models.LogitsOutput, plain),
    Case("an object with logits", models.AttributesOutput, plain, "sync-sgd"),
    Case("an object with logits in a pipeline", models.AttributesOutput, plain, "gpipe"),
    Case("one output for the batch", models.ScalarOutput, plain, loss=data.batch_mean_loss),
    Case("a loss for each sample", models.mlp, plain, loss=data.per_sample_loss, refused="return one for the batch"),
    Case("a loss for each sample, in a pipeline", models.mlp, plain, "gpipe", loss=data.per_sample_loss,
         refused="return one for the batch"),
    Case("a loss that is not a number", models.mlp, plain, loss=data.nan_loss, failed="not all finite"),
    Case("a loss without a gradient", models.mlp, plain, loss=data.detached_loss, refused="has no gradient"),
    Case("a loss that is a float", models.mlp, plain, loss=data.number_loss, refused="returns a float"),
    Case("a loss that raises", models.mlp, plain, loss=data.raising_loss,
         refused=f"ArithmeticError: my loss fails .*{LOSSES_HERE}"),
    Case("a loss that raises, in a pipeline", models.mlp, plain, "ftpipehd", loss=data.raising_loss,
         refused=f"ArithmeticError: my loss fails .*{LOSSES_HERE}"),
    Case("a loss that is a module", models.mlp, plain, loss=nn.CrossEntropyLoss()),
    Case("a metric that raises", models.mlp, plain, metrics=[potluck.Metric("own", data.raising_metric, True)],
         refused=f"cannot be evaluated: ArithmeticError: my metric fails .*{LOSSES_HERE}"),
    Case("a metric that raises later", models.mlp, plain,
         metrics=[potluck.Metric("own", data.late_raising_metric, True)],
         failed=f"ArithmeticError: my metric fails .*{LOSSES_HERE}"),
    Case("a metric that returns text", models.mlp, plain, metrics=[potluck.Metric("own", data.text_metric, True)],
         refused="own"),
    Case("a metric without a direction", models.mlp, plain, metrics=[data.text_metric], refused="higher is better"),
    Case("a metric that raises later, in a pipeline", models.mlp, plain, "gpipe",
         metrics=[potluck.Metric("own", data.late_raising_metric, True)],
         failed=f"ArithmeticError: my metric fails .*{LOSSES_HERE}"),
    Case("a loss that is none", models.mlp, plain, loss="cross-entropy", refused="`loss` is a str"),
]  # fmt: skip

CASES = [*INPUTS, *TARGETS, *SETS, *MODELS, *OUTPUTS]


def run_case(case: Case) -> potluck.Result:
    own = {} if case.loss is None else {"loss": case.loss}
    task = potluck.Task(case.model, case.data(), metrics=case.metrics, **own)
    small = (
        {"pipeline": {"batch": 6}} if case.recipe in ("gpipe", "ftpipehd") else {} if case.job is STREAM else BATCHES
    )
    job = {"recipe": case.recipe, "task": "own", "fleet": FLEET, "stop": {"rounds": 2}, **small, **case.job}
    return potluck.simulate(job, task=task, threads=0)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_a_strange_case_trains_or_is_refused_in_one_line(case: Case) -> None:
    if case.refused is not None:
        with pytest.raises(UserError, match=case.refused) as error:
            run_case(case)
        assert "\n" not in str(error.value)
        return
    result = run_case(case)
    if case.failed is not None:
        assert result.status == "failed"
        assert "\n" not in result.reason
        assert re.search(case.failed, result.reason), result.reason
        return
    assert (result.status, result.summary["rounds"]) == ("done", 2), result.reason
    assert result.summary["loss"] is None or math.isfinite(result.summary["loss"])


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)
