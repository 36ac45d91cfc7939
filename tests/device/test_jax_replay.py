"""``JaxReplay``: in compiled programs, for many seeds, from and to the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from optional import need

from cpprb_like.samplers import Prioritized
from cpprb_like.schedules import Linear
from cpprb_like.views import NStep

jax = need("jax")
import jax.numpy as jnp

from cpprb_like.device import JaxReplay

N, STEPS = 3, 8
FLAG = {"shape": (), "dtype": bool}
FIELDS: dict[str, Any] = {
    "obs": {"shape": 2},
    "act": {"shape": (), "dtype": "int32"},
    "rew": {"shape": (), "dtype": jnp.bfloat16},
    "done": FLAG,
}


def replay_of(**options: Any) -> JaxReplay:
    """A replay of eight steps of three environments."""
    return JaxReplay(STEPS * N, FIELDS, n_envs=N, next_of="obs", **options)


def step_at(t: Any) -> dict[str, Any]:
    """The step of a time; episodes end every fifth step."""
    obs = jnp.zeros((N, 2)) + t
    done = jnp.broadcast_to(t % 5 == 4, (N,))
    return {
        "obs": obs,
        "next_obs": jnp.where(done[:, None], obs + 0.5, obs + 1),
        "act": jnp.arange(N, dtype="int32") + 10 * t,
        "rew": jnp.ones(N, jnp.bfloat16),
        "done": done,
    }


def test_a_run_is_one_program_and_many_runs_are_one() -> None:
    """``scan`` and ``vmap`` over adds, draws and updates give what single calls give."""
    replay = replay_of(sampler=Prioritized(1.0, beta=0.5))
    view = replay.view(NStep(2, gamma=0.5))

    def step(carry: Any, t: Any) -> tuple[Any, Any]:
        state, key = carry
        key, mine = jax.random.split(key)
        state = replay.add(state, step_at(t))
        batch = view.sample(state, mine, 4)
        state = replay.update_priorities(state, batch["indexes"], batch["weights"])
        return (state, key), batch

    def run(key: Any) -> Any:
        state = replay.add(replay.init(), step_at(0))
        return jax.lax.scan(step, (state, key), jnp.arange(1, 12))

    keys = jax.random.split(jax.random.key(0), 2)
    (states, _), batches = jax.jit(jax.vmap(run))(keys)

    single = jax.jit(step)
    for k, key in enumerate(keys):
        state, mine = replay.add(replay.init(), step_at(0)), key
        for t in range(1, 12):
            (state, mine), batch = single((state, mine), t)
            for name, values in batch.items():
                np.testing.assert_allclose(values, batches[name][k, t - 1], rtol=1e-6)
        np.testing.assert_array_equal(state["flags"], states["flags"][k])
    over = batches["next_obs"] % 1 == 0.5
    assert (over.all(-1) == batches["done"]).all()


def test_a_donated_state_is_written_in_place() -> None:
    """The memory of the rows is that of the state which was given away."""
    replay = replay_of()
    add = jax.jit(replay.add, donate_argnums=0)
    state = add(replay.init(), step_at(0))
    before = state["values"]["obs"].unsafe_buffer_pointer()
    state = add(state, step_at(1))
    assert state["values"]["obs"].unsafe_buffer_pointer() == before


def test_a_draw_without_rows_shows() -> None:
    """A compiled program cannot raise: floats are NaN, and ``can_sample`` says it before."""
    replay = replay_of()
    view = replay.view(NStep(3))
    state = replay.add(replay.init(), step_at(0))
    assert not view.can_sample(state)
    assert replay.can_sample(state)
    batch = view.sample(state, jax.random.key(0), 4)
    assert jnp.isnan(batch["obs"]).all()
    assert (batch["indexes"] == -1).all()
    state = replay.clear(state)
    assert not replay.can_sample(state)


def test_rows_go_to_the_host_and_back() -> None:
    """All rows are the same on both sides."""
    replay = replay_of(sampler=Prioritized(1.0, eps=0.0), finals=2 * N)
    state = replay.init()
    for t in range(11):
        state = replay.add(state, step_at(t))
    host = replay.to_host(state, seed=0)
    host.check()
    other, back = JaxReplay.from_host(host, finals=2 * N)
    again = other.to_host(back, seed=0)

    assert len(host) == STEPS * N
    for name, values in host.get_all_transitions().items():
        np.testing.assert_array_equal(values, again.get_all_transitions()[name])
    assert host.get_all_transitions()["rew"].dtype == jnp.bfloat16
    host.rewind(host.rows - 2 * N)  # steps that are absent in all environments are left out
    other, back = JaxReplay.from_host(host, finals=2 * N)
    assert len(other.to_host(back)) == len(host) == (STEPS - 2) * N


@pytest.mark.parametrize("fields", [None, "act"])
def test_rows_come_back_where_environments_lack_some(fields: Any) -> None:
    """A compiled draw leaves out what is absent; the state goes on in ``scan``."""
    replay = replay_of()
    state = replay.add(replay.init(), step_at(0))
    host = replay.to_host(state, seed=0)
    values = {name: np.asarray(one) for name, one in step_at(1).items()}
    host.add_where([True, False, True], **values)
    other, back = JaxReplay.from_host(host, finals=STEPS * N)
    assert int(other.stats(back)["stored"]) == len(other.to_host(back)) == len(host) == 2 * N - 1
    draw = jax.jit(lambda state, key: other.sample(state, key, 200, fields=fields)["act"])
    assert {*np.unique(draw(back, jax.random.key(0))).tolist()} == {0, 1, 2, 10, 12}
    with pytest.raises(ValueError, match="same arguments"):
        other.add({**back, "others": back["flags"]}, step_at(2))
    steps = jnp.arange(2, STEPS + 1)
    back = jax.lax.scan(lambda state, t: (other.add(state, step_at(t)), None), back, steps)[0]
    assert int(other.stats(back)["stored"]) == STEPS * N
    drawn = {*np.unique(draw(back, jax.random.key(1))).tolist()}
    assert drawn == {1, 10, 12} | {10 * t + env for t in range(2, STEPS + 1) for env in range(N)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs": None}, "missing fields"),
        ({"rew": jnp.ones(N)}, r"rew.*bfloat16.*float32"),
        ({"rew": [1.0] * N}, r"rew.*expected an array"),
        ({"act": jnp.zeros((N, 1), "int32")}, r"act.*\(3,\).*\(3, 1\)"),
    ],
)
def test_a_wrong_step_is_refused(change: dict[str, Any], message: str) -> None:
    """The message names the field, what was expected and what came."""
    replay = replay_of()
    step = {name: v for name, v in (step_at(0) | change).items() if v is not None}
    with pytest.raises((TypeError, ValueError), match=message):
        replay.add(replay.init(), step)


def test_the_state_of_another_replay_is_refused() -> None:
    """The message has the arrays of both."""
    replay, other = replay_of(), replay_of(sampler=Prioritized())
    with pytest.raises(ValueError, match=r"state: expected .* got .*'largest'"):
        replay.add(other.init(), step_at(0))
    with pytest.raises(ValueError, match=r"state: expected .*'largest'.* got"):
        other.sample(replay.init(), jax.random.key(0), 2)


def test_what_jax_cannot_hold_is_refused() -> None:
    """Dtypes of 64 bits, rows beyond int32, and schedules inside of compiled programs."""
    with pytest.raises(TypeError, match="jax_enable_x64"):
        JaxReplay(8, {"x": {"shape": (), "dtype": "float64"}}, n_envs=1)
    with pytest.raises(ValueError, match="size: expected at most"):
        JaxReplay(1 << 31, {"x": {"shape": ()}}, n_envs=1)
    with pytest.raises(TypeError, match="schedule"):
        replay_of(sampler=Prioritized(beta=Linear(0.4, 1.0, 10)))
    with pytest.raises(ValueError, match="jax_enable_x64"):
        replay_of(sampler=Prioritized(weights_dtype="float64"))
    with pytest.raises(MemoryError, match=r"(?s)x: .*flags: "):
        JaxReplay(1 << 29, {"x": {"shape": 1 << 20}}, n_envs=1).init()
