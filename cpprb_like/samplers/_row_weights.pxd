"""Attributes and C signatures of ``RowWeights``."""

from numpy cimport ndarray

from cpprb_like._core cimport Beside
from cpprb_like.samplers._tree_draws cimport TreeDraws
from cpprb_like._c.typedefs cimport float64_t, int64_t, intp_t, uint8_t


cdef class NewWeights(Beside):
    cdef readonly RowWeights rows
    cdef readonly ndarray priorities  # float64, shape (n,)
    cdef readonly ndarray weights    # float64, shape (n,)


cdef class RowWeights(TreeDraws):
    cdef readonly float64_t first    # weight of new rows before any weight was set
    cdef float64_t newest_weight     # weight of new rows: the greatest so far
    cdef float64_t greatest_priority  # greatest priority so far
    cdef readonly int64_t given      # priorities passed to ``update``
    cdef readonly int64_t late       # those whose rows were gone
    # Weights of rows whose n-step window is incomplete: row ids, -1 for a free place, and weights;
    # ``ring.lookahead`` places for each stream.
    cdef int64_t[::1] held_rows
    cdef float64_t[::1] held
    cdef int64_t hidden              # entries of the ring's log of hidden rows that were applied
    cdef int64_t filled              # leaves of the rows before this one are set; nodes above: before ``seen``
    cdef float64_t* notes            # in a file: copy of the state beside the leaves; or NULL
    cdef object noted                # owner of the memory of ``notes``
    cdef intp_t[::1] changes         # circular log of slots whose leaf changed; None until ``Masses`` read it
    cdef int64_t n_changes           # entries ever written to ``changes``

    cdef void c_begin_sync(self) noexcept nogil
    cdef void c_note_down(self) noexcept nogil
    cdef void c_sync_to(self, int64_t stop) noexcept nogil
    cdef void c_set_new(
        self, int64_t first, ndarray priorities, ndarray weights, const uint8_t* present
    ) noexcept
    cdef void c_fill_weights(self, int64_t stop, float64_t weight) noexcept nogil
    cdef void c_write_weights(self, int64_t first, const float64_t* weights, intp_t n) noexcept nogil
    cdef void c_note(
        self, const float64_t* priorities, const float64_t* weights, intp_t n
    ) noexcept nogil
    cdef void c_set_weights(
        self, intp_t* slots, const float64_t* priorities, float64_t* weights, intp_t n
    ) noexcept nogil
    cdef void c_note_change(self, intp_t slot) noexcept nogil
    cdef void c_put(self, int64_t row, float64_t weight) noexcept nogil
    cdef void c_sum_rows(self, int64_t row, int64_t stop) noexcept nogil
    cdef void c_take_out_oldest(self) noexcept nogil
    cdef void c_catch_up(self) noexcept nogil
    cdef void c_catch_up_hidden(self) noexcept nogil
    cdef void c_take_out_among(self, int64_t first, int64_t last, int64_t step) noexcept nogil
    cdef void c_take_out(self, intp_t slot) noexcept nogil
    cdef void c_hold(self, int64_t row, float64_t weight) noexcept nogil
    cdef intp_t c_hold_incomplete(
        self, intp_t* slots, float64_t* weights, intp_t n
    ) noexcept nogil
    cdef int c_check_greatest(self, float64_t weight, float64_t priority) except -1
    cdef dict c_left_behind(self, float64_t[::1] notes, dict held, bint positive)
    cdef int c_check_saved(self, dict saved, bint is_same) except -1
    cdef object c_slots(self, int64_t first)
    cdef int c_put_all(self, int64_t first, float64_t[::1] values) except -1
