"""``Newest`` over the shards of a learner, against a look at the rows of all actors."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from reference_newest import newest_masses
from scale import repeats

from cpprb_like import NotEnoughDataError
from cpprb_like.processes import SharedReplay
from cpprb_like.samplers import Prioritized, Uniform
from cpprb_like.views import Among, Newest, Sequences

FIELDS: dict[str, Any] = {
    "x": {"shape": (), "dtype": "i8"},
    "version": {"shape": (), "dtype": "i8"},
    "done": {"shape": (), "dtype": bool},
}


@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
@pytest.mark.parametrize("option", ["k", "at_least", "half_life"])
def test_the_versions_of_all_shards_count(sampler: Any, option: str) -> None:
    """Actors add late versions, update and delete; a row of one moves the cut for the other."""
    for seed in range(repeats(6, 2)):
        chance, least = random.Random(f"{option} {seed}"), [0]
        each: dict[str, Any] = {
            "k": {"k": 3},
            "at_least": {"at_least": lambda least=least: least[0]},
            "half_life": {"half_life": 2.0},
        }
        options = each[option]
        with SharedReplay(40, FIELDS, writers=2) as replay:
            actors = [replay.actor(number) for number in range(2)]
            learner = replay.learner(sampler(), seed=0)
            rule = Newest("version", **options)
            view, items = learner.view(rule), learner.view(rule, Sequences(2), Among("done"))
            rows: list[dict[int, tuple[int, int]]] = [{}, {}]  # x and version, by slot
            x = version = 0
            for _ in range(40):
                number = chance.randrange(2)
                actor, own = actors[number], rows[number]
                what = chance.choice(["add"] * 4 + ["update", "delete"])
                if what == "add":
                    for _ in range(chance.randint(1, 15)):
                        version += chance.random() < 0.2
                        late = version - chance.choice([0, 0, 1, 2, 5])
                        own[actor.get_next_index()] = x, late
                        actor.add(x=x, version=late, done=chance.random() < 0.3)
                        x += 1
                elif what == "update" and own:
                    slot = chance.choice(sorted(own))
                    own[slot] = own[slot][0], version
                    actor.update([slot], version=[version])
                elif what == "delete":
                    actor.on_episode_end()
                    ended = [k for k, one in enumerate(actor.episodes.list()) if one.terminated]
                    if ended:
                        slots, _ = actor.episodes._index.slots(ended[-1])
                        actor.episodes.delete(ended[-1])
                        for slot in slots.tolist():
                            own.pop(slot, None)
                least[0] = version - chance.choice([0, 2, 4, 50])
                versions = {x: one for shard in rows for x, one in shard.values()}
                given = {"at_least": least[0]} if option == "at_least" else options
                masses = {x: mass for x, mass in newest_masses(versions, **given).items() if mass}
                if not masses:
                    with pytest.raises(NotEnoughDataError):
                        view.sample(1)
                    continue
                assert set(view.sample(20)["x"].tolist()) <= set(masses)
                drawn = view.sample(len(masses), replace=False)["x"].tolist()
                assert sorted(drawn) == sorted(masses)
                if option == "half_life":
                    every = np.array([*masses.values()])
                    starts: Any = view._now.starts
                    parts = starts._now().get(starts.with_mass())
                    if not learner.has_priorities:
                        found = np.sort(parts) / parts.max()
                        np.testing.assert_allclose(found, np.sort(every) / every.max(), rtol=1e-9)
                with suppress(NotEnoughDataError):  # of few rows none may begin an item
                    assert set(items.sample(20)["x"][:, 0].tolist()) <= set(masses)
