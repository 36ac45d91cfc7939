"""The command line: what it prints, what it writes, and how it refuses."""

from __future__ import annotations

import errno
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import cpprb_files
import numpy as np
import pytest
from optional import need

from cpprb_like import (
    FrameStacks,
    Mixture,
    NStep,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    ReplayMemory,
)
from cpprb_like.checkpoint import _manifest, copy, load, open_beside
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.checkpoint._manifest import read
from cpprb_like.processes import SharedReplay
from cpprb_like.samplers import Prioritized, RankBased

click_testing = need("click.testing")
from cpprb_like.cli._commands import commands
from cpprb_like.report.text import amount

FIELDS: dict[str, Any] = {
    "obs": {"shape": 3},
    "rew": {"shape": ()},
    "done": {"shape": (), "dtype": bool},
}


def run(*arguments: object, code: int = 0) -> Any:
    """Run a command in this process."""
    done = click_testing.CliRunner().invoke(commands, [str(text) for text in arguments])
    assert done.exit_code == code, done.output
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def described(*arguments: object) -> dict[str, Any]:
    """The JSON of ``inspect``."""
    found: dict[str, Any] = json.loads(run("inspect", *arguments, "--json").stdout)
    return found


def refused(*arguments: object) -> str:
    """What standard error says of a command with exit code 1: one line."""
    done = run(*arguments, code=1)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("Error: ")
    return str(done.stderr)


def filled(cls: Any = ReplayBuffer, n: int = 40, **options: Any) -> Any:
    """A buffer of 30 rows; episodes have 10 steps and a return of 10."""
    rb = cls(30, FIELDS, seed=0, **options)
    k = rb.n_envs
    for t in range(n):
        rows = {"obs": np.full((k, 3), t), "rew": np.ones(k), "done": np.full(k, t % 10 == 9)}
        following = {"next_obs": np.full((k, 3), t + 1)} if "next_obs" in rb.fields else {}
        rows |= following
        rb.add(**(rows if k > 1 else {name: values[0] for name, values in rows.items()}))
    return rb


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command as users do."""
    line = [sys.executable, "-m", "cpprb_like", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


# ---------------------------------------------------------------------- as users run it


def test_a_folder_is_inspected_from_a_shell(tmp_path: Path) -> None:
    """Aligned lines, numbers with units, exit code 0."""
    filled(PrioritizedReplayBuffer).save(tmp_path / "a")
    done = command("inspect", tmp_path / "a")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"path            {tmp_path / 'a'}",
        "kind            checkpoint",
        "class           PrioritizedReplayBuffer",
        "state           1",
        "states          1",
        "files           1",
        "nbytes          732 B",
        "codecs          none",
        "python_objects  0",
        "",
        "class                  PrioritizedReplayBuffer",
        "class_of_caller        no",
        "capacity               30",
        "written                40",
        "n_envs                 1",
        "ends                   done",
        "sampler                Prioritized",
        "nbytes_per_step        17 B",
        "nbytes                 792 B",
        "rows                   30",
        "ages                   mean 14.5, min 0, max 29",
        "episodes               number 3, complete 2, terminated 3, truncated 0",
        "episodes: length       mean 10, min 10, max 10",
        "reward                 rew",
        "returns                mean 10, min 10, max 10",
        "priorities             rows 30, effective_sample_size 30, mean 1, min 1, max 1",
        "priorities: quantiles  0.05 1, 0.25 1, 0.5 1, 0.75 1, 0.95 1",
        "",
        "name  dtype    shape  nbytes_per_step  nbytes",
        "obs   float32  (3,)   12 B             360 B",
        "rew   float32  ()     4 B              120 B",
        "done  bool     ()     1 B              30 B",
    ]


def test_errors_are_one_line_from_a_shell(tmp_path: Path) -> None:
    """No traceback; a wrong command has exit code 2."""
    done = command("verify", tmp_path / "nothing")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Error: {tmp_path / 'nothing'}: there is no checkpoint\n"
    assert command("verfy").returncode == 2


def test_without_click_one_sentence_says_what_to_install() -> None:
    """Exit code 2, and nothing else on standard error."""
    program = (
        "import sys; sys.modules['click'] = None; sys.argv = ['cpprb_like']\n"
        "from cpprb_like.cli import main; main()"
    )
    line = [sys.executable, "-c", program]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "cpprb_like: the command line needs click: pip install 'cpprb_like[cli]'\n"
    )


# ---------------------------------------------------------------------- inspect


@pytest.mark.parametrize(
    "options",
    [
        {"n_envs": 3},
        {"next_of": "obs"},
        {"Nstep": {"size": 3, "rew": "rew"}},
        {"next_of": "obs", "n_envs": 2, "Nstep": {"size": 2, "rew": "rew", "next": "next_obs"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("cls", [ReplayBuffer, PrioritizedReplayBuffer])
def test_numbers_are_those_of_the_buffer(cls: Any, options: Any, tmp_path: Path) -> None:
    """Rows, episodes and priorities, whatever the options."""
    rb = filled(cls, **options)
    rb.save(tmp_path)
    (found,) = described(tmp_path)["buffers"]
    episodes = rb.episodes.list("rew")
    complete = [episode for episode in episodes if episode.complete]
    assert found["rows"] == rb.ring.written - rb.ring.first
    assert found["n_envs"] == rb.n_envs
    assert found["written"] == rb.ring.written
    assert found["capacity"] == 30
    assert found["episodes"]["number"] > 2
    assert (found["nstep"] is None) == ("Nstep" not in options)
    assert found["episodes"]["number"] == len(episodes)
    assert found["episodes"]["complete"] == len(complete)
    assert found["episodes"]["length"]["max"] == max(episode.length for episode in episodes)
    if complete:
        assert found["returns"]["max"] == max(episode.return_ or 0 for episode in complete)
    assert (found["priorities"] is None) == (cls is ReplayBuffer)


@pytest.mark.parametrize("sampler", [Prioritized(alpha=0.5), RankBased(alpha=0.5)], ids=repr)
def test_priorities_are_those_that_were_given(sampler: Any, tmp_path: Path) -> None:
    """Extremes, quantiles, and the effective sample size of the weights."""
    rb = filled(PrioritizedReplayBuffer, sampler=sampler)
    values = np.linspace(1, 4, 30)
    rb.update_priorities(np.arange(30), values)
    rb.save(tmp_path)
    found = described(tmp_path)["buffers"][0]["priorities"]
    assert found["min"] == pytest.approx(1)
    assert found["max"] == pytest.approx(4)
    assert found["mean"] == pytest.approx(2.5)
    assert found["quantiles"]["0.5"] == pytest.approx(2.5)
    weights = rb.sampler.rows.get(np.arange(30))
    expected = weights.sum() ** 2 / (weights**2).sum()
    assert found["effective_sample_size"] == pytest.approx(expected)


def test_alpha_zero_forgets_priorities(tmp_path: Path) -> None:
    """All rows are drawn alike; what the priorities were is not known."""
    filled(PrioritizedReplayBuffer, alpha=0.0).save(tmp_path)
    found = described(tmp_path)["buffers"][0]["priorities"]
    assert found["mean"] is None
    assert found["effective_sample_size"] == 30
    assert "quantiles unknown" in run("inspect", tmp_path).stdout


@pytest.mark.parametrize("cls", [ReplayBuffer, PrioritizedReplayBuffer])
def test_an_empty_buffer_is_shown(cls: Any, tmp_path: Path) -> None:
    """There are no rows to tell anything of."""
    cls(30, FIELDS).save(tmp_path)
    (found,) = described(tmp_path)["buffers"]
    assert found["rows"] == 0
    assert found["ages"] is None
    assert found["episodes"]["number"] == 0
    assert ["rows", "0"] in map(str.split, run("inspect", tmp_path).stdout.splitlines())


def test_absent_rows_are_not_counted(tmp_path: Path) -> None:
    """Rows that some environments did not have, and those of deleted episodes."""
    rb = ReplayBuffer(30, FIELDS, n_envs=3)
    rows = {"obs": np.zeros((3, 3)), "rew": np.ones(3), "done": np.ones(3)}
    rb.add(**rows)
    rb.add_where(np.array([True, False, True]), **rows)
    rb.episodes.delete(0)
    rb.save(tmp_path)
    assert described(tmp_path)["buffers"][0]["rows"] == 4


def test_objects_of_python_are_never_made(tmp_path: Path) -> None:
    """Their bytes stay bytes, also where they are all that there is."""
    rb = ReplayBuffer(5, {"info": {"shape": (), "dtype": object}})
    rb.add(info={"a": 1})
    rb.save(tmp_path / "a", encode=pickle.dumps)
    (found,) = described(tmp_path / "a")["buffers"]
    assert (found["rows"], found["fields"][0]["dtype"]) == (1, "object")
    run("copy", tmp_path / "a", tmp_path / "b", "--size", "3")
    copied = load(tmp_path / "b", decode=pickle.loads)
    assert copied.get_all_transitions()["info"].tolist() == [{"a": 1}]
    memory = ReplayMemory(3)
    memory.append((1, 2))
    memory.save(tmp_path / "c", encode=pickle.dumps)
    assert "python_objects  1" in run("inspect", tmp_path / "c").stdout
    assert run("verify", tmp_path / "c").stdout.startswith("state 1: OK")


class Mine(ReplayBuffer):
    """A buffer of the caller."""


class MySampler(Prioritized):
    """A sampler of the caller."""


def test_classes_of_strangers_are_not_needed(tmp_path: Path) -> None:
    """Neither to inspect, nor to verify, nor to copy; only to load."""
    filled(Mine).save(tmp_path / "a")
    rb = filled(PrioritizedReplayBuffer, sampler=MySampler())
    rb.save(tmp_path / "b")
    (found,) = described(tmp_path / "a")["buffers"]
    assert (found["class"], found["class_of_caller"], found["rows"]) == ("Mine", True, 30)
    (found,) = described(tmp_path / "b")["buffers"]
    assert (found["sampler"], found["priorities"]) == ("MySampler", None)
    run("verify", tmp_path / "a")
    run("copy", tmp_path / "a", tmp_path / "c")
    assert len(load(tmp_path / "c", classes=[Mine])) == 30
    assert "'caller's Mine' is no class" in refused(
        "copy", tmp_path / "a", tmp_path / "d", "--size", 3
    ).replace('"', "'")


def test_each_buffer_of_a_mixture_is_shown(tmp_path: Path) -> None:
    """By its path; a buffer that is there twice, once; functions are said to be missing."""
    one, two = filled(), filled(PrioritizedReplayBuffer)
    stacks = FrameStacks({"obs": 2})
    views = {"a": one.view(stacks), "b": two.view(stacks), "c": one.view(stacks)}
    Mixture(views, dict.fromkeys(views, 1 / 3)).save(tmp_path)
    found = described(tmp_path)
    assert found["class"] == "Mixture"
    assert [b["path"] for b in found["buffers"]] == ["sources.a.buffer", "sources.b.buffer"]


def test_a_reward_is_a_field(tmp_path: Path) -> None:
    """Another one may be named; one that is not there is refused."""
    filled().save(tmp_path)
    assert described(tmp_path, "--reward", "done")["buffers"][0]["returns"]["max"] == 1
    assert "reward: expected one of ['obs', 'rew', 'done']" in refused(
        "inspect", tmp_path, "--reward", "r"
    )


def test_an_older_state_is_shown(tmp_path: Path) -> None:
    """By its number."""
    rb = filled(n=5)
    rb.save(tmp_path, keep=2)
    rb.clear()
    rb.save(tmp_path, keep=2)
    found = described(tmp_path, "--state", 1)
    assert (found["state"], found["states"], found["buffers"][0]["rows"]) == (1, [1, 2], 5)
    assert "there is no state 7" in refused("inspect", tmp_path, "--state", 7)


def test_a_file_map_says_what_is_needed(tmp_path: Path) -> None:
    """Its header has no fields."""
    rb = filled(mmap_prefix=tmp_path / "rows")
    del rb
    assert "open it with the constructor that made it" in refused("inspect", tmp_path / "rows.dat")


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    """Nothing there, an empty folder, any file."""
    assert "there is no such file or folder" in refused("inspect", tmp_path / "a")
    assert "there is no checkpoint" in refused("inspect", tmp_path)
    (tmp_path / "b").write_bytes(b"hello")
    assert str(tmp_path / "b") in refused("inspect", tmp_path / "b")


def test_names_of_strangers_do_not_move_the_cursor(tmp_path: Path) -> None:
    """Escape sequences are not printed."""
    rb = ReplayBuffer(3, {"a\x1b[2J": {"shape": ()}})
    rb.save(tmp_path)
    assert "\x1b" not in run("inspect", tmp_path).stdout


# ---------------------------------------------------------------------- report


def test_a_folder_a_data_set_and_a_file_are_reported(tmp_path: Path) -> None:
    """As a page, as text and as JSON, without the classes of the caller."""
    filled(Mine).save(tmp_path / "a")
    filled().save_transitions(str(tmp_path / "b.npz"))
    filled(next_of="obs").export(tmp_path / "c", "dreamerv3", action="rew")
    for name in ("a", "b.npz", "c"):
        page = tmp_path / "page.html"
        assert run("report", tmp_path / name, "-o", page).stdout == f"{page}: 0 findings\n"
        assert "Nothing looks wrong" in page.read_text(encoding="utf-8")
        text = run("report", tmp_path / name, "--text").stdout
        assert text.endswith("findings: none of the known faults\n")
        found = json.loads(run("report", tmp_path / name, "--json").stdout)
        assert found["path"] == str(tmp_path / name)
        assert found["buffers"][0]["returns"]["mean"] == 10.0


def test_what_inspect_shows_is_in_the_report(tmp_path: Path) -> None:
    """The same facts, by the same functions."""
    filled(PrioritizedReplayBuffer).save(tmp_path)
    found = json.loads(run("report", tmp_path, "--json").stdout)
    (buffer,), (inspected,) = found.pop("buffers"), described(tmp_path)["buffers"]
    assert {**buffer, "fields": None} == buffer | inspected | {"fields": None}


def test_a_running_replay_is_reported_by_its_name(tmp_path: Path) -> None:
    """It is attached, and left as it was."""
    with SharedReplay(30, FIELDS, writers=1) as replay:
        with replay.actor() as actor:
            actor.add(obs=np.ones((20, 3)), rew=np.ones(20), done=np.zeros(20))
        text = run("report", replay.name, "--text").stdout
        assert "shard-0" in text
        assert ["rows", "20"] in map(str.split, text.splitlines())
    assert "there is no replay" in refused("report", "nothing")


def test_what_cannot_be_reported_is_one_line(tmp_path: Path) -> None:
    """No rows, no checkpoint, a damaged one, a file of something else."""
    ReplayBuffer(30, FIELDS).save(tmp_path / "a")
    page = tmp_path / "page.html"
    assert run("report", tmp_path / "a", "-o", page).stdout == f"{page}: 0 findings\n"
    (tmp_path / "b").mkdir()
    assert "there is no checkpoint" in refused("report", tmp_path / "b")
    filled().save(tmp_path / "c")
    damage(tmp_path / "c", "s1-0.npy")
    assert "s1-0.npy" in refused("report", tmp_path / "c")
    assert "there is no such file or folder" in refused("report", tmp_path / "d" / "e")
    assert "no page" in refused("report", tmp_path / "a", "--text", "-o", page)
    assert "reward: expected one of" in refused("report", tmp_path / "a", "--reward", "r")


# ---------------------------------------------------------------------- verify


def damage(folder: Path, name: str, place: int = -1) -> None:
    """Change a byte of a file."""
    data = bytearray((folder / name).read_bytes())
    data[place] ^= 1
    (folder / name).write_bytes(data)


@pytest.mark.parametrize("codec", [None, "zlib", "lzma"])
def test_damaged_rows_are_counted(codec: str | None, tmp_path: Path) -> None:
    """As many as loading with salvage loses."""
    rb = filled(PrioritizedReplayBuffer, next_of="obs", n_envs=2)
    rb.save(tmp_path, codec=codec)
    done = run("verify", tmp_path)
    assert done.stdout.startswith("state 1: OK  ")
    name = "s1-0.npy" + (f".{codec}" if codec else "")
    damage(tmp_path, name)
    said = run("verify", tmp_path, code=1).stdout
    assert "state 1: DAMAGED" in said
    assert f"{name}  records of rows 50 to 79 of the buffer" in said
    assert "lost: 30 of 30 rows" in said
    assert "verify" not in refused("inspect", tmp_path)


@pytest.mark.parametrize("place", [0, 20, -1])
def test_every_byte_of_every_file_counts(place: int, tmp_path: Path) -> None:
    """Headers and values of rows, index bytes, and values that stand aside."""
    rb = filled(next_of="obs", n_envs=2)
    rb.update([0], rew=[5.0])
    rb.save(tmp_path)
    for path in sorted(tmp_path.glob("*.npy")):
        data = path.read_bytes()
        damage(tmp_path, path.name, place)
        assert path.name in run("verify", tmp_path, code=1).stdout
        path.unlink()
        assert "there is no such file" in run("verify", tmp_path, code=1).stdout
        path.write_bytes(data)
    run("verify", tmp_path)


def test_each_state_is_judged(tmp_path: Path) -> None:
    """What a later state does not need is not held against it; a manifest can be damaged too."""
    rb = filled(n=5)
    rb.save(tmp_path, keep=2)
    rb.clear()
    rb.save(tmp_path, keep=2)
    damage(tmp_path, "s1-0.npy")
    lines = run("verify", tmp_path, code=1).stdout.splitlines()
    assert lines[0].startswith("state 1: DAMAGED")
    assert "  lost: 5 of 5 rows" in lines
    assert lines[-1].startswith("state 2: OK")
    damage(tmp_path, "state-000002.json", 5)
    assert "cannot be loaded: state-000002.json: its checksum is wrong" in (
        run("verify", tmp_path, code=1).stdout
    )


def test_damaged_priorities_cost_no_rows(tmp_path: Path) -> None:
    """They are named, and loading with salvage goes on without them."""
    rb = PrioritizedReplayBuffer(1000, FIELDS)
    rb.add(obs=np.zeros((1000, 3)), rew=np.ones(1000), done=np.zeros(1000))
    rb.save(tmp_path)
    damage(tmp_path, "s1-1.npy")
    said = run("verify", tmp_path, code=1).stdout
    assert "s1-1.npy  the array 'sampler.saved" in said
    assert "load(folder, salvage=True) loads the rest" in said
    with pytest.warns(UserWarning, match="sampler"):
        assert len(load(tmp_path, salvage=True)) == 1000


def test_damaged_objects_are_fatal(tmp_path: Path) -> None:
    """Those of a memory of Python objects are all that there is."""
    memory = ReplayMemory(3)
    memory.append((1, 2))
    memory.save(tmp_path, encode=pickle.dumps)
    damage(tmp_path, "s1-1.npy")
    said = run("verify", tmp_path, code=1).stdout
    assert "cannot be loaded: a list of Python objects is lost" in said


def test_stacks_objects_and_edited_rows_are_verified(tmp_path: Path) -> None:
    """Every kind of file that a save writes."""
    fields: dict[str, Any] = {
        "obs": {"shape": (4, 2)},
        "big": {"shape": 100},
        "info": {"dtype": object, "shape": ()},
    }
    rb = ReplayBuffer(50, fields, stack_compress={"obs": 0}, n_envs=1)
    rng = np.random.default_rng(0)
    for t in range(60):
        rb.add(obs=rng.random((4, 2)), big=np.zeros(100), info=t)
        if t % 9 == 0:
            rb.on_episode_end()
    rb.save(tmp_path, encode=pickle.dumps, codec="zlib")
    rb.update([3], big=np.ones((1, 100)))
    rb.save(tmp_path, encode=pickle.dumps)
    run("verify", tmp_path)
    (found,) = described(tmp_path)["buffers"]
    assert (found["rows"], found["stack_compress"]) == (50, ["obs"])
    for path in sorted(tmp_path.glob("*.npy*")):
        data = path.read_bytes()
        damage(tmp_path, path.name, len(data) // 2)
        assert path.name in run("verify", tmp_path, code=1).stdout
        path.write_bytes(data)


def test_a_copy_that_was_killed_is_made_again(tmp_path: Path) -> None:
    """Its files were in the way of the next one; those of others are not touched."""
    rb = ReplayBuffer(50, {"x": {"shape": 3}})
    rb.add(x=np.zeros((60, 3)))
    rb.save(tmp_path / "rows")
    new = tmp_path / "new"
    copy(tmp_path / "rows", new)
    (state,) = new.glob("state-*.json")
    state.rename(new / "state.json.new")  # as a kill before the last step leaves it
    (new / "s1-0.npy").write_bytes(b"torn")
    (new / "s9-9.npy").write_bytes(b"older")
    (new / "notes.txt").write_text("mine")
    run("copy", tmp_path / "rows", new)
    run("verify", new)
    assert not (new / "s9-9.npy").exists()
    assert (new / "notes.txt").read_text() == "mine"


def test_errors_name_the_folder_and_the_file(tmp_path: Path) -> None:
    """Of several folders in a script it is said which one is damaged."""
    rb = ReplayBuffer(50, {"x": {"shape": 3}})
    rb.add(x=np.zeros((60, 3)))
    rb.save(tmp_path / "rows")
    damage(tmp_path / "rows", "s1-0.npy")
    for words in (("copy", tmp_path / "rows", tmp_path / "new"), ("inspect", tmp_path / "rows")):
        said = run(*words, code=1).stderr
        assert str(tmp_path / "rows") in said
        assert "s1-0.npy" in said


# ---------------------------------------------------------------------- convert


@pytest.mark.parametrize("safe", [True, False])
def test_a_file_is_converted(safe: bool, tmp_path: Path) -> None:
    """Its fields, rows and ``next_of``; the newest of them, with a size."""
    rb = filled(next_of="obs")
    rb.save_transitions(tmp_path / "rows", safe=safe)
    found = described(tmp_path / "rows")
    assert found["rows"] == 30
    assert found["next_of"] == ([] if safe else ["obs"])
    assert found["episodes"]["number"] == 3
    assert found["returns"]["mean"] == 10
    run("convert", tmp_path / "rows", tmp_path / "a")
    run("convert", tmp_path / "rows.npz", tmp_path / "b", "--size", 7)
    one, two = rb.get_all_transitions(), load(tmp_path / "a").get_all_transitions()
    assert set(one) == set(two)
    for name, values in one.items():
        assert np.isin(values, two[name]).all()
    assert len(load(tmp_path / "b")) == 7
    assert "there is a checkpoint already" in refused("convert", tmp_path / "rows", tmp_path / "a")


def test_rows_of_several_steps_need_an_option(tmp_path: Path) -> None:
    """Over how many, no file says."""
    rb = filled(Nstep={"size": 3, "gamma": 0.5, "rew": "rew"})
    rb.save_transitions(tmp_path / "rows")
    assert described(tmp_path / "rows")["is_nstep"]
    assert "give --nstep" in refused("convert", tmp_path / "rows", tmp_path / "a")
    run("convert", tmp_path / "rows", tmp_path / "a", "--nstep", 3, "--gamma", 0.5)
    found = load(tmp_path / "a")
    assert found.is_Nstep()
    np.testing.assert_array_equal(
        np.sort(found.get_all_transitions()["rew"]), np.sort(rb.get_all_transitions()["rew"])
    )


def test_a_split_of_a_data_set_is_converted(tmp_path: Path) -> None:
    """By its name; without one a folder of several is refused, and so is a name where none are."""
    rb = ReplayBuffer(30, FIELDS | {"act": {"shape": ()}}, next_of="obs")
    for t in range(30):
        rb.add(obs=[t] * 3, act=t, rew=1, next_obs=[t + 1] * 3, done=t % 10 == 9)
    rb.export(tmp_path / "rlds", "rlds")
    files = sorted((tmp_path / "rlds").glob("*.tfrecord*"))
    for file in files:
        other = file.name.replace("train", "test")
        (file.parent / other).write_bytes(file.read_bytes())
    assert "say split=" in refused("convert", tmp_path / "rlds", tmp_path / "a")
    assert "got 'val'" in refused("convert", tmp_path / "rlds", tmp_path / "a", "--split", "val")
    run("convert", tmp_path / "rlds", tmp_path / "a", "--split", "test")
    assert len(load(tmp_path / "a")) == 30
    assert "no data set" in refused("convert", tmp_path / "a", tmp_path / "b", "--split", "test")


def test_what_a_buffer_cannot_hold_is_refused_of_a_data_set_that_is_read(tmp_path: Path) -> None:
    """With --strict; it was not handed to the reader, so the exit code was 0, with a warning."""
    h5py = need("h5py")
    filled(n=30).export(tmp_path / "rows.hdf5")
    with h5py.File(tmp_path / "rows.hdf5", "r+") as file:
        file["infos/note"] = np.full(30, b"text")
    for new in ("a", "b.hdf5"):
        said = refused("convert", tmp_path / "rows.hdf5", tmp_path / new, "--strict")
        assert "infos/note" in said
        assert not (tmp_path / new).exists()
    assert "Warning" in run("convert", tmp_path / "rows.hdf5", tmp_path / "a").stderr
    assert "already" in refused("convert", tmp_path / "rows.hdf5", tmp_path / "a", "--strict")


@pytest.mark.parametrize(
    ("source", "new", "options"),
    [
        ("saved", "new", ["--split", "train"]),
        ("saved", "new", ["--strict"]),
        ("rows.npz", "new", ["--strict"]),
        ("rows.hdf5", "new", ["--observation", "obs"]),
        ("rows.hdf5", "new", ["--action", "act"]),
        ("rows.hdf5", "new", ["--reward", "nope"]),
        ("rows.npz", "new", ["--reward", "nope"]),
        ("rows.hdf5", "new", ["--nstep", 3]),
        ("saved", "new.hdf5", ["--nstep", 3]),
        ("rows.hdf5", "new", ["--gamma", 0.99]),
        ("rows.npz", "new", ["--gamma", 0.99]),
        ("saved", "new.hdf5", ["--no-sync"]),
        ("rows.npz", "new.hdf5", ["--no-sync"]),
    ],
)
def test_an_option_that_nothing_reads_is_refused(
    source: str, new: str, options: list[Any], tmp_path: Path
) -> None:
    """A name that is wrong was passed over, where no field of this name is looked for."""
    need("h5py")
    rb = filled(n=30)
    rb.save(tmp_path / "saved")
    rb.export(tmp_path / "rows.hdf5")
    rb.save_transitions(tmp_path / "rows.npz")
    said = refused("convert", tmp_path / source, tmp_path / new, *options)
    assert f"{options[0]}: expected none, as " in said
    assert not (tmp_path / new).exists()
    run("convert", tmp_path / source, tmp_path / new)


def test_files_that_hold_programs_are_refused(tmp_path: Path) -> None:
    """The restricted reader runs nothing of a file."""
    members = cpprb_files.members({"a": np.zeros((3, 1))})
    members["data.npy"] = cpprb_files.object_member(print)
    (tmp_path / "rows.npz").write_bytes(cpprb_files.zipped(members).getvalue())
    assert "rows.npz" in refused("inspect", tmp_path / "rows.npz")
    assert "rows.npz" in refused("convert", tmp_path / "rows.npz", tmp_path / "a")


@pytest.mark.parametrize(
    "words",
    [
        ("convert", "rows.npz"),
        ("convert", "saved"),
        ("copy", "saved"),
        ("copy", "saved", "--size", 7),
        ("copy", "saved", "--fields", "rew,done"),
    ],
    ids=str,
)
def test_no_call_waits_for_the_disk_with_no_sync(
    words: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what is written no file is synchronised, and the state says so; without it all are."""
    rb = filled()
    rb.save(tmp_path / "saved")
    rb.save_transitions(tmp_path / "rows.npz")
    synchronised: list[int] = []
    fsync = os.fsync

    def told(file: int) -> None:
        synchronised.append(os.fstat(file).st_ino)
        fsync(file)

    monkeypatch.setattr(os, "fsync", told)
    (name, source, *options) = words

    run(name, tmp_path / source, tmp_path / "slow", *options)
    assert len(synchronised) >= len([*(tmp_path / "slow").glob("s*")])
    synchronised.clear()
    run(name, tmp_path / source, tmp_path / "fast", *options, "--no-sync")

    assert set(synchronised) <= {tmp_path.stat().st_ino}  # that there is such a folder
    states = [read(Disk(tmp_path / new), 1) for new in ("slow", "fast")]
    assert [state.synchronised for state in states] == [True, False]
    slow, fast = (load(tmp_path / new).get_all_transitions() for new in ("slow", "fast"))
    for field, values in slow.items():
        np.testing.assert_array_equal(fast[field], values)


# ---------------------------------------------------------------------- copy


@pytest.mark.parametrize("codec", ["zlib", "lzma", "none"])
@pytest.mark.parametrize("before", [None, "zlib", "lzma"])
def test_a_copy_goes_on_as_the_original(codec: str, before: str | None, tmp_path: Path) -> None:
    """Bit for bit, however it is compressed; and it can be saved to again."""
    rb = filled(PrioritizedReplayBuffer, next_of="obs", n_envs=2)
    rb.save(tmp_path / "a", codec=before)
    rb.update([1], rew=[4.0])
    rb.save(tmp_path / "a", codec=before)
    run("copy", tmp_path / "a", tmp_path / "b", "--codec", codec)
    run("copy", tmp_path / "b", tmp_path / "c")
    assert described(tmp_path / "c")["codecs"] == [codec]
    copied = load(tmp_path / "c")
    copied.update([2], rew=[6.0])
    copied.save(tmp_path / "c")
    copied = load(tmp_path / "c")
    rb.update([2], rew=[6.0])
    one, two = rb.sample(50), copied.sample(50)
    for name, values in one.items():
        np.testing.assert_array_equal(values, two[name])


def test_a_copy_of_another_size_and_some_fields(tmp_path: Path) -> None:
    """The newest rows; and of an older state."""
    rb = filled()
    rb.save(tmp_path / "a", keep=2)
    rb.clear()
    rb.save(tmp_path / "a", keep=2)
    run("copy", tmp_path / "a", tmp_path / "b", "--state", 1, "--size", 7, "--fields", "rew, done")
    (found,) = described(tmp_path / "b")["buffers"]
    assert (found["rows"], found["capacity"]) == (7, 7)
    assert [field["name"] for field in found["fields"]] == ["rew", "done"]
    run("copy", tmp_path / "a", tmp_path / "c", "--state", 1)
    assert described(tmp_path / "c")["buffers"][0]["rows"] == 30


def test_a_copy_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    """A folder that has a checkpoint, a damaged file, a level without a codec."""
    filled().view(NStep(2)).save(tmp_path / "a")
    run("copy", tmp_path / "a", tmp_path / "b")
    assert "already" in refused("copy", tmp_path / "a", tmp_path / "b")
    assert "level" in refused("copy", tmp_path / "a", tmp_path / "c", "--level", 3)
    assert "level" in refused(
        "copy", tmp_path / "a", tmp_path / "c", "--codec", "zlib", "--level", 30
    )
    assert "a View was saved" in refused("copy", tmp_path / "a", tmp_path / "c", "--size", 3)
    damage(tmp_path / "a", "s1-0.npy")
    assert "s1-0.npy: checksum" in refused("copy", tmp_path / "a", tmp_path / "c")
    assert not list((tmp_path / "c").glob("*.*"))


# ---------------------------------------------------------------------- values of any length


def test_each_command_reads_values_of_any_length(tmp_path: Path) -> None:
    """Of a checkpoint and of a data set; axes are a table with their room and items in use."""
    pa = need("pyarrow.parquet")
    fields: Any = {
        "ids": {"shape": ("T",), "dtype": "i4"},
        "logp": {"shape": ("T",)},
        "nodes": {"shape": ("N", 2)},
        "say": {"dtype": str},
        "rew": {"shape": ()},
    }
    saved, rows = tmp_path / "saved", tmp_path / "rows.parquet"
    rb = ReplayBuffer(9, fields, room={"T": 7, "N": 40, "say": 99})
    for n in range(4):
        items: Any = {"ids": np.arange(n), "logp": np.zeros(n), "nodes": np.zeros((n, 2))}
        rb.add(**items, say="é" * n, rew=n)
    rb.save(saved)

    text = run("inspect", saved).stdout.splitlines()
    assert text[-11:] == [
        "name   dtype    shape     nbytes_per_step  nbytes  nbytes_per_item",
        "ids    int32    ('T',)    0 B              28 B    4 B",
        "logp   float32  ('T',)    0 B              28 B    4 B",
        "nodes  float32  ('N', 2)  0 B              320 B   8 B",
        "say    str      ()        0 B              99 B    1 B",
        "rew    float32  ()        4 B              36 B",
        "",
        "name  room  fields     items  left",
        "T     7     ids; logp  6      0",
        "N     40    nodes      6      0",
        "say   99    say        12     0",
    ]
    assert "('T',)" in run("report", saved, "--text").stdout
    assert run("verify", saved).stdout.startswith("state 1: OK")
    run("copy", saved, tmp_path / "few", "--size", 2, "--fields", "ids,logp,say")
    assert described(tmp_path / "few")["buffers"][0]["axes"][0]["items"] == 5
    run("convert", saved, rows)
    assert pa.read_table(rows).column("say").to_pylist() == ["", "é", "éé", "ééé"]
    text = run("inspect", rows, "--reward", "rew").stdout.splitlines()
    assert [line.split() for line in text if line.startswith(("nodes", "say"))] == [
        ["nodes", "float32", "('nodes',", "2)", "0", "B", "unknown"],
        ["say", "str", "()", "0", "B", "unknown"],
    ]
    run("convert", rows, tmp_path / "again")
    again = ReplayBuffer.load(tmp_path / "again")
    assert list(again.episodes[0]["say"]) == ["", "é", "éé", "ééé"]
    npz = refused("convert", saved, tmp_path / "rows.npz")
    assert "fields ['ids', 'logp', 'nodes', 'say'] have values of any length" in npz
    done = run("convert", saved, tmp_path / "rows.hdf5")
    assert "'say' (str of any length); formats 'rllib' and 'rlds' hold values of any" in done.stderr
    assert "expected one of ['rew', " in refused("inspect", rows, "--reward", "say")


# ---------------------------------------------------------------------- data sets


def test_a_data_set_is_inspected(tmp_path: Path) -> None:
    """Its fields and episodes; it was taken for a file of cpprb's."""
    need("h5py")
    filled(n=30).export(tmp_path / "rows.hdf5")
    text = run("inspect", tmp_path / "rows.hdf5").stdout.splitlines()
    lines = [line.split() for line in text]
    assert lines[:2] == [["path", str(tmp_path / "rows.hdf5")], ["kind", "data", "set"]]
    assert ["rows", "30"] in lines
    assert "episodes          number 3, open 0, cut 0" in text
    assert not any(line.startswith("returns") for line in text)
    assert lines[-1] == ["truncated", "bool", "()", "1", "B", "30", "B"]

    found = described(tmp_path / "rows.hdf5", "--reward", "rew")
    assert (found["kind"], found["format"], found["rows"]) == ("data set", "d4rl", 30)
    assert "the environment of each episode" in found["lacks"]
    assert found["nbytes"] == (tmp_path / "rows.hdf5").stat().st_size
    assert found["returns"] == {"mean": 10.0, "min": 10.0, "max": 10.0}
    assert found["episodes"]["number"] == 3
    names = ["obs", "rew", "next_obs", "terminated", "truncated"]
    assert [field["name"] for field in found["fields"]] == names
    assert "returns" in run("inspect", tmp_path / "rows.hdf5", "--reward", "rew").stdout
    assert "expected one of ['obs', 'rew', 'next_obs', 'terminated', " in refused(
        "inspect", tmp_path / "rows.hdf5", "--reward", "x"
    )
    assert "--state: expected none" in refused("inspect", tmp_path / "rows.hdf5", "--state", 1)


def test_what_a_data_set_lacks_is_shown(tmp_path: Path) -> None:
    """Steps without a next value, and what has no place in a buffer."""
    h5py = need("h5py")
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["observations"] = file["rewards"] = file["actions"] = np.arange(4.0)
        file["terminals"], file["timeouts"] = np.zeros(4, bool), np.arange(4) == 1
        file["metadata/author"] = "they"
    text = run("inspect", tmp_path / "x.hdf5").stdout
    assert "metadata/author (object)" in text
    assert "the last step of each episode that is not terminated (its next_obs" in text
    assert described(tmp_path / "x.hdf5", "--reward", "rew")["returns"]["max"] == 1.0


def test_a_local_data_set_of_minaris_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Minari names it; and what its metadata say goes with it to another one."""
    need("h5py")
    need("pyarrow")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    space = '{"type": "Discrete", "dtype": "int64", "start": 0, "n": 7}'
    about = {"observation_space": space, "action_space": space, "author": ["they"]}
    number: Any = {"shape": (), "dtype": "i8"}
    rb = ReplayBuffer(9, {"obs": number, "act": number, "rew": {"shape": ()}}, next_of="obs")
    rb.add(obs=1, act=2, rew=3, next_obs=4)
    rb.export(tmp_path / "cart" / "pole-v0", "minari", about=about)

    found = described("cart/pole-v0")
    assert (found["format"], found["rows"], found["about"]["author"]) == ("minari", 1, ["they"])
    assert found["nbytes"] > 0
    assert "they" in run("inspect", "cart/pole-v0").stdout
    done = run("convert", "cart/pole-v0", tmp_path / "cart" / "pole-v1", "--to", "minari-arrow")
    assert done.stderr == ""
    assert described("cart/pole-v1")["about"] == found["about"]


@pytest.mark.parametrize("command", ["inspect", "report", "convert"])
def test_a_name_that_is_not_found_says_what_is_there(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the data sets of each library; and of a running replay, where it may be one."""
    need("h5py")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    fields: Any = {"obs": {"shape": 2}, "act": {"shape": ()}, "rew": {"shape": ()}}
    rb = ReplayBuffer(9, fields, next_of="obs")
    rb.add(obs=[1, 2], act=2, rew=3, next_obs=[2, 3])
    rb.export(tmp_path / "bridge" / "0.1.0", "rlds")
    new = [str(tmp_path / "new")] if command == "convert" else []
    assert "tensorflow_datasets, has bridge/0.1.0" in refused(command, "bridge:0.2.0", *new)
    said = refused(command, "bridg", *new)
    assert "tensorflow_datasets, has bridge/0.1.0" in said
    assert ("there is no replay of this name" in said) == (command == "report")
    if command != "report":
        run(command, "bridge", *new)


def test_a_file_of_cpprbs_is_written(tmp_path: Path) -> None:
    """The suffix or --to names it; a folder of this name was made of it."""
    need("h5py")
    rb = filled(n=30)
    rb.save(tmp_path / "saved")
    rb.export(tmp_path / "rows.hdf5")
    for source in ("saved", "rows.hdf5"):
        new = tmp_path / f"{source}.npz"
        assert run("convert", tmp_path / source, new).stdout == f"{new}: 30 rows\n"
        again = ReplayBuffer(30, FIELDS)
        if source == "rows.hdf5":
            again = rb = ReplayBuffer.from_dataset(tmp_path / source)
        expected = rb.get_all_transitions()
        again.clear()
        again.load_transitions(new)
        for name, values in expected.items():
            np.testing.assert_array_equal(again.get_all_transitions()[name], values)
        assert "already" in refused("convert", tmp_path / source, new)
    done = run("convert", tmp_path / "saved", tmp_path / "rows", "--to", "cpprb")
    assert done.stdout == f"{tmp_path / 'rows.npz'}: 30 rows\n"
    assert "--no-sync: expected none, as NEW is a file of cpprb's" in refused(
        "convert", tmp_path / "saved", tmp_path / "x.npz", "--no-sync"
    )


@pytest.mark.parametrize("name", ["saved", "rows.npz", "rows.hdf5", "rows.parquet", "nothing"])
def test_errors_name_the_file(name: str, tmp_path: Path) -> None:
    """Whatever is wrong with it, and whichever command reads it."""
    need("h5py")
    need("pyarrow")
    rb = filled(n=30)
    if name == "saved":
        rb.save(tmp_path / name)
        (damaged,) = (path for path in (tmp_path / name).iterdir() if path.suffix == ".json")
    else:
        damaged = tmp_path / name
        if name == "rows.npz":
            rb.save_transitions(damaged)
        elif name != "nothing":
            rb.export(damaged)
    whole = damaged.read_bytes() if damaged.is_file() else b""
    for k in range(0, len(whole), max(1, len(whole) // 12)):
        damaged.write_bytes(whole[:k])
        for line in (["inspect"], ["convert"], ["copy"]):
            new = [] if line == ["inspect"] else [tmp_path / f"new-{k}-{line[0]}"]
            arguments = [str(text) for text in (*line, tmp_path / name, *new)]
            done = click_testing.CliRunner().invoke(commands, arguments)
            assert done.exception is None or isinstance(done.exception, SystemExit)
            assert done.exit_code == 0 or name in done.stderr
    if name == "nothing":
        for line in (["inspect"], ["convert"], ["copy"], ["verify"]):
            new = [tmp_path / "new"] if line[0] in ("convert", "copy") else []
            assert name in refused(*line, tmp_path / name, *new)
    assert str(tmp_path / "no" / "x.npz") in refused(
        "convert", _saved(tmp_path / "sound"), _blocked(tmp_path / "no") / "x.npz"
    )


def _saved(path: Path) -> Path:
    filled().save(path)
    return path


def _blocked(path: Path) -> Path:
    """A file where a folder would have to be."""
    path.write_bytes(b"")
    return path


def test_a_suffix_that_tells_no_kind(tmp_path: Path) -> None:
    """``convert rows new.csv`` made a checkpoint with the name ``new.csv``."""
    rb = ReplayBuffer(10, FIELDS)
    rb.add(obs=np.zeros((5, 3)), rew=np.zeros(5), done=np.zeros(5))
    rb.save(tmp_path / "rows")
    said = refused("convert", tmp_path / "rows", tmp_path / "new.csv")
    assert "'.csv' tells no kind of file" in said
    assert "--to" in said
    assert not (tmp_path / "new.csv").exists()
    run("convert", tmp_path / "rows", tmp_path / "rows-0.5")
    run("convert", tmp_path / "rows", tmp_path / "new.csv", "--to", "checkpoint")
    assert len(load(tmp_path / "rows-0.5")) == len(load(tmp_path / "new.csv")) == 5


# ---------------------------------------------------------------------- files beside the rows


def test_files_beside_are_shown_and_checked(tmp_path: Path) -> None:
    """Each with its bytes, or with what is wrong with it."""
    filled().save(tmp_path, beside={"model.pt": b"1" * 5000, "env.pkl": b"2"})
    shown = [" ".join(line.split()) for line in run("inspect", tmp_path).stdout.splitlines()]
    assert "beside: model.pt nbytes 4.9 KiB" in shown
    assert "beside: env.pkl nbytes 1 B" in shown
    assert "OK" in run("verify", tmp_path).stdout
    (tmp_path / "s1-beside-model.pt").write_bytes(b"1" * 4999)
    said = run("verify", tmp_path, code=1).stdout
    assert "s1-beside-model.pt  'model.pt' beside the rows  expected 5000 bytes, got 4999" in said
    assert "cannot be loaded" not in said
    assert "load() loads the rows without it; no other state has rows and files together" in said


def test_a_damaged_file_beside_asks_for_another_state(tmp_path: Path) -> None:
    """A salvage of rows would not help; with damaged rows it does."""
    rb = filled()
    for number in range(2):
        rb.save(tmp_path, keep=2, beside={"model.pt": bytes([number]) * 5000})
    (tmp_path / "s2-beside-model.pt").write_bytes(b"")
    said = run("verify", tmp_path, code=1).stdout
    assert "loads the rows without it; state=1 of both has rows and files together" in said
    assert "salvage" not in said
    for path in tmp_path.glob("*.npy"):
        path.write_bytes(path.read_bytes()[:-1])
    assert "load(folder, salvage=True) loads the rest" in run("verify", tmp_path, code=1).stdout


@pytest.mark.parametrize("words", [["copy"], ["copy", "--size", 7], ["convert"]])
def test_a_failed_copy_names_its_source_and_leaves_nothing(
    words: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged file beside the rows named the new folder, in which a lock stayed.

    Other files stayed there as well if the disk was full after them.
    """
    source, new = tmp_path / "source", tmp_path / "new" / "folders"
    filled().save(source, beside={"env.pkl": b"2", "model.pt": b"1" * 5000})
    with monkeypatch.context() as patched:
        patched.setattr(_manifest, "commit", _full)
        assert "No space left" in refused(words[0], source, new, *words[1:])
    assert [*tmp_path.iterdir()] == [source]
    (source / "s1-beside-model.pt").write_bytes(b"2" * 5000)
    said = refused(words[0], source, new, *words[1:])
    assert f"{source}: s1-beside-model.pt: checksum" in said
    assert "folders" not in said
    assert [*tmp_path.iterdir()] == [source]


def _full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("words", [["copy"], ["copy", "--size", 7], ["convert"]])
def test_files_beside_are_carried(words: list[Any], tmp_path: Path) -> None:
    """Those of the state that is read."""
    files = {"model.pt": b"1" * 5000, "run.json": b"{}" * 300, "empty": b""}
    filled().save(tmp_path / "a", beside=files)
    said = run(words[0], tmp_path / "a", tmp_path / "b", *words[1:]).stdout
    for name, expected in files.items():
        with open_beside(tmp_path / "b", name) as file:
            assert file.read() == expected
    if words[0] == "copy":
        copied = [path.stat().st_size for path in (tmp_path / "b").glob("s1-*")]
        assert f"{len(copied)} files, {amount(sum(copied))}" in said
    refused(words[0], tmp_path / "nothing", tmp_path / "c", *words[1:])
