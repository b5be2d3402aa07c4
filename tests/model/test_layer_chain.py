"""Layers in execution order, parameter owners and legal cuts, for models in many styles."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from potluck.errors import ModelError
from potluck.model import zoo
from potluck.model.cut_points import MAX_CROSSING_TENSORS
from potluck.model.flop_counter import count_macs
from potluck.model.layer_chain import LayerChain, trace_layers
from potluck.model.meta_copy import copy_to_meta
from tests.model import styles
from tests.model.styles import ZOO, of_zoo


def names(chain: LayerChain) -> list[str]:
    return [layer.name for layer in chain.layers]


@pytest.mark.parametrize("name", ZOO)
def test_every_zoo_model_is_an_exact_chain(name: str) -> None:
    chain = of_zoo(name)
    assert chain.exact
    assert chain.note == ""
    parameters = [name for layer in chain.layers for name in layer.parameters]
    assert sorted(parameters) == sorted(name for name, _ in chain.module.named_parameters())
    buffers = [name for layer in chain.layers for name in layer.buffers]
    assert sorted(buffers) == sorted(name for name, _ in chain.module.named_buffers())
    assert sum(layer.param_bytes for layer in chain.layers) == 4 * zoo.model_entry(name).parameters
    assert all(layer.output_bytes > 0 and layer.macs > 0 for layer in chain.layers)


@pytest.mark.parametrize("name", ZOO)
def test_macs_equal_the_flop_counter(name: str) -> None:
    chain = of_zoo(name)
    module = copy_to_meta(chain.module)
    for path, part in list(module.named_modules()):
        if isinstance(part, nn.BatchNorm2d):  # counts nothing, and is slow on meta tensors
            module.set_submodule(path, nn.Identity())
    assert sum(layer.macs for layer in chain.layers) == pytest.approx(count_macs(module, chain.shape), rel=0.01)


@pytest.mark.parametrize("name", ZOO)
def test_cuts_of_the_zoo_are_small_and_in_order(name: str) -> None:
    chain = of_zoo(name)
    cut_points = [cut.after for cut in chain.cuts]
    assert cut_points == sorted(set(cut_points))
    assert len(cut_points) >= 0.9 * (len(chain.layers) - 1)
    for cut in chain.cuts:
        assert 1 <= len(cut.crossing) <= MAX_CROSSING_TENSORS
        assert cut.bytes == sum(4 * torch.Size(tensor.shape).numel() for tensor in cut.crossing)


def test_layer_counts_match_the_published_depth() -> None:
    counts = {name: len(of_zoo(name).layers) for name in ("vgg19", "resnet152", "mobilenet-v2", "densenet121")}
    assert counts == {"vgg19": 19, "resnet152": 151 + 4 + 1, "mobilenet-v2": 53, "densenet121": 121}


@pytest.mark.parametrize("name", ["resnet20", "mobilenet-v2-cifar", "vgg9"])
def test_activation_bytes_match_what_autograd_saves(name: str) -> None:
    """What autograd saves for a batch, without weights, is at most the stated activation bytes, and not much less."""
    chain, batch = of_zoo(name), 4
    module = zoo.build_model(name, classes=10)
    own_storage = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    saved_bytes: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in own_storage and tensor.is_floating_point():
            saved_bytes[memory.data_ptr()] = memory.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = module(torch.randn(batch, *chain.shape))
    stated_bytes = batch * sum(layer.activation_bytes for layer in chain.layers)
    assert output.requires_grad
    assert sum(saved_bytes.values()) <= stated_bytes <= 2 * sum(saved_bytes.values())
    assert all(layer.activation_bytes >= layer.output_bytes for layer in chain.layers)


def test_layers_follow_execution_order_not_definition_order() -> None:
    chain = trace_layers(styles.Residual(), (3, 6, 6))
    block = ["block1.conv1", "block1.conv2", "block1.down"]
    assert names(chain)[:4] == ["stem", *block]
    assert chain.layers[1].parameters == ("block1.conv1.weight", "block1.bn1.weight", "block1.bn1.bias")
    assert "block1.bn1.running_mean" in chain.layers[1].buffers


def test_macs_of_grouped_depthwise_and_transposed_convolutions_by_hand() -> None:
    chain = trace_layers(styles.Residual(), (3, 6, 6))
    by_name = {layer.name: layer.macs for layer in chain.layers}
    assert by_name["stem"] == 36 * 4 * 3 * 9
    assert by_name["block1.conv1"] == 36 * 8 * (4 // 2) * 9
    assert by_name["block1.conv2"] == 36 * 8 * 9
    assert by_name["up"] == 36 * 8 * 4 * 4
    assert by_name["head"] == 4 * 144 * 5


def test_what_crosses_a_residual_block() -> None:
    chain = trace_layers(styles.Residual(), (3, 6, 6))
    shapes = {cut.after: [tensor.shape for tensor in cut.crossing] for cut in chain.cuts}
    assert shapes[0] == [(4, 6, 6)]
    assert shapes[1] == [(4, 6, 6), (8, 6, 6)]
    assert {cut.after: cut.bytes for cut in chain.cuts}[1] == 4 * (4 + 8) * 36


def test_sequential() -> None:
    chain = trace_layers(nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)), (3, 4))
    assert chain.exact
    assert names(chain) == ["1", "3"]
    assert [layer.output_bytes for layer in chain.layers] == [32, 12]
    assert chain.opening_module(1) is chain.module.get_submodule("3")


def test_bare_parameters_start_layers_where_they_are_used() -> None:
    chain = trace_layers(styles.Functional(), (12,))
    assert chain.exact
    assert [layer.parameters for layer in chain.layers] == [("w1", "b1"), ("w2",)]
    assert chain.layers[0].buffers == ("scale",)
    assert chain.opening_module(0) is None


def test_tied_weights_have_one_owner_and_forbid_cuts_between_their_users() -> None:
    chain = trace_layers(styles.Tied(), (5,), dtype=torch.long)
    assert [layer.parameters for layer in chain.layers] == [("embed.weight",), ("body.weight", "body.bias"), ()]
    assert [(tie.parameter, tie.owner, tie.user) for tie in chain.tied_parameters] == [("embed.weight", 0, 2)]
    assert chain.cuts == ()
    assert [layer.macs for layer in chain.layers] == [0, 5 * 36, 5 * 66]


def test_a_repeated_module_call_is_a_layer_without_parameters() -> None:
    chain = trace_layers(styles.Unrolled(), (3, 4))
    assert names(chain) == ["cell", "cell@2", "cell@3", "head"]
    assert [len(layer.parameters) for layer in chain.layers] == [2, 0, 0, 2]
    assert [cut.after for cut in chain.cuts] == [2]


def test_dict_outputs() -> None:
    chain = trace_layers(styles.Named(), (6,))
    assert chain.exact
    assert chain.layers[-1].output_bytes == 4 * 3


def test_a_transformer_encoder_is_split_into_layers() -> None:
    chain = trace_layers(styles.Encoder(), (6, 4))
    assert chain.exact
    inner = [f"encoder.layers.{n}.{part}" for n in (0, 1) for part in ("self_attn", "linear1", "linear2")]
    assert names(chain) == ["embed", "token", "position", *inner, "head"]
    assert len(chain.cuts) == len(chain.layers) - 1
    assert count_macs(chain.module, (6, 4)) == sum(layer.macs for layer in chain.layers)


def test_a_norm_with_a_weight_matrix_starts_no_layer() -> None:
    chain = trace_layers(styles.Halves(), (8,))
    assert names(chain) == ["left", "middle", "right", "weight"]
    assert "norm.weight" in chain.layers[2].parameters
    assert chain.layers[3].parameters == ("weight", "bias")


def test_a_tuple_crosses_a_cut_as_the_tensors_in_it() -> None:
    chain = trace_layers(styles.Halves(), (8,))
    assert [[tensor.shape for tensor in cut.crossing] for cut in chain.cuts] == [[(4,), (4,)], [(4,), (4,)], [(2, 4)]]


def test_no_cut_separates_aliases_of_one_tensor() -> None:
    chain = trace_layers(styles.Aliased(), (6,))
    assert [cut.after for cut in chain.cuts] == [1]


def test_the_order_is_observed_when_tracing_fails() -> None:
    chain = trace_layers(styles.Counting(), (6,))
    assert not chain.exact
    assert "assigns to its own attribute 'count'" in chain.note
    assert names(chain) == ["early", "late"]
    assert [layer.macs for layer in chain.layers] == [36, 18]
    assert [layer.output_bytes for layer in chain.layers] == [24, 12]
    assert chain.cuts == ()


def test_the_module_order_is_the_last_fallback() -> None:
    chain = trace_layers(styles.Branching(), (6,))
    assert not chain.exact
    assert "depends on the values of a tensor" in chain.note
    assert names(chain) == ["late", "early"]
    assert chain.cuts == ()


def test_unused_parameters_are_recorded() -> None:
    chain = trace_layers(styles.Auxiliary(), (6,))
    assert "forgotten.weight" in chain.layers[-1].parameters
    assert "2 parameters are never used" in chain.note
    assert "differs in evaluation" in chain.note


def test_tracing_does_not_change_the_model() -> None:
    module = styles.Residual().eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    attributes = set(vars(module))
    trace_layers(module, (3, 6, 6))
    assert not any(part.training for part in module.modules())
    assert set(vars(module)) == attributes
    assert all(torch.equal(tensor, module.state_dict()[name]) for name, tensor in before.items())


def test_a_model_on_meta_tensors_gives_the_same_layers() -> None:
    with torch.device("meta"):
        light = styles.Residual()
    assert trace_layers(light, (3, 6, 6)).layers == trace_layers(styles.Residual(), (3, 6, 6)).layers


def test_different_dtypes_are_refused() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3).double())
    with pytest.raises(ModelError, match=r"different dtypes: float32 \(0.bias\), float64 \(1.bias\)"):
        trace_layers(module, (3,))


def test_models_without_parameters_or_shapes_are_refused() -> None:
    with pytest.raises(ModelError, match="nothing to train"):
        trace_layers(nn.Sequential(nn.ReLU()), (3,))
    with pytest.raises(ModelError, match="run the lazy model once"):
        trace_layers(nn.Sequential(nn.LazyLinear(3)), (3,))


def test_a_sample_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ModelError, match=r"the model does not fit the data \(inputs of shape \(7,\)\)"):
        trace_layers(nn.Sequential(nn.Linear(3, 3)), (7,))
