"""Attributes of ``Masses``."""

from cpprb_like.samplers._row_weights cimport RowWeights
from cpprb_like.samplers._tree_draws cimport TreeDraws
from cpprb_like._c.typedefs cimport float64_t, int64_t, intp_t


cdef class Masses(TreeDraws):
    cdef readonly RowWeights weights  # of the rows; None: each weighs 1
    cdef readonly intp_t n_rows      # rows with a mass
    cdef intp_t n_others             # masses other than 0 and 1
    cdef float64_t[::1] masses       # of the rows, by slot
    cdef int64_t edited              # entries of the ring's log of edits that were applied
    cdef int64_t hidden              # entries of the ring's log of hidden rows that were applied
    cdef int64_t told                # rows before this one were said to have gone, where they had a mass
    cdef intp_t known                # slots that have held a row
    cdef int64_t changes             # entries of the weights' log of changes that were applied

    cdef int64_t c_first_hidden(self, int64_t entry) noexcept
    cdef int64_t c_last_hidden(self, int64_t entry) noexcept
    cdef void c_put_mass(self, intp_t slot, float64_t mass) noexcept nogil
    cdef bint c_has_row(self, intp_t slot) noexcept
    cdef void c_take_out(self, intp_t slot) noexcept nogil
    cdef void c_set_leaf(self, intp_t slot) noexcept nogil
    cdef bint c_put(
        self, const intp_t* slots, const float64_t* masses, intp_t n, tuple moment
    ) except -1
