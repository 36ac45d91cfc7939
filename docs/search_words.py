"""Words that people type into the search, by the page, or the section of a page, that answers them.

They are index entries of that place, which the search shows first. tests/site asks for them.
"""

from __future__ import annotations

WORDS = {
    "advantages": ("on-policy", "PPO", "GAE", "V-trace", "advantages", "rollout buffer"),
    "any-length": ("ragged", "variable length", "tokens", "graphs"),
    "checkpoints": ("save", "load", "resume", "restore", "pickle", "save and load a buffer"),
    "cluster": ("Ray", "several machines", "distributed replay"),
    "command-line": ("inspect a saved buffer", "cpprb_like inspect"),
    "contributing": ("contributing", "build from source", "run the tests"),
    "datasets": ("offline data", "Minari", "D4RL", "LeRobot", "RLDS", "export"),
    "file-format": ("file format", "manifest"),
    "file-maps": ("memory map", "mmap", "larger than memory"),
    "faq#does-it-work-with-mpi": ("MPI", "mpi4py"),
    "guide": ("seed", "add", "errors of add", "autoreset modes", "dtype", "thread safety"),
    "guide#emptying-a-buffer": ("clear", "empty a buffer"),
    "hindsight": ("HER", "hindsight", "goals", "reward function of HER"),
    "install": ("install", "pip install", "wheel", "extras"),
    "learners": ("GPU", "CUDA", "PyTorch tensors", "JAX", "prefetch", "pinned memory"),
    "libraries": ("other libraries",),
    "migrating-from-cpprb": ("cpprb", "migrate from cpprb"),
    "one-file-scripts": ("CleanRL",),
    "processes": ("several processes", "multiprocessing", "actors and learners", "rate limits"),
    "promises": ("promises", "stability"),
    "readings": (
        "n-step",
        "frame stack memory",
        "frame stack",
        "truncated",
        "terminated",
        "next_obs",
    ),
    "report": ("agent does not learn", "check my data", "NaN"),
    "rllib": ("RLlib",),
    "robots": ("robot", "teleoperation", "demonstrations"),
    "samplers#prioritized-experience-replay": (
        "PER",
        "prioritized replay",
        "prioritized experience replay",
        "priority weights",
        "beta",
        "alpha",
        "importance sampling",
        "update_priorities",
    ),
    "samplers#what-indexes-are": ("indexes",),
    "sequences": ("episodes", "sequences", "R2D2", "recurrent", "burn-in", "LSTM"),
    "stable-baselines3": ("Stable-Baselines3", "SB3"),
    "stats": ("W&B", "Weights & Biases", "TensorBoard", "MLflow", "Prometheus", "logging"),
    "tianshou": ("Tianshou",),
    "torchrl": ("TorchRL",),
    "training": (
        "training loop",
        "GymnasiumRecorder",
        "several environments",
        "vector environments",
    ),
}
