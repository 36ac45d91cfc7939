"""Minari reads what is written here, and what Minari recorded is read here: Minari is the judge."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optional import need

from cpprb_like import GymnasiumRecorder, ReplayBuffer
from cpprb_like.datasets import describe
from cpprb_like.errors import DataLossWarning

minari = need("minari", "make test-datasets")
gymnasium = need("gymnasium")

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:minari"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
storages = pytest.mark.parametrize("storage", ["hdf5", "arrow"])
FORMAT = {"hdf5": "minari", "arrow": "minari-arrow"}


@pytest.fixture(autouse=True)
def _collectors_go() -> Iterator[None]:
    """Minari's collectors leave their folders to the garbage collector, with a warning."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


class Rooms(gymnasium.Env):  # type: ignore[misc,name-defined]  # it is optional
    """Dict observations with an image, a Tuple action; some episodes terminate, others do not."""

    observation_space = gymnasium.spaces.Dict(
        {
            "image": gymnasium.spaces.Box(0, 255, (40, 36, 3), np.uint8),
            "place": gymnasium.spaces.Dict(
                {
                    "x": gymnasium.spaces.Box(-1, 1, (2,), np.float64),
                    "room": gymnasium.spaces.Discrete(5),
                }
            ),
        }
    )
    action_space = gymnasium.spaces.Tuple(
        (gymnasium.spaces.Discrete(3), gymnasium.spaces.Box(-1, 1, (2,), np.float32))
    )

    def _look(self) -> Any:
        rng = self.np_random
        return {
            "image": rng.integers(0, 256, (40, 36, 3), np.uint8),
            "place": {"x": rng.uniform(-1, 1, 2), "room": np.int64(rng.integers(5))},
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin."""
        super().reset(seed=seed)
        return self._look(), {"height": 0.5}

    def step(self, action: Any) -> Any:
        """Go on."""
        del action
        ends = bool(self.np_random.random() < 0.1)
        return self._look(), float(self.np_random.normal()), ends, False, {"height": 1.5}


def environment(name: str) -> Any:
    """An environment whose episodes are cut."""
    if name == "rooms":
        return gymnasium.wrappers.TimeLimit(Rooms(), 12)
    return gymnasium.make(name, max_episode_steps=15)


environments = pytest.mark.parametrize("name", ["rooms", "CartPole-v1", "Pendulum-v1"])


def leaves(nest: Any, root: str) -> dict[str, Any]:
    """The parts of a nest, by the names of their fields."""
    if isinstance(nest, tuple):
        nest = dict(enumerate(nest))
    if not isinstance(nest, dict):
        return {root: np.asarray(nest)}
    parts = [leaves(part, f"{root}.{key}") for key, part in nest.items()]
    return {name: leaf for found in parts for name, leaf in found.items()}


def spaces_of(env: Any) -> dict[str, Any]:
    """What a buffer does not know of an environment."""
    return {"observation_space": env.observation_space, "action_space": env.action_space}


@storages
@environments
def test_minari_reads_ours(name: str, storage: str, tmp_path: Path) -> None:
    """Its loader finds the episodes, and each value of them as it was recorded."""
    env = GymnasiumRecorder(environment(name), float_type="space")
    rb = env.attach(ReplayBuffer(100, env.env_dict))
    env.reset(seed=0)
    env.action_space.seed(1)
    for _ in range(50):
        env.step(env.action_space.sample())
    rb.export(tmp_path / "ours", FORMAT[storage], about={"author": ["us"], **spaces_of(env)})

    found = minari.MinariDataset(tmp_path / "ours" / "data")

    assert found.total_steps == 50
    assert found.total_episodes == len(rb.episodes)
    assert found.storage.metadata["author"] == {"us"}
    assert not found.storage.jpeg_encoding
    assert found.observation_space == env.observation_space
    assert found.action_space == env.action_space
    for number, episode in enumerate(found.iterate_episodes()):
        rows = rb.episodes.read(number)
        n = len(rows["rew"])
        for part, values in leaves(episode.observations, "obs").items():
            assert values.shape[0] == n + 1
            np.testing.assert_array_equal(values[:-1], rows[part])
            np.testing.assert_array_equal(values[1:], rows[f"next_{part}"])
        for part, values in leaves(episode.actions, "act").items():
            np.testing.assert_array_equal(values, rows[part])
        np.testing.assert_array_equal(episode.rewards, rows["rew"])
        np.testing.assert_array_equal(episode.terminations, rows["terminated"])
        np.testing.assert_array_equal(episode.truncations, rows["truncated"])


@storages
@environments
@pytest.mark.parametrize("infos", [False, True])
def test_ours_reads_minaris(
    name: str, storage: str, infos: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its collector recorded has the same values in a buffer, final observations too."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = minari.DataCollector(
        environment(name), record_infos=infos, data_format=storage, jpeg_encoding=False
    )
    env.action_space.seed(1)
    for seed in range(3):
        env.reset(seed=seed)
        ended = False
        while not ended:
            *_, terminated, truncated, _ = env.step(env.action_space.sample())
            ended = terminated or truncated
    options = {} if name == "rooms" else {"eval_env": environment(name)}
    dataset = env.create_dataset("theirs/rooms-v0", algorithm_name="random", **options)
    env.close()

    told = "infos/height of resets, seed" if infos and name == "rooms" else "seed"
    with pytest.warns(DataLossWarning, match=f": {told} of 3 resets"):
        rb = ReplayBuffer.from_dataset("theirs/rooms-v0", format="minari")
    found = describe(tmp_path / "theirs" / "rooms-v0")

    assert found.format == FORMAT[storage]
    assert len(rb) == dataset.total_steps
    for number, episode in enumerate(dataset.iterate_episodes()):
        rows = rb.episodes.read(number)
        expected = {
            **leaves(episode.actions, "act"),
            "rew": episode.rewards,
            "terminated": episode.terminations,
            "truncated": episode.truncations,
        }
        for part, values in leaves(episode.observations, "obs").items():
            expected[part], expected[f"next_{part}"] = values[:-1], values[1:]
        if infos:
            for part, values in leaves(episode.infos, "info").items():
                expected[part] = values[1:]
        assert expected.keys() == rows.keys()
        for part, values in expected.items():
            assert rows[part].dtype == values.dtype, part
            np.testing.assert_array_equal(rows[part], values)


class Talk(gymnasium.Env):  # type: ignore[misc,name-defined]  # it is optional
    """Texts in observations, actions and infos."""

    observation_space = gymnasium.spaces.Dict(
        {
            "heard": gymnasium.spaces.Text(9, min_length=0, charset="aé漢🙂 "),
            "x": gymnasium.spaces.Box(-9, 9, (2,), np.float32),
        }
    )
    action_space = gymnasium.spaces.Text(9, min_length=0, charset="aé漢🙂 ")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin."""
        super().reset(seed=seed)
        self._n = 0
        return {"heard": "", "x": np.zeros(2, np.float32)}, {"note": "begin"}

    def step(self, action: Any) -> Any:
        """Go on."""
        self._n += 1
        seen = {"heard": action, "x": np.full(2, self._n, np.float32)}
        return seen, 1.0, self._n == 4, False, {"note": "é" * self._n}


SAID = ["", "a", "é漢", "🙂 a"]


@storages
def test_minari_reads_our_texts(storage: str, tmp_path: Path) -> None:
    """Those of observations, actions and infos; numbers of any length are no space of Minari's."""
    env, text = Talk(), {"dtype": str}
    fields: Any = {
        "obs.heard": text,
        "obs.x": {"shape": 2},
        "act": text,
        "rew": {},
        "next_obs.heard": text,
        "next_obs.x": {"shape": 2},
        "info.note": text,
        "terminated": {"dtype": bool},
    }
    texts = ["obs.heard", "act", "next_obs.heard", "info.note"]
    rb = ReplayBuffer(9, fields, room=dict.fromkeys(texts, 99))
    seen, _ = env.reset()
    for action in SAID:
        following, reward, terminated, _, info = env.step(action)
        step = {f"obs.{name}": value for name, value in seen.items()}
        step |= {f"next_obs.{name}": value for name, value in following.items()}
        rb.add(**step, act=action, rew=reward, terminated=terminated, **{"info.note": info["note"]})
        seen = following
    with pytest.raises(ValueError, match=r"observation_space: .* characters of the text 'obs\.h"):
        rb.export(tmp_path / "ours", FORMAT[storage])
    about = spaces_of(env) | {"action_space": gymnasium.spaces.Discrete(3)}
    with pytest.raises(ValueError, match="expected a Text space for the field 'act'"):
        rb.export(tmp_path / "ours", FORMAT[storage], about=about)
    rb.export(tmp_path / "ours", FORMAT[storage], about=spaces_of(env))

    found = minari.MinariDataset(tmp_path / "ours" / "data")

    assert (found.observation_space, found.action_space) == tuple(spaces_of(env).values())
    (episode,) = found.iterate_episodes()
    assert list(episode.observations["heard"]) == ["", *SAID]
    assert list(episode.actions) == SAID
    notes = [note.decode() if isinstance(note, bytes) else note for note in episode.infos["note"]]
    assert notes == ["", "é", "éé", "ééé", "éééé"]


@storages
def test_ours_reads_texts_of_minari(
    storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its collector recorded has the same texts in a buffer."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = minari.DataCollector(Talk(), record_infos=True, data_format=storage)
    for seed in range(2):
        env.reset(seed=seed)
        for action in SAID:
            env.step(action)
    env.create_dataset("theirs/talk-v0", algorithm_name="random")
    env.close()

    with pytest.warns(DataLossWarning, match="infos/note of resets, seed"):
        rb = ReplayBuffer.from_dataset("theirs/talk-v0", format="minari")

    assert len(rb.episodes) == 2
    for rows in rb.episodes:
        assert list(rows["obs.heard"]) == ["", *SAID[:-1]]
        assert list(rows["next_obs.heard"]) == list(rows["act"]) == SAID
        assert list(rows["info.note"]) == ["é", "éé", "ééé", "éééé"]
        assert rows["obs.x"][:, 0].tolist() == [0, 1, 2, 3]


@storages
def test_images_that_minari_wrote_as_jpeg_are_read(
    storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are what Minari gives: JPEG has changed them when they were written."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = minari.DataCollector(environment("rooms"), data_format=storage, jpeg_encoding=True)
    env.reset(seed=0)
    for _ in range(12):
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
    dataset = env.create_dataset("theirs/jpeg-v0", algorithm_name="random")
    env.close()

    with pytest.warns(DataLossWarning, match="seed of"):
        rb = ReplayBuffer.from_dataset(tmp_path / "theirs" / "jpeg-v0")

    for number, episode in enumerate(dataset.iterate_episodes()):
        images = rb.episodes.read(number)["obs.image"]
        np.testing.assert_array_equal(images, episode.observations["image"][:-1])


def recorded_by_minari(storage: str, **options: Any) -> Any:
    """A data set of three episodes, as Minari's collector makes it."""
    env = minari.DataCollector(
        environment("rooms"), data_format=storage, jpeg_encoding=False, record_infos=True
    )
    env.action_space.seed(1)
    for seed in range(3):
        env.reset(seed=seed)
        ended = False
        while not ended:
            *_, terminated, truncated, _ = env.step(env.action_space.sample())
            ended = terminated or truncated
    dataset = env.create_dataset("theirs/rooms-v0", algorithm_name="random", **options)
    env.close()
    return dataset


@storages
@pytest.mark.parametrize("other", ["hdf5", "arrow"])
@pytest.mark.filterwarnings("ignore::cpprb_like.errors.DataLossWarning")
def test_what_minari_recorded_is_the_same_written_again(
    storage: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spaces, the environment, authors and infos were lost without a word.

    The buffer has no room for the first three: ``describe`` hands them from one to the other.
    """
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    theirs = recorded_by_minari(storage, author="she", eval_env="CartPole-v1")
    metadata = theirs.storage.metadata
    rb = ReplayBuffer.from_dataset("theirs/rooms-v0")
    about = describe("theirs/rooms-v0").about
    about["env_spec"] = gymnasium.spec("CartPole-v1").to_json()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rb.export(tmp_path / "ours" / "rooms-v1", FORMAT[other], about=about)
        found = minari.list_local_datasets()

    assert set(found) == {"theirs/rooms-v0", "ours/rooms-v1"}
    ours = minari.load_dataset("ours/rooms-v1")
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.env_spec.id == "CartPole-v1"
    for key in ("author", "algorithm_name", "eval_env_spec"):
        assert ours.storage.metadata[key] == metadata[key]
    pairs = zip(theirs.iterate_episodes(), ours.iterate_episodes(), strict=True)
    for expected, episode in pairs:
        height = episode.infos["height"]
        assert np.isnan(height[0])  # of the reset, which a buffer does not have
        np.testing.assert_array_equal(height[1:], expected.infos["height"][1:])
        for part, values in leaves(expected.actions, "act").items():
            np.testing.assert_array_equal(leaves(episode.actions, "act")[part], values)
    again = ReplayBuffer.from_dataset("ours/rooms-v1")
    ours_rows, rows = again.get_all_transitions(), rb.get_all_transitions()
    assert ours_rows.keys() == rows.keys()
    for name, values in rows.items():
        np.testing.assert_array_equal(ours_rows[name], values)
    assert describe("ours/rooms-v1").about == about


@storages
def test_infos_are_written_where_minari_has_them(storage: str, tmp_path: Path) -> None:
    """Of any shape and nested, with the step that they came with; NaN or 0 for the reset."""
    flag: Any = {"shape": (), "dtype": bool}
    shapes: Any = {
        "info.x": {"shape": (2, 3)},
        "info.n": {"shape": (), "dtype": "i4"},
        "info.deep.flag": flag,
        "info.deep.y": {"shape": 2, "dtype": "f8"},
    }
    fields: Any = {"obs": {"shape": 2}, "act": {"shape": ()}, "rew": {"shape": ()}, **shapes}
    rb = ReplayBuffer(10, {**fields, "terminated": flag}, next_of="obs")
    rng = np.random.default_rng(0)
    for t in range(5):
        infos = {
            "info.x": rng.normal(size=(2, 3)),
            "info.n": t,
            "info.deep.flag": t % 2,
            "info.deep.y": rng.normal(size=2),
        }
        rb.add(obs=[t, t], next_obs=[t + 1, t + 1], act=0, rew=0, terminated=t == 4, **infos)
    with pytest.warns(UserWarning, match="the buffer does not know the observation_space and the"):
        rb.export(tmp_path / "ours", FORMAT[storage])

    (episode,) = minari.MinariDataset(tmp_path / "ours" / "data").iterate_episodes()

    rows = rb.get_all_transitions()
    found = leaves(episode.infos, "info")
    if storage == "arrow":  # Minari 0.5.4 gives what is nested in Arrow as an array of dicts
        deep = found.pop("info.deep")
        found |= {f"info.deep.{key}": np.stack([row[key] for row in deep]) for key in deep[0]}
    assert found.keys() == shapes.keys()
    for name, values in found.items():
        assert values.shape == (6, *rows[name].shape[1:])
        np.testing.assert_array_equal(values[1:], rows[name])
        first = np.full_like(values[:1], np.nan if values.dtype.kind == "f" else 0)
        np.testing.assert_array_equal(values[:1], first)
    again = ReplayBuffer.from_dataset(tmp_path / "ours").get_all_transitions()
    for name in rows:
        np.testing.assert_array_equal(again[name], rows[name])


@storages
def test_spaces_of_an_environment_are_written(storage: str, tmp_path: Path) -> None:
    """Those that are given; the buffer knows dtypes and shapes, and no bounds."""
    plain = gymnasium.make("CartPole-v1")
    env = GymnasiumRecorder(plain)
    rb = env.attach(ReplayBuffer(100, env.env_dict))
    env.reset(seed=0)
    for _ in range(20):
        env.step(env.action_space.sample())
    about = {**spaces_of(env), "env_spec": plain.spec}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rb.export(tmp_path / "a", FORMAT[storage], about=about)
    with pytest.warns(UserWarning, match="does not know the observation_space: a Box"):
        rb.export(tmp_path / "b", FORMAT[storage], about={"action_space": env.action_space})

    found = minari.MinariDataset(tmp_path / "a" / "data")
    assert found.observation_space == env.observation_space
    assert found.action_space == env.action_space
    assert found.recover_environment().unwrapped.spec.id == "CartPole-v1"
    part = minari.MinariDataset(tmp_path / "b" / "data")
    assert part.action_space == env.action_space
    assert part.observation_space.shape == (4,)


def test_the_name_is_the_one_that_minari_expects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a data set in its own folder, its path there: Minari called others misconfigured."""
    root = tmp_path / "local"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    rb = ReplayBuffer(10, {name: {"shape": ()} for name in ("obs", "act", "rew")}, next_of="obs")
    rb.add(obs=1, act=2, rew=3, next_obs=4)
    spaces = {
        "observation_space": gymnasium.spaces.Box(0, 9, ()),
        "action_space": gymnasium.spaces.Box(0, 9, ()),
    }
    rb.export(root / "a" / "b" / "test-v3", "minari", about=spaces)
    rb.export(tmp_path / "test-v2", "minari", about=spaces)
    rb.export(tmp_path / "some thing.d", "minari", about=spaces)
    (tmp_path / "test-v2").rename(root / "test-v2")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert set(minari.list_local_datasets()) == {"a/b/test-v3", "test-v2"}
    assert minari.MinariDataset(tmp_path / "some thing.d" / "data").id == "some-thing-d-v0"
    assert len(ReplayBuffer.from_dataset("a/b/test-v3")) == 1
    with pytest.raises(ValueError, match=r"expected a name as 'cartpole/random-v0' in Minari's"):
        rb.export(root / "test", "minari", about=spaces)
    assert not (root / "test").exists()


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    """Spaces of other shapes or parts, and what export says itself; nothing is left."""
    fields: Any = {"obs": {"shape": 2}, "act": {"shape": 2}, "rew": {"shape": ()}}
    rb = ReplayBuffer(10, fields, next_of="obs")
    rb.add(obs=[1, 2], act=[2, 3], rew=3, next_obs=[4, 5])
    box = gymnasium.spaces.Box(0, 9, (2,))
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        (
            {"action_space": gymnasium.spaces.Discrete(2)},
            ValueError,
            r"expected a space of shape \(2,\) for the field 'act', got \('Discrete', \(\)\)",
        ),
        ({"observation_space": gymnasium.spaces.Dict({"a": box})}, ValueError, "got none"),
        ({"action_space": gymnasium.spaces.Text(3)}, ValueError, r"got \('Text', \(\)\)"),
        (
            {"action_space": gymnasium.spaces.Sequence(box)},
            TypeError,
            "expected a space of numbers or texts, as Minari has no others",
        ),
        ({"action_space": "{"}, ValueError, "about: action_space: expected JSON"),
        ({"env_spec": 3}, TypeError, "env_spec: expected an EnvSpec or its JSON, got 3"),
        ({"total_steps": 3}, ValueError, r"expected none of \['total_steps'\]"),
        ({"dataset_id": "test"}, ValueError, "dataset_id: expected a name as"),
    ]
    for about, kind, message in cases:
        with pytest.raises(kind, match=message):
            rb.export(tmp_path / "x", "minari", about={"observation_space": box, **about})
        assert not list(tmp_path.iterdir())
