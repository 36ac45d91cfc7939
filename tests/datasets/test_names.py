"""Data sets by the names that their libraries give them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optional import need

from cpprb_like import ReplayBuffer
from cpprb_like.datasets import describe, detect_format
from cpprb_like.datasets._open import NAMED, _format

need("h5py")
need("pyarrow")
need("PIL.Image")
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*do not have the next observation:cpprb_like.errors.DataLossWarning",
    "ignore:.*steps are left out:cpprb_like.errors.DataLossWarning",
    "ignore:.*does not know the observation_space:UserWarning",
)
NUMBER: dict[str, Any] = {"shape": ()}
ROOTS = {
    "minari": "MINARI_DATASETS_PATH",
    "lerobot": "HF_LEROBOT_HOME",
    "rlds": "TFDS_DATA_DIR",
}


@pytest.fixture(autouse=True)
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The root of each library."""
    for name, variable in ROOTS.items():
        monkeypatch.setenv(variable, str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    return {name: tmp_path / name for name in ROOTS}


def put(path: Path, format: str, steps: int = 5) -> None:  # noqa: A002 (as the option is called)
    """Write a data set of so many steps."""
    fields: dict[str, Any] = {
        "obs": {"shape": 2},
        "act": NUMBER,
        "rew": NUMBER,
        "terminated": NUMBER,
    }
    rb = ReplayBuffer(steps, fields, next_of="obs")
    for t in range(steps):
        obs = np.full(2, t)
        rb.add(obs=obs, act=t, rew=t, next_obs=obs + 1, terminated=t == steps - 1)
    rb.export(path, format)


@pytest.mark.parametrize(
    ("format", "place", "name"),
    [
        ("minari", "D4RL/door/human-v2", "D4RL/door/human-v2"),
        ("lerobot", "lerobot/pusht", "lerobot/pusht"),
        ("lerobot", "hub/datasets--lerobot--pusht/snapshots/ab12", "lerobot/pusht"),
        ("rlds", "fractal20220817_data/0.1.0", "fractal20220817_data/0.1.0"),
        ("rlds", "fractal20220817_data/0.1.0", "fractal20220817_data:0.1.0"),
        ("rlds", "fractal20220817_data/0.1.0", "fractal20220817_data"),
        ("rlds", "d4rl_ant/v0-expert/1.1.0", "d4rl_ant/v0-expert"),
        ("rlds", "d4rl_ant/v0-expert/1.1.0", "d4rl_ant/v0-expert:1.1.0"),
    ],
)
def test_a_name_is_found_where_its_library_keeps_it(
    format: str,  # noqa: A002 (as the option is called)
    place: str,
    name: str,
    roots: dict[str, Path],
) -> None:
    """With its format and without."""
    put(roots[format] / place, format)
    for given in (format, None):
        assert len(ReplayBuffer.from_dataset(name, given)) == 5
        assert describe(name, given).path == roots[format] / place
    assert detect_format(name) == format
    assert ReplayBuffer.from_dataset(Path(name)).describe().to_dict()["buffers"][0]["rows"] == 5


def test_the_newest_version_is_read(roots: dict[str, Path]) -> None:
    """Versions are numbers: 0.10.0 is newer than 0.9.0; of configs, the default one is read."""
    for steps, version in enumerate(("0.9.0", "0.10.0", "0.2.0"), 3):
        put(roots["rlds"] / "bridge" / version, "rlds", steps)
        put(roots["rlds"] / "ant" / "expert" / version, "rlds", steps)
    assert describe("bridge").rows == describe("ant/expert").rows == 4
    assert describe("bridge:0.9.0").rows == 3
    with pytest.raises(FileNotFoundError, match=re.escape("has ant/expert/0.")):
        describe("ant")
    (roots["rlds"] / "ant" / ".config").mkdir()
    (roots["rlds"] / "ant" / ".config" / "metadata.json").write_text(
        '{"default_config_name": "expert"}'
    )
    assert describe("ant").rows == describe("ant:0.10.0").rows == 4


def test_the_main_revision_of_lerobot_is_read(roots: dict[str, Path]) -> None:
    """Not an older one that was downloaded later, nor one of which only metadata are there."""
    hub = roots["lerobot"] / "hub" / "datasets--a--b"
    for steps, revision in enumerate(("fed", "v2", "v3", "old"), 3):
        put(hub / "snapshots" / revision, "lerobot", steps)
        os.utime(hub / "snapshots" / revision, (steps, steps))
    (hub / "refs").mkdir()
    for name, revision in ("main", "fed"), ("v2.1", "v2"), ("v3.0", "v3"):
        (hub / "refs" / name).write_text(revision)
    assert describe("a/b").rows == 3
    (hub / "snapshots" / "fed" / "data").rename(roots["lerobot"] / "elsewhere")
    assert describe("a/b").rows == 5
    (hub / "snapshots" / "v2").rename(roots["lerobot"] / "v2")
    (hub / "snapshots" / "v3").rename(roots["lerobot"] / "v3")
    with pytest.raises(FileNotFoundError, match=r"a/b, a/b \(its data files are missing\)"):
        describe("a/b", "lerobot")


def test_the_newest_download_of_lerobot_is_read(roots: dict[str, Path]) -> None:
    """A snapshot without rows is passed over, and what was recorded here comes first."""
    snapshots = roots["lerobot"] / "hub" / "datasets--a--b" / "snapshots"
    for steps, revision in enumerate(("old", "new", "meta"), 3):
        put(snapshots / revision, "lerobot", steps)
        os.utime(snapshots / revision, (steps, steps))
    (snapshots / "meta" / "data").rename(roots["lerobot"] / "elsewhere")
    assert describe("a/b").rows == 4
    put(roots["lerobot"] / "a" / "b", "lerobot", 9)
    assert describe("a/b").rows == 9


def test_a_path_that_exists_stays_a_path(roots: dict[str, Path], tmp_path: Path) -> None:
    """Also where a data set has this name."""
    put(roots["lerobot"] / "a" / "b", "lerobot", 5)
    put(tmp_path / "a" / "b", "rlds", 3)
    assert describe("a/b").format == "rlds"
    put(roots["lerobot"] / "a" / "a", "lerobot", 5)
    (tmp_path / "a" / "a").mkdir()
    there = re.escape(f"lerobot has a data set of this name: {roots['lerobot'] / 'a' / 'a'}")
    for given in (None, "lerobot"):
        with pytest.raises(ValueError, match=f"found none of them; {there}"):
            describe("a/a", given)
    with pytest.raises(FileNotFoundError, match=r"info\.json"):
        describe((tmp_path / "a" / "a").absolute(), "lerobot")


def test_a_copy_of_a_data_set_is_read_whatever_its_storage(
    roots: dict[str, Path], tmp_path: Path
) -> None:
    """A path is no name: one with Arrow was refused as "minari" if Minari has its name."""
    for one, other in ("minari", "minari-arrow"), ("minari-arrow", "minari"):
        name = f"a/{one}-v0"
        put(roots["minari"] / name, one, 5)
        put(tmp_path / name, other, 3)
        for given in (None, "minari", "minari-arrow"):
            assert describe(name, given).path == tmp_path / name
            assert len(ReplayBuffer.from_dataset(name, given)) == 3


def test_metadata_alone_are_no_data_set(
    roots: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says that data files are missing, and ``download`` gets them."""
    place = roots["lerobot"] / "a" / "b"
    put(place, "lerobot", 5)
    (place / "data").rename(roots["lerobot"] / "data")
    with pytest.raises(FileNotFoundError, match=r"has a/b \(its data files are missing\)"):
        describe("a/b", "lerobot")
    with pytest.raises(ValueError, match="got 0 to 5: data files are missing"):
        describe(place, "lerobot")
    for name in ("lerobot", "lerobot.datasets", "lerobot.datasets.lerobot_dataset"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType("fake"))
    library: Any = sys.modules["lerobot.datasets.lerobot_dataset"]
    library.LeRobotDataset = lambda _: (roots["lerobot"] / "data").rename(place / "data")
    assert describe("a/b", "lerobot", download=True).rows == 5


def test_a_name_of_two_libraries_is_refused(roots: dict[str, Path]) -> None:
    """Until the format says which is meant."""
    put(roots["lerobot"] / "a" / "b-v0", "lerobot", 5)
    put(roots["minari"] / "a" / "b-v0", "minari", 3)
    with pytest.raises(
        ValueError, match="a/b-v0: expected one data set of this name, and 'minari'"
    ):
        ReplayBuffer.from_dataset("a/b-v0")
    assert describe("a/b-v0", "lerobot").rows == 5


def test_what_is_not_found_says_where_and_what_is_there(roots: dict[str, Path]) -> None:
    """The nearest names first; of the format that is given, only its library."""
    put(roots["minari"] / "D4RL" / "door" / "human-v2", "minari")
    put(roots["lerobot"] / "lerobot" / "pusht", "lerobot")
    put(roots["lerobot"] / "hub" / "datasets--you--arm--2" / "snapshots" / "ab", "lerobot")
    with pytest.raises(FileNotFoundError) as error:
        ReplayBuffer.from_dataset("D4RL/door/human-v1")
    assert str(error.value) == (
        "D4RL/door/human-v1: there is no such file or folder; "
        f"{roots['minari']}, of minari, has D4RL/door/human-v2; "
        f"{roots['lerobot']}, of lerobot, has you/arm/2, lerobot/pusht; "
        f"{roots['rlds']}, of tensorflow_datasets, is no folder"
    )
    with pytest.raises(FileNotFoundError, match="of lerobot, has lerobot/pusht, you") as error:
        describe("lerobot/push", "lerobot")
    assert "minari" not in str(error.value).replace(str(roots["minari"].parent), "")
    with pytest.raises(FileNotFoundError, match=r"no such file or folder$"):
        describe(Path("rows.hdf5").absolute())


@pytest.mark.parametrize(
    ("format", "module", "name", "call"),
    [
        ("minari", "minari", "a/b-v0", "download_dataset('a/b-v0')"),
        ("lerobot", "lerobot.datasets.lerobot_dataset", "a/b", "LeRobotDataset('a/b')"),
        ("rlds", "tensorflow_datasets", "a/1.0.0", "builder('a:1.0.0')"),
    ],
)
def test_a_library_downloads_if_it_is_asked_to(
    format: str,  # noqa: A002 (as the option is called)
    module: str,
    name: str,
    call: str,
    roots: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once, by its own call; what is there already is not asked for."""
    calls: list[str] = []

    def called(function: str) -> Callable[[str], Any]:
        def download(given: str) -> Any:
            calls.append(f"{function}({given!r})")
            if function == "builder":
                return types.SimpleNamespace(
                    download_and_prepare=lambda: put(roots[format] / name, format)
                )
            put(roots[format] / given, format)
            return None

        return download

    parts = module.split(".")
    for k in range(len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[: k + 1]), types.ModuleType("fake"))
    for function in ("download_dataset", "LeRobotDataset", "builder"):
        setattr(sys.modules[module], function, called(function))
    with pytest.raises(FileNotFoundError):
        describe(name, format)
    assert calls == []
    assert len(ReplayBuffer.from_dataset(name, format, download=True)) == 5
    assert describe(name, format, download=True).rows == describe(name, download=True).rows == 5
    assert calls == [call]


def test_nothing_is_downloaded_by_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    """The format says whose name it is; a library that is not installed is named."""
    with pytest.raises(ValueError, match=r"a format that has names, one of \['minari', .* None"):
        describe("a/b", download=True)
    with pytest.raises(ValueError, match=r"a format that has names, one of .*, got 'd4rl'"):
        ReplayBuffer.from_dataset("hopper", "d4rl", download=True)
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ImportError, match="a/b-v0 needs minari, which downloads it"):
        describe("a/b-v0", "minari", download=True)
    monkeypatch.setitem(sys.modules, "minari", types.SimpleNamespace(download_dataset=print))
    with pytest.raises(FileNotFoundError, match=r"minari was called, and .* has no files"):
        describe("a/b-v0", "minari", download=True)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"HF_HOME": "~/hf"},
        {"HF_HOME": "$HOME/hf"},
        {"XDG_CACHE_HOME": "/x"},
        dict.fromkeys([*ROOTS.values(), "HF_HOME", "XDG_CACHE_HOME"], ""),
    ],
)
def test_roots_are_those_of_the_libraries(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no variable names them."""
    for variable in (*ROOTS.values(), "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    home = Path.home()
    expected = home / ".cache" / "huggingface"
    expected = home / "hf" if variables.get("HF_HOME") else expected
    expected = Path("/x/huggingface") if variables.get("XDG_CACHE_HOME") else expected
    assert [_format(name).root() for name in NAMED] == [
        home / ".minari" / "datasets",
        expected / "lerobot",
        home / "tensorflow_datasets",
    ]


def test_minaris_root_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Minari says it, with its variable and without."""
    library: Any = need("minari.storage.datasets_root_dir", "make test-datasets")
    assert library.get_dataset_path() == _format("minari").root()


def test_the_root_of_tensorflow_datasets_is_its_own() -> None:
    """As TensorFlow Datasets says it."""
    library: Any = need("tensorflow_datasets.core.constants", "make test-datasets")
    assert Path(library.get_default_data_dir()) == _format("rlds").root()


def test_lerobots_root_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As LeRobot says it when it is imported."""
    need("lerobot", "make test-datasets")
    monkeypatch.delenv("HF_LEROBOT_HOME")
    monkeypatch.setenv("HF_HOME", "/x")
    code = "from lerobot.utils.constants import HF_LEROBOT_HOME; print(HF_LEROBOT_HOME)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(_format("lerobot").root())
