from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import potluck

MODULES = sorted(module.name for module in pkgutil.walk_packages(potluck.__path__, "potluck."))


def _in_a_fresh_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_public_names_are_sorted_and_exist() -> None:
    assert potluck.__all__ == sorted(potluck.__all__)
    for name in potluck.__all__:
        assert getattr(potluck, name) is not None
    assert dir(potluck) == potluck.__all__


def test_each_name_is_defined_in_its_listed_module() -> None:
    for name, home in potluck._HOMES.items():
        assert name in importlib.import_module(home).__all__
    assert set(potluck.__all__) == {*potluck._HOMES, "__version__"}


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = potluck.nonsense


def test_importing_the_package_is_cheap() -> None:
    heavy = _in_a_fresh_python(
        "import sys, potluck; print([m for m in ('torch', 'numpy', 'msgspec', 'asyncio') if m in sys.modules])"
    )
    assert heavy == "[]"


def test_fleets_journals_and_the_node_interface_do_not_import_torch() -> None:
    code = "import sys, potluck.fleet, potluck.journal, potluck.loops.node; print('torch' in sys.modules)"
    assert _in_a_fresh_python(code) == "False"


@pytest.mark.parametrize("name", MODULES)
def test_module_exports_exist_and_are_sorted(name: str) -> None:
    module = importlib.import_module(name)
    listed = getattr(module, "__all__", [])
    assert len(set(listed)) == len(listed)
    for public in listed:
        assert hasattr(module, public), f"{name}.__all__ lists {public}, which is not there"
