"""What ``import cpprb_like`` gives, and when."""

from __future__ import annotations

import subprocess
import sys

import pytest
from optional import need

import cpprb_like

LATER = ("cpprb_like.compat", "cpprb_like.integrations", "gymnasium", "torch")
# What few programs need, and takes a tenth of the time of an import together.
RARE = (
    *(f"cpprb_like.checkpoint.{name}" for name in ("_copy", "_cpprb_files", "_look", "_verify")),
    *("decimal", "fractions", "pickletools", "subprocess", "uuid", "zipfile"),
)


def run(source: str) -> subprocess.CompletedProcess[str]:
    """A new interpreter."""
    return subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", cpprb_like.__all__)
def test_each_public_name_is_there(name: str) -> None:
    """A public name is found, listed, and the same object each time."""
    if name in ("GymnasiumRecorder", "create_before_add_func", "create_env_dict"):
        need("gymnasium")
    first = getattr(cpprb_like, name)
    assert getattr(cpprb_like, name) is first
    assert name in dir(cpprb_like)


def test_modules_of_rarer_names_are_attributes() -> None:
    """As they were before anything waited."""
    done = run("import cpprb_like; print(cpprb_like.views._hindsight.Hindsight.__name__)")
    assert done.stdout.strip() == "Hindsight", done.stderr


def test_an_unknown_name_is_an_attribute_error() -> None:
    """Nothing is invented."""
    with pytest.raises(AttributeError, match="'cpprb_like' has no attribute 'ReplayBufer'"):
        cpprb_like.ReplayBufer  # noqa: B018


def test_importing_loads_only_what_most_programs_need() -> None:
    """Modules of rarer names, and other packages than NumPy, wait until they are asked for."""
    done = run(f"import sys, cpprb_like; print([name for name in {LATER} if name in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def test_what_few_programs_need_is_imported_by_those() -> None:
    """Not with the package, unless NumPy has imported it."""
    done = run(
        "import sys, numpy.random; before = set(sys.modules); import cpprb_like\n"
        f"print([name for name in {RARE} if name in set(sys.modules) - before])"
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("name", cpprb_like.checkpoint.__all__)
def test_names_of_checkpoints_are_there(name: str) -> None:
    """Those that are imported later too."""
    found = getattr(cpprb_like.checkpoint, name)
    assert getattr(cpprb_like.checkpoint, name) is found
    assert name in dir(cpprb_like.checkpoint)
    with pytest.raises(AttributeError, match=r"checkpoint' has no attribute 'verity'"):
        cpprb_like.checkpoint.verity  # noqa: B018


@pytest.mark.slow
def test_a_star_import_gives_all_names() -> None:
    """``from cpprb_like import *`` has what the list of names says."""
    need("gymnasium", "a star import takes Gymnasium's names too")
    done = run("from cpprb_like import *; print(Mixture.__name__, ReplayMemory.__name__)")
    assert done.stdout.split() == ["Mixture", "ReplayMemory"], done.stderr


WITHOUT = "import sys; sys.modules['gymnasium'] = None\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", ["import cpprb_like; cpprb_like.{}", "from cpprb_like import {}"], ids=["get", "import"]
)
@pytest.mark.parametrize("name", ["GymnasiumRecorder", "create_env_dict"])
def test_a_missing_package_is_named(name: str, how: str) -> None:
    """A name that needs a package that is not there says which, however it is asked for.

    An AttributeError did not: ``from ... import`` replaces it by "cannot import name".
    """
    done = run(
        f"{WITHOUT}try:\n    {how.format(name)}\nexcept ImportError as error:\n    print(error)"
    )
    assert f"{name} needs the package gymnasium (pip install" in done.stdout, done.stderr


def test_a_star_import_without_gymnasium_has_the_other_names() -> None:
    """Names that need a package that is not there are no public names then.

    A star import takes every name of ``__all__``, and the first of them raised.
    """
    done = run(
        f"{WITHOUT}from cpprb_like import *\nimport cpprb_like\n"
        "print(Mixture.__name__, 'GymnasiumRecorder' in globals(), 'GymnasiumRecorder' in "
        "cpprb_like.__all__, 'create_env_dict' in dir(cpprb_like))"
    )
    assert done.stdout.split() == ["Mixture", "False", "False", "False"], done.stderr


def test_only_public_names_are_listed() -> None:
    """``dir()`` is what may be used, and not what the module imported for itself."""
    assert dir(cpprb_like) == sorted([*cpprb_like.__all__, "__version__"])
    done = run(
        "import cpprb_like; cpprb_like.train; print(dir(cpprb_like) == sorted("
        "[*cpprb_like.__all__, '__version__']))"
    )
    assert done.stdout.strip() == "True", done.stderr
