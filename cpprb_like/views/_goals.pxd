"""C signatures of the draws of rows that give others a goal."""

from cpprb_like._core cimport Ring
from cpprb_like._rows.episode_index cimport EpisodeIndex
from cpprb_like._c.random_integers cimport Bits
from cpprb_like._c.typedefs cimport int64_t, intp_t


cdef bint c_choose(
    EpisodeIndex index, const intp_t* given, intp_t* chosen, intp_t n, Bits* bits, int strategy
) noexcept
cdef int64_t c_pick(Ring ring, Bits* bits, int64_t first, int64_t last) noexcept
cdef int64_t c_pick_any(Ring ring, Bits* bits, int64_t otherwise) noexcept
