"""Derived times follow from MACs, measured times sum to the step, and invalid profiles are refused."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

from potluck.errors import DataError, ModelError
from potluck.model import zoo
from potluck.model.layer_chain import trace_layers
from potluck.model.model_profile import ModelProfile, derive_profile, load_profile, measure_profile
from tests.model import styles
from tests.model.styles import ZOO, of_zoo


def derived(batch: int = 8) -> ModelProfile:
    return derive_profile(trace_layers(styles.Residual(), (3, 6, 6)), batch, 1e9, model="residual")


def test_derived_times_follow_from_macs_and_throughput() -> None:
    profile = derived()
    stem = profile.layers[0]
    assert stem.forward_s == 2 * (36 * 4 * 3 * 9) * 8 / 1e9
    assert stem.backward_s == 2 * stem.forward_s
    assert (profile.source, profile.batch, profile.device) == ("derived", 8, "1e+09 FLOP/s")
    assert profile.totals.forward_s == pytest.approx(2 * profile.totals.macs * 8 / 1e9)
    assert profile.totals.param_bytes == sum(4 * p.numel() for p in styles.Residual().parameters())


def test_a_layer_without_macs_costs_memory_traffic_or_nothing() -> None:
    chain = trace_layers(styles.Tied(), (5,), dtype=torch.long)
    assert derive_profile(chain, 2, 1e9).layers[0].forward_s == 0
    assert derive_profile(chain, 2, 1e9, bytes_per_s=1e6).layers[0].forward_s == 2 * (5 * 6 * 4) / 1e6


def test_scaling_a_derived_profile_equals_deriving_it() -> None:
    scaled, direct = derived(8).scaled_to_batch(24), derived(24)
    assert scaled.batch == 24
    for ours, theirs in zip(scaled.layers, direct.layers, strict=True):
        assert ours.forward_s == pytest.approx(theirs.forward_s)
        assert ours.output_bytes == theirs.output_bytes


def test_a_large_model_is_derived_in_seconds() -> None:
    start = time.process_time()
    with torch.device("meta"):
        module = zoo.build_model("resnet152")
    derive_profile(trace_layers(module, (3, 224, 224)), 32, 1e12)
    assert time.process_time() - start < 10


@pytest.mark.parametrize("name", ZOO)
def test_profiles_of_the_zoo_are_complete(name: str) -> None:
    profile = derive_profile(of_zoo(name), 32, 1e12, model=name)
    assert profile.totals.param_bytes == 4 * zoo.model_entry(name).parameters
    assert all(layer.forward_s > 0 and layer.backward_s > 0 for layer in profile.layers)
    assert profile.cuts


@pytest.mark.parametrize(("name", "gmacs"), [("resnet152", 11.514), ("vgg19", 19.632), ("resnet50", 4.089)])
def test_macs_equal_the_published_ones(name: str, gmacs: float) -> None:
    assert derive_profile(of_zoo(name), 1, 1.0).totals.macs == pytest.approx(gmacs * 1e9, rel=0.01)


@pytest.mark.wall_clock
def test_measured_layers_add_up_to_the_step() -> None:
    chain = trace_layers(zoo.build_model("cnn"), zoo.model_entry("cnn").shape)
    calls: list[tuple[int, int]] = []
    profile = measure_profile(chain, 16, repeats=5, warmup=1, progress=lambda done, total: calls.append((done, total)))
    assert 0.75 < profile.agreement < 1.25
    assert calls == [(n, 6) for n in range(1, 7)]
    assert profile.source == "measured"
    assert [layer.name for layer in profile.layers] == [layer.name for layer in chain.layers]
    assert all(layer.forward_s > 0 and layer.backward_s > 0 and layer.spread >= 0 for layer in profile.layers)


def test_measuring_does_not_change_model_or_random_state() -> None:
    chain = trace_layers(styles.Residual().eval(), (3, 6, 6))
    before = {name: tensor.clone() for name, tensor in chain.module.state_dict().items()}
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    measure_profile(chain, 4, repeats=1, warmup=0)
    assert torch.equal(torch.rand(3), expected)
    assert not chain.module.training
    assert all(parameter.grad is None for parameter in chain.module.parameters())
    assert all(torch.equal(tensor, chain.module.state_dict()[name]) for name, tensor in before.items())


STYLES: dict[str, tuple[type[nn.Module], tuple[int, ...], torch.dtype]] = {
    "tied": (styles.Tied, (5,), torch.long),
    "encoder": (styles.Encoder, (6, 4), torch.float32),
    "dict": (styles.Named, (6,), torch.float32),
    "observed": (styles.Counting, (6,), torch.float32),
    "listed": (styles.Branching, (6,), torch.float32),
}


@pytest.mark.parametrize("name", STYLES)
def test_other_styles_are_measured_too(name: str) -> None:
    style, shape, dtype = STYLES[name]
    chain = trace_layers(style(), shape, dtype=dtype)
    profile = measure_profile(chain, 3, repeats=2, warmup=1)
    assert len(profile.layers) == len(chain.layers)
    assert profile.totals.forward_s > 0
    assert profile.note == chain.note


def test_meta_models_and_empty_batches_are_refused() -> None:
    with torch.device("meta"):
        chain = trace_layers(styles.Residual(), (3, 6, 6))
    with pytest.raises(ModelError, match="cannot measure a model on meta tensors"):
        measure_profile(chain, 4, repeats=1, warmup=0)
    with pytest.raises(ModelError, match="at least 1"):
        derive_profile(chain, 0, 1e9)
    with pytest.raises(ModelError, match="above zero"):
        derive_profile(chain, 1, 0.0)


def test_a_saved_profile_loads_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "residual.json"
    profile = derived()
    profile.save(path)
    assert load_profile(path) == profile
    assert path.stat().st_size < 4000
    assert list(tmp_path.iterdir()) == [path]


def test_an_invalid_profile_is_refused_in_one_line(tmp_path: Path) -> None:
    valid = msgspec.to_builtins(derived())
    layer = valid["layers"][0]
    bad: dict[str, object] = {
        "truncated": None,
        "unknown": valid | {"colour": "red"},
        "version": valid | {"format": "potluck-profile-9"},
        "batch": valid | {"batch": 0},
        "negative": valid | {"layers": [layer | {"forward_s": -1.0}]},
        "empty": valid | {"layers": [], "cuts": []},
        "cut": valid | {"cuts": [{"after": 99, "bytes": 1}]},
        "list": [1, 2],
    }
    for name, content in bad.items():
        path = tmp_path / f"{name}.json"
        path.write_bytes(msgspec.json.encode(content if content is not None else valid)[: None if content else 50])
        with pytest.raises(DataError, match=r"is not a profile: [^\n]+$"):
            load_profile(path)
    with pytest.raises(DataError, match=r"cannot read the profile .*No such file"):
        load_profile(tmp_path / "absent.json")
