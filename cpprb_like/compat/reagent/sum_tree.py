"""ReAgent's module ``sum_tree``; see ``circular_replay_buffer``."""

from cpprb_like.compat.reagent._sum_tree import SumTree

__all__ = ["SumTree"]
