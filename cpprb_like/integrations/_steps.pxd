"""Attributes and C signatures of ``SpaceParts`` and ``Steps``."""

cimport numpy as cnp

ctypedef cnp.npy_intp intp_t
ctypedef unsigned char uint8_t

cdef enum:
    MOST_DIMS = 32  # axes of an array in NumPy 1.26


cdef class SpaceParts:
    cdef tuple keys                  # keys of a dict, in the order of the space; else None
    cdef tuple children              # parts of a dict or a tuple; None for an array
    cdef intp_t ndim                 # number of axes of an array
    cdef intp_t dims[MOST_DIMS]      # shape of an array

    cdef bint c_collect(self, value, list into) except -1
    cdef bint c_fits(self, value) except -1


cdef class Steps:
    cdef readonly object buffer      # target of steps, None before ``attach``
    cdef public list obs             # observations before a step, by leaf; None before a reset
    cdef readonly object none        # False for each environment: an array, or a scalar for one
    cdef public object waiting       # like ``none``: ended, and not reset yet
    cdef public intp_t n_waiting     # number of waiting environments
    cdef bint is_vector              # whether arrays have a leading axis of environments
    cdef intp_t n_envs               # number of environments
    cdef bint resets_at_once         # SAME_STEP
    cdef bint resets_next            # NEXT_STEP
    cdef tuple names                 # names of fields, in the order of the values of a step
    cdef SpaceParts obs_parts        # observations of all environments; None if a leaf is no number
    cdef SpaceParts one_obs_parts    # an observation of one environment, or None
    cdef SpaceParts act_parts        # actions of all environments, or None

    cdef object c_add_one(
        self, list values, intp_t first, terminated, truncated, info, dict extra
    )
    cdef object c_add_many(
        self, list values, intp_t first, terminated, truncated, info, dict extra
    )
    cdef object c_call(self, present, list values, terminated, truncated, dict extra)
    cdef cnp.ndarray c_present(self, const uint8_t* ended)
    cdef bint c_put_final(self, list values, intp_t first, final, const uint8_t* ended) except -1
    cdef bint c_keep_first(self, list first, const uint8_t* chosen) except -1
