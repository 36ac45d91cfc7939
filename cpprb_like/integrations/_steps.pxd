"""Attributes and C signatures of ``Steps``."""

cimport numpy as cnp

ctypedef cnp.npy_intp intp_t
ctypedef unsigned char uint8_t


cdef class Steps:
    cdef readonly object buffer      # that steps are added to, None before there is one
    cdef public list obs             # before the next step, leaf by leaf; None before a reset
    cdef readonly object nobody      # False for each environment; an array, or a scalar for one
    cdef public object waiting       # bool: whose episode has ended and that are not reset yet
    cdef public intp_t n_waiting     # how many these are
    cdef bint is_plain               # observations and actions are single arrays of numbers
    cdef bint is_vector              # there is a leading axis of environments
    cdef intp_t n_envs
    cdef bint resets_at_once         # SAME_STEP
    cdef bint resets_next            # NEXT_STEP
    cdef tuple names                 # of the fields, in the order of the values of a step
    cdef tuple obs_shape             # with the leading axis, if there is one
    cdef tuple act_shape

    cdef object c_add_one(self, list values, info, dict extra)
    cdef object c_add_many(self, list values, info, dict extra)
    cdef object c_call(self, present, list values, dict extra)
    cdef cnp.ndarray c_present(self, cnp.ndarray ended)
    cdef cnp.ndarray c_with_final(self, cnp.ndarray obs, final, const uint8_t* ended)
