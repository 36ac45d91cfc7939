"""Arguments by position mean the same as in the system that a front replaces."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import cpprb_like
from cpprb_like.compat import coax, cpprb, dqn, keras_gym, reagent
from cpprb_like.compat.reagent import _settings
from cpprb_like.compat.reagent.circular_replay_buffer import invalid_range

SIZES = "stack_size replay_capacity batch_size"
FLAGS = "return_everything_as_stack return_as_timeline_format"
HORIZON = "update_horizon gamma"
TRIES = "max_sample_attempts"
FIELDS = "action_shape action_dtype reward_shape reward_dtype"
UNIFORM = (
    f"observation_shape {SIZES} {FLAGS} {HORIZON} {TRIES} extra_storage_types "
    f"observation_dtype {FIELDS}"
)
BY_PRIORITY = (
    f"observation_shape {SIZES} {HORIZON} {TRIES} extra_storage_types "
    f"observation_dtype terminal_dtype {FIELDS}"
)
COAX_BATCH = "S A logP Rn In S_next A_next logP_next W idx extra_info"
COAX_SINGLE = "s a logp r done gamma s_next a_next logp_next w idx extra_info"
# Each callable, and the names of the positional arguments that its predecessor takes.
ORDERS: list[tuple[Callable[..., Any], str]] = [
    (cpprb_like.ReplayBuffer, "size env_dict"),
    (cpprb_like.PrioritizedReplayBuffer, "size env_dict"),
    (cpprb_like.ReverseReplayBuffer, "size env_dict"),
    (cpprb_like.ReplayBuffer.get_all_transitions, "self shuffle"),
    (cpprb_like.PrioritizedReplayBuffer.sample, "self batch_size beta"),
    (cpprb_like.PrioritizedReplayBuffer.update_priorities, "self indexes priorities"),
    (cpprb_like.ReplayBuffer.load_transitions, "self file"),
    (cpprb_like.ReplayBuffer.save_transitions, "self file"),
    (cpprb_like.LaBERmean, "batch_size m"),
    (cpprb_like.LaBERlazy, "batch_size m"),
    (cpprb_like.LaBERmax, "batch_size m"),
    (cpprb_like.create_buffer, "size env_dict"),
    (cpprb_like.create_env_dict, "env"),
    (cpprb.MPReplayBuffer, "size env_dict"),
    (cpprb.MPPrioritizedReplayBuffer, "size env_dict"),
    (cpprb.MPPrioritizedReplayBuffer.sample, "self batch_size beta"),
    (cpprb.MPPrioritizedReplayBuffer.update_priorities, "self indexes priorities"),
    (cpprb.HindsightReplayBuffer, "size env_dict max_episode_len reward_func"),
    (cpprb.HindsightReplayBuffer.on_episode_end, "self goal"),
    (cpprb.HindsightReplayBuffer.sample, "self batch_size"),
    (cpprb.HindsightReplayBuffer.update_priorities, "self indexes priorities"),
    (cpprb.SelectiveReplayBuffer, "episode_len obs_dim act_dim"),
    (cpprb.SelectiveReplayBuffer.add, "self obs act rew next_obs done"),
    (cpprb.SelectiveReplayBuffer.get_episode, "self i"),
    (cpprb.SelectiveReplayBuffer.delete_episode, "self i"),
    (cpprb.train, "buffer env get_action update_policy"),
    (
        keras_gym.ExperienceReplayBuffer,
        "env capacity batch_size bootstrap_n gamma random_seed",
    ),
    (
        keras_gym.ExperienceReplayBuffer.from_value_function,
        "value_function capacity batch_size",
    ),
    (keras_gym.ExperienceReplayBuffer.add, "self s a r done episode_id"),
    (keras_gym.NStepCache, "env n gamma"),
    (keras_gym.NStepCache.add, "self s a r done"),
    (keras_gym.MonteCarloCache, "env gamma"),
    (keras_gym.MonteCarloCache.add, "self s a r done"),
    (coax.SimpleReplayBuffer, "capacity random_seed"),
    (coax.SimpleReplayBuffer.add, "self transition_batch"),
    (coax.SimpleReplayBuffer.sample, "self batch_size"),
    (coax.PrioritizedReplayBuffer, "capacity alpha beta epsilon random_seed"),
    (coax.PrioritizedReplayBuffer.add, "self transition_batch Adv"),
    (coax.PrioritizedReplayBuffer.sample, "self batch_size"),
    (coax.PrioritizedReplayBuffer.update, "self idx Adv"),
    (coax.TransitionBatch, COAX_BATCH),
    (coax.TransitionBatch.from_single, COAX_SINGLE),
    (dqn.ReplayBuffer, "size frame_history_len"),
    (dqn.ReplayBuffer.store_frame, "self frame"),
    (dqn.ReplayBuffer.store_effect, "self idx action reward done"),
    (dqn.ReplayBuffer.sample, "self batch_size"),
    (dqn.sample_n_unique, "sampling_f n"),
    (dqn.LinearSchedule, "schedule_timesteps final_p initial_p"),
    (dqn.PiecewiseSchedule, "endpoints interpolation outside_value"),
    (_settings.Settings, f"{SIZES} {FLAGS} {HORIZON}"),
    (_settings.prioritized, f"{SIZES} {HORIZON} {TRIES}"),
    (_settings.declared, UNIFORM),
    (_settings.declared_prioritized, BY_PRIORITY),
    (reagent.ReplayBuffer.sample_index_batch, "self batch_size"),
    (reagent.ReplayBuffer.sample_transition_batch, "self batch_size indices"),
    (reagent.ReplayBuffer.get_transition_elements, "self batch_size"),
    (reagent.ReplayBuffer.set_index_valid_status, "self idx is_valid"),
    (reagent.ReplayBuffer.is_valid_transition, "self index"),
    (reagent.ReplayBuffer.create_from_env, "env"),
    (reagent.ReplayBuffer.save, "self checkpoint_dir iteration_number"),
    (reagent.ReplayBuffer.load, "self checkpoint_dir suffix"),
    (reagent.PrioritizedReplayBuffer.set_priority, "self indices priorities"),
    (reagent.PrioritizedReplayBuffer.get_priority, "self indices"),
    (reagent.SumTree, "capacity"),
    (reagent.SumTree.set, "self node_index value"),
    (reagent.SumTree.get, "self node_index"),
    (reagent.SumTree.sample, "self query_value"),
    (reagent.SumTree.stratified_sample, "self batch_size"),
    (reagent.replay_buffer_to_pre_timeline_df, "is_discrete_action replay_buffer"),
    (invalid_range, "cursor replay_capacity stack_size update_horizon"),
]


def name(value: object) -> str:
    """The callable in the name of a test."""
    found = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
    return found.removeprefix("cpprb_like.") if callable(value) else ""


@pytest.mark.parametrize(("ours", "order"), ORDERS, ids=name)
def test_arguments_by_position_are_those_of_the_predecessor(
    ours: Callable[..., Any], order: str
) -> None:
    """A program that passes arguments by position gets the same buffer as before.

    With declared fields, ReAgent's ``PrioritizedReplayBuffer`` took the order of ``ReplayBuffer``,
    so a horizon of 3 became a flag.
    """
    parameters = inspect.signature(ours).parameters.values()
    by_position = [
        one.name
        for one in parameters
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    expected = order.split()
    assert by_position[: len(expected)] == expected
