"""Building networks by name: valid options, refused options and their messages, and that the result learns."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from potluck.errors import ModelError
from potluck.model import zoo


def weights(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def on_meta(name: str, **options: object) -> nn.Module:
    with torch.device("meta"):
        return zoo.build_model(name, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("ask", [zoo.build_model, zoo.model_entry, zoo.model_options])
def test_unknown_name_lists_the_choices_and_guesses(ask: object) -> None:
    assert callable(ask)
    with pytest.raises(
        ModelError, match=r"no model 'resnet-20'; choose from lenet, .*did you mean 'resnet20'"
    ) as error:
        ask("resnet-20")
    assert "\n" not in str(error.value)


def test_unknown_option_lists_the_known_ones_and_guesses() -> None:
    with pytest.raises(ModelError, match=r"model 'mlp' has no option 'hiden'; it has .*did you mean 'hidden'"):
        zoo.build_model("mlp", hiden=[10])


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("mlp", "hidden", [10, 0]),
        ("mlp", "hidden", "10"),
        ("lenet", "classes", 0),
        ("lenet", "classes", True),
        ("lenet", "channels", -1),
        ("vgg9", "dropout", 1.0),
        ("cnn", "dropout", [0.1]),
        ("vgg16-bn-cifar", "bias", "no"),
        ("googlenet", "largest_kernel", 7),
        ("mobilenet-v2", "width", 0.0),
        ("densenet40", "growth", 1.5),
    ],
)
def test_bad_value_names_model_option_and_value(name: str, option: str, value: object) -> None:
    with pytest.raises(ModelError) as error:
        on_meta(name, **{option: value})
    message = str(error.value)
    assert message.startswith(f"model {name!r}, option {option!r}: ")
    assert message.endswith(f"got {value!r}")


@pytest.mark.parametrize("fixed", ["depth", "bn", "stages"])
def test_defining_properties_of_a_network_cannot_be_set(fixed: str) -> None:
    with pytest.raises(ModelError, match="has no option"):
        on_meta("vgg16-bn", **{fixed: 11})


@pytest.mark.parametrize(("name", "least"), [("lenet", 12), ("cnn", 6), ("vgg9", 8), ("mlp", 1)])
def test_smallest_side_works_and_the_next_smaller_is_refused(name: str, least: int) -> None:
    model = zoo.build_model(name, channels=1, side=least)
    assert model(torch.zeros(2, 1, least, least)).shape == (2, 10)
    with pytest.raises(ModelError, match="side"):
        zoo.build_model(name, channels=1, side=least - 1)


@pytest.mark.parametrize("side", [8, 33])
@pytest.mark.parametrize("name", ["cnn", "vgg9", "mlp"])
def test_side_sizes_the_linear_layers_to_the_image(name: str, side: int) -> None:
    assert on_meta(name, side=side)(
        torch.empty(1, zoo.model_entry(name).shape[0], side, side, device="meta")
    ).shape == (
        1,
        10,
    )


@pytest.mark.parametrize("shape", [(49, 10), (49, 40), (98, 64)])
def test_ds_cnn_takes_any_frames_and_features(shape: tuple[int, int]) -> None:
    assert on_meta("ds-cnn")(torch.empty(1, 1, *shape, device="meta")).shape == (1, 12)


def test_first_map_of_ds_cnn_has_the_published_size() -> None:
    first = on_meta("ds-cnn").get_submodule("conv1")
    assert first(torch.empty(1, 1, 49, 10, device="meta")).shape == (1, 64, 25, 5)


@pytest.mark.parametrize(
    ("name", "options", "published"),
    [
        ("vgg11-bn-cifar", {"bias": True}, 9_231_114),
        ("vgg16-bn-cifar", {"bias": True}, 14_728_266),
        ("vgg19-bn-cifar", {"bias": True}, 20_040_522),
        ("googlenet", {"auxiliary": True}, 13_004_888),
        ("resnet20", {"classes": 100}, 278_324),
        ("resnet56", {"classes": 100}, 861_620),
        ("densenet40", {"classes": 100}, 1_060_132),
        ("cnn", {"classes": 62}, 1_206_590),
        ("mobilenet-v2", {"width": 0.5}, 1_968_680),
        ("mobilenet-v2", {"width": 1.4}, 6_108_776),
    ],
)
def test_other_published_counts(name: str, options: dict[str, object], published: int) -> None:
    assert weights(on_meta(name, **options)) == published


def test_hidden_may_be_empty_or_a_list_as_toml_gives_it() -> None:
    assert weights(zoo.build_model("mlp", hidden=[])) == 784 * 10 + 10
    assert weights(zoo.build_model("mlp", hidden=[5], side=8)) == (64 * 5 + 5) + (5 * 10 + 10)


def test_options_are_listed() -> None:
    assert zoo.model_options("mlp") == ("classes", "channels", "side", "hidden")
    assert zoo.model_options("resnet18") == ("classes", "channels")


def test_no_dropout_means_no_layer() -> None:
    model = zoo.build_model("cnn", dropout=[0, 0.5])
    assert [layer.p for layer in model.modules() if isinstance(layer, nn.Dropout)] == [0.5]


def test_auxiliary_heads_are_used_only_in_training() -> None:
    model = on_meta("googlenet", auxiliary=True, classes=5)
    picture = torch.empty(2, 3, 64, 64, device="meta")
    assert [scores.shape for scores in model(picture)] == [(2, 5)] * 3
    assert model.eval()(picture).shape == (2, 5)
    torch.fx.symbolic_trace(model)


@pytest.mark.parametrize(
    ("name", "last_layer", "side"),
    [
        ("resnet18-cifar", "block4_2", 4),
        ("resnet20", "block3_3", 8),
        ("mobilenet-v2-cifar", "last", 4),
        ("vgg16-bn-cifar", "pool5", 1),
        ("alexnet", "pool5", 6),
        ("alexnet-cifar", "pool5", 1),
        ("densenet40", "last_relu", 8),
    ],
)
def test_size_of_the_last_map(name: str, last_layer: str, side: int) -> None:
    x = torch.empty(1, *zoo.model_entry(name).shape, device="meta")
    for layer, module in on_meta(name).eval().named_children():
        x = module(x)
        if layer == last_layer:
            break
    assert x.shape[2:] == (side, side)


@pytest.mark.parametrize(("name", "layers"), [("mobilenet-v2-cifar", 20), ("resnet20", 20), ("resnet152", 152)])
def test_depth_matches_the_name(name: str, layers: int) -> None:
    model = on_meta(name)
    if name.startswith("mobilenet"):
        counted = sum(any(True for _ in layer.parameters()) for layer in model.children())
    else:
        weighted = [path for path, layer in model.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
        counted = sum(".shortcut." not in path for path in weighted)
    assert counted == layers


@pytest.mark.parametrize("name", ["lenet", "resnet20", "ds-cnn"])
def test_the_seed_fixes_the_weights(name: str) -> None:
    built = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        built.append(nn.utils.parameters_to_vector(zoo.build_model(name).parameters()))
    assert torch.equal(built[0], built[1])
    assert not torch.equal(built[0], built[2])


def test_convolutions_use_he_initialisation() -> None:
    torch.manual_seed(0)
    conv = zoo.build_model("vgg16-bn-cifar").get_submodule("conv4_2")
    assert isinstance(conv, nn.Conv2d)
    assert conv.weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)


@pytest.mark.parametrize("name", ["vgg9", "resnet20", "alexnet-cifar", "ds-cnn"])
def test_first_scores_neither_vanish_nor_explode(name: str) -> None:
    torch.manual_seed(0)
    scores = zoo.build_model(name)(torch.randn(4, *zoo.model_entry(name).shape))
    assert 0.01 < scores.std().item() < 10


@pytest.mark.parametrize(
    ("name", "options", "rate"),
    [
        ("lenet", {}, 0.05),
        ("mlp", {}, 0.05),
        ("cnn", {"dropout": [0, 0]}, 0.02),
        ("ds-cnn", {}, 0.05),
        ("resnet20", {}, 0.02),
    ],
)
def test_one_step_lowers_the_loss(name: str, options: dict[str, object], rate: float) -> None:
    torch.manual_seed(0)
    entry = zoo.model_entry(name)
    model = zoo.build_model(name, **options)  # type: ignore[arg-type]
    inputs, labels = torch.randn(16, *entry.shape), torch.arange(16) % entry.classes
    before = nn.functional.cross_entropy(model(inputs), labels)
    before.backward()  # type: ignore[no-untyped-call]
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())
    torch.optim.SGD(model.parameters(), lr=rate).step()
    assert nn.functional.cross_entropy(model(inputs), labels) < before
