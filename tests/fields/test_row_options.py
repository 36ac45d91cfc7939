"""``RowOptions``: what rows depend on, as one object that is compared, saved and passed on."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest

from cpprb_like import ReplayBuffer
from cpprb_like._fields.json_codec import from_json, to_json
from cpprb_like._fields.row_options import RowOptions
from cpprb_like.processes import SharedReplay
from cpprb_like.typing import FieldSpec

FIELDS: dict[str, FieldSpec] = {
    "obs": {"shape": (2, 2, 3), "dtype": np.uint8},
    "rew": {"shape": 1},
    "when": {"shape": (), "dtype": "datetime64[us]"},
    "done": {"shape": (), "dtype": bool},
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"n_envs": 3, "default_dtype": np.float64},
    {"next_of": "obs", "stack_compress": {"obs": 0}},
    {"terminated": False, "truncated": "done"},
    {"Nstep": {"size": 3, "gamma": 1, "rew": "rew", "next": "obs", "discount": True}, "n_envs": 2},
]
every_option = pytest.mark.parametrize("options", OPTIONS)


@every_option
def test_json_gives_the_same_options(options: dict[str, Any]) -> None:
    """They come back from a file equal, and lay out the same memory."""
    rows = RowOptions.read(20, FIELDS, **options)
    back = from_json(RowOptions, json.loads(json.dumps(to_json(rows))))
    back.check()
    assert back == rows
    assert back.layout() == rows.layout()


@every_option
def test_a_buffer_and_its_copies_have_the_options_that_were_read(options: dict[str, Any]) -> None:
    """Buffers, pickles and shared replays are made of one object."""
    rows = RowOptions.read(20, FIELDS, **options)
    rb = ReplayBuffer(20, FIELDS, **options)
    assert rb._layout.options == rows
    assert pickle.loads(pickle.dumps(rb))._layout.options == rows
    with SharedReplay(20, FIELDS, writers=1, **options) as replay:
        assert replay._options == rows
        assert pickle.loads(pickle.dumps(replay))._options == rows
        assert replay.actor()._layout.options == rows


def test_options_of_other_sizes_keep_the_rest() -> None:
    """Environments that do not fit are refused."""
    rows = RowOptions.read(20, FIELDS, n_envs=3)
    assert rows.resized(6.0) == RowOptions.read(6, FIELDS, n_envs=3)
    with pytest.raises(ValueError, match="n_envs: expected 1 to size=2, got 3"):
        rows.resized(2)


@pytest.mark.filterwarnings("error")
def test_a_shared_replay_warns_of_its_options_once() -> None:
    """The call that has the options warns; actors and learners do not repeat it."""
    fields: dict[str, FieldSpec] = {"rew": {"shape": ()}, "dones": {"shape": (), "dtype": bool}}
    with pytest.warns(UserWarning, match="field 'dones' ends no episode") as caught:
        replay = SharedReplay(20, fields, writers=1)
    assert len(caught) == 1
    with replay:
        assert replay.actor().add(rew=1, dones=True) == 0
        assert len(replay.learner(seed=0)) == 1
