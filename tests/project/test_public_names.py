"""What ``import cpprb_like`` gives, and when."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from optional import need

import cpprb_like

PACKAGE = import_module("cpprb_like")
LATER = ("cpprb_like.compat", "cpprb_like.integrations", "gymnasium", "torch")
# What few programs need, and takes a tenth of the time of an import together.
RARE = (
    *(
        f"cpprb_like.checkpoint.{name}"
        for name in ("_copy", "_cpprb_files", "_describe", "_verify")
    ),
    *("decimal", "fractions", "pickletools", "subprocess", "uuid", "zipfile"),
)

# What a program that makes a buffer, adds to it and draws from it does not need.
OF_FEW = (
    *(f"cpprb_like.checkpoint.{name}" for name in ("_arrays", "_load", "_save", "_values")),
    *(f"cpprb_like.views.{name}" for name in ("_frame_stacks", "_hindsight", "_sequences")),
    *(f"cpprb_like.samplers.{name}" for name in ("_rank_based", "_recency")),
    *("cpprb_like.compat.cpprb._laber", "cpprb_like.compat.cpprb._processes"),
    *(f"cpprb_like.buffers.{name}" for name in ("_mixture", "_prefetch", "_tensors", "_view")),
    *("cpprb_like._files.file_maps", "cpprb_like._files.recovery", "json", "lzma"),
)


def run(source: str) -> subprocess.CompletedProcess[str]:
    """A new interpreter."""
    return subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", PACKAGE.__all__)
def test_each_public_name_is_there(name: str) -> None:
    """A public name is found, listed, and the same object each time."""
    if name in ("GymnasiumRecorder", "create_before_add_func", "create_env_dict"):
        need("gymnasium")
    first = getattr(cpprb_like, name)
    assert getattr(cpprb_like, name) is first
    assert name in dir(cpprb_like)


def test_rarer_names_are_attributes_of_their_rooms() -> None:
    """As they were before anything waited."""
    done = run(
        "import cpprb_like; print(cpprb_like.views.Hindsight.__name__, "
        "cpprb_like.samplers.Recency.__name__, cpprb_like.buffers.TensorBatch.__name__)"
    )
    assert done.stdout.split() == ["Hindsight", "Recency", "TensorBatch"], done.stderr


def test_an_unknown_name_is_an_attribute_error() -> None:
    """Nothing is invented."""
    with pytest.raises(AttributeError, match="'cpprb_like' has no attribute 'ReplayBufer'"):
        PACKAGE.ReplayBufer  # noqa: B018


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


def test_a_training_loop_imports_nothing_more() -> None:
    """What waits is not needed to make a buffer, to add to it or to draw from it."""
    done = run(
        "import sys, numpy.random; before = set(sys.modules); import cpprb_like\n"
        "cpprb_like.ReplayBuffer, cpprb_like.PrioritizedReplayBuffer\n"
        "first = set(sys.modules) - before\n"
        "for cls in (cpprb_like.ReplayBuffer, cpprb_like.PrioritizedReplayBuffer):\n"
        "    rb = cls(10, {'obs': {'shape': 2}, 'done': {'shape': ()}}, seed=0)\n"
        "    rb.add(obs=[1, 2], done=1)\n"
        "    rb.sample(4)\n"
        "print(*(set(sys.modules) - before - first))\n"
        f"print(*[name for name in {OF_FEW} if name in set(sys.modules) - before])"
    )
    assert done.stdout == "\n\n", done.stdout + done.stderr


def test_threads_that_ask_for_a_name_at_once_get_the_same() -> None:
    """A name that is imported later is one object, whoever is first."""
    done = run(
        "import threading, cpprb_like\n"
        "start, found = threading.Barrier(8), []\n"
        "def ask():\n"
        "    start.wait()\n"
        "    found.append((cpprb_like.Hindsight, cpprb_like.samplers.RankBased))\n"
        "threads = [threading.Thread(target=ask) for _ in range(8)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
        "print(len(found), len(set(found)))"
    )
    assert done.stdout.split() == ["8", "1"], done.stderr


ROOMS = [
    import_module(f"cpprb_like.{path.parent.name}")
    for path in sorted(Path(cpprb_like.__file__).parent.glob("*/__init__.pyi"))
]


@pytest.mark.parametrize(
    ("room", "name"), [(room, name) for room in ROOMS for name in room.__all__]
)
def test_names_of_rooms_are_there(room: ModuleType, name: str) -> None:
    """A name of a stub is found and listed, and the same object each time."""
    found = getattr(room, name)
    assert getattr(room, name) is found
    assert name in dir(room)
    with pytest.raises(AttributeError, match=f"'{room.__name__}' has no attribute 'verity'"):
        room.verity  # noqa: B018


@pytest.mark.slow
def test_a_star_import_gives_all_names() -> None:
    """``from cpprb_like import *`` has what the list of names says."""
    need("gymnasium", "a star import takes Gymnasium's names too")
    done = run("from cpprb_like import *; print(Mixture.__name__, ReplayMemory.__name__)")
    assert done.stdout.split() == ["Mixture", "ReplayMemory"], done.stderr


WITHOUT = "import sys; sys.modules['gymnasium'] = None\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        "import cpprb_like; cpprb_like.{}",
        "from cpprb_like import {}",
        "from cpprb_like.integrations.gymnasium import {}",
    ],
    ids=["get", "import", "module"],
)
@pytest.mark.parametrize("name", ["GymnasiumRecorder", "create_env_dict"])
def test_a_missing_package_is_named(name: str, how: str) -> None:
    """A name that needs a package that is not there says which, however it is asked for.

    An AttributeError did not: ``from ... import`` replaces it by "cannot import name".
    """
    done = run(
        f"{WITHOUT}try:\n    {how.format(name)}\nexcept ImportError as error:\n    print(error)"
    )
    assert "integrations.gymnasium needs gymnasium 1.1 or newer (pip install" in done.stdout, (
        done.stderr
    )


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


OF_CPPRB = (
    *("HindsightReplayBuffer", "MPPrioritizedReplayBuffer", "MPReplayBuffer"),
    *("SelectiveReplayBuffer", "create_before_add_func", "train"),
)


@pytest.mark.parametrize("name", OF_CPPRB)
def test_what_only_programs_of_cpprb_need_is_there_and_not_listed(name: str) -> None:
    """``from cpprb_like import MPReplayBuffer`` works, and a newcomer does not meet the name."""
    if name == "create_before_add_func":
        need("gymnasium")
    assert getattr(cpprb_like, name).__name__ == name
    assert name not in PACKAGE.__all__
    assert name not in dir(cpprb_like)


def test_pages_name_what_a_star_import_leaves_out() -> None:
    """The changelog and the page for users of cpprb name what it does not bring."""
    root = Path(__file__).parents[2]
    for page in ("CHANGELOG.md", "docs/migrating-from-cpprb.md"):
        text = (root / page).read_text(encoding="utf-8")
        sentence = text[text.index("`from cpprb_like import *`") :]
        sentence = sentence[: sentence.index("`create_before_add_func`") + 30]
        assert {name for name in OF_CPPRB if f"`{name}`" in sentence} == set(OF_CPPRB), page


def test_what_a_newcomer_types_is_listed() -> None:
    """Names of the guide's first pages are those of the package."""
    first = {"Among", "Prioritized", "RateLimited", "SharedReplay", "Uniform", "load"}
    assert first <= set(PACKAGE.__all__)


def test_only_public_names_are_listed() -> None:
    """``dir()`` is what may be used, and not what the module imported for itself."""
    assert dir(cpprb_like) == sorted([*PACKAGE.__all__, "__version__"])
    done = run(
        "import cpprb_like; cpprb_like.train; print(dir(cpprb_like) == sorted("
        "[*cpprb_like.__all__, '__version__']))"
    )
    assert done.stdout.strip() == "True", done.stderr
