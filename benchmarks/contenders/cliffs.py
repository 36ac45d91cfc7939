"""Work in a state or a spelling that once made it far slower, beside the usual one.

One process measures each pair. A pair needs nothing but what every release of this package has, so
that one run can measure another checkout too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from budgets import FLOOR, OURS
from contender import Cannot, Contender, Shelf, named
from data import DEPTH, FRAME, GAME, filling, game, one_step, random_steps, taking_turns
from measure import Work, compiled, statement

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.buffers import Mixture, View
from cpprb_like.samplers import Recency
from cpprb_like.typing import FieldSpec, NstepSpec
from cpprb_like.views import Hindsight, Sequences

Pair = tuple[Any, Any]
PairWork = Callable[..., "Work | float"]

EPISODE = 10  # steps
ENVS = 8
ALL, ALL_BUT_ONE = np.ones(ENVS, bool), np.arange(ENVS) < ENVS - 1
NSTEP: NstepSpec = {"size": 5, "rew": "rew", "next": "next_obs"}
SMALL: dict[str, FieldSpec] = {
    "obs": {"shape": 4},
    "act": {"shape": (), "dtype": np.int64},
    "rew": {"shape": ()},
    "next_obs": {"shape": 4},
    "done": {"shape": (), "dtype": np.bool_},
}

shelf = Shelf()
usual = Contender(FLOOR, "The usual work.", shelf)
steep = Contender(OURS, "The work in the state, or with the values, that the case names.", shelf)


def cliffs_on(make: Callable[..., Pair], **works: PairWork) -> None:
    """Works on the usual object and on that of the case, which ``make`` returns.

    A work that names ``place`` gets 0 for the usual work and 1 for the case.
    """
    for place, contender in enumerate((usual, steep)):
        contender.works_on(make, **{name: at(place, work) for name, work in works.items()})


def at(place: int, work: PairWork) -> PairWork:
    """The work on the object at this place."""

    @wraps(work)
    def on_one(pair: Pair, **parameters: Any) -> Work | float:
        return work(pair[place], **named(work, parameters | {"place": place}))

    return on_one


def twice(make: Callable[..., Any]) -> Callable[..., Pair]:
    """The same object for both works."""

    @wraps(make)
    def pair(*arguments: Any) -> Pair:
        one = make(*arguments)
        return one, one

    return pair


def doing(source: str, steep_source: str = "", **names: Any) -> PairWork:
    """A statement about ``rb``, and another one for the case if it has one."""

    def work(rb: Any, place: int) -> Work:
        return statement(steep_source if place and steep_source else source, rb=rb, **names)

    return work


def fill(rb: Any, steps: dict[str, Any]) -> Any:
    """Add these steps again and again until the ring is full."""
    while rb.ring.written < rb.capacity:
        rb.add(**steps)
    return rb


def ending(length: int, every: int) -> Any:
    """Flags of so many steps in episodes of equal length."""
    return np.arange(length) % every == every - 1


# ------------------------------------------------------------------ rows that cannot be drawn


def half_deleted(rows: int, nstep: bool) -> Pair:
    """Two buffers of 500 episodes; of the second every other episode is deleted, and one more."""
    both = [ReplayBuffer(rows, SMALL, Nstep=NSTEP if nstep else None, seed=0) for _ in range(2)]
    steps = filling(rows // 500, "small")
    length = len(steps["done"])
    steps["done"] = ending(length, length)
    for rb in both:
        for _ in range(rows // length):
            rb.add(**steps)
    for number in range(len(both[1].episodes) // 2):
        both[1].episodes.delete(number)
    both[1].episodes.delete(0)
    return both[0], both[1]


def pausing(pause: int, prioritized: bool) -> Pair:
    """Two buffers of 5-step sums; in the second an environment pauses in the middle of an episode.

    Both have room for as many steps again.
    """
    make: Any = PrioritizedReplayBuffer if prioritized else ReplayBuffer
    both = [make(2 * ENVS * pause, SMALL, n_envs=ENVS, Nstep=NSTEP, seed=0) for _ in range(2)]
    steps = random_steps(ENVS) | {"done": np.zeros(ENVS, bool)}
    for rb, present in zip(both, (ALL, ALL_BUT_ONE), strict=True):
        rb.add(**steps)
        for _ in range(pause):
            rb.add_where(present, **steps)
    return both[0], both[1]


def in_a_pause(rb: Any, place: int, what: str) -> Work:
    """A statement about such a buffer."""
    steps = random_steps(ENVS) | {"done": np.zeros(ENVS, bool)}
    return statement(what, rb=rb, present=(ALL, ALL_BUT_ONE)[place], steps=steps)


def many_envs(rows: int, envs: int) -> Pair:
    """Prioritized 5-step buffers: of one environment, and of many."""

    def full(n_envs: int) -> Any:
        rb = PrioritizedReplayBuffer(rows, SMALL, n_envs=n_envs, Nstep=NSTEP, seed=0)
        fill(rb, random_steps(n_envs if n_envs > 1 else envs)).sample(1)
        return rb

    return full(1), full(envs)


def updating(rb: Any) -> Work:
    """New priorities of 256 rows."""
    return statement(
        "rb.update_priorities(indexes, fresh)",
        rb=rb,
        indexes=rb.sample(256)["indexes"],
        fresh=np.random.default_rng(0).random(256),
    )


cliffs_on(half_deleted, half_deleted=doing("batch = rb.sample(32)"))
cliffs_on(pausing, pause=in_a_pause)
cliffs_on(many_envs, many_envs_sample=doing("batch = rb.sample(256)"), many_envs_update=updating)

# ------------------------------------------------------------------ episodes


def with_episodes(rows: int) -> Any:
    """A full buffer of short episodes."""
    steps = filling(rows, "small")
    steps["done"] = ending(len(steps["done"]), EPISODE)
    return fill(ReplayBuffer(rows, SMALL, seed=0), steps)


def few_and_many(few: int, many: int) -> Pair:
    """Buffers of different size."""
    return with_episodes(few), with_episodes(many)


def rare_starts(rows: int, prioritized: bool) -> Pair:
    """Sequences of 20 steps, none shorter, of episodes of 200; and of 10 steps, but one of 200."""
    make: Any = PrioritizedReplayBuffer if prioritized else ReplayBuffer
    both = [make(rows, SMALL, seed=0) for _ in range(2)]
    steps, last = filling(rows, "small"), random_steps(20 * EPISODE)
    for rb, length in zip(both, (20 * EPISODE, EPISODE), strict=True):
        fill(rb, steps | {"done": ending(len(steps["done"]), length)})
        rb.on_episode_end()
        rb.add(**last | {"done": ending(20 * EPISODE, 20 * EPISODE)})
    one, other = (rb.view(Sequences(1, burn_in=19)) for rb in both)
    return one, other


def huge_priority(rows: int) -> Pair:
    """Sequences of steps of equal priority, and where one step has nearly all of it."""
    both = [
        fill(PrioritizedReplayBuffer(rows, SMALL, seed=0), filling(rows, "small")) for _ in "ab"
    ]
    both[1].update_priorities([1000], [1e20])
    return both[0].view(Sequences(8)), both[1].view(Sequences(8))


def recent_sequences(rows: int) -> View:
    """Sequences of recent steps."""
    rb = fill(ReplayBuffer(rows, SMALL, sampler=Recency(), seed=0), filling(rows, "small"))
    view: View = rb.view(Sequences(8))
    return view


def few_left(rows: int) -> Pair:
    """Rows with goals of any others; and where all but the last episode are deleted."""
    both = with_episodes(rows), with_episodes(rows)
    for _ in range(len(both[1].episodes) - 1):
        both[1].episodes.delete(0)
    options: Any = {"goal": "act", "achieved": "obs", "strategy": "random"}
    options["goal_func"] = lambda values: np.zeros(len(values), np.int64)
    her = Hindsight(lambda achieved, *_: np.zeros(len(achieved)), **options)
    return both[0].view(her), both[1].view(her)


def cleared(few: int, many: int) -> Pair:
    """Empty buffers of different size."""
    return PrioritizedReplayBuffer(few, SMALL), PrioritizedReplayBuffer(many, SMALL)


cliffs_on(
    few_and_many,
    episode_delete=doing(
        "rb.add(**steps)\nrb.episodes.delete(0)",
        steps=random_steps(EPISODE) | {"done": ending(EPISODE, EPISODE)},
    ),
    episode_sample=doing("rb.add(**step)\nbatch = rb.episodes.sample(1)", step=one_step("small")),
)
cliffs_on(
    twice(with_episodes),
    episode_returns=doing("rb.episodes.list()", "rb.episodes.list('rew')"),
    epoch_begins=doing(
        "rng.permutation(len(rb))", "batch = next(rb.epoch(256))", rng=np.random.default_rng(0)
    ),
    update_scalars=doing("rb.add(**step)", "rb.update(7, rew=1.0)", step=one_step("small")),
)
cliffs_on(rare_starts, rare_starts=doing("batch = rb.sample(16)"))
cliffs_on(huge_priority, huge_priority=doing("batch = rb.sample(16, replace=False)"))
cliffs_on(
    twice(recent_sequences),
    recent_sequences=doing("batch = rb.sample(16)", "batch = rb.sample(16, replace=False)"),
)
cliffs_on(few_left, goals_of_few=doing("batch = rb.sample(32)"))
cliffs_on(
    cleared,
    clear_few=doing("rb.add(**step)\nbatch = rb.sample(1)\nrb.clear()", step=one_step("small")),
)

# ------------------------------------------------------------------ many fields, and their names


def names_of(fields: int) -> list[str]:
    """Names of so many fields."""
    return [f"field_{number}" for number in range(fields)]


def numbers(fields: int) -> Any:
    """A buffer of so many fields, full."""
    names = names_of(fields)
    rb = ReplayBuffer(10_000, {name: {"shape": ()} for name in names}, seed=0)
    rb.add(**{name: np.ones(10_000, np.float32) for name in names})
    return rb


def mixtures(fields: int) -> Pair:
    """Mixtures of buffers that have two fields, or many."""
    one, other = (
        Mixture({name: numbers(count) for name in ("one", "two")}, {"one": 1, "two": 1}, seed=0)
        for count in (2, fields)
    )
    return one, other


def drawing_out(rb: Any, place: int, n: int = 32) -> Work:
    """A fresh batch, and one that is written into."""
    work = (f"batch = rb.sample({n})", f"rb.sample({n}, out=out)")[place]
    return statement(work, rb=rb, out=rb.sample(n))


def drawing_named(rb: Any, place: int, fields: int) -> Work:
    """A batch of all fields, and one that names each."""
    work = ("batch = rb.sample(32)", "batch = rb.sample(32, fields=names)")[place]
    return statement(work, rb=rb, names=names_of(fields))


def adding_equal(rb: Any, place: int, fields: int) -> Work:
    """Names that are those of the buffer, and names that are equal to them."""
    step = dict.fromkeys(names_of(fields) if place else (one.name for one in rb.schema.fields), 1.0)
    return statement("rb.add(**step)", rb=rb, step=step)


cliffs_on(
    twice(numbers),
    many_fields_out=drawing_out,
    many_fields_named=drawing_named,
    many_fields_add=adding_equal,
)
cliffs_on(mixtures, mixture_of_one_field=doing("batch = rb.sample(32, fields='field_0')"))
cliffs_on(twice(with_episodes), small_out=drawing_out)

# ------------------------------------------------------------------ values that are cast


def small_buffer() -> ReplayBuffer:
    """An empty buffer of small steps."""
    return ReplayBuffer(10_000, SMALL)


def casting(rb: Any, place: int, name: str, value: Any, dtype: str | None = None) -> Work:
    """A step that fits, and one with another value in one field; of a dtype, if it is an array."""
    step = one_step("small")
    if place == 1:
        step[name] = value if dtype is None else np.array(value, dtype)
    return statement("rb.add(**step)", rb=rb, step=step)


def adding_tensors(rb: Any, place: int) -> Work:
    """A step of arrays, and one of torch's tensors."""
    try:
        import torch  # noqa: PLC0415 (there are environments without it)
    except ImportError:
        raise Cannot("there is no torch here") from None
    step: dict[str, Any] = one_step("small")
    for name in ("obs", "next_obs"):
        step[name] = torch.tensor(step[name]) if place else np.asarray(step[name])
    return statement("rb.add(**step)", rb=rb, step=step)


def of_columns(columns: int) -> ReplayBuffer:
    """An empty buffer of a field with so many numbers of float32."""
    return ReplayBuffer(100_000, {"obs": {"shape": columns}})


def casting_many(rb: Any, place: int, columns: int, dtype: str, as_list: bool = False) -> Work:
    """256 rows that are cast by NumPy, and by ``add``."""
    values: Any = np.arange(256 * columns).reshape(256, columns).astype(dtype)
    if as_list:
        values = values.tolist()
    work = ("rb.add(obs=np.asarray(values, np.float32))", "rb.add(obs=values)")[place]
    return statement(work, rb=rb, np=np, values=values)


cliffs_on(twice(small_buffer), cast_one=casting, add_tensors=adding_tensors)
cliffs_on(twice(of_columns), cast_many=casting_many)

# ------------------------------------------------------------------ environments


def recorded(envs: int | None) -> tuple[Any, dict[str, Any]]:
    """A buffer of steps of CartPole, and names of statements about it; None is no vector."""
    try:
        import gymnasium  # noqa: PLC0415 (there are environments without it)

        from cpprb_like import GymnasiumRecorder  # noqa: PLC0415
    except ImportError:
        raise Cannot("there is no gymnasium here") from None
    env: Any = gymnasium.make_vec("CartPole-v1", envs) if envs else gymnasium.make("CartPole-v1")
    recorder = GymnasiumRecorder(env)
    rb = ReplayBuffer(100_000, recorder.env_dict, n_envs=recorder.n_envs, seed=0)
    recorder.attach(rb)
    obs, _ = env.reset(seed=0)
    recorder.reset(obs)
    action = env.action_space.sample()
    came = env.step(action)
    names = ("act", "next_obs", "rew", "terminated", "truncated")
    step = {"obs": obs} | dict(zip(names, (action, *came[:4]), strict=True))
    return rb, {"step": step, "recorder": recorder, "action": action, "came": came}


def recording(held: tuple[Any, dict[str, Any]], place: int) -> Work:
    """A step by ``add`` of the buffer, and of the recorder."""
    work = ("rb.add(**step)", "recorder.add(action, *came)")[place]
    return statement(work, rb=held[0], **held[1])


cliffs_on(twice(recorded), recorder_add=recording)

# ------------------------------------------------------------------ stacks of frames


def stacks(rows: int, frames_first: bool) -> ReplayBuffer:
    """A full buffer of stacks, declared without the axis of frames."""
    shape = (DEPTH, *FRAME) if frames_first else (*FRAME, DEPTH)
    fields: dict[str, FieldSpec] = {
        "obs": {"shape": shape, "dtype": np.uint8},
        "done": {"shape": (), "dtype": bool},
    }
    rb = ReplayBuffer(rows, fields, next_of="obs", stack_compress="obs", seed=0)
    rng = np.random.default_rng(0)
    while rb.ring.written < rows:
        steps = game(rng, min(GAME, rows), frames_first=frames_first)
        rb.add(**{name: steps[name] for name in ("obs", "next_obs", "done")})
    return rb


def both_stacks(rows: int) -> Pair:
    """Frames last, and frames first."""
    return stacks(rows, False), stacks(rows, True)


def adding_stacks(rb: Any, place: int) -> Work:
    """The steps of an episode, in a cycle."""
    steps = game(np.random.default_rng(1), frames_first=place == 1)
    return statement(
        "obs, next_obs, done = fresh()\nrb.add(obs=obs, next_obs=next_obs, done=done)",
        rb=rb,
        fresh=taking_turns(*(steps[name] for name in ("obs", "next_obs", "done"))),
    )


def image_pairs(rows: int) -> Any:
    """A full buffer of pairs of images."""
    from .uniform import filled  # noqa: PLC0415 (it needs a C compiler, as no other case)

    return filled(rows, "images")


def drawing_images(rb: Any, place: int, n: int) -> Work:
    """Large batches: memcpy of the observations into memory that is in use, and a batch."""
    from floors.steps import Floor  # noqa: PLC0415

    if place == 0:
        return compiled(Floor(rb).copy_pairs((rb.sample(n), rb.sample(n))))
    return statement(f"batch = rb.sample({n})", rb=rb)


cliffs_on(
    both_stacks,
    stacks_sample=doing("batch = rb.sample(32)"),
    stacks_add=adding_stacks,
    stacks_nbytes=lambda rb, rows: rb.nbytes / rows,
)
cliffs_on(twice(image_pairs), image_pairs=drawing_images)
