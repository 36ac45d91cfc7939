"""Work in a state or a spelling that once made it far slower, beside the usual one.

Each pair is measured in one process, and needs nothing but what every release of this package has:
so another checkout can be measured in the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
from contender import Cannot, Contender, Shelf
from data import DEPTH, FRAME, GAME, filling, game, one_step, random_steps, taking_turns
from measure import Work, compiled, statement

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.buffers import Mixture, View
from cpprb_like.samplers import Recency
from cpprb_like.typing import FieldSpec, NstepSpec
from cpprb_like.views import Hindsight, Sequences

__all__ = ["cliff", "steep", "usual"]

Function = TypeVar("Function", bound=Callable[..., Any])

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

usual = Contender("usual", "The same work where nothing is in its way.")
steep = Contender("case", "The work in the state, or with the values, that the case names.")
shelf = Shelf()


def cliff(operation: str) -> Callable[[Function], Function]:
    """The decorated function does the usual work at place 0 and the case at place 1."""

    def register(function: Function) -> Function:
        for place, contender in enumerate((usual, steep)):
            contender.does(operation)(partial(function, place))
        return function

    return register


# ------------------------------------------------------------------ rows that cannot be drawn


def half_deleted(rows: int, nstep: bool) -> tuple[ReplayBuffer, ReplayBuffer]:
    """Two buffers of 500 episodes; of the second every other episode is deleted, and one more."""
    both = [ReplayBuffer(rows, SMALL, Nstep=NSTEP if nstep else None, seed=0) for _ in range(2)]
    steps = filling(rows // 500, "small")
    length = len(steps["done"])
    steps["done"] = np.arange(length) == length - 1
    for rb in both:
        for _ in range(rows // length):
            rb.add(**steps)
    for number in range(len(both[1].episodes) // 2):
        both[1].episodes.delete(number)
    both[1].episodes.delete(0)
    return both[0], both[1]


@cliff("half_deleted")
def sample_half_deleted(place: int, rows: int, nstep: bool) -> Work:
    """Uniform draws."""
    return statement("batch = rb.sample(32)", rb=shelf.get(half_deleted, rows, nstep)[place])


def pausing(pause: int, prioritized: bool) -> tuple[ReplayBuffer, ReplayBuffer]:
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


@cliff("pause")
def pause(place: int, pause: int, prioritized: bool, what: str) -> Work:
    """A statement about such a buffer."""
    rb = shelf.get(pausing, pause, prioritized)[place]
    steps = random_steps(ENVS) | {"done": np.zeros(ENVS, bool)}
    return statement(what, rb=rb, present=(ALL, ALL_BUT_ONE)[place], steps=steps)


def many_envs(rows: int, envs: int) -> tuple[ReplayBuffer, ReplayBuffer]:
    """Prioritized 5-step buffers: of one environment, and of many."""

    def full(n_envs: int) -> ReplayBuffer:
        rb = PrioritizedReplayBuffer(rows, SMALL, n_envs=n_envs, Nstep=NSTEP, seed=0)
        steps = random_steps(n_envs if n_envs > 1 else envs)
        while rb.ring.written < rows:
            rb.add(**steps)
        rb.sample(1)
        return rb

    return full(1), full(envs)


@cliff("many_envs_sample")
def many_envs_sample(place: int, rows: int, envs: int) -> Work:
    """256 rows by priority."""
    return statement("batch = rb.sample(256)", rb=shelf.get(many_envs, rows, envs)[place])


@cliff("many_envs_update")
def many_envs_update(place: int, rows: int, envs: int) -> Work:
    """New priorities of 256 rows."""
    rb: Any = shelf.get(many_envs, rows, envs)[place]
    return statement(
        "rb.update_priorities(indexes, fresh)",
        rb=rb,
        indexes=rb.sample(256)["indexes"],
        fresh=np.random.default_rng(0).random(256),
    )


# ------------------------------------------------------------------ episodes


def with_episodes(rows: int) -> ReplayBuffer:
    """A full buffer of short episodes."""
    rb = ReplayBuffer(rows, SMALL, seed=0)
    steps = filling(rows, "small")
    steps["done"] = np.arange(len(steps["done"])) % EPISODE == EPISODE - 1
    while rb.ring.written < rows:
        rb.add(**steps)
    return rb


def few_and_many(few: int, many: int) -> tuple[ReplayBuffer, ReplayBuffer]:
    """Buffers of different size."""
    return with_episodes(few), with_episodes(many)


@cliff("episode_delete")
def episode_delete(place: int, few: int, many: int) -> Work:
    """An episode comes and the oldest is deleted."""
    steps = random_steps(EPISODE) | {"done": np.arange(EPISODE) == EPISODE - 1}
    return statement(
        "rb.add(**steps)\nrb.episodes.delete(0)",
        rb=shelf.get(few_and_many, few, many)[place],
        steps=steps,
    )


@cliff("episode_sample")
def episode_sample(place: int, few: int, many: int) -> Work:
    """A step comes and an episode is drawn."""
    return statement(
        "rb.add(**step)\nbatch = rb.episodes.sample(1)",
        rb=shelf.get(few_and_many, few, many)[place],
        step=one_step("small"),
    )


@cliff("episode_returns")
def episode_returns(place: int, few: int, many: int) -> Work:
    """The list of many episodes, without and with their returns."""
    rb = shelf.get(few_and_many, few, many)[1]
    return statement(("rb.episodes.list()", "rb.episodes.list('rew')")[place], rb=rb)


@cliff("epoch_begins")
def epoch_begins(place: int, rows: int) -> Work:
    """NumPy's permutation, and the first batch of an epoch in random order."""
    rb = shelf.get(with_episodes, rows)
    work = ("rng.permutation(rows)", "batch = next(rb.epoch(256))")[place]
    return statement(work, rb=rb, rows=rows, rng=np.random.default_rng(0))


def rare_starts(rows: int, prioritized: bool) -> tuple[ReplayBuffer, ReplayBuffer]:
    """Episodes of 200 steps; and of 10 steps, too short for a sequence, but one."""
    make: Any = PrioritizedReplayBuffer if prioritized else ReplayBuffer
    both = [make(rows, SMALL, seed=0) for _ in range(2)]
    steps, last = filling(rows, "small"), random_steps(20 * EPISODE)
    at = np.arange(len(steps["done"]))
    for rb, length in zip(both, (20 * EPISODE, EPISODE), strict=True):
        while rb.ring.written < rows:
            rb.add(**steps | {"done": at % length == length - 1})
        rb.on_episode_end()
        rb.add(**last | {"done": np.arange(20 * EPISODE) == 20 * EPISODE - 1})
    return both[0], both[1]


@cliff("rare_starts")
def sequences_of_rare_starts(place: int, rows: int, prioritized: bool) -> Work:
    """16 sequences of 20 steps, none shorter."""
    rb = shelf.get(rare_starts, rows, prioritized)[place]
    return statement("batch = view.sample(16)", view=rb.view(Sequences(1, burn_in=19)))


def with_huge_priority(rows: int) -> tuple[View, View]:
    """Sequences of steps of equal priority, and where one step has nearly all of it."""
    both = []
    for huge in (False, True):
        rb = PrioritizedReplayBuffer(rows, SMALL, seed=0)
        while rb.ring.written < rows:
            rb.add(**filling(rows, "small"))
        if huge:
            rb.update_priorities([1000], [1e20])
        both.append(rb.view(Sequences(8)))
    return both[0], both[1]


@cliff("huge_priority")
def distinct_sequences_beside_a_huge_priority(place: int, rows: int) -> Work:
    """16 distinct sequences."""
    view = shelf.get(with_huge_priority, rows)[place]
    return statement("batch = view.sample(16, replace=False)", view=view)


def recent_sequences(rows: int) -> View:
    """Sequences of recent steps."""
    rb = ReplayBuffer(rows, SMALL, sampler=Recency(), seed=0)
    while rb.ring.written < rows:
        rb.add(**filling(rows, "small"))
    return rb.view(Sequences(8))


@cliff("recent_sequences")
def distinct_recent_sequences(place: int, rows: int) -> Work:
    """16 sequences, with and without replacement."""
    work = ("batch = view.sample(16)", "batch = view.sample(16, replace=False)")[place]
    return statement(work, view=shelf.get(recent_sequences, rows))


def few_left(rows: int) -> tuple[View, View]:
    """Hindsight over all rows, and where all but the last episode are deleted."""
    both = []
    for deleted in (False, True):
        rb = with_episodes(rows)
        for _ in range(len(rb.episodes) - 1 if deleted else 0):
            rb.episodes.delete(0)
        options: Any = {"goal": "act", "achieved": "obs", "strategy": "random"}
        options["goal_func"] = lambda values: np.zeros(len(values), np.int64)
        both.append(rb.view(Hindsight(lambda achieved, *_: np.zeros(len(achieved)), **options)))
    return both[0], both[1]


@cliff("goals_of_few")
def goals_of_few_rows(place: int, rows: int) -> Work:
    """32 rows with goals of any others."""
    return statement("batch = her.sample(32)", her=shelf.get(few_left, rows)[place])


def cleared(few: int, many: int) -> tuple[PrioritizedReplayBuffer, PrioritizedReplayBuffer]:
    """Empty buffers of different size."""
    return PrioritizedReplayBuffer(few, SMALL), PrioritizedReplayBuffer(many, SMALL)


@cliff("clear_few")
def clear_few(place: int, few: int, many: int) -> Work:
    """A step comes, is drawn, and forgotten."""
    return statement(
        "rb.add(**step)\nbatch = rb.sample(1)\nrb.clear()",
        rb=shelf.get(cleared, few, many)[place],
        step=one_step("small"),
    )


# ------------------------------------------------------------------ many fields, and their names


def numbers(fields: int) -> tuple[ReplayBuffer, dict[str, float]]:
    """A buffer of so many fields, and a step."""
    names = [f"field_{number}" for number in range(fields)]
    rb = ReplayBuffer(10_000, {name: {"shape": ()} for name in names}, seed=0)
    rb.add(**{name: np.ones(10_000, np.float32) for name in names})
    return rb, dict.fromkeys(names, 1.0)


@cliff("many_fields_out")
def many_fields_out(place: int, fields: int) -> Work:
    """A fresh batch, and one that is written into."""
    rb, _ = numbers(fields)
    work = ("batch = rb.sample(32)", "rb.sample(32, out=out)")[place]
    return statement(work, rb=rb, out=rb.sample(32))


@cliff("many_fields_named")
def many_fields_named(place: int, fields: int) -> Work:
    """A batch of all fields, and one that names each."""
    rb, step = numbers(fields)
    work = ("batch = rb.sample(32)", "batch = rb.sample(32, fields=names)")[place]
    return statement(work, rb=rb, names=list(step))


@cliff("mixture_of_one_field")
def mixture_of_one_field(place: int, fields: int) -> Work:
    """One field of a mixture of buffers, which have two fields, or many."""
    sources = {name: numbers((2, fields)[place])[0] for name in ("one", "two")}
    mixture = Mixture(sources, {"one": 1, "two": 1}, seed=0)
    return statement("batch = mixture.sample(32, fields='field_0')", mixture=mixture)


@cliff("small_out")
def small_out(place: int, rows: int, n: int) -> Work:
    """As above, of a usual step."""
    rb = shelf.get(with_episodes, rows)
    work = (f"batch = rb.sample({n})", f"rb.sample({n}, out=out)")[place]
    return statement(work, rb=rb, out=rb.sample(n))


@cliff("many_fields_add")
def many_fields_add(place: int, fields: int) -> Work:
    """Names that are those of the buffer, and names that are equal to them."""
    rb, step = numbers(fields)
    if place == 1:
        step = {"".join(list(name)): value for name, value in step.items()}
    return statement("rb.add(**step)", rb=rb, step=step)


# ------------------------------------------------------------------ values that are cast


@cliff("cast_one")
def cast_one(place: int, name: str, value: Any, dtype: str | None = None) -> Work:
    """A step that fits, and one with another value in one field; of a dtype, if it is an array."""
    step = one_step("small")
    if place == 1:
        step[name] = value if dtype is None else np.array(value, dtype)
    return statement("rb.add(**step)", rb=ReplayBuffer(10_000, SMALL), step=step)


@cliff("cast_many")
def cast_many(place: int, shape: list[int], dtype: str, as_list: bool = False) -> Work:
    """Many rows of float32: cast by NumPy, and by ``add``."""
    rb = ReplayBuffer(100_000, {"obs": {"shape": tuple(shape[1:])}})
    values: Any = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    if as_list:
        values = values.tolist()
    work = ("rb.add(obs=np.asarray(values, np.float32))", "rb.add(obs=values)")[place]
    return statement(work, rb=rb, np=np, values=values)


@cliff("add_tensors")
def add_tensors(place: int) -> Work:
    """A step of arrays, and one of torch's tensors."""
    try:
        import torch  # noqa: PLC0415 (there are environments without it)
    except ImportError:
        raise Cannot("there is no torch here") from None
    step: dict[str, Any] = one_step("small")
    for name in ("obs", "next_obs"):
        step[name] = torch.tensor(step[name]) if place else np.asarray(step[name])
    return statement("rb.add(**step)", rb=ReplayBuffer(10_000, SMALL), step=step)


@cliff("update_scalars")
def update_scalars(place: int) -> Work:
    """A step that is added, and one of which a number is replaced."""
    rb = ReplayBuffer(10_000, SMALL)
    rb.add(**random_steps(100))
    work = ("rb.add(**step)", "rb.update(7, rew=1.0)")[place]
    return statement(work, rb=rb, step=one_step("small"))


# ------------------------------------------------------------------ environments


@cliff("recorder_add")
def recorder_add(place: int, envs: int | None) -> Work:
    """A step of CartPole, by ``add`` of the buffer and of the recorder; None is no vector."""
    try:
        import gymnasium  # noqa: PLC0415 (there are environments without it)

        from cpprb_like import GymnasiumRecorder  # noqa: PLC0415
    except ImportError:
        raise Cannot("there is no gymnasium here") from None
    env: Any
    if envs is None:
        env = gymnasium.make("CartPole-v1")
    else:
        env = gymnasium.make_vec("CartPole-v1", envs)
    recorder = GymnasiumRecorder(env)
    rb = ReplayBuffer(100_000, recorder.env_dict, n_envs=recorder.n_envs, seed=0)
    recorder.attach(rb)
    obs, _ = env.reset(seed=0)
    recorder.reset(obs)
    action = env.action_space.sample()
    came = env.step(action)
    names = ("act", "next_obs", "rew", "terminated", "truncated")
    step = {"obs": obs} | dict(zip(names, (action, *came[:4]), strict=True))
    work = ("rb.add(**step)", "recorder.add(action, *came)")[place]
    return statement(work, rb=rb, step=step, recorder=recorder, action=action, came=came)


# ------------------------------------------------------------------ stacks of frames


def stacks(rows: int, frames_first: bool) -> ReplayBuffer:
    """A buffer that is told of its stacks without their axis, full."""
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


def both_stacks(rows: int) -> tuple[ReplayBuffer, ReplayBuffer]:
    """Frames last, and frames first."""
    return stacks(rows, False), stacks(rows, True)


@cliff("stacks_sample")
def stacks_sample(place: int, rows: int) -> Work:
    """Pairs of stacks."""
    return statement("batch = rb.sample(32)", rb=shelf.get(both_stacks, rows)[place])


@cliff("stacks_add")
def stacks_add(place: int, rows: int) -> Work:
    """The steps of an episode, again and again."""
    steps = game(np.random.default_rng(1), frames_first=place == 1)
    return statement(
        "obs, next_obs, done = fresh()\nrb.add(obs=obs, next_obs=next_obs, done=done)",
        rb=shelf.get(both_stacks, rows)[place],
        fresh=taking_turns(*(steps[name] for name in ("obs", "next_obs", "done"))),
    )


@cliff("stacks_nbytes")
def stacks_nbytes(place: int, rows: int) -> float:
    """Memory of a step."""
    return shelf.get(both_stacks, rows)[place].nbytes / rows


@cliff("image_pairs")
def image_pairs(place: int, rows: int, n: int) -> Work:
    """Large batches: memcpy of the observations into memory that is in use, and a batch."""
    from floors.steps import Floor  # noqa: PLC0415 (it compiles C, which no other case needs)

    from .uniform import filled  # noqa: PLC0415

    rb = shelf.get(filled, rows, "images")
    if place == 0:
        return compiled(Floor(rb).copy_pairs(rb.sample(n)))
    return statement(f"batch = rb.sample({n})", rb=rb)
