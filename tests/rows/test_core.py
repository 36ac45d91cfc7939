"""Random schemas and histories: the buffer and its obvious twin agree at every step."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
from helpers import refused, row_key, rows_of, snapshot
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from reference import ReferenceBuffer
from strategies import (
    DISGUISES,
    Array,
    EnvDict,
    assert_same,
    disguise,
    env_dicts,
    field_dtype,
    field_shape,
    random_rows,
    stack,
)

from cpprb_like import NotEnoughDataError, ReplayBuffer

Rows = list[dict[str, Array]]

seeds = st.integers(0, 2**32 - 1)


class BufferAgainstTwin(RuleBasedStateMachine):
    """Every call goes to both; every visible fact is compared after each call."""

    rb: ReplayBuffer
    twin: ReferenceBuffer
    schema: EnvDict

    @initialize(
        schema=env_dicts(),
        capacity=st.integers(1, 40),
        n_envs=st.sampled_from([1, 1, 1, 2, 3, 5]),
        named=st.booleans(),
    )
    def create(self, schema: EnvDict, capacity: int, n_envs: int, named: bool) -> None:
        names: dict[str, Any] = {}
        if named and "done" in schema:
            schema["crash"] = schema.pop("done")
            names = {"terminated": "crash"}
        self.schema = schema
        self.rb = ReplayBuffer(max(capacity, n_envs), schema, n_envs=n_envs, seed=1, **names)
        self.twin = ReferenceBuffer(max(capacity, n_envs), list(schema), n_envs)
        if names:
            self.twin.terminated_names = ("crash",)

    # ---- ways to call add ------------------------------------------------------------------

    def present_as(self, rows: Rows, rng: np.random.Generator, *, bare: bool) -> dict[str, Any]:
        """The rows as arguments of ``add``: one value per field, each in a form of its own."""
        arguments = {}
        for name, column in stack(rows, self.schema).items():
            shape = field_shape(self.schema[name])
            if bare and len(rows) == 1 and rng.random() < 0.7:
                column = column.reshape(column.shape[1:])
            if shape == (1,) and rng.random() < 0.5:
                column = column.reshape(column.shape[:-1])
            arguments[name] = disguise(column, rng.choice(DISGUISES))
        return arguments

    def add(self, n: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        rows = random_rows(rng, self.schema, n)
        arguments = self.present_as(rows, rng, bare=self.rb.n_envs == 1)
        expected = self.twin.add(rows)
        assert self.rb.add(**arguments) == expected

    @rule(seed=seeds)
    def add_one_time_step(self, seed: int) -> None:
        self.add(self.rb.n_envs, seed)

    @precondition(lambda self: self.rb.n_envs == 1)
    @rule(n=st.integers(0, 30), seed=seeds)
    def add_several(self, n: int, seed: int) -> None:
        self.add(n, seed)

    @precondition(lambda self: self.rb.n_envs == 1)
    @rule(more=st.integers(0, 50), seed=seeds)
    def add_more_than_the_ring_holds(self, more: int, seed: int) -> None:
        self.add(self.rb.capacity + more, seed)

    @rule(seed=seeds)
    def add_where(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        rows = random_rows(rng, self.schema, self.rb.n_envs)
        present = rng.random(self.rb.n_envs) < 0.6
        arguments = self.present_as(rows, rng, bare=False)
        expected = self.twin.add(rows, present.tolist())
        mask: Any = present if rng.random() < 0.5 else present.tolist()
        assert self.rb.add_where(mask, **arguments) == expected

    @rule(seed=seeds, how=st.sampled_from(["missing", "unknown", "shape", "count", "raises"]))
    def refused_add(self, seed: int, how: str) -> None:
        rng = np.random.default_rng(seed)
        arguments = self.present_as(random_rows(rng, self.schema, self.rb.n_envs), rng, bare=False)
        victim = str(rng.choice(list(self.schema)))
        if how == "count" and self.rb.n_envs == 1 and len(self.schema) == 1:
            how = "missing"  # one field cannot disagree with itself
        if how == "raises" and field_dtype(self.schema[victim]).kind == "O":
            how = "unknown"  # any object is a value of such a field
        if how == "missing":
            del arguments[victim]
        elif how == "unknown":
            arguments["stranger"] = 1.0
        elif how == "shape":
            arguments[victim] = np.zeros(
                (self.rb.n_envs, *field_shape(self.schema[victim]), 2), bool
            )
        elif how == "count":
            other = random_rows(rng, self.schema, self.rb.n_envs + 1)
            arguments = {name: stack(other, self.schema)[name] for name in arguments}
            if self.rb.n_envs == 1:
                arguments[victim] = arguments[victim][:0]
        else:
            arguments[victim] = Explodes()
        with refused(self.rb, (TypeError, ValueError, ZeroDivisionError)):
            self.rb.add(**arguments)

    # ---- everything else -------------------------------------------------------------------

    @rule()
    def clear(self) -> None:
        self.rb.clear()
        self.twin.clear()

    @rule(env=st.none() | st.integers(0, 4))
    def end_episode(self, env: int | None) -> None:
        env = None if env is None else env % self.rb.n_envs
        self.rb.on_episode_end(env)
        self.twin.on_episode_end(env)

    @rule(steps=st.integers(0, 50))
    def rewind(self, steps: int) -> None:
        first = max(self.twin.written - steps * self.rb.n_envs, 0)
        living = len(self.twin.steps())
        self.twin.rewind(first)
        assert self.rb.rewind(self.rb.rows - self.twin.written + first) == living - len(
            self.twin.steps()
        )

    @rule(deep=st.booleans())
    def replace_by_copy(self, deep: bool) -> None:
        before = snapshot(self.rb)
        twin = copy.deepcopy(self.rb) if deep else pickle.loads(pickle.dumps(self.rb))
        assert snapshot(twin) == before
        self.rb = twin

    @rule(n=st.integers(0, 20), replace=st.booleans())
    def sample(self, n: int, replace: bool) -> None:
        steps = self.twin.steps()
        if not steps or (not replace and n > len(steps)):
            with refused(self.rb, NotEnoughDataError):
                self.rb.sample(n, replace=replace)
            return
        batch = self.rb.sample(n, replace=replace)
        assert list(batch) == list(self.schema)
        alive = {row_key(row.values) for row in steps.values()}
        for row in rows_of(batch):
            assert row_key(row) in alive

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.rb) == len(self.twin.steps())
        assert self.rb.get_next_index() == self.twin.next_index
        assert self.rb.get_buffer_size() == self.rb.capacity == self.twin.capacity
        lengths = [self.rb.get_current_episode_len(env) for env in range(self.rb.n_envs)]
        assert lengths == [self.twin.episode_len(env) for env in range(self.rb.n_envs)]

    @invariant()
    def rows_agree(self) -> None:
        steps = self.twin.steps()
        everything = self.rb.get_all_transitions()
        by_slot = self.rb._encode_sample(list(steps))
        expected = stack([row.values for row in steps.values()], self.schema)
        assert list(everything) == list(by_slot) == list(self.schema)
        for name, column in expected.items():
            assert_same(column, everything[name], f"get_all_transitions()[{name!r}]")
            assert_same(column, by_slot[name], f"_encode_sample(...)[{name!r}]")


class Explodes:
    """Raises when NumPy looks at it."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        raise ZeroDivisionError("no array today")


TestBufferAgainstTwin = BufferAgainstTwin.TestCase
TestBufferAgainstTwin.settings = settings(settings.default, print_blob=True)
