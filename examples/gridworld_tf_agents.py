"""Learn the shortest walk over a small grid, from replay, in an environment of your own.

The grid has four rows and four columns. The agent begins in one corner; the opposite one is worth
10 and ends the episode; stepping off the grid costs 1 and ends it too. It learns Q(s, a), the
discounted reward to come after action a in cell s, by Q-learning (Watkins 1989) from steps that are
drawn at random. It stops when the walk that Q thinks best is a shortest one.

The rules are written once. Around them stands a ``dm_env.Environment``, or, where TF-Agents is
installed, its ``PyEnvironment``: the recorder takes the steps of either.
"""

import argparse
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like import ReplayBuffer
from cpprb_like.integrations.dm_env import DmEnvRecorder

SIDE, SHORTEST = 4, 6  # cells along an edge; steps from corner to corner
MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
DISCOUNT, LEARNING_RATE, EXPLORATION = 0.9, 0.2, 0.3
CAPACITY, BATCH, EVALUATE_EVERY = 2_000, 32, 100  # steps held, steps drawn, steps between walks
Array = NDArray[Any]


class Grid:
    """The rules: where the agent is, what it sees, and what a move gives."""

    def __init__(self) -> None:
        self.place = np.zeros(2, np.int32)

    def begin(self) -> Array:
        """Go to the first corner and look."""
        self.place[:] = 0
        return self.look()

    def look(self) -> Array:
        """The grid, 1 where the agent is; all 0 if it has left."""
        seen = np.zeros((SIDE, SIDE), np.int32)
        if self.inside():
            seen[tuple(self.place)] = 1
        return seen

    def inside(self) -> bool:
        """Whether the agent is on the grid."""
        return bool((self.place >= 0).all() and (self.place < SIDE).all())

    def move(self, action: int) -> tuple[Array, float, bool]:
        """What is seen, the reward, and whether that was the end."""
        self.place += list(MOVES.values())[action]
        if not self.inside():
            return self.look(), -1.0, True
        arrived = bool((self.place == SIDE - 1).all())
        return self.look(), 10.0 if arrived else 0.0, arrived


def with_dm_env() -> Any:
    """The grid as an environment of dm_env."""
    import dm_env  # noqa: PLC0415 (one of the two packages is enough)
    from dm_env import specs  # noqa: PLC0415

    class GridWorld(dm_env.Environment):  # type: ignore[misc] # dm_env has no types
        def __init__(self) -> None:
            self.grid, self.over = Grid(), True

        def action_spec(self) -> Any:
            return specs.BoundedArray((), np.int32, 0, len(MOVES) - 1, "action")

        def observation_spec(self) -> Any:
            return specs.BoundedArray((SIDE, SIDE), np.int32, 0, 1, "observation")

        def reset(self) -> Any:
            self.over = False
            return dm_env.restart(self.grid.begin())

        def step(self, action: Any) -> Any:
            if self.over:  # an environment resets in the step after its last one
                return self.reset()
            seen, reward, self.over = self.grid.move(int(action))
            if self.over:
                return dm_env.termination(reward, seen)
            return dm_env.transition(reward, seen, DISCOUNT)

    return GridWorld()


def with_tf_agents() -> Any:
    """The grid as an environment of TF-Agents."""
    from tf_agents.environments import py_environment  # noqa: PLC0415
    from tf_agents.specs import BoundedArraySpec  # noqa: PLC0415
    from tf_agents.trajectories import time_step  # noqa: PLC0415

    class GridWorld(py_environment.PyEnvironment):  # type: ignore[misc] # TF-Agents has no types
        def __init__(self) -> None:
            super().__init__(handle_auto_reset=True)  # in the step after the last one
            self.grid = Grid()

        def action_spec(self) -> Any:
            return BoundedArraySpec((), np.int32, minimum=0, maximum=len(MOVES) - 1, name="action")

        def observation_spec(self) -> Any:
            return BoundedArraySpec(
                (SIDE, SIDE), np.int32, minimum=0, maximum=1, name="observation"
            )

        def _reset(self) -> Any:
            return time_step.restart(self.grid.begin())

        def _step(self, action: Any) -> Any:
            seen, reward, over = self.grid.move(int(action))
            if over:
                return time_step.termination(seen, reward)
            return time_step.transition(seen, reward, DISCOUNT)

    return GridWorld()


MAKERS = {"dm_env": with_dm_env, "tf_agents": with_tf_agents}


def cells(observations: Array) -> Array:
    """The number of the agent's cell in each observation."""
    return np.asarray(observations.reshape(-1, SIDE * SIDE).argmax(1))


def learn(env: Any, steps: int, seed: int) -> tuple[Array, int, ReplayBuffer]:
    """Act, store, draw, learn; Q, the steps it took, and the buffer."""
    rng = np.random.default_rng(seed)
    q = np.zeros((SIDE * SIDE, len(MOVES)))
    recorder = DmEnvRecorder(env)
    # What is seen after a step is seen before the next one: it is stored once.
    buffer = ReplayBuffer(CAPACITY, recorder.env_dict, next_of="obs", seed=seed)
    recorder.attach(buffer)

    time_step = env.reset()
    recorder.reset(time_step)
    for step in range(1, steps + 1):
        best = q[cells(time_step.observation)[0]]
        # The smallest noise decides between actions that seem equally good.
        greedy = int((best + 1e-9 * rng.random(len(MOVES))).argmax())
        action = int(rng.integers(len(MOVES))) if rng.random() < EXPLORATION else greedy
        time_step = env.step(np.int32(action))
        # After an end the environment resets and ignores the action: the recorder sees that by the
        # type of the step, and stores nothing.
        recorder.add(action, time_step)

        batch = buffer.sample(BATCH)
        # The discount is that of each step itself: 0 at the ends, where nothing follows.
        following = q[cells(batch["next_obs"])].max(1)
        goal = batch["rew"] + batch["discount"] * following
        here = cells(batch["obs"]), batch["act"]  # of equal ones the last counts
        q[here] += LEARNING_RATE * (goal - q[here])

        if step % EVALUATE_EVERY == 0 and reached(walk(q)):
            return q, step, buffer
    return q, steps, buffer


def walk(q: Array) -> list[str]:
    """The best moves by Q from the first corner on, up to an end, or as many as make no sense."""
    grid, over, moves = Grid(), False, list[str]()
    seen = grid.begin()
    while not over and len(moves) < SIDE * SIDE:
        action = int(q[cells(seen)[0]].argmax())
        seen, _, over = grid.move(action)
        moves.append(list(MOVES)[action])
    return moves


def reached(moves: list[str]) -> bool:
    """Whether the moves are a shortest walk to the goal."""
    grid = Grid()
    rewards = [grid.move(list(MOVES).index(move))[1] for move in moves]
    return len(moves) == SHORTEST and rewards[-1] > 0


def main() -> None:
    """Learn, show the walk, and fail if it is not a shortest one."""
    parser = argparse.ArgumentParser(description="Learn to cross a grid by replay.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=20_000, help="environment steps at most")
    parser.add_argument("--quick", action="store_true", help="too few steps to learn")
    parser.add_argument(
        "--environment",
        choices=MAKERS,
        default="dm_env" if find_spec("tf_agents") is None else "tf_agents",
    )
    options = parser.parse_args()
    env = MAKERS[options.environment]()
    q, steps, buffer = learn(env, 200 if options.quick else options.steps, options.seed)
    moves = walk(q)
    print(buffer, f"Environment: {type(env).__bases__[0].__module__}", sep="\n")
    if not reached(moves):
        if options.quick:
            return
        sys.exit(f"Not learned: {', '.join(moves)} is no shortest walk.")
    print(f"Learned in {steps} steps: {', '.join(moves)}.")


if __name__ == "__main__":
    main()
