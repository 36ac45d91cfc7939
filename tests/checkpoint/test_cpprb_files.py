"""Files of cpprb's ``save_transitions``: rows come back, and what is unsound is refused."""

from __future__ import annotations

import importlib
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import cpprb_files as files
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optional import need
from strategies import FILE_DTYPES, SHAPES, random_array, same

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer, ReverseReplayBuffer
from cpprb_like.views import NStep, Sequences

SUPPORT = Path(__file__).resolve().parents[1] / "support"
FIELDS: dict[str, Any] = {
    "obs": {"shape": (2, 3), "dtype": "u1"},
    "act": {"shape": (), "dtype": "i4"},
    "rew": {},
    "done": {"dtype": bool},
}
NEXT: dict[str, Any] = {"next_obs": {"shape": (2, 3), "dtype": "u1"}}
NSTEP: Any = {"size": 3, "gamma": 0.5, "rew": "rew"}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "next_of": {"next_of": "obs"},
    "stacks": {"stack_compress": {"obs": -1}},
    "both": {"next_of": "obs", "stack_compress": {"obs": -1}},
    "nstep": {"Nstep": NSTEP},
    "nstep_both": {"Nstep": NSTEP, "next_of": "obs", "stack_compress": {"obs": -1}},
    "envs": {"n_envs": 2, "next_of": "obs"},
}


def made(size: int, kind: str = "plain", cls: type[ReplayBuffer] = ReplayBuffer) -> ReplayBuffer:
    """A buffer of these options."""
    options = OPTIONS[kind]
    return cls(size, FIELDS | ({} if "next_of" in options else NEXT), seed=0, **options)


def filled(size: int, n: int, kind: str = "plain", cls: Any = ReplayBuffer) -> ReplayBuffer:
    """The same after n time steps, in episodes of seven steps."""
    rb = made(size, kind, cls)
    for t in range(n):
        first = t - t % 7
        frames = [
            max(first, t - back) + 100 * env for env in range(rb.n_envs) for back in (2, 1, 0)
        ]
        obs = np.tile(np.reshape(frames, (rb.n_envs, 1, 3)), (1, 2, 1)).astype("u1")
        after = np.concatenate([obs[..., 1:], obs[..., -1:] + 1], axis=-1)
        step = {"obs": obs, "next_obs": after, "act": [t] * rb.n_envs, "rew": [t] * rb.n_envs}
        rb.add(**step, done=[t % 14 == 6] * rb.n_envs)
        if t % 14 == 13:
            rb.on_episode_end()
    return rb


def check_same(expected: Any, actual: Any) -> None:
    """Both batches have the same arrays."""
    assert list(expected) == list(actual)
    for name in expected:
        assert same(expected[name], actual[name]), name


def by_age(rb: ReplayBuffer) -> Any:
    """All rows, the oldest first: field ``act`` has the time of a row."""
    rows = rb.get_all_transitions()
    oldest = int(rows["act"].argmin()) if len(rb) else 0
    return {name: np.roll(values, -oldest, axis=0) for name, values in rows.items()}


def lengths(rb: ReplayBuffer) -> list[int]:
    """Rows of each episode."""
    return [len(episode["rew"]) for episode in rb.episodes]


def loaded(rb: ReplayBuffer, file: Any) -> ReplayBuffer:
    """The buffer with the rows of a file; it is sound."""
    rb.load_transitions(file)
    rb.check()
    return rb


# ---- round trips -------------------------------------------------------------------------


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("kind", OPTIONS)
@given(size=st.integers(2, 12).map(lambda n: 2 * n), n=st.integers(0, 40))
def test_rows_come_back(kind: str, safe: bool, size: int, n: int) -> None:
    """A new buffer of the same options gives the rows that were saved, oldest first."""
    rb = filled(size, n, kind)
    file = io.BytesIO()
    rb.save_transitions(file, safe=safe)
    file.seek(0)

    check_same(by_age(rb), loaded(made(size, kind), file).get_all_transitions())


@given(st.data(), st.integers(0, 2**32))
def test_every_dtype_comes_back(data: st.DataObject, seed: int) -> None:
    """Numbers, texts and bytes, in all shapes."""
    rng = np.random.default_rng(seed)
    spec = st.tuples(st.sampled_from(FILE_DTYPES), st.sampled_from(SHAPES))
    specs = data.draw(st.lists(spec, min_size=1, max_size=4))
    fields: Any = {f"f{k}": {"dtype": d, "shape": shape} for k, (d, shape) in enumerate(specs)}
    rb = ReplayBuffer(5, fields)
    n = data.draw(st.integers(1, 8))
    rb.add(**{f.name: random_array(rng, f.dtype, (n, *f.shape)) for f in rb.schema.fields})
    file = io.BytesIO()
    rb.save_transitions(file)
    file.seek(0)

    oldest = rb.get_next_index() if len(rb) == 5 else 0
    expected = {k: np.roll(v, -oldest, axis=0) for k, v in rb.get_all_transitions().items()}
    check_same(expected, loaded(ReplayBuffer(5, fields), file).get_all_transitions())


@pytest.mark.parametrize("cls", [PrioritizedReplayBuffer, ReverseReplayBuffer])
def test_other_buffers_have_files_too(cls: Any, tmp_path: Path) -> None:
    """Rows of a prioritized buffer come back with the priority of new ones."""
    rb = filled(8, 11, cls=cls)
    rb.save_transitions(tmp_path / "rows")
    other = loaded(made(8, cls=cls), tmp_path / "rows")
    check_same(by_age(rb), other.get_all_transitions())
    if cls is PrioritizedReplayBuffer:
        assert set(other.sample(20)["weights"].tolist()) == {1.0}


def stepped(size: int, n: int) -> ReplayBuffer:
    """A buffer without next values, after n steps; the file alone says where episodes end."""
    rb = ReplayBuffer(size, {"t": {"shape": ()}, "done": {"dtype": bool}})
    for t in range(n):
        rb.add(t=t, done=t % 10 == 3)
        if t % 10 == 8:
            rb.on_episode_end()
    return rb


@given(size=st.integers(1, 30), n=st.integers(1, 60), room=st.integers(1, 30), safe=st.booleans())
def test_episodes_end_where_they_ended(size: int, n: int, room: int, safe: bool) -> None:
    """A full ring is written by age, with the ends of its episodes; a smaller one has the newest.

    It was written in the order of slots: the newest row was followed by the oldest one.
    """
    file = io.BytesIO()
    stepped(size, n).save_transitions(file, safe=safe)
    file.seek(0)
    rb = loaded(stepped(room, 0), file)

    twin = stepped(min(size, room), n)
    twin.on_episode_end()
    expected = [episode["t"].tolist() for episode in twin.episodes]
    assert [episode["t"].tolist() for episode in rb.episodes] == expected
    assert [e.terminated for e in rb.episodes.list()] == [
        e.terminated for e in twin.episodes.list()
    ]


def test_sequences_and_sums_do_not_run_over_the_seam_of_a_file() -> None:
    """After a load what follows a row is what followed it before, also beside deleted rows."""
    rb = stepped(16, 23)
    rb.episodes.delete(1)
    file = io.BytesIO()
    rb.save_transitions(file)
    file.seek(0)
    other = loaded(stepped(40, 0), file)
    episodes = [[7, 8], [14, 15, 16, 17, 18], [19, 20, 21, 22]]
    assert [episode["t"].tolist() for episode in other.episodes] == episodes
    rows = other.view(Sequences(2)).sample(500)["t"]
    assert np.array_equal(rows[:, 1], np.where(np.isin(rows[:, 0], [8, 18, 22]), 0, rows[:, 0] + 1))
    sums = {sum(steps[k : k + 3]) for steps in episodes for k in range(len(steps))}
    found = other.view(NStep(3, gamma=1.0, rew="t")).sample(500)["t"]
    assert set(found.tolist()) == sums


@pytest.mark.parametrize("shape", [(4,), (6, 1)])
@pytest.mark.parametrize("values", [np.zeros, lambda shape: np.zeros(shape, bool)])
def test_ends_that_do_not_fit_are_refused(shape: Any, values: Any) -> None:
    """As many bools as there are rows, and nothing else."""
    parts = files.members(ROWS) | {"ends.npy": files.array_member(values(shape))}
    with pytest.raises(ValueError, match=r"'ends\.npy': expected 5 bools, got"):
        made(8).load_transitions(files.zipped(parts))


# ---- cpprb's files -----------------------------------------------------------------------


@pytest.mark.parametrize("numpy", [1, 2])
@pytest.mark.parametrize("kind", ["plain", "next_of", "stacks", "both"])
@given(n=st.integers(1, 30), room=st.integers(1, 12))
def test_safe_files_of_cpprb(kind: str, numpy: int, n: int, room: int) -> None:
    """Files written under either NumPy; the newest rows stay if there are too many."""
    rows = filled(8, n).get_all_transitions()
    file = files.zipped(files.members(rows, numpy=numpy))
    expected = {name: values[-room:] for name, values in rows.items()}

    check_rows(expected, loaded(made(room, kind), file))


def check_rows(expected: Any, rb: ReplayBuffer) -> None:
    """The buffer gives these rows, whatever the order of its fields."""
    found = rb.get_all_transitions()
    check_same(expected, {name: found[name] for name in expected})


@pytest.mark.parametrize("numpy", [1, 2])
@pytest.mark.parametrize("kind", ["plain", "next_of", "both"])
@given(n=st.integers(1, 30), room=st.integers(1, 12))
def test_unsafe_files_of_cpprb(kind: str, numpy: int, n: int, room: int) -> None:
    """Next values come from the row after, or from the cache."""
    rows = filled(8, n).get_all_transitions()
    file = files.zipped(files.unsafe_members(rows, (n - 1) % 8, 8, numpy=numpy))
    expected = {name: values[-room:] for name, values in rows.items()}

    check_rows(expected, loaded(made(room, kind), file))


@pytest.mark.parametrize("numpy", [1, 2])
def test_stacks_of_the_cache_replace_those_of_the_rows(numpy: int) -> None:
    """In an unsafe file with stacks, the older frames of some rows are those of other rows."""
    rows = filled(8, 8).get_all_transitions()
    wrong = rows["obs"].copy()
    wrong[5:7, :, :2] = 99
    # cpprb has the names of a cached row from an array of texts: NumPy's own, not Python's.
    name = np.array(["obs"])[0]
    cache = {k: {name: rows["obs"][k]} for k in (5, 6, 7)}
    file = files.zipped(files.members(rows | {"obs": wrong}, safe=False, cache=cache, numpy=numpy))

    check_rows(rows, loaded(made(8, "stacks"), file))


def test_rows_of_fortran_order() -> None:
    """NumPy pickles some arrays with their last index first."""
    rows = filled(8, 8).get_all_transitions()
    turned = {name: np.asfortranarray(values) for name, values in rows.items()}
    cache = {7: {"next_obs": np.asfortranarray(rows["next_obs"][7])}}
    unsafe = files.members(
        {name: turned[name] for name in FIELDS}, safe=False, cache=cache, next_of=np.array(["obs"])
    )
    check_rows(
        {name: values[3:] for name, values in rows.items()},
        loaded(made(5), files.zipped(files.members(turned))),
    )
    got = loaded(made(8), files.zipped(unsafe)).get_all_transitions()
    assert np.array_equal(got["next_obs"][:-1], rows["obs"][1:])
    assert np.array_equal(got["next_obs"][-1], rows["next_obs"][-1])


def test_summed_rows_are_not_summed_again() -> None:
    """Rows of a file with ``Nstep`` are read as they are there."""
    rows = filled(20, 15, "nstep").get_all_transitions()
    rb = loaded(made(20, "nstep"), files.zipped(files.members(rows, nstep=True)))
    check_rows(rows, rb)


def test_cpprb_reads_and_writes_the_same_files(tmp_path: Path) -> None:
    """Where cpprb is installed: its files here, and ours there."""
    cpprb = need("cpprb", "both directions are tried by hand")
    rb = filled(8, 6)
    fields = {name: dict(spec) for name, spec in (FIELDS | NEXT).items()} | {"act": {"dtype": "i4"}}
    theirs = cpprb.ReplayBuffer(8, fields)
    rb.save_transitions(tmp_path / "ours")
    theirs.load_transitions(str(tmp_path / "ours.npz"))
    theirs.save_transitions(str(tmp_path / "theirs"))

    check_rows(rb.get_all_transitions(), loaded(made(8), tmp_path / "theirs"))


# ---- what loading does -------------------------------------------------------------------


def test_rows_are_added_to_those_that_are_there(tmp_path: Path) -> None:
    """Loading clears nothing; the open episode ends before, and after."""
    rb = filled(20, 3)
    before = rb.get_all_transitions()
    rb.save_transitions(tmp_path / "x")
    loaded(rb, tmp_path / "x")
    check_rows({k: np.concatenate([v, v]) for k, v in before.items()}, rb)
    assert rb.get_current_episode_len() == 0
    assert lengths(rb) == [3, 3]


def test_an_episode_ends_where_the_next_row_is_another() -> None:
    """Truncated episodes and the place where a ring was written to are found again."""
    rows = filled(40, 20).get_all_transitions()
    turned = {name: np.roll(values, 5, axis=0) for name, values in rows.items()}
    rb = loaded(made(40), files.zipped(files.members(turned)))
    assert lengths(rb) == [5, 7, 7, 1]


def test_without_next_values_cached_rows_end_episodes() -> None:
    """As cpprb's own loading has it."""
    rows = {name: filled(8, 6).get_all_transitions()[name] for name in FIELDS}
    cache = {k: {"obs": rows["obs"][k]} for k in (2, 5)}
    rb = ReplayBuffer(8, FIELDS)
    loaded(rb, files.zipped(files.members(rows, safe=False, cache=cache)))
    assert lengths(rb) == [3, 3]


@pytest.mark.parametrize("saved", ["rows", "rows.npz"])
@pytest.mark.parametrize("asked", ["rows", "rows.npz"])
def test_the_suffix_may_be_left_out(saved: str, asked: str, tmp_path: Path) -> None:
    """Either name writes, and finds, ``rows.npz``; cpprb does not find it without the suffix."""
    rb = filled(8, 5)
    rb.save_transitions(str(tmp_path / saved))
    assert list(tmp_path.iterdir()) == [tmp_path / "rows.npz"]
    assert len(loaded(made(8), str(tmp_path / asked))) == 5


def test_a_name_without_suffix_is_found_if_there_is_no_other(tmp_path: Path) -> None:
    """A file that was renamed is read; a missing one is named."""
    filled(8, 5).save_transitions(tmp_path / "rows")
    (tmp_path / "rows.npz").rename(tmp_path / "rows")
    assert len(loaded(made(8), tmp_path / "rows")) == 5
    with pytest.raises(FileNotFoundError, match=r"none\.npz"):
        made(8).load_transitions(tmp_path / "none")


def test_a_failed_save_leaves_the_file_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file gets its name when it is complete, and nothing else stays."""
    rb = filled(8, 5)
    rb.save_transitions(tmp_path / "rows")
    before = (tmp_path / "rows.npz").read_bytes()

    def fail(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        filled(8, 7).save_transitions(tmp_path / "rows")
    assert list(tmp_path.iterdir()) == [tmp_path / "rows.npz"]
    assert (tmp_path / "rows.npz").read_bytes() == before


def test_fields_of_a_file_that_the_buffer_lacks_are_left_out() -> None:
    """As in cpprb; the other way round it is an error."""
    rows = filled(8, 5).get_all_transitions()
    rb = ReplayBuffer(8, {"rew": {"shape": (), "dtype": "f8"}})
    loaded(rb, files.zipped(files.members(rows)))
    assert rb.get_all_transitions()["rew"].tolist() == [0, 1, 2, 3, 4]


# ---- what is refused ---------------------------------------------------------------------

ROWS = filled(8, 5).get_all_transitions()


def changed(**arrays: Any) -> io.BytesIO:
    """A file in which some fields have other values."""
    return files.zipped(files.members(ROWS | arrays))


class Harm:
    """What writes a file when a pickle of it is loaded."""

    def __reduce__(self) -> Any:
        return os.system, ("exit 1",)


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "nstep": (lambda: files.zipped(files.members(ROWS, nstep=True)), ValueError, "Nstep: .* with"),
    "version": (lambda: files.zipped(files.members(ROWS, version=2)), ValueError, "version 2"),
    "shape": (
        lambda: changed(act=np.zeros((5, 2), "i4")),
        ValueError,
        r"'act': expected shape \(\), got \(2,\)",
    ),
    "fraction": (lambda: changed(act=np.full(5, 0.5)), ValueError, "'act': expected int32, got"),
    "text": (lambda: changed(act=np.full(5, "x")), ValueError, "'act': expected int32, got <U1"),
    "lengths": (lambda: changed(act=np.zeros(4, "i4")), ValueError, "disagree .* 'act': 4"),
    "field": (
        lambda: files.zipped(files.members({k: v for k, v in ROWS.items() if k != "act"})),
        KeyError,
        "no field 'act'",
    ),
    "objects": (
        lambda: changed(act=np.array([{}] * 5, object)),
        ValueError,
        "holds Python objects",
    ),
    "code": (
        lambda: files.zipped(files.members(ROWS, cache=Harm())),
        ValueError,
        "asks for .*system",
    ),
    "member": (
        lambda: files.zipped({k: v for k, v in files.members(ROWS).items() if k != "cache.npy"}),
        ValueError,
        "no 'cache.npy'",
    ),
    "other npz": (
        lambda: files.zipped({"a.npy": files.array_member(1)}),
        ValueError,
        "'version.npy'",
    ),
    "no zip": (lambda: io.BytesIO(b"rows"), ValueError, "no zip file"),
    "safe": (lambda: files.zipped(files.members(ROWS, safe=False)), ValueError, "safe=False"),
    "next_of": (
        lambda: files.zipped(files.members(ROWS, safe=False, cache={}, next_of=np.array(["x"]))),
        ValueError,
        "no field 'x'",
    ),
    "bools": (lambda: changed(done=np.full((5, 1), 7, "u1").view(bool)), ValueError, "neither 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_changes_nothing(case: str) -> None:
    """Whatever is wrong, it is named, and the buffer is as it was."""
    file, error, message = REFUSED[case]
    rb = filled(8, 5)
    before = rb.get_all_transitions()
    with pytest.raises(error, match=message):
        rb.load_transitions(file())
    check_same(before, rb.get_all_transitions())
    assert rb.get_current_episode_len() == 5
    assert rb.get_next_index() == 5


def test_discount_is_in_no_file() -> None:
    """The number of steps of a summed row is unknown, so its discount is."""
    options: Any = {"Nstep": NSTEP | {"discount": True}}
    rb = ReplayBuffer(8, FIELDS | NEXT, **options)
    with pytest.raises(ValueError, match="discount"):
        rb.load_transitions(files.zipped(files.members(ROWS, nstep=True)))


def test_python_objects_are_not_written(tmp_path: Path) -> None:
    """Nothing is written then."""
    rb = ReplayBuffer(8, {"x": {"shape": (), "dtype": object}})
    with pytest.raises(ValueError, match=r"\['x'\] hold Python objects"):
        rb.save_transitions(tmp_path / "x")
    rb = ReplayBuffer(8, {"x": {"shape": (), "dtype": "i4,f4"}, "t": {"dtype": "M8[s]"}})
    with pytest.raises(ValueError, match=r"x \(.*t \(.* are no numbers, texts or bytes"):
        rb.save_transitions(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", ["save_transitions", "load_transitions"])
def test_a_file_is_a_path_or_a_file(method: str) -> None:
    """Anything else is a ``TypeError``."""
    with pytest.raises(TypeError, match="expected a path or a binary file, got 3"):
        getattr(made(8), method)(3)


# ---- damage ------------------------------------------------------------------------------

LIMITED = """
import sys
sys.path.insert(0, {support!r})
sys.path.insert(0, {here!r})
import {module}
{module}.{call}
"""


def run_limited(call: str, seconds: float = 600.0) -> str:
    """What a call of a function here prints, in a process of its own."""
    need("resource")
    here = Path(__file__)
    program = LIMITED.format(
        support=str(SUPPORT), here=str(here.parent), module=here.stem, call=call
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=seconds, env=os.environ
    )
    assert done.returncode == 0, done.stderr[-3000:] or done.returncode
    return done.stdout


def limit_memory() -> None:
    """Allow this process 256 MiB more than it has."""
    resource: Any = importlib.import_module("resource")  # Windows has none
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 28), now + (1 << 28)))


def hostile() -> dict[str, files.Members]:
    """Files whose pickles would fill the stack of the process, or ask for gigabytes."""
    head = files.object_member(None)[:128]
    pickles = {
        "many": b"\x80\x04" + b"]" * 1_000_000 + b".",
        "nested": b"\x80\x04}" + b")" + b"\x85" * 300_000 + b"Ns.",
        "memo": b"\x80\x04Nr\xff\xff\xff\x7f.",
        "long": b"\x80\x04\x8e" + (1 << 40).to_bytes(8, "little") + b"x.",
        "text": b"\x80\x04X\xff\xff\xff\xffx.",
    }
    return {
        name: files.members(ROWS) | {"cache.npy": head + data} for name, data in pickles.items()
    }


def load_hostile() -> None:
    """Each is refused with little memory."""
    limit_memory()
    for name, parts in hostile().items():
        try:
            made(8).load_transitions(files.zipped(parts))
        except ValueError as error:  # noqa: PERF203
            print(name, "refused:", str(error)[:200])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells the memory")
def test_hostile_pickles_do_not_crash_the_process() -> None:
    """Each is a ``ValueError`` that names the member."""
    lines = run_limited("load_hostile()").splitlines()
    assert len(lines) == len(hostile())
    assert all("refused: the file: 'cache.npy': no pickle" in line for line in lines)


def mutated(rng: np.random.Generator, sound: list[files.Members]) -> io.BytesIO:
    """A damaged file: of wrong bytes in a zip that is right, or of a zip that is wrong."""
    parts = dict(sound[rng.integers(len(sound))])
    names = list(parts)
    kind = rng.integers(6)
    name = names[rng.integers(len(names))]
    if kind in (0, 1, 2):  # bytes of a member, or its end
        name = ["data.npy", "cache.npy", name][kind]
        content = bytearray(parts[name])
        for _ in range(rng.integers(1, 4)):
            place = int(rng.integers(len(content)))
            content[place] = rng.integers(256) if kind else content[place] ^ 1 << rng.integers(8)
        if rng.random() < 0.1:
            del content[int(rng.integers(len(content))) :]
        parts[name] = bytes(content)
    elif kind == 3:  # members in each other's place
        other = dict(sound[rng.integers(len(sound))])
        parts[name] = other[names[rng.integers(len(names))]]
    method = zipfile.ZIP_STORED if rng.random() < 0.3 else zipfile.ZIP_DEFLATED
    data = bytearray(files.zipped(parts, method).getvalue())
    if kind >= 4:
        for _ in range(rng.integers(1, 4)):
            place = int(rng.integers(len(data)))
            if rng.random() < 0.5:  # the headers are few
                place = max(0, len(data) - 1 - int(rng.integers(400)))
            data[place] = rng.integers(256)
        if rng.random() < 0.2:
            del data[int(rng.integers(len(data))) :]
    return io.BytesIO(bytes(data))


def fuzz(n: int, seed: int) -> None:
    """Load n damaged files: each is refused and changes nothing, or leaves a sound buffer."""
    rng = np.random.default_rng(seed)
    unsafe = filled(8, 12).get_all_transitions()
    sound = [
        files.members(unsafe, numpy=1),
        files.members(unsafe, numpy=2),
        files.unsafe_members(unsafe, 3, 8, numpy=1),
        files.unsafe_members(unsafe, 3, 8, numpy=2),
    ]
    kept = filled(8, 5)
    before, refused = kept.get_all_transitions(), 0
    limit_memory()
    for number in range(n):
        file = mutated(rng, sound)
        try:
            kept.load_transitions(file)
        except (ValueError, KeyError, MemoryError):
            refused += 1
            continue
        except BaseException:
            Path("damaged.npz").write_bytes(file.getvalue())
            print("file", number, "of seed", seed, "is in damaged.npz", file=sys.stderr)
            raise
        kept.check()
        kept = filled(8, 5)
    check_same(before, kept.get_all_transitions())
    print(refused, n)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells the memory")
def test_damaged_files_are_refused_or_read() -> None:
    """``CPPRB_LIKE_FUZZ=100000`` tries as many files, in some minutes."""
    n = int(os.environ.get("CPPRB_LIKE_FUZZ", "400"))
    seed = int.from_bytes(os.urandom(4), "little")
    refused, of = map(int, run_limited(f"fuzz({n}, {seed})", 3600.0).split())
    print(f"{refused} of {of} files were refused")
    assert of == n
    assert refused > n // 2
