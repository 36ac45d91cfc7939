"""Machines: the replay of ``processes`` on a Ray cluster.

A Ray actor on each node, the *host*, holds a shared replay. Actors of that node write to its
memory; others send it numbered blocks of steps. A learner draws from all hosts as from one
buffer. Ray places the hosts, restarts them, and carries arrays between nodes.
May import: all rooms up to ``processes``, and Ray.
"""

try:
    import ray as _ray  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"cpprb_like.ray needs Ray (pip install 'cpprb_like[ray]'): {error}"
    ) from error

from cpprb_like.ray._adding import ClusterActor
from cpprb_like.ray._cluster import ClusterReplay
from cpprb_like.ray._learner import ClusterLearner
from cpprb_like.ray._messages import Loss

__all__ = ["ClusterActor", "ClusterLearner", "ClusterReplay", "Loss"]
