"""Attributes and C signatures of ``Parts`` and ``Steps``."""

cimport numpy as cnp

ctypedef cnp.npy_intp intp_t
ctypedef unsigned char uint8_t

cdef enum:
    MOST_DIMS = 32  # of an array with a leading axis, in NumPy 1.26


cdef class Parts:
    cdef tuple keys                  # of a dict, in the order of the space; None otherwise
    cdef tuple children              # of a dict or a tuple; None for an array
    cdef intp_t ndim
    cdef intp_t dims[MOST_DIMS]      # of an array

    cdef bint c_collect(self, value, list into) except -1
    cdef bint c_fits(self, value) except -1


cdef class Steps:
    cdef readonly object buffer      # that steps are added to, None before there is one
    cdef public list obs             # before the next step, leaf by leaf; None before a reset
    cdef readonly object none        # False for each environment; an array, or a scalar for one
    cdef public object waiting       # bool: whose episode has ended and that are not reset yet
    cdef public intp_t n_waiting     # how many these are
    cdef bint is_vector              # there is a leading axis of environments
    cdef intp_t n_envs
    cdef bint resets_at_once         # SAME_STEP
    cdef bint resets_next            # NEXT_STEP
    cdef tuple names                 # of the fields, in the order of the values of a step
    cdef Parts obs_parts             # of all environments; None if not all leaves are numbers
    cdef Parts one_obs_parts         # of one environment
    cdef Parts act_parts

    cdef object c_add_one(
        self, list values, intp_t first, terminated, truncated, info, dict extra
    )
    cdef object c_add_many(
        self, list values, intp_t first, terminated, truncated, info, dict extra
    )
    cdef object c_call(self, present, list values, terminated, truncated, dict extra)
    cdef cnp.ndarray c_present(self, const uint8_t* ended)
    cdef bint c_put_final(self, list values, intp_t first, final, const uint8_t* ended) except -1
    cdef bint c_keep(self, list first, const uint8_t* chosen) except -1
