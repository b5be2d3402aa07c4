from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.errors import SettingError
from potluck.settings import (
    Part,
    Settings,
    apply_override,
    decode_settings,
    encode_settings,
    load_object,
    merge_tables,
    part_kinds,
)
from potluck.units import Bytes, Seconds


class Dish(Part, frozen=True, kw_only=True):
    """A part for these tests."""


class Soup(Dish, frozen=True, kw_only=True, tag="soup"):
    spoons: Annotated[int, msgspec.Meta(ge=1)] = 1
    warm: Seconds = Seconds(60)


class Bread(Dish, frozen=True, kw_only=True, tag="bread"):
    slices: tuple[int, ...] = (1, 2)


class Sourdough(Bread, frozen=True, kw_only=True, tag="sourdough"):
    days: float = 2.0


class Homemade(Dish, frozen=True, kw_only=True):
    """Has no tag, so it is named `tests.test_settings:Homemade`."""

    by: str = "grandmother"


class Guest(Settings, frozen=True, kw_only=True):
    name: str
    dish: Dish = Soup()
    size: Bytes | None = None


class Table(Settings, frozen=True, kw_only=True):
    guests: tuple[Guest, ...] = ()
    place: str | Guest = "home"
    seats: Annotated[int, msgspec.Meta(ge=1, le=8)] | None = None
    mood: Literal["merry", "calm"] = "calm"
    notes: dict[str, Any] = msgspec.field(default_factory=dict)
    first: int = 0
    last: int = 9

    def __post_init__(self) -> None:
        if self.first > self.last:
            raise ValueError(f"`first` must not be above `last`, got {self.first} and {self.last}")
        if self.mood == "merry" and not self.guests:
            raise SettingError("guests", "a merry table needs some")


DISHES = st.one_of(
    st.builds(Soup, spoons=st.integers(1, 99), warm=st.floats(0, 1e9).map(Seconds)),
    st.builds(Bread, slices=st.lists(st.integers(), max_size=3).map(tuple)),
    st.builds(Sourdough, slices=st.just((3,)), days=st.floats(allow_nan=False)),
)
GUESTS = st.builds(
    Guest, name=st.text(max_size=9), dish=DISHES, size=st.one_of(st.none(), st.floats(0, 1e15).map(Bytes))
)
TABLES = st.builds(
    Table,
    guests=st.lists(GUESTS, max_size=3).map(tuple),
    place=st.one_of(st.text(max_size=9), GUESTS),
    seats=st.one_of(st.none(), st.integers(1, 8)),
    notes=st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=5), st.booleans())),
)


@settings(deadline=None)
@given(table=TABLES)
def test_plain_data_reads_back_to_an_equal_object(table: Table) -> None:
    assert decode_settings(encode_settings(table), Table) == table


def _innermost(table: Any) -> set[type]:
    if isinstance(table, dict):
        return set().union(*map(_innermost, table.values())) if table else set()
    if isinstance(table, list):
        return set().union(*map(_innermost, table)) if table else set()
    return {type(table)}


@settings(deadline=None)
@given(table=TABLES)
def test_encoded_settings_are_plain_data(table: Table) -> None:
    assert _innermost(encode_settings(table)) <= {str, int, float, bool}


@pytest.mark.parametrize(
    ("raw", "path", "message"),
    [
        ({"guest": []}, "guest", "did you mean 'guests'?"),
        ({"zzz": 1}, "zzz", "unknown key; known keys: guests, place"),
        ({"guests": {}}, "guests", "expected a list"),
        ({"guests": ["Ann"]}, "guests[0]", "expected a table, got 'Ann'"),
        ({"guests": [{"name": "Ann"}, {}]}, "guests[1].name", "this key is missing"),
        ({"guests": [{"name": 3}]}, "guests[0].name", "expected `str`, got `int`"),
        ({"guests": [{"name": "Ann", "dish": "sop"}]}, "guests[0].dish", "choose from soup, bread, sourdough"),
        ({"guests": [{"name": "Ann", "dish": "sop"}]}, "guests[0].dish", "did you mean 'soup'?"),
        ({"guests": [{"name": "Ann", "dish": 3}]}, "guests[0].dish", "expected a table, got 3"),
        ({"guests": [{"name": "Ann", "dish": {"kind": 3}}]}, "guests[0].dish.kind", "set the kind to"),
        ({"guests": [{"name": "Ann", "dish": {"spoons": 0}}]}, "guests[0].dish.spoons", ">= 1"),
        ({"guests": [{"name": "Ann", "dish": {"slices": []}}]}, "guests[0].dish.slices", "known keys: spoons, warm"),
        ({"guests": [{"name": "Ann", "dish": {"warm": "-1 s"}}]}, "guests[0].dish.warm", "must not be negative"),
        ({"guests": [{"name": "Ann", "dish": {"warm": "1 kg"}}]}, "guests[0].dish.warm", "unknown unit 'kg'"),
        ({"guests": [{"name": "A", "dish": {"kind": "bread", "slices": [1, "x"]}}]}, "guests[0].dish.slices[1]", "int"),
        ({"place": {"nam": "Ann"}}, "place.nam", "did you mean 'name'?"),
        ({"seats": 9}, "seats", "<= 8"),
        ({"seats": True}, "seats", "expected `int`"),
        ({"seats": 2.5}, "seats", "expected `int`"),
        ({"mood": "angry"}, "mood", "invalid enum value 'angry'"),
        ({"first": 10}, "", "`first` must not be above `last`, got 10 and 9"),
        ({"mood": "merry"}, "guests", "a merry table needs some"),
        ([], "", "expected a table"),
    ],
)
def test_errors_name_the_path_of_the_key(raw: object, path: str, message: str) -> None:
    with pytest.raises(SettingError) as excinfo:
        decode_settings(raw, Table)
    assert excinfo.value.path == path
    assert message in excinfo.value.problem
    assert "\n" not in str(excinfo.value)


def test_errors_are_prefixed_with_the_parent_path() -> None:
    with pytest.raises(SettingError) as excinfo:
        decode_settings({"guests": [{"dish": "soup"}]}, Table, "house.table")
    assert excinfo.value.path == "house.table.guests[0].name"


def test_a_part_is_written_as_its_kind_or_as_a_table() -> None:
    assert decode_settings({"name": "Ann", "dish": "bread"}, Guest).dish == Bread()
    assert decode_settings({"name": "Ann", "dish": {"kind": "bread", "slices": [3]}}, Guest).dish == Bread(slices=(3,))
    assert decode_settings({"name": "Ann", "dish": {"spoons": 4}}, Guest).dish == Soup(spoons=4)
    assert decode_settings({"name": "Ann", "dish": Sourdough()}, Guest).dish == Sourdough()


def test_kinds_are_listed_in_order_without_untagged_ones() -> None:
    assert part_kinds(Dish) == {"soup": Soup, "bread": Bread, "sourdough": Sourdough}


def test_a_user_part_is_named_by_its_module() -> None:
    guest = decode_settings({"name": "Ann", "dish": f"{__name__}:Homemade"}, Guest)
    assert type(guest.dish).__name__ == "Homemade"


def test_a_user_part_reads_back() -> None:
    guest = decode_settings({"name": "Ann", "dish": {"kind": f"{__name__}:Homemade", "by": "me"}}, Guest)
    assert decode_settings(encode_settings(guest), Guest) == guest


def test_a_part_of_ones_own_reads_back_where_its_module_was_not_imported(tmp_path: Path) -> None:
    """A run is resumed by another process, which knows the part only from job.toml."""
    (tmp_path / "kitchen.py").write_text(
        "from potluck.loops.parts.barrier import AllBarrier\n"
        "class Slowest(AllBarrier, frozen=True, kw_only=True, tag='slowest'): pass\n"
    )
    barrier = "import sys, json; from potluck.loops.parts.barrier import Barrier; from potluck.settings import *; "
    write = barrier + "print(json.dumps(encode_settings(decode_settings('kitchen:Slowest', Barrier))))"
    read = barrier + "decode_settings(json.load(sys.stdin), Barrier)"
    saved = subprocess.run([sys.executable, "-c", write], cwd=tmp_path, capture_output=True, check=True)
    done = subprocess.run([sys.executable, "-c", read], cwd=tmp_path, input=saved.stdout, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("json", "does not have the form"),
        (":loads", "does not have the form"),
        ("json:", "does not have the form"),
        ("no_such_module:x", "install it on every device"),
        ("json:no_such", "has no 'no_such'"),
        ("json:decoder.nothing", "has no 'decoder.nothing'"),
        (".relative:x", "cannot import"),
    ],
)
def test_errors_explain_what_cannot_be_loaded(name: str, message: str) -> None:
    with pytest.raises(SettingError, match=message) as excinfo:
        load_object(name, "task")
    assert excinfo.value.path == "task"


def test_an_object_is_loaded_by_its_dotted_name() -> None:
    import json

    assert load_object("json:JSONDecoder.decode", "x") is json.JSONDecoder.decode


def test_a_part_of_another_family_is_refused() -> None:
    with pytest.raises(SettingError, match="is not a Dish"):
        decode_settings({"name": "Ann", "dish": "json:JSONDecoder"}, Guest)


@pytest.mark.parametrize(
    ("base", "over", "merged"),
    [
        ({}, {"a": 1}, {"a": 1}),
        ({"a": 1, "b": 2}, {"b": 3}, {"a": 1, "b": 3}),
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}}, {"a": {"x": 1, "y": 3}}),
        ({"a": {"kind": "p", "x": 1}}, {"a": {"x": 2}}, {"a": {"kind": "p", "x": 2}}),
        ({"a": {"kind": "p", "x": 1}}, {"a": {"kind": "p", "y": 2}}, {"a": {"kind": "p", "x": 1, "y": 2}}),
        ({"a": {"kind": "p", "x": 1}}, {"a": {"kind": "q", "y": 2}}, {"a": {"kind": "q", "y": 2}}),
        ({"a": {"kind": "p", "x": 1}}, {"a": "p"}, {"a": "p"}),
        ({"a": "p"}, {"a": {"x": 2}}, {"a": {"kind": "p", "x": 2}}),
        ({"a": "p"}, {"a": {"kind": "q", "x": 2}}, {"a": {"kind": "q", "x": 2}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": [{"x": 1}]}, {"a": {"x": 2}}, {"a": {"x": 2}}),
    ],
)
def test_tables_are_merged_key_by_key(base: dict[str, Any], over: dict[str, Any], merged: dict[str, Any]) -> None:
    before = str(base), str(over)
    assert merge_tables(base, over) == merged
    assert (str(base), str(over)) == before


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("a.b=32", {"a": {"b": 32}}),
        ("a.b = 3.5", {"a": {"b": 3.5}}),
        ("a=true", {"a": True}),
        ("a=fedavg", {"a": "fedavg"}),
        ('a="true"', {"a": "true"}),
        ("a=20 Mbit/s", {"a": "20 Mbit/s"}),
        ("a=[1, 2]", {"a": [1, 2]}),
        ("a={kind='quorum', share=0.5}", {"a": {"kind": "quorum", "share": 0.5}}),
        ("a=x=y", {"a": "x=y"}),
        ("a=", {"a": ""}),
        ("a=C:\\temp", {"a": "C:\\temp"}),
    ],
)
def test_an_assignment_sets_one_key(assignment: str, value: dict[str, Any]) -> None:
    assert apply_override({}, assignment) == value


@pytest.mark.parametrize("assignment", ["", "a", "=3", "a.=3", ".a=3", "a..b=3"])
def test_an_assignment_without_key_is_refused(assignment: str) -> None:
    with pytest.raises(SettingError, match=r"--set: .* does not have the form a\.b=value"):
        apply_override({}, assignment)


def test_settings_are_frozen() -> None:
    guest = Guest(name="Ann")
    with pytest.raises(AttributeError):
        guest.name = "Bob"  # type: ignore[misc]
