"""What ``import cpprb_like`` gives, and when."""

from __future__ import annotations

import subprocess
import sys

import pytest

import cpprb_like

LATER = ("cpprb_like.training", "cpprb_like.mixture", "cpprb_like.hindsight", "gymnasium", "torch")


def run(source: str) -> subprocess.CompletedProcess[str]:
    """A new interpreter."""
    return subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", cpprb_like.__all__)
def test_each_public_name_is_there(name: str) -> None:
    """A public name is found, listed, and the same object each time."""
    if name in ("GymnasiumRecorder", "create_before_add_func", "create_env_dict"):
        pytest.importorskip("gymnasium", reason="Gymnasium is not installed")
    first = getattr(cpprb_like, name)
    assert getattr(cpprb_like, name) is first
    assert name in dir(cpprb_like)


def test_modules_of_rarer_names_are_attributes() -> None:
    """As they were before anything waited."""
    done = run("import cpprb_like; print(cpprb_like.hindsight.Hindsight.__name__)")
    assert done.stdout.strip() == "Hindsight", done.stderr


def test_an_unknown_name_is_an_attribute_error() -> None:
    """Nothing is invented."""
    with pytest.raises(AttributeError, match="'cpprb_like' has no attribute 'ReplayBufer'"):
        cpprb_like.ReplayBufer  # noqa: B018


def test_importing_loads_only_what_most_programs_need() -> None:
    """Modules of rarer names, and other packages than NumPy, wait until they are asked for."""
    done = run(f"import sys, cpprb_like; print([name for name in {LATER} if name in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def test_a_star_import_gives_all_names() -> None:
    """``from cpprb_like import *`` has what the list of names says."""
    pytest.importorskip("gymnasium", reason="a star import takes Gymnasium's names too")
    done = run("from cpprb_like import *; print(Mixture.__name__, ReplayMemory.__name__)")
    assert done.stdout.split() == ["Mixture", "ReplayMemory"], done.stderr


def test_a_missing_package_is_named() -> None:
    """A name that needs a package that is not there says which."""
    done = run(
        "import sys; sys.modules['gymnasium'] = None\nimport cpprb_like\n"
        "try:\n    cpprb_like.GymnasiumRecorder\n"
        "except AttributeError as error:\n    print(error)"
    )
    assert "GymnasiumRecorder needs the package gymnasium" in done.stdout, done.stderr
