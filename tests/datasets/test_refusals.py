"""What is refused, and how: nothing is left behind, and the message says what was expected."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_cases import place
from optional import need

from cpprb_like import ReplayBuffer
from cpprb_like.datasets import FORMATS, describe
from cpprb_like.errors import DataLossWarning

h5py = need("h5py")

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:.*the buffer does not know the observation_space:UserWarning"
    ),
    pytest.mark.filterwarnings("ignore:lerobot. the files do not have:UserWarning"),
]
every_format = pytest.mark.parametrize("format", FORMATS)
FIELDS: dict[str, Any] = {
    "obs": {"shape": 3},
    "act": {"shape": (), "dtype": "i8"},
    "rew": {"shape": ()},
    "done": {"shape": (), "dtype": bool},
}


def names(folder: Path) -> list[str]:
    """What is in a folder."""
    return [path.name for path in folder.iterdir()]


def filled(rows: int = 20, **extra: Any) -> ReplayBuffer:
    """A buffer of two episodes and an open one."""
    rb = ReplayBuffer(100, {**FIELDS, **extra}, next_of="obs")
    for t in range(rows):
        more: dict[str, Any] = dict.fromkeys(extra, t)
        obs = {"obs": np.full(3, t), "next_obs": np.full(3, t + 1)}
        rb.add(**obs, act=t, rew=t, done=t % 8 == 7, **more)
    return rb


@every_format
def test_what_cannot_be_held_is_said_once(format: str, tmp_path: Path) -> None:  # noqa: A002
    """Fields of Python objects are left out, with their number; or refused."""
    rb = filled(thing={"shape": (), "dtype": object})
    path = place(tmp_path, format)

    with pytest.raises(ValueError, match="1 fields cannot be held"):
        rb.export(path, format, strict=True)
    assert names(tmp_path) == []
    with pytest.warns(DataLossWarning, match=r"of 20 rows each: 'thing' \(object\)") as warned:
        rb.export(path, format)

    told = [found for found in warned if found.category is DataLossWarning]
    assert len(told) == 1
    assert told[0].filename == __file__
    assert "thing" not in describe(path).fields


@every_format
def test_nothing_is_left_of_a_write_that_fails(format: str, tmp_path: Path) -> None:  # noqa: A002
    """And a path that is taken is left as it is."""
    rb, path = filled(), place(tmp_path, format)

    def full(done: int, total: int) -> None:
        if done > 0.7 * total:
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        rb.export(path, format, progress=full)
    assert names(tmp_path) == []

    path.write_bytes(b"mine")
    with pytest.raises(FileExistsError, match="something of this name"):
        rb.export(path, format)
    assert path.read_bytes() == b"mine"
    assert names(tmp_path) == [path.name]


FULL = """
import os, resource, signal, sys, warnings
import numpy as np
from cpprb_like import ReplayBuffer
warnings.simplefilter("ignore")
format, folder = sys.argv[1:]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
fields = {"obs": {"shape": 1000, "dtype": "u1"}, "act": {"shape": ()}, "rew": {"shape": ()}}
rb = ReplayBuffer(500, {**fields, "done": {"shape": (), "dtype": bool}}, next_of="obs")
values = np.random.default_rng(0).integers(256, size=(501, 1000))
t = np.arange(500)
rb.add(obs=values[:-1], next_obs=values[1:], act=t, rew=t, done=t % 50 == 49)
path = folder + "/rows" + {"d4rl": ".hdf5", "rllib": ".parquet"}.get(format, "")
for most in (0, 1000, 20_000, 45_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    try:
        rb.export(path, format)
    except OSError as error:
        print(error.errno, error.filename == path, os.listdir(folder))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
rb.export(path, format)
print(len(os.listdir(folder)))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit of a file's size")
@pytest.mark.parametrize(
    "format",
    [
        name if name in ("d4rl", "minari") else pytest.param(name, marks=pytest.mark.slow)
        for name in FORMATS
    ],
)
def test_a_full_disk_is_an_error_that_names_the_file(format: str, tmp_path: Path) -> None:  # noqa: A002
    """Nothing is left, and the process goes on.

    HDF5 ended it by SIGSEGV when a file was closed whose last bytes could not be written.
    """
    done = subprocess.run(
        [sys.executable, "-c", FULL, format, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *told, count = done.stdout.splitlines()
    assert told == [f"{errno.EFBIG} True []"] * 4
    assert count == "1"


def test_a_format_is_recognised_or_named(tmp_path: Path) -> None:
    """Unknown formats and paths are refused with those that are known."""
    rb = filled()
    with pytest.raises(ValueError, match=r"format: expected one of \['minari'"):
        rb.export(tmp_path / "x", "csv")
    with pytest.raises(ValueError, match="tells none"):
        rb.export(tmp_path / "x")
    with pytest.raises(FileNotFoundError, match="no such file"):
        ReplayBuffer.from_dataset(tmp_path / "x")
    with pytest.raises(FileNotFoundError):
        ReplayBuffer.from_dataset(tmp_path / "x", format="minari")
    (tmp_path / "x").mkdir()
    with pytest.raises(ValueError, match="found none of them"):
        ReplayBuffer.from_dataset(tmp_path / "x")
    with pytest.raises(ValueError, match="rows, got an empty one"):
        ReplayBuffer(10, FIELDS, next_of="obs").export(tmp_path / "y.hdf5")


@every_format
def test_the_format_is_the_second_argument_everywhere(format: str, tmp_path: Path) -> None:  # noqa: A002
    """``from_dataset`` and ``describe`` take it by position, as ``export`` does."""
    rb, path = filled(16), place(tmp_path, format)
    rb.export(path, format)
    assert describe(path, format).format == format
    other = "dreamerv3" if format == "rlds" else "rlds"
    read = ReplayBuffer.from_dataset(path, format)
    np.testing.assert_array_equal(read.get_all_transitions()["act"], np.arange(16))
    with pytest.raises((ValueError, FileNotFoundError)):
        ReplayBuffer.from_dataset(path, other)
    with pytest.raises(ValueError, match="format: expected one of"):
        ReplayBuffer.from_dataset(path, "csv")


@every_format
def test_a_data_set_has_one_environment(format: str, tmp_path: Path) -> None:  # noqa: A002
    """No format says of which environment an episode is, so others than 1 are refused."""
    filled().export(place(tmp_path, format), format)
    options: Any = {"n_envs": 2}
    with pytest.raises(ValueError, match=r"n_envs: expected 1, as no data set says .*; got 2"):
        ReplayBuffer.from_dataset(place(tmp_path, format), **options)
    found = describe(place(tmp_path, format))
    assert "the environment of each episode" in found.lacks
    assert len(set(found.lacks)) == len(found.lacks)


@pytest.mark.parametrize("format", FORMATS)
def test_the_name_of_a_file_does_not_matter(format: str, tmp_path: Path) -> None:  # noqa: A002
    """What was exported to any name is known again, also where its format has a suffix."""
    rb = filled()
    rb.export(tmp_path / "rows", format)
    assert describe(tmp_path / "rows").rows == len(rb)


@pytest.mark.parametrize(
    "format", [name for name in FORMATS if name not in ("d4rl", "rllib", "lerobot")]
)
def test_formats_that_need_final_observations_say_so(format: str, tmp_path: Path) -> None:  # noqa: A002
    """Without next observations, actions or rewards the message names the option."""
    cases: list[tuple[str, dict[str, Any]]] = [
        (r"fields \['next_obs'\]", {**FIELDS}),
        ("action=", {"obs": {}, "next_obs": {}, "rew": {}}),
        ("reward=", {"obs": {}, "next_obs": {}, "act": {}}),
        ("observation=", {"x": {}, "act": {}, "rew": {}}),
    ]
    for lacking, fields in cases:
        rb = ReplayBuffer(10, fields)
        rb.add(**{name: np.zeros(rb.columns[name].shape) for name in fields})
        with pytest.raises(ValueError, match=lacking):
            rb.export(tmp_path / "x", format)
    assert names(tmp_path) == []


def test_fields_can_be_named(tmp_path: Path) -> None:
    """Any fields can be observations, actions and rewards."""
    rb = ReplayBuffer(10, {"s": {"shape": 2}, "next_s": {"shape": 2}, "u": {"shape": 1}, "r": {}})
    rb.add(s=[1, 2], next_s=[3, 4], u=[5], r=[6])
    rb.export(tmp_path / "a", "minari", observation="s", action="u", reward="r")
    read = ReplayBuffer.from_dataset(tmp_path / "a")
    assert read.fields == ("obs", "act", "rew", "next_obs", "terminated", "truncated")
    with h5py.File(tmp_path / "a" / "data" / "main_data.hdf5") as file:
        assert file["episode_0/observations"][()].tolist() == [[1, 2], [3, 4]]
        assert file["episode_0/rewards"][()].tolist() == [6]
    with pytest.raises(ValueError, match="action: expected fields of"):
        rb.export(tmp_path / "b", "minari", action="v")
    with pytest.raises(ValueError, match="reward: expected a field of one number"):
        rb.export(tmp_path / "b", "minari", reward="s")


def test_a_file_that_claims_more_than_it_has_is_refused(tmp_path: Path) -> None:
    """Before any memory is taken for it."""
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as file:
        for name in ("observations", "actions", "rewards", "terminals"):
            file.create_dataset(
                name, (10**13, 3)[: 1 if name == "rewards" else 2], "f4", chunks=True
            )
    with pytest.raises(ValueError, match=r"x\.hdf5: .*expected data of .* bytes"):
        ReplayBuffer.from_dataset(path)


def test_links_to_other_files_are_refused(tmp_path: Path) -> None:
    """Neither links, nor data in another file, are followed."""
    with h5py.File(tmp_path / "secret.hdf5", "w") as file:
        file["rewards"] = np.zeros(5)
    for how in ("external", "soft", "virtual", "storage"):
        path = tmp_path / f"{how}.hdf5"
        with h5py.File(path, "w") as file:
            if how == "external":
                file["rewards"] = h5py.ExternalLink("secret.hdf5", "/rewards")
            elif how == "soft":
                file["rewards"] = h5py.SoftLink("/elsewhere")
            elif how == "virtual":
                layout = h5py.VirtualLayout((5,), "f8")
                layout[:] = h5py.VirtualSource(tmp_path / "secret.hdf5", "rewards", (5,))
                file.create_virtual_dataset("rewards", layout)
            else:
                secret = tmp_path / "secret.hdf5"
                file.create_dataset("rewards", (5,), "f8", external=[(str(secret), 0, 40)])
        with pytest.raises(ValueError, match="expected data in the file itself"):
            ReplayBuffer.from_dataset(path)


@pytest.mark.parametrize("format", ["minari", "minari-arrow"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"total_episodes": 4}, "total_episodes: expected as many as there are"),
        ({"total_episodes": 2**62}, "total_episodes: expected as many as there are"),
        ({"total_episodes": "all"}, "total_episodes: expected as many as there are"),
        ({"total_episodes": 0}, "expected an episode with rows, got none"),
        ({"observation_space": "{"}, "observation_space: expected JSON"),
        ({"action_space": '{"type": "Dict"}'}, "action_space: expected a space"),
    ],
)
def test_metadata_that_do_not_fit_are_refused(
    format: str,  # noqa: A002 (as the option is called)
    change: dict[str, Any],
    message: str,
    tmp_path: Path,
) -> None:
    """The message names the files."""
    filled().export(tmp_path / "x", format)
    file = tmp_path / "x" / "data" / "metadata.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(ValueError, match=message) as caught:
        ReplayBuffer.from_dataset(tmp_path / "x")
    assert str(tmp_path / "x") in str(caught.value)


@pytest.mark.parametrize("format", ["minari", "minari-arrow", "rlds", "dreamerv3"])
def test_next_observations_that_belong_to_no_row_are_refused(format: str, tmp_path: Path) -> None:  # noqa: A002
    """Formats of one observation for each step would make others of them."""
    rb = ReplayBuffer(10, {**FIELDS, "next_obs": {"shape": 3}})
    for t in range(3):
        rb.add(obs=np.full(3, t), next_obs=np.full(3, -t), act=0, rew=0, done=False)
    with pytest.raises(ValueError, match=r"observations of the rows after.*\['next_obs'\] differ"):
        rb.export(tmp_path / "x", format)
    assert names(tmp_path) == []


@every_format
@pytest.mark.filterwarnings("ignore::cpprb_like.errors.DataLossWarning")
@pytest.mark.filterwarnings("ignore:.*without a data set timeouts:UserWarning")
@pytest.mark.filterwarnings("ignore:field .* ends no episode:UserWarning")  # 'truncation%'
def test_damaged_files_are_refused(format: str, tmp_path: Path, rng: np.random.Generator) -> None:  # noqa: A002
    """Whatever bytes are changed: the rows, or an error that a caller can catch; no crash.

    A name that was changed is that of something that a buffer has no place for, which is a warning.
    """
    original = place(tmp_path, format)
    filled().export(original, format)
    files = sorted(path for path in [original, *original.rglob("*")] if path.is_file())
    for _ in range(30):
        victim = files[int(rng.integers(len(files)))]
        data = bytearray(victim.read_bytes())
        whole = bytes(data)
        how = int(rng.integers(3))
        if how == 0:
            del data[int(rng.integers(len(data))) :]
        elif how == 1:
            for at in rng.integers(len(data), size=int(rng.integers(1, 20))).tolist():
                data[at] = int(rng.integers(256))
        else:
            at = int(rng.integers(len(data)))
            data[at : at + 8] = b"\xff" * 8
        victim.write_bytes(bytes(data))
        try:
            ReplayBuffer.from_dataset(original, format=format)
            describe(original, format=format)
        except (ValueError, OSError, MemoryError):
            pass
        victim.write_bytes(whole)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the extra that brings it."""
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r"need h5py: pip install 'cpprb_like\[datasets\]'"):
        filled().export(tmp_path / "x.hdf5")
    assert names(tmp_path) == []
