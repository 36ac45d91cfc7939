"""ReAgent's module ``prioritized_replay_buffer``; see ``circular_replay_buffer``."""

from cpprb_like.compat.reagent._prioritized import PrioritizedReplayBuffer

__all__ = ["PrioritizedReplayBuffer"]
