"""Attributes and C signatures of ``Ranks``."""

from cpprb_like._c.typedefs cimport float64_t, int64_t, intp_t


cdef class Ranks:
    cdef readonly intp_t capacity    # slots
    cdef readonly float64_t alpha
    cdef float64_t[::1] keys         # the priority of each slot, NaN where it has no rank, ...
    cdef intp_t known                # ... of so many slots; the others have none
    cdef intp_t bits                 # binary digits after the first that distinguish ranks
    # Cell i holds the ranks above grid[i], up to grid[i + 1].
    cdef int64_t[::1] grid
    cdef float64_t[::1] shares       # the weight of each rank of the cell
    cdef float64_t[::1] sums         # the weights of all ranks up to grid[i]
    # Group j holds the slots of a priority of at least bottoms[j], and less than those before it.
    cdef intp_t groups               # at least 1; the last has no bottom
    cdef float64_t[::1] bottoms      # as they were at the last sort, falling
    cdef int64_t[::1] counts         # slots of each group, now
    cdef int64_t[::1] tree           # Fenwick tree over these
    cdef intp_t ordered              # slots with a rank at the last sort
    cdef int64_t changes             # of priorities since then
    cdef int64_t clears              # calls of ``c_clear``

    cdef intp_t c_cell(self, int64_t rank) noexcept nogil
    cdef float64_t c_sum(self, int64_t rank) noexcept nogil
    cdef float64_t c_weight(self, intp_t group) noexcept nogil
    cdef intp_t c_group(self, float64_t priority) noexcept nogil
    cdef void c_count(self, intp_t group, int64_t n) noexcept nogil
    cdef int64_t c_before(self, intp_t group) noexcept nogil
    cdef float64_t c_set(self, intp_t slot, float64_t priority) noexcept nogil
    cdef float64_t c_move(self, float64_t old, float64_t priority) noexcept nogil
    cdef void c_set_many(self, const intp_t* slots, float64_t* values, intp_t n) noexcept nogil
    cdef void c_clear(self) noexcept nogil
    cdef void c_forget_groups(self) noexcept nogil
    cdef bint c_is_due(self, float64_t total) noexcept nogil
    cdef int c_sort(self, float64_t* weights) except -1
    cdef void c_set_changed(self, float64_t* weights, float64_t[::1] keys) noexcept nogil
