"""Offsets of fields: what slicing an episode by hand gives, and what is refused."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cpprb_like import NotEnoughDataError, ReplayBuffer
from cpprb_like._machine import machine_memory
from cpprb_like.typing import FieldSpec
from cpprb_like.views import Hindsight, NStep, Offsets, Sequences

Array = npt.NDArray[Any]
FIELDS: dict[str, FieldSpec] = {
    "id": {"shape": (), "dtype": "i8"},
    "obs": {"shape": (2,)},
    "image": {"shape": (12, 12), "dtype": "u1"},
    "act": {"shape": (3,), "dtype": "f8"},
    "info": {"shape": (), "dtype": object},
    "done": {"shape": (), "dtype": bool},
}
PARTS = {"obs": (-1, 0), "act": range(6), "image": (-9, 0), "info": (2, -2)}


def values(i: int) -> dict[str, Any]:
    """The fields of row i."""
    image = np.full((12, 12), i % 251)
    return {"id": i, "obs": [i, -i], "image": image, "act": [i, 0.5, i * i], "info": f"row {i}"}


def filled(lengths: tuple[int, ...] = (25, 3, 1, 30), **options: Any) -> ReplayBuffer:
    """Episodes of these lengths, each ended."""
    rb = ReplayBuffer(1000, FIELDS, seed=0, **options)
    ids = iter(range(1000))
    for length in lengths:
        for t in range(length):
            rb.add(**values(next(ids)), done=t == length - 1)
    return rb


@pytest.mark.parametrize("padding", ["edge", "zeros"])
def test_each_field_is_sliced_by_hand(padding: Any) -> None:
    """All rows, at the ends of short and long episodes, objects and images too."""
    rb = filled()
    (batch,) = rb.view(Offsets(PARTS, padding=padding)).epoch(100, shuffle=False)
    assert batch["image"].shape == (59, 2, 12, 12)
    firsts, lengths = [0] * 25 + [25] * 3 + [28] + [29] * 30, [25] * 25 + [3] * 3 + [1] + [30] * 30
    for k, i in enumerate(batch["id"].tolist()):
        first, last = firsts[i], firsts[i] + lengths[i] - 1
        for name, offsets in PARTS.items():
            for place, offset in enumerate(offsets):
                is_pad = not first <= i + offset <= last
                assert batch[f"{name}_is_pad"][k, place] == is_pad
                expected = values(min(max(i + offset, first), last))[name]
                if is_pad and padding == "zeros":
                    expected = None if name == "info" else 0
                np.testing.assert_array_equal(batch[name][k, place], expected)


def test_open_ends_wait_as_for_other_layers() -> None:
    """Rows at the write head are drawn when their window is there; the oldest ones no more."""
    rb = ReplayBuffer(20, FIELDS, seed=0)
    view = rb.view(Offsets({"obs": (-2, 0), "act": range(4)}))

    def drawn() -> list[int]:
        return sorted(i for batch in view.epoch(50) for i in batch["id"].tolist())

    for i in range(3):
        rb.add(**values(i), done=False)
    with pytest.raises(NotEnoughDataError):
        view.sample(1)
    for i in range(3, 30):
        rb.add(**values(i), done=False)
    assert drawn() == list(range(12, 27))  # rows 10 and 11 have lost rows before them
    rb.on_episode_end()
    assert drawn() == list(range(12, 30))


@pytest.mark.parametrize("padding", ["edge", "zeros"])
@pytest.mark.parametrize("stored_once", [False, True])
def test_next_values_go_on_with_their_field(padding: Any, stored_once: bool) -> None:
    """A history of ``next_obs`` is that of ``obs`` one row later, at the first row too.

    The first next value was repeated there, although the observation before it is known.
    """
    fields: dict[str, FieldSpec] = {"obs": {"shape": ()}, "done": {"shape": (), "dtype": bool}}
    if not stored_once:
        fields["next_obs"] = {"shape": ()}
    rb = ReplayBuffer(100, fields, next_of="obs" if stored_once else None, seed=0)
    for t in range(6):
        rb.add(obs=10 + t, next_obs=11 + t, done=t == 5)
    offsets = {"obs": (-2, -1, 0), "next_obs": (-2, -1, 0, 1)}
    (batch,) = rb.view(Offsets(offsets, padding=padding)).epoch(9, shuffle=False)
    edge = padding == "edge"
    np.testing.assert_array_equal(batch["next_obs"][:-1, :3][1:], batch["obs"][2:])
    assert batch["next_obs"][0].tolist() == [10.0 if edge else 0.0, 10.0, 11.0, 12.0]
    assert batch["next_obs_is_pad"][0].tolist() == [True, False, False, False]
    assert batch["next_obs"][5].tolist() == [14.0, 15.0, 16.0, 16.0 if edge else 0.0]
    assert batch["next_obs_is_pad"][5].tolist() == [False, False, False, True]
    two = rb.view(Offsets(offsets, padding=padding), NStep(2, rew=[]))
    (batch,) = two.epoch(9, shuffle=False)
    assert batch["next_obs"][0].tolist() == [10.0, 11.0, 12.0, 13.0]
    assert batch["obs"][0].tolist() == [10.0 if edge else 0.0] * 2 + [10.0]


def test_options_of_draws() -> None:
    """``fields``, ``out``, copies and frame stacks that are stored once."""
    rb = filled()
    view = rb.view(Offsets(PARTS))
    assert set(view.sample(4, fields=["id", "act"])) == {
        "id", "act", *(f"{name}_is_pad" for name in PARTS)
    }  # fmt: skip
    out = {
        name: np.empty((8, *spec.shape), spec.dtype)
        for name, spec in view.columns.items()
        if name in view.fields
    }
    same = pickle.loads(pickle.dumps(view)).sample(8)
    batch = view.sample(8, out=out)
    assert batch["act"] is out["act"]
    for name, expected in same.items():
        np.testing.assert_array_equal(batch[name], expected)
    stacks: dict[str, FieldSpec] = {"obs": {"shape": (2, 3)}, "done": {"shape": ()}}
    rb = ReplayBuffer(50, stacks, stack_compress={"obs": 0}, seed=0)
    rows = np.arange(30.0).reshape(10, 3)
    for t in range(9):
        rb.add(obs=rows[[max(t - 1, 0), t]], done=t == 8)
    (batch,) = rb.view(Offsets({"obs": (-1, 1)})).epoch(9, shuffle=False)
    np.testing.assert_array_equal(batch["obs"][4], [rows[[2, 3]], rows[[4, 5]]])


@pytest.mark.parametrize(
    ("offsets", "options", "error", "words"),
    [
        ((0, 1), {}, TypeError, "a dict of offsets by field"),
        ({}, {}, ValueError, "at least one field"),
        ({"obs": 16}, {}, TypeError, r"offsets\['obs'\]: expected offsets such as .*got 16"),
        ({"obs": "01"}, {}, TypeError, "got '01'"),
        ({"obs": ()}, {}, ValueError, r"offsets\['obs'\]: expected at least one"),
        ({"obs": (0, 0.5)}, {}, TypeError, r"offsets\['obs'\]: expected an integer, got 0.5"),
        ({"obs": (0,)}, {"padding": "first"}, ValueError, "'edge' or 'zeros', got 'first'"),
        ({"goal": (0,)}, {}, ValueError, r"some of \['id', .*got 'goal'"),
        ({"obs": (0, 1000)}, {}, ValueError, "Offsets: 1001 rows .*do not fit|1001 rows"),
        ({"obs": (2**70,)}, {}, ValueError, r"offsets\['obs'\]: expected at most"),
        ({"obs": (-(2**63),)}, {}, ValueError, r"offsets\['obs'\]: expected at least"),
        ({"obs": (2**62, -(2**62))}, {}, ValueError, "do not fit"),
    ],
)
def test_refusals(offsets: Any, options: Any, error: type[Exception], words: str) -> None:
    """Each with a sentence that says what was expected."""
    rb = filled()
    with pytest.raises(error, match=words):
        rb.view(Offsets(offsets, **options))


def test_the_mask_of_a_field_of_the_first_row_is_of_that_row() -> None:
    """``first_only`` of ``Sequences`` takes both; the mask was of all rows."""
    rb = filled()
    view = rb.view(Offsets({"obs": (-1, 0), "act": (0, 1, 2)}), Sequences(4, first_only="obs"))
    batch = view.sample(32)
    assert batch["obs"].shape == (32, 2, 2)
    assert batch["obs_is_pad"].shape == (32, 2)
    assert view.columns["obs_is_pad"].shape == (2,)
    assert batch["act_is_pad"].shape == (32, 4, 3)
    firsts = {0, 25, 28, 29}
    assert batch["obs_is_pad"][:, 0].tolist() == [i in firsts for i in batch["id"][:, 0].tolist()]


@pytest.mark.parametrize("fields", [None, ["obs"]])
def test_memory_of_windows_is_required(fields: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide offsets take 8 bytes for each row of each window, which were not counted."""
    rb = ReplayBuffer(10_000, {"obs": {"shape": ()}, "done": {"shape": ()}}, seed=0)
    rb.add(obs=range(10_000), done=np.arange(10_000) == 9_999)
    monkeypatch.setattr(machine_memory, "available_nbytes", lambda: 100 << 20)
    view = rb.view(Offsets({"obs": (-5_000, 0)}))
    assert view.sample(100, fields=fields)["obs"].shape == (100, 2)
    with pytest.raises(MemoryError, match=r"a batch of 4000 items of 400.. bytes"):
        view.sample(4_000, fields=fields)


def test_what_would_be_wrong_beside_other_layers_is_refused() -> None:
    """Values of any length, names that are taken, and returns that hindsight cuts."""
    fields: dict[str, FieldSpec] = {
        "tokens": {"shape": ("T",), "dtype": "i4"}, "goal": {"shape": ()},
        "achieved": {"shape": ()}, "obs": {"shape": ()}, "next_obs": {"shape": ()},
        "next_achieved": {"shape": ()}, "rew": {"shape": ()}, "obs_is_pad": {"shape": ()},
        "terminated": {"shape": (), "dtype": bool},
    }  # fmt: skip
    rb = ReplayBuffer(100, fields, room={"T": 1000}, seed=0)
    with pytest.raises(ValueError, match="'tokens' has values of any length"):
        rb.view(Offsets({"tokens": (0, 1)}))
    with pytest.raises(ValueError, match="'obs_is_pad' is a further column"):
        rb.view(Offsets({"obs": (0, 1)}))
    goals = Hindsight(
        lambda *_: 0, goal="goal", achieved="achieved", terminated_func=lambda a, g, _: a == g
    )
    with pytest.raises(ValueError, match="'next_obs_is_pad' not follow"):
        rb.view(Offsets({"next_obs": (0, 1)}), goals, NStep(2))
    with pytest.raises(ValueError, match="n-step returns make the column 'rew'"):
        rb.view(Offsets({"rew": (0, 1)}), NStep(2))
