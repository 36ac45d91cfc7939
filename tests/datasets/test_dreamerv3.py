"""DreamerV3's own replay buffer reads what is written here, and what it wrote is read here."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optional import need

from cpprb_like import ReplayBuffer
from cpprb_like.datasets import describe
from cpprb_like.errors import DataLossWarning

Steps = list[dict[str, Any]]
FLAG: dict[str, Any] = {"shape": (), "dtype": bool}
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.fixture
def embodied(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The part of DreamerV3 that has its replay buffers, as its own scripts import it.

    The package itself would need the network's libraries.
    """
    spec = importlib.util.find_spec("dreamerv3")
    if spec is not None and spec.origin is not None:
        monkeypatch.syspath_prepend(Path(spec.origin).parent)
    return need("embodied", "make test-datasets")


def filled() -> ReplayBuffer:
    """Two environments, whose episodes end by turns, and the newest of which are open."""
    rng = np.random.default_rng(0)
    fields: dict[str, Any] = {
        "obs.image": {"shape": (6, 5, 3), "dtype": "u1"},
        "obs.place": {"shape": 2, "dtype": "f4"},
        "act": {"shape": 3, "dtype": "f4"},
        "rew": {"shape": (), "dtype": "f4"},
        "terminated": FLAG,
        "truncated": FLAG,
        "log_prob": {"shape": ()},
    }
    rb = ReplayBuffer(400, fields, n_envs=2, next_of=["obs.image", "obs.place"])

    def look() -> dict[str, Any]:
        image = rng.integers(0, 256, (2, 6, 5, 3), np.uint8)
        return {"obs.image": image, "obs.place": rng.normal(size=(2, 2))}

    obs = look()
    for t in range(90):
        following = look()
        rb.add(
            **obs,
            **{f"next_{name}": values for name, values in following.items()},
            act=rng.normal(size=(2, 3)),
            rew=rng.normal(size=2),
            terminated=[t % 20 == 7, False],
            truncated=[t % 20 == 19, t % 13 == 12],
            log_prob=[t, -t],
        )
        ended = np.array([t % 20 in (7, 19), t % 13 == 12])
        fresh = look()
        for name, values in following.items():
            values[ended] = fresh[name][ended]
        obs = following
    return rb


def steps_of(rb: ReplayBuffer) -> list[Steps]:
    """What DreamerV3 must see of each environment, written out step by step."""
    streams: list[Steps] = [[] for _ in range(rb.n_envs)]
    for number, episode in enumerate(rb.episodes.list()):
        rows = rb.episodes.read(number)
        n = episode.length
        for t in range(n + 1):
            prefix, at = ("", t) if t < n else ("next_", n - 1)
            is_terminal = t > 0 and bool(rows["terminated"][t - 1])
            streams[episode.env].append(
                {
                    "image": rows[f"{prefix}obs.image"][at],
                    "place": rows[f"{prefix}obs.place"][at],
                    "action": rows["act"][t] if t < n else np.zeros(3, np.float32),
                    "reward": rows["rew"][t - 1] if t else np.float32(0),
                    "is_first": t == 0,
                    "is_last": is_terminal or (t > 0 and bool(rows["truncated"][t - 1])),
                    "is_terminal": is_terminal,
                }
            )
    return streams


def test_dreamerv3_reads_ours(
    embodied: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its replay buffer, given the folder, has every step, each environment a stream of its own."""
    monkeypatch.setattr("cpprb_like.datasets._dreamerv3.CHUNK_STEPS", 32)
    rb = filled()
    rb.export(tmp_path / "ours", "dreamerv3")

    found: dict[Any, Steps] = {}
    saver = embodied.replay.saver.Saver(str(tmp_path / "ours"))
    for step, stream in saver.load(None, 1):
        found.setdefault(stream, []).append(step)
    replay = embodied.replay.Uniform(length=8, directory=str(tmp_path / "ours"))
    drawn = next(replay.dataset())

    expected = steps_of(rb)
    assert len(list((tmp_path / "ours").glob("*.npz"))) == sum(-(-len(s) // 32) for s in expected)
    assert len(found) == 2
    by_reward = {float(steps[1]["reward"]): steps for steps in found.values()}
    for steps in expected:
        theirs = by_reward[float(steps[1]["reward"])]
        assert len(theirs) == len(steps)
        for one, other in zip(steps, theirs, strict=True):
            for key, value in one.items():
                np.testing.assert_array_equal(other[key], value, err_msg=key)
                assert np.asarray(other[key]).dtype == np.asarray(value).dtype, key
    assert len(replay) == sum(len(steps) - 7 for steps in expected)
    assert sorted(drawn) == sorted([*expected[0][0], "id"]), "its own columns and no others"
    assert drawn["image"].shape == (8, 6, 5, 3)


def test_ours_reads_what_dreamerv3_wrote(embodied: Any, tmp_path: Path) -> None:
    """Chunk by chunk, of two workers; the names that it gives to steps are no observations."""
    rng = np.random.default_rng(1)
    replay = embodied.replay.Uniform(length=4, directory=str(tmp_path / "theirs"), chunks=16)
    written: list[Steps] = [[], []]
    for t in range(50):
        for worker, period in enumerate((9, 14)):
            at = t % period
            step = {
                "image": rng.integers(0, 256, (6, 5, 3), np.uint8),
                "place": rng.normal(size=2).astype(np.float32),
                "action": rng.normal(size=3).astype(np.float32),
                "reward": np.float32(rng.normal()),
                "is_first": at == 0,
                "is_last": at == period - 1,
                "is_terminal": at == period - 1 and worker == 0,
                "log_height": np.float32(t),
            }
            written[worker].append(step)
            replay.add(step, worker)
    replay.save(wait=True)

    with pytest.warns(DataLossWarning, match="that 1 episodes before the newest have no end"):
        rb = ReplayBuffer.from_dataset(tmp_path / "theirs")

    assert describe(tmp_path / "theirs").format == "dreamerv3"
    assert {name for name in rb.fields if "obs" not in name} == (
        {"act", "rew", "id", "terminated", "truncated"}
    )
    assert {name for name in rb.fields if name.startswith("obs")} == {"obs.image", "obs.place"}
    episodes = {}
    for worker, steps in enumerate(written):
        starts = [t for t, step in enumerate(steps) if step["is_first"]]
        for start, stop in zip(starts, [*starts[1:], len(steps)], strict=True):
            if stop - start > 1:
                episodes[steps[start + 1]["reward"].item()] = worker, steps[start:stop]
    assert len(rb.episodes.list()) == len(episodes)
    for number in range(len(episodes)):
        rows = rb.episodes.read(number)
        worker, steps = episodes[rows["rew"][0].item()]
        for name in ("image", "place"):
            values = np.stack([step[name] for step in steps])
            np.testing.assert_array_equal(rows[f"obs.{name}"], values[:-1])
            np.testing.assert_array_equal(rows[f"next_obs.{name}"], values[1:])
        np.testing.assert_array_equal(rows["act"], [step["action"] for step in steps[:-1]])
        np.testing.assert_array_equal(rows["rew"], [step["reward"] for step in steps[1:]])
        ended = bool(steps[-1]["is_last"])
        assert bool(rows["terminated"][-1]) == (ended and worker == 0)
        assert not rows["terminated"][:-1].any()
        assert not rows["truncated"][:-1].any()


def test_fields_have_the_keys_of_dreamerv3(tmp_path: Path) -> None:
    """Parts of actions and observations keep their names; an extra field is one of the log."""
    fields: Any = {"obs.0": {}, "obs.action": {}, "act.0": {}, "act.a": {}, "rew": {}, "prob": {}}
    rb = ReplayBuffer(4, {**fields, "log_x": {}}, next_of=["obs.0", "obs.action"])
    rows: dict[str, Any] = {name: k for k, name in enumerate(rb.fields)}
    rb.add(**rows)
    rb.export(tmp_path / "x", "dreamerv3", strict=True)
    (episode,) = describe(tmp_path / "x").episodes
    assert (episode.length, episode.is_cut, episode.is_open) == (1, False, True)
    found = ReplayBuffer.from_dataset(tmp_path / "x", strict=True).get_all_transitions()
    rows["log_prob"] = rows.pop("prob")
    assert {name: values.item() for name, values in found.items()} == {
        **rows,
        "terminated": False,
        "truncated": False,
    }
    with pytest.raises(ValueError, match=r"about: expected none with format 'dreamerv3'"):
        rb.export(tmp_path / "y", "dreamerv3", about={"author": "us"})
