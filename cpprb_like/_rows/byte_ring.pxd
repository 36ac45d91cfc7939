"""Structures and C signatures of the rule of places."""

from cpprb_like._c.typedefs cimport intp_t

cdef enum:
    MOST_RUNS = 64               # entries of one unit have at most 20 runs: see ``byte_ring``


cdef struct Run:                 # entries one behind the other, without a gap
    intp_t start                 # place of the oldest living entry
    intp_t stop                  # place behind the newest entry


cdef struct Places:              # places of the living entries
    intp_t units                 # length of the ring
    intp_t extent                # units that have been used so far
    intp_t n_runs
    Run[MOST_RUNS] runs          # the living runs, oldest first


cdef intp_t c_put(Places* places, intp_t n) noexcept nogil
cdef void c_remove(Places* places, intp_t n) noexcept nogil
