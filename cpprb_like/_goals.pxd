"""C signatures of the draws of rows that give others a goal."""

from numpy cimport ndarray

from cpprb_like._core cimport Ring
from cpprb_like._episode_index cimport EpisodeIndex
from cpprb_like._random cimport Bits
from cpprb_like._typedefs cimport int64_t


cdef ndarray c_choose(EpisodeIndex index, ndarray slots, Bits* bits, int strategy)
cdef int64_t c_pick(Ring ring, Bits* bits, int64_t first, int64_t last) noexcept
cdef int64_t c_pick_any(Ring ring, Bits* bits, int64_t otherwise) noexcept
