"""Advantages against a slow twin that goes through whole episodes in float64."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium_cases import MODES, drawn_actions, run_vector, vector, with_env_number

from cpprb_like import ReplayBuffer
from cpprb_like.processes import SharedReplay
from cpprb_like.samplers import Prioritized
from cpprb_like.typing import FieldSpec
from cpprb_like.views import Advantages, Hindsight, Sequences, _advantages
from cpprb_like.views._reverse_pass import reverse_pass

Array = npt.NDArray[Any]
Rows = list[dict[str, Any]]
FIELDS: dict[str, FieldSpec] = {
    "id": {"shape": (), "dtype": "i8"},
    "obs": {"shape": (2,), "dtype": "f8"},
    "rew": {"shape": (1,)},
    "value": {"shape": ()},
    "logp": {"shape": ()},
    "terminated": {"shape": (), "dtype": bool},
    "truncated": {"shape": (), "dtype": bool},
}


def critic(obs: Array) -> Array:
    """The value of observations."""
    found: Array = np.sin(obs[..., 0]) + obs[..., 1] ** 2
    return found


def target(rows: Any) -> Array:
    """Log-probabilities under a newer policy."""
    found: Array = np.cos(3.0 * rows["obs"][:, 0]) - 1.0
    return found


def twin(
    episode: Rows, gamma: float, lam: float, *, rho_bar: float = 0.0, c_bar: float = 0.0
) -> list[tuple[float, float]]:
    """Advantage and return of each row; V-trace if there are bounds."""
    found, behind = list[tuple[float, float]](), 0.0
    for k in reversed(range(len(episode))):
        row, is_last = episode[k], k == len(episode) - 1
        following = row["next_value"] if is_last else episode[k + 1]["value"]
        following *= not row["terminated"]
        ratio = np.exp(row["target"] - row["logp"]) if rho_bar else 1.0
        rho, c = (min(ratio, rho_bar), min(ratio, c_bar)) if rho_bar else (1.0, 1.0)
        after = following + (0.0 if is_last else behind)  # v of the next row
        gain = rho * (row["rew"] + gamma * following - row["value"])
        gain += 0.0 if is_last else gamma * lam * c * behind
        advantage = rho * (row["rew"] + gamma * after - row["value"]) if rho_bar else gain
        found.append((advantage, row["value"] + gain))
        behind = gain
    return found[::-1]


class Play:
    """Random episodes of all kinds of ends, in a buffer and in lists."""

    def __init__(self, n_envs: int, seed: int, capacity: int = 60, **options: Any) -> None:
        self.rng, self.n_envs = np.random.default_rng(seed), n_envs
        self.rb = ReplayBuffer(capacity, FIELDS, n_envs=n_envs, seed=0, **options)
        self.episodes: list[list[Rows]] = [[[]] for _ in range(n_envs)]
        self.obs = self.rng.normal(size=(n_envs, 2))
        self.id = 0

    def step(self) -> None:
        """One step of each environment, or of some."""
        rng, n = self.rng, self.n_envs
        present = rng.random(n) < (0.8 if n > 1 else 1.1)
        obs, following = self.obs, rng.normal(size=(n, 2))
        terminated, truncated = rng.random(n) < 0.08, rng.random(n) < 0.08
        step = {
            "id": self.id + np.arange(n), "obs": obs, "rew": rng.normal(size=(n, 1)),
            "value": critic(obs), "next_value": critic(following), "next_obs": following,
            "logp": -rng.random(n), "terminated": terminated, "truncated": truncated,
        }  # fmt: skip
        self.id += n
        names = [name for name in step if name in self.rb.fields]
        self.rb.add_where(present, **{name: step[name] for name in names})
        ended = terminated | truncated
        for k in np.flatnonzero(present):
            row = {name: value[k] for name, value in step.items()} | {"rew": step["rew"][k, 0]}
            row["target"] = target({"obs": obs[k : k + 1]})[0]
            self.episodes[k][-1].append(row)
            if ended[k]:
                self.episodes[k].append([])
        fresh = (ended & present)[:, None]
        self.obs = np.where(
            fresh, rng.normal(size=(n, 2)), np.where(present[:, None], following, obs)
        )
        if rng.random() < 0.02:
            self.rb.on_episode_end()
            for each in self.episodes:
                each.append([])
        if rng.random() < 0.02 and len(self.rb.episodes) > n:
            number = int(np.argmax([one.terminated for one in self.rb.episodes.list()]))
            if self.rb.episodes.list()[number].terminated:
                self.rb.episodes.delete(number)

    def expected(self, *options: float, **bounds: float) -> dict[int, tuple[float, float]]:
        """By ``id``."""
        return {
            int(row["id"]): found
            for each in self.episodes
            for episode in each
            for row, found in zip(episode, twin(episode, *options, **bounds), strict=True)
        }

    def check(self, layer: Advantages, expected: dict[int, tuple[float, float]]) -> None:
        """All rows of an epoch."""
        batches = list(self.rb.view(layer).epoch(17))
        columns = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
        found = np.stack([columns["advantage"], columns["return"]], axis=1)
        wanted = np.array([expected[i] for i in columns["id"].tolist()])
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
        assert len(found) == len(self.rb)


SOURCES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a field, stored once": ({"next_of": ("obs", "value")}, {}),
    "a field, and a function at ends": (
        {"next_of": "obs"},
        {"next_value": lambda rows: critic(rows["next_obs"])[:, None]},
    ),
    "a function": (
        {"next_of": "obs"},
        {"value": lambda rows: critic(rows["obs"]), "batch_size": 7},
    ),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("n_envs", "seed"), [(1, 0), (2, 1), (3, 2), (7, 3)])
def test_random_episodes_of_all_ends(source: str, n_envs: int, seed: int) -> None:
    """Terminated, truncated, open, cut and deleted ones; before and after rows are overwritten."""
    options, values = SOURCES[source]
    play = Play(n_envs, seed, **options)
    for number in range(120 // n_envs):
        play.step()
        if number % 7 == 0 and len(play.rb):
            gamma, lam = play.rng.choice([0.0, 0.9, 1.0]), play.rng.choice([0.0, 0.7, 1.0])
            play.check(Advantages(gamma, lam, **values), play.expected(gamma, lam))
            for rho_bar, c_bar in ((1.0, 1.0), (np.inf, 0.5)):
                bounds: dict[str, Any] = {"rho_bar": rho_bar, "c_bar": c_bar}
                layer = Advantages(gamma, lam, target_logp=target, **values, **bounds)
                play.check(layer, play.expected(gamma, lam, **bounds))


def test_without_values_returns_are_sums_of_rewards() -> None:
    """To the end of the episode; rows of an unfinished one are refused."""
    play = Play(2, 0, next_of="obs")
    for _ in range(20):
        play.step()
    play.rb.on_episode_end()
    for each in play.episodes:
        for row in (row for episode in each for row in episode):
            row["value"] = row["next_value"] = 0.0
    play.check(Advantages(0.9, 1.0, value=None), play.expected(0.9, 1.0))
    two = np.zeros(2)
    play.rb.add(obs=play.obs, next_obs=play.obs, id=[0, 0], rew=np.ones((2, 1)), value=two,
                logp=two, terminated=[False, True], truncated=two)  # fmt: skip
    with pytest.raises(ValueError, match=r"1 episode\(s\) have not ended.*on_episode_end"):
        play.rb.view(Advantages(0.9, 1.0, value=None)).sample(1)


@pytest.mark.parametrize("mode", MODES)
def test_recorded_in_every_autoreset_mode(mode: AutoresetMode) -> None:
    """The last row of a truncated episode bootstraps from its own final observation."""
    env = vector("cart pole", mode)
    recorder, rb = with_env_number(env)
    for _ in run_vector(env, recorder, drawn_actions(env, 60, 3, 0), seed=0):
        pass

    def value(rows: Any) -> Array:
        found: Array = rows["obs"] @ np.arange(1.0, 5.0)
        return found

    (batch,) = rb.view(Advantages(0.9, 0.8, value=value)).epoch(1000, shuffle=False)
    key = {tuple(obs): k for k, obs in enumerate(batch["obs"].tolist())}
    ends = 0
    for episode in rb.episodes:
        rows = [
            {
                "rew": episode["rew"][k],
                "terminated": episode["terminated"][k],
                "value": value({"obs": episode["obs"]})[k],
                "next_value": value({"obs": episode["next_obs"]})[k],
            }
            for k in range(len(episode["rew"]))
        ]
        ends += bool(episode["truncated"][-1])
        for obs, expected in zip(episode["obs"].tolist(), twin(rows, 0.9, 0.8), strict=True):
            k = key[tuple(obs)]
            found = batch["advantage"][k], batch["return"][k]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert ends


def test_once_for_a_rollout() -> None:
    """Epochs look up what the first batch computed; a change of rows computes anew."""
    rb = ReplayBuffer(64, FIELDS, n_envs=2, next_of="obs", sampler=Prioritized(), seed=0)
    calls: list[int] = []

    def value(rows: Any) -> Array:
        calls.append(len(rows["obs"]))
        return critic(rows["obs"])

    def add() -> None:
        obs, two = np.zeros((2, 2)), np.zeros(2)
        rb.add(id=[0, 0], obs=obs, next_obs=obs, rew=obs[:, :1], value=two, logp=two,
               terminated=two, truncated=[False, True])  # fmt: skip

    for _ in range(20):
        add()
    view = rb.view(Advantages(value=value))
    for _ in range(3):
        for batch in view.epoch(8):
            assert batch["advantage"].shape == (8,)
    indexes = view.sample(8)["indexes"]
    view.update_priorities(indexes, np.ones(8))
    view.sample(4)
    assert calls == [40, 21]  # all rows, and the last ones of 20 + 1 episodes
    rewards = np.ones((8, 1))
    for change in (add, rb.on_episode_end, lambda: rb.update(indexes, rew=rewards)):
        before = len(calls)
        change()
        view.sample(4)
        view.sample(4)
        assert len(calls) == before + 2, change
    rb.view(*view.layers).sample(4)
    assert len(calls) == before + 4  # a new view computes anew
    rb.clear()
    add()
    assert (view.sample(4)["return"] == 0).all()


def test_rows_that_change_while_a_critic_is_called() -> None:
    """Rows that other threads add meanwhile are of the next batch: no function is called again."""
    play = Play(3, 0, next_of="obs")
    for _ in range(10):
        play.step()
    steps, calls = [play.step] * 2, list[int]()

    def value(rows: Any) -> Array:
        calls.append(len(rows["obs"]))
        if steps:
            other = threading.Thread(target=steps.pop())
            other.start()
            other.join()
        return critic(rows["obs"])

    view = play.rb.view(Advantages(0.9, 0.8, value=value))
    for _ in range(2):
        expected = play.expected(0.9, 0.8)
        batch = view.sample(200)
        found = np.stack([batch["advantage"], batch["return"]], axis=1)
        wanted = [expected[i] for i in batch["id"].tolist()]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert len(calls) == 4
    for _ in range(20):
        play.step()
    steps += [play.step]
    batch = view.sample(200)  # drawn again: rows were overwritten
    expected = play.expected(0.9, 0.8)
    advantages = [expected[i][0] for i in batch["id"].tolist()]
    np.testing.assert_allclose(batch["advantage"], advantages, rtol=1e-5, atol=1e-5)


def test_two_threads_write_to_different_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where both see old results: an error of one of them would be in the batch of the other."""
    waits, written = [True, True], list[Any]()
    barrier = threading.Barrier(2, timeout=20)

    class ReadByBoth:
        """In place of the results: a read waits for that of the other thread."""

        def __get__(self, one: Any, owner: object) -> Any:
            computed = vars(one).get("_computed")
            if threading.current_thread() is not threading.main_thread() and waits:
                waits.pop()
                barrier.wait()
            return computed

        def __set__(self, one: Any, computed: object) -> None:
            vars(one)["_computed"] = computed

    def compute(self: Any, windows: Any, results: Any) -> Array:
        written.append(results)
        if len(written) > 1:
            barrier.wait()  # both are here
        return before(self, windows, results)

    before = _advantages._OfRows._compute
    monkeypatch.setattr(_advantages._OfRows, "_compute", compute)
    monkeypatch.setattr(_advantages._OfRows, "_computed", ReadByBoth(), raising=False)
    rb = ReplayBuffer(8, {"rew": {"shape": ()}, "terminated": {"shape": (), "dtype": bool}})
    rb.add(rew=[1, 2], terminated=[False, True])
    view = rb.view(Advantages(0.9, 1.0, value=None))
    view.sample(1)
    rb.add(rew=[3], terminated=[True])
    threads = [threading.Thread(target=view.sample, args=(4,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not waits
    assert [results is None for results in written].count(False) == 1


SHARED = {name: FIELDS[name] for name in ("id", "obs", "rew", "value", "terminated")}


def add_shared(actor: Any, ids: range, *, ends: bool = True) -> None:
    """An episode with rewards of 1 and values of 4."""
    for i in ids:
        actor.add(id=i, obs=[i, 0], rew=[1.0], value=4, next_value=4,
                  terminated=ends and i == ids[-1])  # fmt: skip


def returns_of(batch: dict[str, Array]) -> dict[int, float]:
    """By ``id``."""
    return dict(zip(batch["id"].tolist(), batch["return"].tolist(), strict=True))


def test_rows_of_sequences_and_of_several_processes() -> None:
    """Padding is 0; each shard has its own episodes."""
    with SharedReplay(50, SHARED, writers=2, next_of="value") as replay:
        for number in range(2):
            add_shared(replay.actor(number), range(10 * number, 10 * number + 4))
        view = replay.learner(seed=0).view(Advantages(0.5, 1.0), Sequences(3))
        batch = view.sample(20)
    returns = np.array([1.875, 1.75, 1.5, 1.0])
    for ids, found, mask in zip(batch["id"], batch["return"], batch["mask"], strict=True):
        np.testing.assert_allclose(found, np.where(mask, returns[ids % 10], 0))
    assert set((batch["id"] // 10).ravel()) == {0, 1}


def test_learners_see_what_actors_add() -> None:
    """After each draw: rows of a shard that is not full, of a new one, and after a rewind.

    The first result was kept until rows were overwritten: new rows had returns of 0.
    """
    with SharedReplay(100, SHARED, writers=3, next_of="value") as replay:
        one = replay.actor(0)
        add_shared(one, range(2), ends=False)
        view = replay.learner(seed=0).view(Advantages(0.5, 1.0))
        expected = {0: 2.5, 1: 3.0}  # 1 + 0.5 * (1 + 0.5 * 4)
        assert returns_of(view.sample(200)) == expected
        add_shared(one, range(2, 4))
        expected = {0: 1.875, 1: 1.75, 2: 1.5, 3: 1.0}
        assert returns_of(view.sample(200)) == expected
        for number in (2, 1):
            other = replay.actor(number)
            for start in (10 * number, 10 * number + 4):
                add_shared(other, range(start, start + 2))
                expected |= {start: 1.5, start + 1: 1.0}
                assert returns_of(view.sample(400)) == expected


def test_learners_draw_while_rows_are_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is drawn if its own rows stay, though others go during each computation.

    All rows had to stay, so a draw beside fast actors did not end.
    """
    tries = 0

    def slow_pass(*arguments: Any, **options: Any) -> bool:
        nonlocal tries
        are_finite = reverse_pass(*arguments, **options)
        tries += 1
        add_shared(actor, range(1000 + tries, 1001 + tries))
        return are_finite

    monkeypatch.setattr(_advantages, "reverse_pass", slow_pass)
    fields = SHARED | {"next_value": FIELDS["value"]}
    for names, next_of in ((SHARED, "value"), (fields, ())):
        with SharedReplay(20, names, writers=1, next_of=next_of) as replay:
            actor = replay.actor(0)
            add_shared(actor, range(18), ends=False)
            add_shared(actor, range(18, 24))
            view, tries = replay.learner(seed=0).view(Advantages(0.5, 1.0)), 0
            for _ in range(3):
                for i, found in returns_of(view.sample(4)).items():
                    assert found == pytest.approx(2 - 0.5 ** (23 - i) if i < 24 else 1.0)
            assert tries < 30


def test_rewound_rows_are_none() -> None:
    """Advantages after a rewind are those of the remaining rows, which end as truncated."""
    rb = ReplayBuffer(100, SHARED, next_of="value", seed=0)
    view = rb.view(Advantages(0.5, 1.0))
    add_shared(rb, range(2))
    add_shared(rb, range(2, 8))
    assert returns_of(view.sample(200))[2] == 2 - 0.5**5
    rb.rewind(4)
    expected = {0: 1.5, 1: 1.0, 2: 2.5, 3: 3.0}  # 1 + 0.5 * (1 + 0.5 * 4)
    assert returns_of(view.sample(200)) == expected
    add_shared(rb, range(10, 12))
    assert returns_of(view.sample(200)) == expected | {10: 1.5, 11: 1.0}
    with SharedReplay(100, SHARED, writers=1, next_of="value") as replay:
        with replay.actor(0) as actor:
            add_shared(actor, range(2))
            add_shared(actor, range(2, 8))
            learner = replay.learner(seed=0)
            shared = learner.view(Advantages(0.5, 1.0))
            assert returns_of(shared.sample(200))[2] == 2 - 0.5**5
        replay.rewind([4])
        assert returns_of(shared.sample(200)) == expected


@pytest.mark.parametrize("name", ["rew", "value", "next_value"])
@pytest.mark.parametrize("kind", ["f4", "f2"])  # read in place, or copied
def test_a_field_that_is_not_finite_is_named(name: str, kind: str) -> None:
    """With its slot, also where gamma is 0. Earlier rows of the episode were NaN in silence."""
    fields: dict[str, FieldSpec] = {one: {"shape": (), "dtype": kind} for one in ("rew", "value")}
    fields["terminated"] = {"shape": (), "dtype": bool}
    rb = ReplayBuffer(20, fields, next_of="value", seed=0)
    for t in range(6):
        step = dict.fromkeys(("rew", "value", "next_value"), 1.0)
        rb.add(**step | ({name: np.inf} if t == 3 else {}), terminated=t in (2, 5))
        if t == 3:
            rb.on_episode_end()
    for gamma, lam in ((0.0, 1.0), (0.9, 0.0), (0.9, 0.9)):
        view = rb.view(Advantages(gamma, lam))
        with pytest.raises(ValueError, match=f"{name}: .* in field '{name}', got inf in slot 3"):
            view.sample(1)


def test_sums_beyond_float32_are_refused() -> None:
    """A reward of 1e300 became an infinite advantage."""
    fields: dict[str, FieldSpec] = {"rew": {"shape": (), "dtype": "f8"}, "done": {"shape": ()}}
    rb = ReplayBuffer(20, fields, seed=0)
    rb.add(rew=[1.0, 1e300], done=[0, 1])
    with pytest.raises(ValueError, match=r"float32 can hold, got a greater one in slot 0"):
        rb.view(Advantages(lam=1.0, value=None)).sample(1)


def test_what_would_be_wrong_in_silence_is_refused() -> None:
    """Each with the declaration that is wanted."""
    rb = ReplayBuffer(10, FIELDS, seed=0)
    with pytest.raises(ValueError, match=r"'value' has no next values.*next_of='value'"):
        rb.view(Advantages())
    rb.add(id=0, obs=[0, 0], rew=[0], value=0, logp=0, terminated=False, truncated=True)
    with pytest.raises(KeyError, match=r"'obs' has no next values.*next_of='obs'"):
        rb.view(Advantages(value=lambda rows: critic(rows["obs"]))).sample(1)
    learner = SharedReplay(10, FIELDS, writers=1, next_of="obs").learner()
    with pytest.raises(ValueError, match=r"value: expected a field, got a function.*ReplayBuffer"):
        learner.view(Advantages(value=lambda rows: critic(rows["obs"])))
    ends: dict[str, FieldSpec] = {
        "value": {"shape": ()},
        "rew": {"shape": ()},
        "dones": {"shape": ()},
    }
    with pytest.warns(UserWarning, match="'dones'"):
        unended = ReplayBuffer(10, ends, next_of="value")
    with pytest.raises(ValueError, match="'dones' ends no episode"):
        unended.view(Advantages())
    with pytest.raises(ValueError, match="'return' is a further column"):
        ReplayBuffer(10, FIELDS | {"return": {"shape": ()}}, next_of="value").view(Advantages())
    goals = Hindsight(lambda *_: 0, goal="logp", achieved="value")
    with pytest.raises(ValueError, match=r"\['rew'\] are changed by Hindsight"):
        ReplayBuffer(10, FIELDS, next_of="obs").view(goals, Advantages(value=lambda rows: 0))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"gamma": 1.5}, ValueError, "gamma: expected 0 to 1"),
        ({"lam": None}, TypeError, "lam: expected a number"),
        ({"value": 3}, TypeError, "value: expected a field or a function"),
        ({"value": None}, ValueError, "without values expected lam=1"),
        ({"value": "critic"}, ValueError, "value: expected one of the fields .*got 'critic'"),
        ({"value": "obs"}, ValueError, "value: expected a field of one number"),
        ({"rew": "reward"}, ValueError, "rew: expected one of the fields"),
        ({"target_logp": "logp"}, TypeError, "target_logp: expected a function"),
        ({"c_bar": 0}, ValueError, "c_bar: expected 0 < c_bar"),
        ({"rho_bar": 0.5}, ValueError, "c_bar <= rho_bar, 0.5, got 1.0"),
        ({"batch_size": 0}, ValueError, "batch_size: expected at least 1"),
    ],
)
def test_options_are_checked(options: Any, error: type[Exception], words: str) -> None:
    """When the layer or the view is made."""
    rb = ReplayBuffer(10, FIELDS, next_of=("value", "obs"), seed=0)
    with pytest.raises(error, match=words):
        rb.view(Advantages(**options))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda rows: 0.0, r"one number for each row, shape \(3,\), got float64 of shape \(\)"),
        (lambda rows: rows["obs"], r"got float64 of shape \(3, 2\)"),
        (lambda rows: rows["obs"][:, 0] * np.nan, "expected finite numbers, got nan"),
        (lambda rows: rows["obs"][:, 0].astype(str), "one number for each row"),
    ],
)
def test_what_functions_return_is_checked(function: Any, words: str) -> None:
    """Nothing is kept of a computation that failed."""
    rb = ReplayBuffer(10, FIELDS, next_of="obs", seed=0)
    obs = np.zeros((3, 2))
    rb.add(id=[0, 1, 2], obs=obs, next_obs=obs, rew=np.zeros((3, 1)), value=obs[:, 0],
           logp=obs[:, 0], terminated=[0, 0, 1], truncated=[0, 0, 0])  # fmt: skip
    view = rb.view(Advantages(value=function))
    for _ in range(2):
        with pytest.raises(ValueError, match=f"value: .*{words}"):
            view.sample(2)
    wrong = Advantages(value=lambda rows: rows["obs"][:, 0], target_logp=lambda rows: [np.nan] * 3)
    with pytest.raises(ValueError, match="target_logp, logp: expected log-probabilities"):
        rb.view(wrong).sample(1)
    with pytest.raises(KeyError, match="'goal' is none of the fields"):
        rb.view(Advantages(value=lambda rows: rows["goal"])).sample(1)


def test_functions_ask_which_fields_there_are() -> None:
    """Rows of next values are a mapping: ``in`` and ``get`` know a field without next values."""
    rb = ReplayBuffer(10, FIELDS, next_of="obs", seed=0)
    rb.add(id=0, obs=[0, 0], next_obs=[1, 1], rew=[0], value=0, logp=0, terminated=0, truncated=1)
    asked: list[tuple[bool, bool, Any]] = []

    def value(rows: Any) -> Array:
        asked.append(("obs" in rows, "value" in rows, rows.get("value")))
        return critic(rows["obs"])

    rb.view(Advantages(value=value)).sample(1)
    assert [found[:2] for found in asked] == [(True, True), (True, False)]
    assert asked[1][2] is None


def test_a_layer_is_pickled() -> None:
    """With its options, which are checked again."""
    layer = Advantages(0.9, lam=1.0, next_value="next_value")
    assert vars(pickle.loads(pickle.dumps(layer))) == vars(layer)
