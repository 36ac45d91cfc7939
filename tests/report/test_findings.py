"""A report names each planted fault, and nothing of sound data."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest
from optional import need

need("gymnasium", "the data are runs of its environments")
from report_cases import FAULTY, SOUND, filled, rows_of
from report_runs import PLANTED, Run, faulty_runs, filled_of, sound_runs
from scale import LONG

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.report import CHECKS, _facts
from cpprb_like.views import Among, AtMost, Newest, Rule, Sequences


@pytest.mark.once
@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_found_in_sound_data(name: str) -> None:
    """Real environments, with random actions and with a policy."""
    assert SOUND[name]().describe().findings == []


@pytest.mark.once
@pytest.mark.parametrize("name", FAULTY)
def test_a_planted_fault_is_named(name: str) -> None:
    """With its field, in one message, and nothing else is."""
    make, expected = FAULTY[name]
    found = make().describe().findings
    assert {one.name: one.field for one in found} == expected
    assert len(found) == len(expected)
    assert all(one.message and one.look_at for one in found)


def test_a_rule_is_named_where_it_leaves_less_than_a_hundredth() -> None:
    """With the numbers of rows; the rules of a view are judged together."""
    fields: dict[str, Any] = {"x": {"shape": ()}, "task": {"shape": (), "dtype": np.int64}}
    rb = ReplayBuffer(2000, fields)
    rb.add(x=np.arange(1000.0), task=np.arange(1000) % 100)
    messages = {}
    for name, condition in {
        "a hundredth": lambda rows: rows["task"] == 7,
        "less": lambda rows: (rows["task"] == 7) & (rows["x"] > 100),
        "none": lambda rows: rows["task"] > 100,
    }.items():
        found = rb.view(Among(condition, "x", "task")).describe().findings
        messages[name] = [one.message for one in found if one.name == "few-rows-by-rule"]
    assert messages == {
        "a hundredth": [],
        "less": ["of 1,000 rows Among leaves 9"],
        "none": ["of 1,000 rows Among leaves 0"],
    }

    class Late(Rule):
        def follows(self, fields: Any) -> list[str]:
            return ["x"]

        def masses(self, rows: Any, slots: Any) -> Any:
            return rows["x"] >= 850

    both = rb.view(Among(lambda rows: rows["task"] < 5, "task"), Late())
    (message,) = [one.message for one in both.describe().findings if one.name == "few-rows-by-rule"]
    assert message == "of 1,000 rows Among leaves 50, Late leaves 150; together 5"


def test_rules_are_judged_by_the_rows_that_the_other_layers_can_draw() -> None:
    """Sequences that were all drawn as often as allowed."""
    rb = ReplayBuffer(1000, {"x": {"shape": ()}}, seed=0)
    view = rb.view(AtMost(1), Sequences(10, stride=10))
    messages = []
    for rows, drawn in ((0, 0), (1000, 50), (0, 50)):
        rb.add(x=np.arange(rows))
        view.sample(drawn)
        found = view.describe().findings
        messages.append([one.message for one in found if one.name == "few-rows-by-rule"])
    assert messages == [[], [], ["of 100 rows with a start for the layers AtMost leaves 0"]]


def test_a_rule_that_raises_is_a_finding() -> None:
    """With its error, beside the statistics of the rows; none of them can be drawn."""

    def fails() -> float:
        raise OSError("the trainer, and its version, are gone")

    rb = ReplayBuffer(100, {"version": {"shape": ()}}, seed=0)
    rb.add(version=range(50))
    found = rb.view(Newest("version", at_least=fails), AtMost(1)).describe()
    (message,) = [one.message for one in found.findings if one.name == "few-rows-by-rule"]
    assert message == (
        "of 50 rows none can be drawn, as a rule raises OSError: the trainer, and its version, are "
        "gone"
    )
    (described,) = found.to_dict()["buffers"]
    assert described["not_drawn"] == {"no start for the layers of the view": 50}


def test_each_check_has_a_planted_fault() -> None:
    """No check is there that never finds anything."""
    others = {"constant", "out-of-range"} | {one.finding for one in PLANTED}  # tested below
    assert {name for _, expected in FAULTY.values() for name in expected} | others == set(CHECKS)


@pytest.mark.once
@pytest.mark.parametrize("run", [*sound_runs(250 if LONG else 4)], ids=lambda run: run.name)
def test_sound_runs_give_no_alarm(run: Run) -> None:
    """Of many environments and policies; notes may say what is meant."""
    found = run.make().describe().findings
    assert [one for one in found if one.severity != "note"] == []


@pytest.mark.once
def test_planted_faults_are_found() -> None:
    """All of them in CartPole; in the long form most of them in many environments."""
    missed, planted = Counter[str](), Counter[str]()
    for name, fault, rb in faulty_runs(None if LONG else 1):
        found = {(one.name, one.field) for one in rb.describe().findings}
        planted[fault.plant.__name__] += 1
        missed[fault.plant.__name__] += (fault.finding, fault.field) not in found
        assert LONG or not missed.total(), name
    assert len(planted) == len(PLANTED) - (not LONG)  # actions of CartPole have no columns
    assert all(missed[name] <= 0.5 * n for name, n in planted.items())


def test_columns_are_named_one_by_one() -> None:
    """With what happens to them; a constant one is a note."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(4000, 12))
    obs[:, [1, 4, 5]] = [0.0, 2.0, 3.0]
    obs[2500:, 2] = obs[2500, 2]
    act = rng.uniform(-1, 1, (4000, 3))
    act[:, 2] = 0
    rb = filled({"obs": obs, "act": act, "truncated": np.arange(4000) % 100 == 99})
    found = {(one.name, one.field): one for one in rb.describe().findings}
    assert list(found) == [
        ("constant-column", "obs"),
        ("constant-column", "act"),
        ("frozen", "obs"),
    ]
    columns, action, frozen = found.values()
    assert columns.message == "columns 1, 4, 5 of 12 have one value in all 4,000 rows"
    assert action.message == "column 2 of 3 has one value in all 4,000 rows"
    assert frozen.message == (
        "column 2 of 12 has the same value in 1,500 steps on end, and elsewhere in few"
    )
    assert [columns.severity, action.severity, frozen.severity] == ["note", "note", "alarm"]
    lines = str(rb.describe()).splitlines()
    assert [line[0] for line in lines if "column" in line] == ["-", "-", "!"]
    page = rb.describe()._repr_html_()
    assert (page.count('class="card note"'), page.count('class="card finding"')) == (2, 1)


def test_a_constant_part_of_an_observation_is_a_note() -> None:
    """Such as a fixed goal; an observation that is constant altogether is an alarm."""
    rows = {"obs.at": np.random.default_rng(0).normal(size=200), "obs.goal": np.ones(200)}
    (found,) = filled(rows).describe().findings
    assert (found.name, found.field, found.severity) == ("constant-column", "obs.goal", "note")
    rows["obs.at"] = np.zeros(200)
    found, other = filled(rows).describe().findings
    assert found.name == other.name == "constant"
    assert found.severity == other.severity == "alarm"


@pytest.mark.parametrize(
    ("when", "steps"),
    [
        (lambda t, env: (t // 800 == 1) | (t // 800 == 3), 800),
        (lambda t, env: t >= 2000, 2000),
        (lambda t, env: (t >= 2000) & (env >= 2), 2000),
    ],
    ids=["twice", "in all environments", "in two of four"],
)
def test_a_column_that_sticks_several_times_is_found(when: Any, steps: int) -> None:
    """Each stretch is compared with the rows outside of all stretches."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(4000, 4, 5)).astype(np.float32)
    obs[..., 3] = np.where(when(*np.mgrid[:4000, :4]), 0.37, obs[..., 3])
    ends = np.broadcast_to((np.arange(4000) % 100 == 99)[:, None], (4000, 4))
    (found,) = filled_of({"obs": obs, "truncated": ends}, 4).describe().findings
    words = f"column 3 of 5 has the same value in {steps:,} steps on end, and elsewhere in few"
    assert (found.name, found.severity, found.message) == ("frozen", "alarm", words)


def test_what_stays_as_episodes_begin_is_a_note() -> None:
    """A door that the agent learns to open half-way; other notes and alarms are said, too."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(100, 100, 3))
    obs[:50, :, 1] = 0
    obs[50:, :, 1] = np.maximum(0, np.cumsum(rng.uniform(0, 0.1, (50, 100)), axis=1) - 2)
    rows = {"obs": obs.reshape(10_000, 3), "truncated": np.arange(10_000) % 100 == 99}
    (found,) = filled(rows).describe().findings
    assert (found.name, found.severity) == ("frozen", "note")
    assert found.message.startswith("column 1 of 3 has the same value in 5,0")
    obs[:, :, 1] = 0
    obs[[30, 60], 50:90, 1] = rng.normal(size=(2, 40))  # as a byte of a memory, at times
    rows["obs"] = obs.reshape(10_000, 3)
    (found,) = filled(rows).describe().findings
    assert (found.name, found.severity) == ("frozen", "note")
    rows["obs"][5000:, [0, 2]] *= 50
    alarm = [one.name for one in filled(rows).describe().findings if one.severity == "alarm"]
    assert alarm == ["changed-normalization"]


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_an_agent_that_stays_where_it_began_is_no_alarm(kind: Any) -> None:
    """One of eight in a grid: its next observations at ends are first ones, and all others are."""
    rng = np.random.default_rng(0)
    at, steps = np.zeros((8, 2), int), np.zeros(8, int)
    rows: dict[str, list[Any]] = {name: [] for name in ("obs", "next_obs", "rew", "truncated")}
    rows["terminated"] = []
    for _ in range(2500):
        act = rng.integers(0, 4, 8) if rng.random() < 0.5 else rng.integers(0, 2, 8)
        act[3], steps = 2, steps + 1
        after = np.clip(at + np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])[act], 0, 7)
        ends = (after == 7).all(axis=1)
        late = (steps >= 100) & ~ends
        for name, values in zip(rows, (at, after, ends * 1.0, late, ends), strict=True):
            rows[name].append(values.astype(kind) if name in ("obs", "next_obs") else values)
        at, steps = after * ~(ends | late)[:, None], steps * ~(ends | late)
    rb = filled_of({name: np.stack(values) for name, values in rows.items()}, 8)
    assert [one for one in rb.describe().findings if one.severity == "alarm"] == []


def test_goals_and_flags_may_stay() -> None:
    """A part of the observation that is drawn for an episode, and one that is nearly always 0."""
    rng = np.random.default_rng(0)
    lengths = [*rng.integers(10, 30, 90), 900]  # the agent has learnt to survive
    obs = rng.normal(size=(sum(lengths), 4)).astype(np.float32)
    obs[:, 1] = np.repeat(rng.normal(size=91), lengths)
    obs[:, 2] = rng.random(len(obs)) < 0.01
    ends = np.isin(np.arange(len(obs)), np.cumsum(lengths) - 1)
    assert filled({"obs": obs, "terminated": ends}).describe().findings == []


def test_a_column_of_one_environment_is_found_in_a_part_of_the_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows of all environments are among those that are read of a large field."""
    monkeypatch.setattr(_facts, "SAMPLED", 8000)
    obs = np.random.default_rng(0).normal(size=(4000, 4, 3))
    obs[1000:, 3, 1] = 0
    rb = ReplayBuffer(16_000, {"obs": {"shape": 3}}, n_envs=4)
    rb.add(obs=obs)
    (found,) = rb.describe().findings
    assert found.message.startswith("column 1 of 3 has the same value in 3,0")


@pytest.mark.parametrize(
    ("which", "words"),
    [
        (lambda env, truncated: truncated, "truncations"),
        (lambda env, truncated: env == 2, "episode ends of environment 2"),
        (lambda env, truncated: (env % 2 == 1) & truncated, "truncations of environments 1, 3"),
    ],
)
def test_leaks_are_named_by_kind_and_environment(which: Any, words: str) -> None:
    """The smallest group of ends that has them all."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(600, 4, 2)).astype(np.float32)
    step, env = np.mgrid[:600, :4]
    truncated, terminated = step % 20 == 19, step % 20 == 9
    ends = truncated | terminated
    lost = ends & which(env, truncated)
    nexts = np.concatenate([obs[1:], obs[:1]])
    nexts[ends & ~lost] = rng.normal(size=((ends & ~lost).sum(), 2))
    fields: Any = {"obs": {"shape": 2}, "next_obs": {"shape": 2}}
    fields |= {name: {"shape": (), "dtype": bool} for name in ("terminated", "truncated")}
    rb = ReplayBuffer(2400, fields, n_envs=4)
    rb.add(obs=obs, next_obs=nexts, terminated=terminated, truncated=truncated)
    (found,) = rb.describe().findings
    assert found.name == "lost-final-observation"
    assert found.message.endswith(f" {words}")


def test_ends_where_others_begin_are_no_leak() -> None:
    """A time limit at the state where episodes begin, which other steps reach as well."""
    rng = np.random.default_rng(0)
    obs = np.where(rng.random(4000) < 0.6, 0, rng.integers(1, 9, 4000))
    ends = np.arange(4000) % 400 == 399
    obs[1:][ends[:-1]] = obs[:-1][ends[:-1]] = 0
    nexts = np.append(obs[1:], 0)
    rows = {"obs": obs, "next_obs": nexts, "rew": rng.normal(size=4000), "truncated": ends}
    assert filled(rows).describe().findings == []


def test_a_fixed_policy_may_repeat_an_episode() -> None:
    """From a fixed start; and episodes that are added twice are copies all the same."""
    rng = np.random.default_rng(0)
    acts = rng.normal(size=(40, 20))
    acts[[7, 30]] = acts[3]
    obs = np.concatenate([np.zeros((40, 1)), np.cumsum(acts, axis=1)[:, :-1]], axis=1)
    rows = {"obs": obs.reshape(-1), "act": acts.reshape(-1)}
    rows["terminated"] = np.arange(800) % 20 == 19
    assert filled(rows).describe().findings == []
    both = {name: np.concatenate([values, values[100:200]]) for name, values in rows.items()}
    (found,) = filled(both).describe().findings
    assert found.message.startswith("5 of 45 episodes")


@pytest.mark.parametrize("kind", [np.int64, np.float32])
def test_a_policy_repeats_ways_through_a_few_states(kind: Any) -> None:
    """From starts at random to the goal of a grid, whatever the dtype of its coordinates."""
    rng = np.random.default_rng(0)
    rows: dict[str, list[Any]] = {"obs": [], "act": [], "terminated": []}
    for _ in range(400):
        at = rng.integers(0, 10, 2)
        while (at != 9).any():
            act = int(at[0] == 9) if rng.random() < 0.95 else int(at[1] < 9)
            rows["obs"].append(at.astype(kind) / kind(9) if kind == np.float32 else at.copy())
            rows["act"].append(act)
            at[act] += 1
            rows["terminated"].append((at == 9).all())
    rb = filled({name: np.array(values) for name, values in rows.items()})
    assert [one for one in rb.describe().findings if one.severity == "alarm"] == []


def test_an_evaluation_on_the_same_seeds_is_a_note() -> None:
    """An episode that is there three times and more in one environment; twice is an alarm."""
    rng = np.random.default_rng(0)
    rows = {"obs": rng.normal(size=(200, 3)), "truncated": np.arange(200) % 20 == 19}
    for times, severity in (2, "alarm"), (3, "note"):
        again = {name: np.concatenate([values] * times) for name, values in rows.items()}
        (found,) = filled(again).describe().findings
        assert (found.name, found.severity) == ("duplicate-episodes", severity)


def test_parts_are_compared_in_little_memory() -> None:
    """Nearly all rows of an agent that stands are as the first row of a part."""
    rng = np.random.default_rng(0)
    obs = np.where(rng.random(100_000) < 0.02, rng.integers(1, 50, 100_000), 0)
    nexts = np.roll(obs, -1)
    nexts[::1000] = 77
    rows = {"obs": obs, "next_obs": nexts, "act": obs * 0}
    rb = filled({**rows, "terminated": np.arange(100_000) % 5000 == 4999})
    rb.describe()
    tracemalloc.start()
    try:
        assert "unmarked-end" in [one.name for one in rb.describe().findings]
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()


def test_rows_that_are_stored_twice_without_next_values_are_named() -> None:
    """Each row, as by a second call of ``add``; an agent that rests now and then is no fault."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(500, 3))
    (found,) = filled({"obs": np.repeat(obs, 2, axis=0)}).describe().findings
    assert (found.name, found.message) == ("duplicate-rows", "each row is stored 2 times on end")
    act = rng.normal(size=(500, 2))
    rows = {"obs": obs, "act": act, "next_obs": np.append(obs[1:], obs[:1], axis=0)}
    rows = {name: np.repeat(values, 2, axis=0) for name, values in rows.items()}
    (found,) = filled({**rows, "time": np.arange(1000.0)}).describe().findings
    assert (found.name, found.message) == ("duplicate-rows", "each row is stored 2 times on end")
    rests = np.repeat(obs, rng.integers(1, 4, 500), axis=0)
    assert filled({"obs": rests}).describe().findings == []


@pytest.mark.parametrize(
    ("kind", "scale", "episodes"),
    [("uniform", 2, 300), ("uniform", 3, 150), ("normal", 3, 150), ("normal", 1, 300)],
)
def test_how_many_episodes_show_another_normalization(
    kind: str, scale: float, episodes: int
) -> None:
    """As the page says; without a change nothing is found."""
    rng = np.random.default_rng(0)
    size = episodes, 1, 4
    first = rng.normal(size=size) if kind == "normal" else rng.uniform(-1, 1, size)
    obs = first + np.cumsum(rng.normal(size=(episodes, 20, 4)), axis=1) / 10
    obs[episodes // 2 :] *= scale
    ends = np.arange(20 * episodes) % 20 == 19
    found = filled({"obs": obs.reshape(-1, 4), "truncated": ends}).describe().findings
    assert [one.name for one in found] == ["changed-normalization"] * (scale > 1)


def test_images_of_another_scale_are_named() -> None:
    """Pixels that are divided by 255 from some row on."""
    rng = np.random.default_rng(0)
    images = rng.uniform(0, 255, (400, 16, 16, 1)).astype(np.float32)
    assert filled({"obs": images}).describe().findings == []
    images[160:] /= 255
    (found,) = filled({"obs": images}).describe().findings
    assert (found.name, found.field) == ("changed-normalization", "obs")


def test_a_constant_field_is_named() -> None:
    """But for flags, and for rewards whose episodes differ in length."""
    rows = rows_of("CartPole-v1", 300)
    rows["mass"] = np.full(300, 2.0)
    assert [(one.name, one.field) for one in filled(rows).describe().findings] == [
        ("constant", "mass")
    ]


def test_one_instruction_for_all_rows_is_no_padding() -> None:
    """Its length was an alarm: a robot is taught one task. Lists of one length stay an alarm."""
    fields: dict[str, Any] = {"task": {"shape": (), "dtype": str}, "ids": {"shape": ("T",)}}
    rb = ReplayBuffer(200, fields, next_of="task", room={"task": 9999, "T": 9999})
    for number in range(150):
        rb.add(task="fold", next_task="fold", ids=np.full(8, number))
    assert [(one.name, one.field) for one in rb.describe().findings] == [
        ("same-length", "length of T")
    ]


def test_values_beyond_their_range_are_named() -> None:
    """The caller says the range."""
    rb = filled(rows_of("Pendulum-v1", 300))
    assert rb.describe(ranges={"act": (-2, 2)}).findings == []
    (found,) = rb.describe(ranges={"act": (-1, 1)}).findings
    assert (found.name, found.field) == ("out-of-range", "act")
    with pytest.raises(ValueError, match="ranges: expected fields of numbers, got 'action'"):
        rb.describe(ranges={"action": (0, 1)})


@pytest.mark.parametrize("axis", [0, -1], ids=["channels first", "channels last"])
@pytest.mark.parametrize("n", [1, 3, 4])
def test_axes_of_sound_images_are_not_swapped(axis: int, n: int) -> None:
    """Whatever the order; with bands across, which are alike along one axis."""
    rng = np.random.default_rng(0)
    images = np.zeros((200, 60, 48, n), np.uint8)
    images[:, ::7] = 90
    for image, x, y in zip(images, rng.integers(0, 40, 200), rng.integers(0, 30, 200), strict=True):
        image[x : x + 12, y : y + 9] = rng.integers(50, 250, n)
    moved = np.moveaxis(images, 3, 1) if axis == 0 else images
    rows = {"obs": np.ascontiguousarray(moved), "rew": rng.normal(size=200)}
    assert filled(rows).describe().findings == []


def test_a_part_of_an_observation_may_stay_for_an_episode() -> None:
    """As goals do; a part that stays for longer is frozen, where steps are absent too."""
    rng = np.random.default_rng(0)
    ends = np.arange(4000) % 250 == 249
    goals = np.repeat(rng.normal(size=16), 250)
    rows = {"obs.at": rng.normal(size=4000), "obs.goal": goals, "truncated": ends}
    assert filled(rows).describe().findings == []
    rows["obs.goal"] = np.where(np.arange(4000) < 1000, goals, 3.0)
    assert [(one.name, one.field) for one in filled(rows).describe().findings] == [
        ("frozen", "obs.goal")
    ]


def test_rewards_of_one_environment_of_another_scale_are_named() -> None:
    """The scales of environments are compared."""
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=(1000, 4)) * [1, 1, 1000, 1]
    rb = ReplayBuffer(4000, {"rew": {"shape": ()}}, n_envs=4)
    rb.add(rew=rewards)
    (found,) = rb.describe().findings
    assert (found.name, found.field) == ("reward-scale", "rew")


def test_rare_large_rewards_are_named() -> None:
    """Unless they come at ends, as goals do."""
    rows = rows_of("CartPole-v1", 1000)
    rows["rew"][10] = 1000.0
    (found,) = filled(rows).describe().findings
    assert found.message == "1 rewards are 1,000 times as large as the others"
    rows["rew"][10] = 1.0
    rows["rew"][rows["terminated"]] = 500.0
    assert filled(rows).describe().findings == []


def test_rows_are_found_in_a_ring_that_went_round() -> None:
    """Slots are those of the buffer; episodes that were overwritten in part are no fault."""
    rows = rows_of("CartPole-v1", 3000)
    rb: Any = PrioritizedReplayBuffer(
        1000, {name: {"shape": v.shape[1:], "dtype": v.dtype} for name, v in rows.items()}
    )
    rb.add(**rows)
    assert rb.describe().findings == []
    rows["obs"][2345] = np.inf
    rb.add(**rows)
    (found,) = rb.describe().findings
    assert found.message == f"0 NaN and 4 infinite values; the first in slot {5345 % 1000}"
