"""Descriptions of everything that has rows, as text, JSON values and a page."""

from __future__ import annotations

import io
import json
import os
import re
import zlib
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optional import need

import cpprb_like
from cpprb_like import Mixture, PrioritizedReplayBuffer, RateLimited, ReplayBuffer, Sequences
from cpprb_like.buffers import Source
from cpprb_like.limiters import MinSize
from cpprb_like.processes import SharedReplay
from cpprb_like.report import Description, _facts, describe, describe_saved
from cpprb_like.samplers import Prioritized
from cpprb_like.views import AtMost, Groups

FIELDS: dict[str, Any] = {
    "obs": {"shape": 3},
    "rew": {"shape": ()},
    "done": {"shape": (), "dtype": bool},
}
VOID = {"meta", "link", "img", "br"}


def filled(n: int = 40, cls: Any = ReplayBuffer, **options: Any) -> Any:
    """A buffer of up to 30 rows; episodes have 10 steps and a return of 45."""
    rb = cls(30, FIELDS, seed=0, **options)
    for t in range(n):
        rb.add(obs=np.full(3, t), rew=t % 10, done=t % 10 == 9)
    return rb


class Page(HTMLParser):
    """Tags, text, and what the page would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        found = given.get("src") or given.get("href")
        if found is not None:
            self.loaded.append(found)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Nothing is opened."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(description: Description, tmp_path: Path) -> Page:
    """The page, which is whole and loads nothing."""
    place = tmp_path / "report.html"
    description.save(place)
    page = Page(place.read_text(encoding="utf-8"))
    assert page.open == []
    assert all(found.startswith("data:") for found in page.loaded)
    assert "<script" not in place.read_text(encoding="utf-8")
    assert list(tmp_path.glob("*.new")) == []
    return page


# ---------------------------------------------------------------------- what is told


def test_numbers_are_those_of_the_rows(tmp_path: Path) -> None:
    """Fields, episodes and ages; the same in JSON, text and page."""
    found = filled().describe()
    (buffer,) = found.to_dict()["buffers"]
    assert (buffer["rows"], buffer["capacity"], buffer["written"]) == (30, 30, 40)
    assert buffer["returns"] == {"mean": 45.0, "min": 45.0, "max": 45.0}
    one = {field["name"]: field for field in buffer["fields"]}["obs"]
    assert (one["min"], one["max"], one["mean"], one["rows_read"]) == (10, 39, 24.5, 30)
    assert buffer["series"]["histograms"]["done"]["counts"] == [27, 3]
    assert json.loads(json.dumps(found.to_dict())) == found.to_dict()
    assert re.search(r"^obs +float32 +\(3,\) +12 B", str(found), re.MULTILINE)
    assert str(found).endswith("findings: none of the known faults")
    assert "Nothing looks wrong" in page_of(found, tmp_path).text
    assert repr(found) == "Description(ReplayBuffer, findings=0)"
    assert found._repr_html_().startswith("<style>")


def test_a_page_says_what_it_is_of_and_when(tmp_path: Path) -> None:
    """The class and program, or the path; the time, and the version of the package."""
    rb, before = filled(), datetime.now().astimezone().replace(microsecond=0)
    rb.save(tmp_path / "saved")
    for found, name in (
        (rb.describe(), f"process {os.getpid()}"),
        (describe_saved(tmp_path / "saved"), str(tmp_path / "saved")),
    ):
        document, text = found.to_dict(), page_of(found, tmp_path).text
        assert (
            before
            <= datetime.fromisoformat(document["described_at"])
            <= datetime.now().astimezone()
        )
        for words in (name, document["described_at"], f"cpprb_like {cpprb_like.__version__}"):
            assert words in text
            assert words in str(found)


def test_the_card_of_counters_has_numbers_or_is_not_there(tmp_path: Path) -> None:
    """Of a buffer that was made only to read files there is nothing to count."""
    rb = filled()
    assert "adds40" in page_of(rb.describe(), tmp_path).text.replace(" ", "")
    path = {"path": "x", "kind": "data set"}
    assert "Counters" not in page_of(describe(rb, about=path), tmp_path).text


@pytest.mark.parametrize(
    "options",
    [
        {"n_envs": 2},
        {"next_of": "obs"},
        {"Nstep": {"size": 3, "rew": "rew", "gamma": 1.0}},
        {"stack_compress": "obs"},
        {"n_envs": 3, "next_of": "obs", "Nstep": {"size": 2, "rew": "rew", "gamma": 0.9}},
        {"n_envs": 2, "next_of": "obs", "stack_compress": "obs"},
    ],
    ids=str,
)
def test_rows_are_single_steps_whatever_the_options(options: Any) -> None:
    """As they were added, those of incomplete n-step returns too."""
    rb = ReplayBuffer(30, FIELDS, **options)
    n = rb.n_envs
    for t in range(20):
        rows = {"obs": np.full((n, 3), t), "rew": np.full(n, t), "done": np.full(n, t % 7 == 6)}
        if "next_obs" in rb.fields:
            rows["next_obs"] = rows["obs"] + 1
        rb.add(**{name: values if n > 1 else values[0] for name, values in rows.items()})
    (buffer,) = rb.describe().to_dict()["buffers"]
    one = {field["name"]: field for field in buffer["fields"]}["rew"]
    stored = rb.ring.written - rb.ring.first
    assert (one["max"], one["rows_read"]) == (19, stored)
    lost = sum(buffer["not_drawn"].values())
    assert lost == stored - len(rb)
    assert lost == (0 if "Nstep" not in options else (options["Nstep"]["size"] - 1) * n)


def test_rows_that_are_not_drawn_have_a_reason() -> None:
    """No step, an unfinished n-step return, a priority of 0, no start for a view."""
    rb = filled(27, PrioritizedReplayBuffer, sampler=Prioritized(eps=0.0))
    rb.episodes.delete(0)
    rb.update_priorities([12, 13], [0.0, 0.0])
    (buffer,) = rb.describe().to_dict()["buffers"]
    assert buffer["not_drawn"] == {"no step, or of a deleted episode": 10, "priority 0": 2}
    (buffer,) = rb.view(Sequences(4)).describe().to_dict()["buffers"]
    assert buffer["layers"][0].startswith("Sequences(")
    assert buffer["not_drawn"] == {
        "no step, or of a deleted episode": 10,
        "priority 0": 2,
        "no start for the layers of the view": 3,
    }
    steps = filled(27, Nstep={"size": 3, "rew": "rew", "gamma": 0.5})
    (buffer,) = steps.describe().to_dict()["buffers"]
    assert buffer["not_drawn"] == {"waiting for the rest of an n-step return": 2}


def test_rows_that_rules_leave_out_are_not_drawn_for_these() -> None:
    """By their names; whole groups are drawn."""
    rb = ReplayBuffer(20, {"x": {"shape": ()}, "key": {"shape": (), "dtype": int}}, seed=0)
    rb.add(x=range(18), key=np.arange(18) // 4)
    view = rb.view(AtMost(1), Groups("key", 4))
    (buffer,) = view.describe().to_dict()["buffers"]
    assert buffer["not_drawn"] == {"left out by AtMost and Groups": 2}
    view.sample(8)
    (buffer,) = view.describe().to_dict()["buffers"]
    assert buffer["not_drawn"] == {"left out by AtMost and Groups": 10}
    strides = rb.view(AtMost(1), Sequences(3, stride=3))
    strides.sample(2)
    (buffer,) = strides.describe().to_dict()["buffers"]
    assert buffer["not_drawn"] == {
        "no start for the layers of the view": 12,
        "left out by AtMost": 2,
    }


def test_draws_of_rows_are_counted(tmp_path: Path) -> None:
    """By handles, of which those of overwritten rows are left out, or by slots."""
    rb = filled(20)
    drawn = rb.sample(50, indexes=True)["indexes"]
    found = rb.describe(draws=drawn)
    counts = np.bincount(drawn % 30, minlength=20)
    (buffer,) = found.to_dict()["buffers"]
    assert buffer["draws"]["never"] == (counts == 0).sum()
    assert buffer["draws"]["mean"] == 2.5
    assert "rows were never drawn" in page_of(found, tmp_path).text
    for t in range(30):
        rb.add(obs=np.full(3, t), rew=0, done=False)
    (buffer,) = rb.describe(draws=drawn).to_dict()["buffers"]
    assert buffer["draws"]["max"] == 0


def test_large_fields_are_read_in_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Runs of rows from all ages; the page says how many."""
    monkeypatch.setattr(_facts, "BUDGET", 64 * 100)
    rb = ReplayBuffer(1000, {"obs": {"shape": (8, 8), "dtype": "u1"}, "rew": {"shape": ()}})
    rb.add(obs=np.random.default_rng(0).integers(0, 256, (1000, 8, 8)), rew=np.arange(1000))
    found = rb.describe()
    fields = {one["name"]: one for one in found.to_dict()["buffers"][0]["fields"]}
    assert (fields["obs"]["rows_read"], fields["rew"]["rows_read"]) == (96, 1000)
    assert "Rows read of large fields: obs 96." in page_of(found, tmp_path).text


def test_progress_is_reported() -> None:
    """In bytes, up to all of them."""
    seen: list[tuple[int, int]] = []
    filled().describe(progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (30 * 17, 30 * 17)
    with pytest.raises(TypeError, match="progress: expected a function or None, got 3"):
        filled().describe(progress=3)


def test_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """By tqdm, if it is installed; not where standard error is a file."""
    tqdm = need("tqdm")
    bars: list[Any] = []

    class Bar(tqdm.tqdm):  # type: ignore[misc,name-defined]
        """A bar that is there from the start."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options | {"delay": 0, "file": io.StringIO()})
            bars.append(self)

    monkeypatch.setattr(tqdm, "tqdm", Bar)
    filled().describe()
    assert bars == []
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    filled().describe()
    assert [(bar.n, bar.total) for bar in bars] == [(30 * 17, 30 * 17)]


# ---------------------------------------------------------------------- images


def decoded(data: bytes) -> Any:
    """A PNG without filters, as an array."""
    width, height = np.frombuffer(data[16:24], ">u4").tolist()
    depth, color = data[24], data[25]
    assert (depth, data[:8]) == (8, b"\x89PNG\r\n\x1a\n")
    start = data.index(b"IDAT") + 4
    lines = np.frombuffer(zlib.decompress(data[start:]), np.uint8).reshape(height, -1)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, 3) if color == 2 else lines[:, 1:]


@pytest.mark.parametrize(
    ("shape", "shown"),
    [
        ((16, 20), np.s_[:, :]),
        ((16, 20, 3), np.s_[:, :, :]),
        ((3, 16, 20), None),
        ((16, 20, 4), np.s_[:, :, 3]),
        ((1, 16, 20), np.s_[0]),
        ((400, 400, 1), np.s_[::2, ::2, 0]),
    ],
    ids=str,
)
def test_frames_are_shown(shape: tuple[int, ...], shown: Any, tmp_path: Path) -> None:
    """As PNG, grey or RGB: of a stack the newest frame, of a large image every k-th pixel."""
    images = np.random.default_rng(0).integers(0, 256, (9, *shape), dtype=np.uint8)
    rb = ReplayBuffer(9, {"obs": {"shape": shape, "dtype": "u1"}, "rew": {"shape": ()}})
    rb.add(obs=images, rew=np.arange(9))
    found = rb.describe()
    ((name, frames),) = found._pictures[""]
    assert name == "obs"
    assert len(frames) == 8
    for slot, data in frames:
        expected = np.moveaxis(images[slot], 0, 2) if shown is None else images[slot][shown]
        np.testing.assert_array_equal(decoded(data), expected)
    assert "slot 8" in page_of(found, tmp_path).text


def test_floats_are_shown_as_images() -> None:
    """From their least to their greatest value."""
    images = np.linspace(-1, 3, 4 * 256, dtype=np.float32).reshape(4, 16, 16)
    rb = ReplayBuffer(4, {"obs": {"shape": (16, 16)}})
    rb.add(obs=images)
    (_, frames), *_ = rb.describe()._pictures[""]
    assert decoded(frames[0][1])[0, 0] == 0
    assert decoded(frames[-1][1])[-1, -1] == 255


# ---------------------------------------------------------------------- everything that has rows


def test_views_mixtures_and_limited_buffers_are_described(tmp_path: Path) -> None:
    """Each buffer of a mixture by its path."""
    rb = filled()
    view = rb.view(Sequences(3))
    assert view.describe().to_dict()["class"] == "View"
    limited = RateLimited(filled(), MinSize(1))
    assert limited.describe().to_dict()["buffers"][0]["rows"] == 30
    assert limited.describe().to_dict()["stats"]["rows"] == 30
    mixture = Mixture({"a": view, "b": filled(5).view(Sequences(3))}, {"a": 0.5, "b": 0.5})
    found = mixture.describe()
    assert [buffer["path"] for buffer in found.to_dict()["buffers"]] == ["a", "b"]
    assert "Mixture" in page_of(found, tmp_path).text


def test_a_shared_replay_and_its_learner_are_described(tmp_path: Path) -> None:
    """By copies of the shards: it needs no member, and no draw is counted."""
    with SharedReplay(60, FIELDS, writers=2, limiter=MinSize(1)) as replay:
        with replay.actor() as actor:
            for t in range(20):
                actor.add(obs=np.full(3, t), rew=t % 10, done=t % 10 == 9)
        before = replay.stats()
        found = SharedReplay.attach(replay.name).describe()
        assert replay.stats() == before
        assert [one.kind for one in replay.members()] == ["actor"]
        assert found.to_dict()["buffers"][0]["rows"] == 20
        learner = replay.learner(Prioritized(alpha=1.0, eps=0.0), seed=0)
        batch = learner.sample(20, replace=False)
        learner.update_priorities(batch["indexes"], (batch["obs"][:, 0] == 3).astype(float))
        found = learner.describe()
        buffer = found.to_dict()["buffers"][0]
        assert buffer["priorities"]["effective_sample_size"] == 1.0
        assert buffer["not_drawn"]["priority 0"] == 19
        assert [one.name for one in found.findings] == ["priority-zero"]
        page_of(learner.view(Sequences(2)).describe(), tmp_path)


def test_rows_of_other_machines_are_refused() -> None:
    """Sources that cannot read all of their rows say so."""

    class Elsewhere(Source):
        """A source of rows that are not here."""

    with pytest.raises(TypeError, match="the rows of Elsewhere cannot be read from here"):
        Elsewhere().describe()


def test_what_is_saved_is_described_alike(tmp_path: Path) -> None:
    """Without the classes of the caller."""

    class Mine(ReplayBuffer):
        """A buffer of the caller."""

    rb = filled(cls=Mine)
    rb.save(tmp_path / "saved")
    found = describe_saved(tmp_path / "saved")
    (saved,) = found.to_dict()["buffers"]
    (live,) = rb.describe().to_dict()["buffers"]
    assert saved["class"] == "Mine"
    for name in ("fields", "series", "ages", "episodes", "findings", "not_drawn"):
        assert saved[name] == live[name]
    page_of(found, tmp_path)


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize("n", [0, 1])
def test_few_rows_are_no_fault(n: int, tmp_path: Path) -> None:
    """No row, and one row."""
    found = filled(n).describe()
    assert found.findings == []
    assert ("There are no rows yet" in page_of(found, tmp_path).text) == (n == 0)
    assert str(found)


def test_fields_of_all_dtypes_are_described(tmp_path: Path) -> None:
    """Those that are no numbers without statistics."""
    kinds = ["object", "U5", "S3", "M8[s]", "c8", "V4", "f2", "u8", "i1", "?", "f4,i4"]
    fields: dict[str, Any] = {f"x{k}": {"shape": (), "dtype": kind} for k, kind in enumerate(kinds)}
    rb = ReplayBuffer(200, fields)
    values = {name: np.zeros(200, spec["dtype"]) for name, spec in fields.items()}
    rb.add(**values)
    found = rb.describe()
    numbers = {one["name"] for one in found.to_dict()["buffers"][0]["fields"] if "min" in one}
    assert numbers == {f"x{k}" for k, kind in enumerate(kinds) if kind in ("f2", "u8", "i1", "?")}
    page_of(found, tmp_path)
    json.dumps(found.to_dict())


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("f8", [1.0, np.nextafter(1.0, 2.0)]),
        ("f8", [1e20, np.nextafter(1e20, np.inf)]),
        ("f8", [0.0, 5e-324]),
        ("f8", [1e20, 1e20]),
        ("f8", [np.finfo("f8").max, -np.finfo("f8").max]),
        ("f8", [np.finfo("f8").max] * 2),
        ("i8", [2**60, 2**60 + 1000]),
        ("u8", [2**64 - 1, 2**64 - 2]),
    ],
    ids=str,
)
def test_values_with_few_floats_between_them_have_a_histogram(
    dtype: str, values: Any, tmp_path: Path
) -> None:
    """Values that differ in their last bits get fewer bins; NumPy refused 40 ("Too many bins")."""
    rb = ReplayBuffer(100, {"x": {"shape": (), "dtype": dtype}})
    rb.add(x=np.tile(np.array(values, dtype), 50))
    found = rb.describe()
    page_of(found, tmp_path)
    bars = found.to_dict()["buffers"][0]["series"]["histograms"]["x"]
    assert sum(bars["counts"]) == 100
    assert bars["edges"] == sorted(bars["edges"])
    assert np.isfinite(bars["edges"]).all()


def test_priorities_that_differ_in_their_last_bits_have_a_histogram() -> None:
    """The weights of rows are counted in bins in the same way."""
    rb = PrioritizedReplayBuffer(100, {"x": {}}, alpha=1.0, eps=0.0)
    rb.add(x=np.zeros(100), priorities=np.tile([0.3, np.nextafter(0.3, 1.0)], 50))
    assert sum(rb.describe().to_dict()["buffers"][0]["series"]["weights"]["counts"]) == 100


def test_only_nan_and_a_field_without_bytes(tmp_path: Path) -> None:
    """Nothing finite, and nothing at all."""
    rb = ReplayBuffer(200, {"obs": {"shape": 2}, "none": {"shape": 0}, "rew": {"shape": ()}})
    rb.add(obs=np.full((200, 2), np.nan), none=np.zeros((200, 0)), rew=np.full(200, -np.inf))
    found = rb.describe()
    assert [(one.name, one.field) for one in found.findings] == [
        ("not-finite", "obs"),
        ("not-finite", "rew"),
    ]
    page_of(found, tmp_path)
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("name", "shape", "value"), [("act", 1, 0.5), ("rew", (), np.inf), ("image", (20, 20), np.inf)]
)
def test_values_without_a_mean_give_no_warning(
    name: str, shape: Any, value: float, tmp_path: Path
) -> None:
    """NumPy's warnings about empty slices, sums and differences were those of ``describe``."""
    rb = ReplayBuffer(200, {name: {"shape": shape}, "rew": {"shape": ()}, "done": {"shape": ()}})
    values: dict[str, Any] = {"rew": np.zeros(200), "done": np.ones(200)}
    rb.add(**values | {name: np.full((200, *rb.columns[name].shape), value)})
    found = rb.describe()
    page_of(found, tmp_path)
    json.dumps(found.to_dict(), allow_nan=False)


def test_names_of_strangers_are_text(tmp_path: Path) -> None:
    """Neither markup nor escape sequences."""
    rb = ReplayBuffer(200, {"<b>\x1b[2J": {"shape": (), "dtype": "f4"}})
    rb.add(**{"<b>\x1b[2J": np.ones(200)})
    found = rb.describe()
    assert "\x1b" not in str(found)
    assert "<b>?[2J" in page_of(found, tmp_path).text


def test_arguments_are_checked(tmp_path: Path) -> None:
    """And a page that cannot be written leaves the old one."""
    with pytest.raises(ValueError, match="reward: expected one of"):
        filled().describe(reward="r")
    with pytest.raises(FileNotFoundError):
        filled().report(tmp_path / "nothing" / "report.html")
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        describe_saved(tmp_path)
