"""ReAgent's buffers, and whether they have the transitions of their twin."""

from __future__ import annotations

from typing import Any

import numpy as np
from optional import need
from reagent_twin import SHAPES, Shape, Twin

torch = need("torch", "make test-torch")

GAMMA = 0.5


def made(kind: type[Any], shape: Shape, **options: Any) -> Any:
    """A buffer of these parameters."""
    return kind(
        stack_size=shape.stack_size,
        replay_capacity=shape.capacity,
        batch_size=4,
        update_horizon=shape.horizon,
        gamma=GAMMA,
        **options,
    )


def flags(rb: Any) -> str:
    """The flags of all slots as a text of zeros and ones."""
    return "".join(str(int(flag)) for flag in rb._is_index_valid)


def check(rb: Any, twin: Twin, **mode: Any) -> None:
    """The buffer has the transitions of its twin, and nothing else."""
    valid = twin.valid()
    assert rb.add_count == twin.rows
    assert rb.cursor() == twin.rows % twin.shape.capacity
    assert rb.size == rb._num_valid_indices == len(valid)
    assert torch.from_numpy(np.array(list(valid), np.int64)).equal(
        rb._is_index_valid.nonzero()[:, 0]
    )
    if twin.rows:
        check_batch(rb.sample_all_valid_transitions(), list(valid), twin, **mode)


def check_batch(batch: Any, slots: list[int], twin: Twin, **mode: Any) -> None:
    """The batch holds the transitions of these slots."""
    valid = twin.valid()
    assert batch.indices.dtype == batch.step.dtype == torch.int64
    assert batch.terminal.dtype == torch.bool
    assert batch.indices.tolist() == [[slot] for slot in slots]
    for number, slot in enumerate(slots):
        episode, place = valid[slot]
        steps = twin.steps(episode, place)
        is_last = place + steps == len(episode.steps)
        row = {name: column[number] for name, column in zip(batch._fields, batch, strict=True)}
        assert row["step"].tolist() == [steps]
        assert row["terminal"].tolist() == [is_last and episode.is_terminal]
        for name in SHAPES:
            out = "state" if name == "observation" else name
            if name != "reward" or mode == {"return_everything_as_stack": True}:
                same(row[out], twin.stack(name, episode, place))
            ahead = [twin.stack(name, episode, place + 1 + k) for k in range(steps)]
            if mode.get("return_as_timeline_format"):
                same_list(row[f"next_{out}"], ahead)
            else:
                same(row[f"next_{out}"], ahead[-1])
        rewards = [twin.stack("reward", episode, place + k) for k in range(steps)]
        if mode.get("return_as_timeline_format"):
            same_list(row["reward"], rewards)
        elif not mode:
            total = sum(GAMMA**k * float(reward[-1]) for k, reward in enumerate(rewards))
            assert row["reward"].tolist() == [total]
            assert row["reward"].dtype == torch.float32


def same(drawn: Any, stack: Any) -> None:
    """A drawn value is this stack, without an axis for a stack of one."""
    if stack.shape[-1] == 1:
        stack = stack[..., 0]
    expected = stack if stack.ndim else stack[np.newaxis]
    assert drawn.shape == expected.shape
    np.testing.assert_array_equal(drawn.numpy(), expected)


def same_list(drawn: Any, stacks: list[Any]) -> None:
    """A drawn list holds these stacks, and keeps single numbers as one axis."""
    expected = np.stack(stacks)
    if expected.shape[-1] == 1:
        expected = expected[..., 0]
    assert drawn.shape == expected.shape
    np.testing.assert_array_equal(drawn.numpy(), expected)
