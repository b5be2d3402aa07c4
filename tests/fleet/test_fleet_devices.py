from __future__ import annotations

from typing import Any

import pytest

from potluck.errors import SettingError
from potluck.fleet import LINKS, PRESETS, Fleet
from potluck.fleet.fleet_devices import DeviceGroup, Link, expand_group
from potluck.settings import decode_settings
from potluck.units import Bytes, BytesPerSecond, FlopsPerSecond


def _fleet(*groups: dict[str, Any], **more: Any) -> Fleet:
    return decode_settings({"devices": list(groups), **more}, Fleet)


def test_the_presets_cover_common_devices_and_cite_their_sources() -> None:
    assert {"pi4", "pi5", "jetson-nano", "jetson-orin-nano", "laptop", "desktop", "phone"} <= PRESETS.keys()
    for board in PRESETS.values():
        assert len(board.source) > 20
        assert board.link in LINKS
        assert 0 < board.peak_fraction <= 1
        assert 1e9 < board.flops < board.peak
        assert Bytes.parse("1 GiB") <= board.memory
        assert board.watts > 0


def test_a_pi_is_slower_than_a_jetson_and_a_laptop_slower_than_a_desktop() -> None:
    flops = {name: preset.flops for name, preset in PRESETS.items()}
    assert flops["pi4"] < flops["pi5"] < flops["jetson-nano"] < flops["jetson-orin-nano"]
    assert flops["laptop"] < flops["desktop"]


def test_a_group_expands_to_count_devices() -> None:
    names = [device.name for device in expand_group(DeviceGroup(preset="pi4", count=3))]
    assert names == ["pi4-0", "pi4-1", "pi4-2"]
    (single,) = expand_group(DeviceGroup(preset="pi4", name="shelf"))
    assert single.name == "shelf"
    assert single.flops == PRESETS["pi4"].flops
    assert single.link == LINKS["wifi"]


def test_a_group_overrides_its_preset() -> None:
    group = DeviceGroup(
        preset="pi4", flops=FlopsPerSecond(5), memory=Bytes(7), link=Link(up=BytesPerSecond(3), down=BytesPerSecond(4))
    )
    (device,) = expand_group(group)
    assert (device.flops, device.memory, device.link.up, device.link.down) == (5.0, 7.0, 3.0, 4.0)
    assert expand_group(DeviceGroup(preset="pi4", link="lan"))[0].link == LINKS["lan"]


def test_a_device_without_preset_needs_a_name_and_a_speed() -> None:
    (device,) = expand_group(DeviceGroup(name="mine", flops=FlopsPerSecond(1e9)))
    assert device.link == LINKS["wifi"]
    assert device.memory == Bytes.parse("4 GiB")


def test_a_fleet_lists_its_devices_in_the_files_order() -> None:
    fleet = _fleet({"preset": "phone"}, {"preset": "pi4", "count": 2}, {"preset": "desktop", "name": "a"})
    assert [device.name for device in fleet.members] == ["phone", "pi4-0", "pi4-1", "a"]


def test_a_large_fleet_is_built_quickly() -> None:
    assert len(_fleet({"preset": "pi4", "count": 100_000}).members) == 100_000


@pytest.mark.parametrize(
    ("groups", "path", "message"),
    [
        ([{}], "devices[0]", "give a `preset`"),
        ([{"name": "x"}], "devices[0]", "give a `preset`"),
        ([{"flops": "1 GFLOP/s"}], "devices[0]", "a `name` or a `preset`"),
        ([{"name": "x", "flops": 0}], "devices[0]", "above 0"),
        ([{"preset": "pi4", "flops": "-1 GFLOP/s"}], "devices[0].flops", "negative"),
        ([{"preset": "pi4", "count": 0}], "devices[0].count", ">= 1"),
        ([{"preset": "pi4", "link": "fibre"}], "devices[0]", "'fibre' is not known; choose from wifi"),
        ([{"preset": "pi4", "link": {"up": 0}}], "devices[0].link", "above 0"),
        ([{"preset": "pi4", "link": {"down": "-1 Mbit/s"}}], "devices[0].link.down", "negative"),
        ([{"preset": "pi4", "link": {"loss": 1}}], "devices[0].link.loss", "< 1"),
        ([{"preset": "pi4", "link": {"bandwidth": 1}}], "devices[0].link.bandwidth", "known keys: up, down"),
        ([{"preset": "pi4", "name": "a b"}], "devices[0]", "must not contain spaces"),
        ([{"preset": "pi4", "name": "a/b"}], "devices[0]", "must not contain"),
        ([{"preset": "pi4"}, {"preset": "pi4"}], "", "'pi4' is used twice"),
        ([{"preset": "pi4", "count": 2}, {"preset": "pi5", "name": "pi4-1"}], "", "'pi4-1' is used twice"),
        ([{"preset": "pi4", "name": "coordinator"}], "devices[0]", "'coordinator' is"),
    ],
)
def test_an_invalid_device_is_refused(groups: list[dict[str, Any]], path: str, message: str) -> None:
    with pytest.raises(SettingError, match=message) as error:
        _fleet(*groups)
    assert error.value.path.startswith(path), "the table, or the key in it"


def test_a_fault_must_name_a_device_of_the_fleet() -> None:
    with pytest.raises(SettingError, match="no device is called 'pi9'") as error:
        _fleet({"preset": "pi4"}, faults=[{"kind": "crash", "at": 1}, {"kind": "crash", "device": "pi9", "at": 1}])
    assert error.value.path == "faults[1].device"


def test_the_coordinator_has_a_link_too() -> None:
    assert _fleet({"preset": "pi4"}).coordinator.resolved_link == LINKS["server"]
    fleet = _fleet({"preset": "pi4"}, coordinator={"link": {"up": "1 Mbit/s"}})
    assert fleet.coordinator.resolved_link.up == 125e3
    with pytest.raises(SettingError, match=r"coordinator.*'fibre' is not known"):
        _fleet({"preset": "pi4"}, coordinator={"link": "fibre"})
