"""ReAgent's module of this name; see ``circular_replay_buffer``."""

from cpprb_like.compat.reagent._prioritized import PrioritizedReplayBuffer

__all__ = ["PrioritizedReplayBuffer"]
