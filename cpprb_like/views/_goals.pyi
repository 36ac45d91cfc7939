from typing import Final

import numpy as np
from numpy.typing import NDArray

from cpprb_like._rows.episode_index import EpisodeIndex

FUTURE: Final[int]
FINAL: Final[int]
EPISODE: Final[int]
RANDOM: Final[int]

def choose_rows(
    index: EpisodeIndex, slots: NDArray[np.intp], rng: np.random.Generator, strategy: int
) -> NDArray[np.intp]: ...
