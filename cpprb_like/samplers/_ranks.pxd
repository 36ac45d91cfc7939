"""Attributes and C signatures of ``Ranks``."""

from cpprb_like._c.typedefs cimport float64_t, int64_t, intp_t


cdef class Ranks:
    cdef readonly intp_t capacity    # number of slots
    cdef readonly float64_t alpha
    cdef float64_t[::1] keys         # priority of each slot, NaN for a slot without a rank ...
    cdef intp_t known                # ... of the first ``known`` slots; the others have no rank
    cdef intp_t bits                 # leading binary digits, behind the first, that divide ranks into cells
    # Cell i has the ranks above grid[i], up to grid[i + 1].
    cdef int64_t[::1] grid
    cdef float64_t[::1] shares       # weight of each rank of the cell
    cdef float64_t[::1] sums         # sum of the weights of all ranks up to grid[i]
    # Group j has the slots whose priority is at least bottoms[j] and below bottoms[j - 1].
    cdef intp_t groups               # number of groups, at least 1; the last has no bottom
    cdef float64_t[::1] bottoms      # descending; set by each sort
    cdef int64_t[::1] counts         # present number of slots of each group
    cdef int64_t[::1] tree           # Fenwick tree over ``counts``
    cdef intp_t ordered              # slots with a rank at the last sort
    cdef int64_t changes             # changes of priorities since the last sort
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
