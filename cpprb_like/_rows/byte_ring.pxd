"""Attributes and C signatures of ``ByteRing``, and the rule of places."""

from cpprb_like._c.typedefs cimport int64_t, intp_t

cdef enum:
    MOST_RUNS = 64               # entries of one unit have at most 20 runs: see ``byte_ring``

cdef enum:                       # words of a ring in shared memory
    RING_EXTENT = 0              # units that have been used so far
    RING_RUN_PLACE = 1           # where the newest run begins
    RING_RUN_KEY = 2             # key of the first entry of that run, written after its place
    RING_WORDS = 8               # a cache line


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


cdef class ByteRing:
    cdef readonly intp_t units       # length of the ring
    cdef public intp_t usable        # units whose memory may be written
    cdef Places places
    cdef int64_t[::1] memory         # see ``words``
    cdef int64_t* words              # the words that other processes read

    cdef intp_t c_take(self, intp_t n, int64_t key) noexcept nogil
    cdef void c_leave(self, intp_t n) noexcept nogil
    cdef void c_clear(self) noexcept nogil
