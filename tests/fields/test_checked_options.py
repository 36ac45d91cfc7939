"""``CheckedOptions``: what rows depend on, as one object that is compared, saved and passed on."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cpprb_like import ReplayBuffer
from cpprb_like._fields.checked_options import CheckedOptions
from cpprb_like._fields.layout import Layout
from cpprb_like._fields.schema import Stack
from cpprb_like._files.json_codec import from_json, to_json
from cpprb_like.errors import DamagedError
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
    rows = CheckedOptions.read(20, FIELDS, **options)
    back = from_json(CheckedOptions, json.loads(json.dumps(to_json(rows))))
    back.check()
    assert back == rows
    assert Layout.of(back) == Layout.of(rows)


@every_option
def test_a_buffer_and_its_copies_have_the_options_that_were_read(options: dict[str, Any]) -> None:
    """Buffers, pickles and shared replays are made of one object."""
    rows = CheckedOptions.read(20, FIELDS, **options)
    rb = ReplayBuffer(20, FIELDS, **options)
    assert rb._layout.options == rows
    assert pickle.loads(pickle.dumps(rb))._layout.options == rows
    with SharedReplay(20, FIELDS, writers=1, **options) as replay:
        assert replay._options == rows
        assert pickle.loads(pickle.dumps(replay))._options == rows
        assert replay.actor()._layout.options == rows


def test_options_of_other_sizes_keep_the_rest() -> None:
    """Environments that do not fit are refused."""
    rows = CheckedOptions.read(20, FIELDS, n_envs=3)
    assert rows.resized(6.0) == CheckedOptions.read(6, FIELDS, n_envs=3)
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


CHAINED: dict[str, FieldSpec] = {
    "obs": {"shape": 2},
    "wide": {"shape": 90},
    "thing": {"dtype": "O"},
}
WRONG: list[tuple[str, Any, str]] = [
    ("next_of", (("next_obs", "wide"),), "'next_obs' is no next value of 'wide'"),
    ("next_of", (("wide", "obs"),), "'wide' is no next value of 'obs'"),
    ("next_of", (("next_obs", "none"),), "no field 'none' of numbers"),
    ("next_of", (("none", "obs"),), "no field 'none' of numbers"),
    ("stacks", (Stack("none", 0, 1),), "no field 'none' of numbers"),
    ("stacks", (Stack("o", 0, 1),), "no field 'o' of numbers"),
]


@pytest.mark.parametrize(("option", "value", "message"), WRONG)
def test_chained_fields_of_a_file_are_checked(option: str, value: Any, message: str) -> None:
    """A next value that is longer than its source would be read beyond the memory."""
    rows = CheckedOptions.read(20, CHAINED, next_of="obs")
    wrong = replace(rows, schema=replace(rows.schema, **{option: value}))
    with pytest.raises(ValueError, match=message):
        wrong.check()


def test_fields_of_a_file_have_different_names() -> None:
    """Two fields of one name would have one place."""
    rows = CheckedOptions.read(20, CHAINED)
    wrong = replace(rows, schema=replace(rows.schema, fields=rows.schema.fields * 2))
    with pytest.raises(ValueError, match="expected each field once"):
        wrong.check()


def test_json_that_is_nested_deeply_is_refused() -> None:
    """Its text is too deep for ``repr``."""
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(DamagedError, match="got a list, nested too deeply"):
        from_json(int, nested, "size")
