"""Which observation comes before the next step, and the commonest steps by way of compiled code.

``Steps`` is the state of a recorder. A step of an environment whose observations and actions are
single arrays of numbers, with nothing odd about it, goes from here to ``add`` of the buffer: that
takes a few Python statements' time less than the checks take in Python. Every other step is left to
``gymnasium.py``, and so is the word about whatever is wrong with one. Not here: spaces
(``_spaces``), and what is no matter of each step.
"""

cimport cython
cimport numpy as cnp
from cpython.object cimport PyObject
from libc.string cimport memcpy

import numpy as np

cnp.import_array()

cdef extern from "Python.h":
    object c_call_method "PyObject_VectorcallMethod"(
        PyObject* name, PyObject** args, size_t n_positional, PyObject* names
    )
    PyObject** c_list_items "PySequence_Fast_ITEMS"(PyObject* items)

cdef enum:
    MOST_VALUES = 8  # of a step, with the buffer and the mask of ``add_where``

cdef str ADD = "add", ADD_WHERE = "add_where", FINAL_OBS = "final_obs"
# Numbers that never change, so that no copy is needed. Their classes, for a subclass may differ.
cdef frozenset NUMBERS = frozenset(
    {bool, int, float, *(np.dtype(code).type for code in "?bBhHiIlLqQefdg")}
)
cdef frozenset BOOLS = frozenset({bool, np.bool_})


@cython.final
cdef class Steps:
    """What a recorder knows between two steps, and the short way from a step to the buffer.

    Parameters
    ----------
    names : tuple of str
        Fields of a step: observation, action, reward, next observation, terminated, truncated.
    obs_shape, act_shape : tuple of int or None
        Of one environment's observations and actions, if these are single arrays of numbers.
    n_rows : int or None
        Number of environments, if arrays have a leading axis for them.
    mode : str
        Name of the autoreset mode.
    """

    def __init__(self, tuple names not None, tuple obs_shape, tuple act_shape, n_rows, str mode):
        axis = () if n_rows is None else (n_rows,)
        self.names = names
        self.is_plain = obs_shape is not None and act_shape is not None
        if self.is_plain:
            self.obs_shape = axis + obs_shape
            self.act_shape = axis + act_shape
        self.is_vector = n_rows is not None
        self.n_envs = n_rows if self.is_vector else 1
        self.resets_at_once = mode == "SAME_STEP"
        self.resets_next = mode == "NEXT_STEP"
        self.nobody = np.zeros(self.n_envs, np.bool_) if self.is_vector else np.False_
        self.buffer = None
        self.obs = None
        self.wait_for(self.nobody)

    def attach(self, buffer):
        """Add to this buffer from the next reset on."""
        self.buffer = buffer
        self.obs = None
        self.wait_for(self.nobody)

    def wait_for(self, envs):
        """Note whose episodes have ended: an array or a scalar that nobody changes."""
        self.n_waiting = np.count_nonzero(envs)
        self.waiting = envs

    def add(self, action, obs, reward, terminated, truncated, info, dict extra not None, /):
        """What ``add`` of the buffer returned; NotImplemented, and nothing done, for odd steps."""
        if not self.is_plain or self.obs is None or self.buffer is None:
            return NotImplemented
        if not (c_fits(obs, self.obs_shape) and c_fits(action, self.act_shape)):
            return NotImplemented
        if extra and not extra.keys().isdisjoint(self.names):
            return NotImplemented
        # In the order of the names. The first is the same array until the next step.
        cdef list values = [self.obs[0], action, reward, obs, terminated, truncated]
        if self.is_vector:
            return self.c_add_many(values, info, extra)
        return self.c_add_one(values, info, extra)

    cdef object c_add_one(self, list values, info, dict extra):
        """A step of a single environment."""
        if self.n_waiting or type(values[4]) not in BOOLS or type(values[5]) not in BOOLS:
            return NotImplemented
        cdef bint ended = bool(values[4]) or bool(values[5])
        if self.resets_at_once and (ended or has_final(info)):
            return NotImplemented
        arrived = values[3]
        if cnp.PyArray_CheckExact(arrived):
            arrived = cnp.PyArray_NewCopy(<cnp.ndarray> arrived, cnp.NPY_CORDER)
        slot = self.c_call(None, values, extra)
        self.obs[0] = arrived
        if ended:
            self.waiting = np.True_
            self.n_waiting = 1
        return slot

    cdef object c_add_many(self, list values, info, dict extra):
        """A step of each environment of several."""
        cdef intp_t env, n_ended = 0
        cdef const uint8_t* terminated = c_flags(values[4], self.n_envs)
        cdef const uint8_t* truncated = c_flags(values[5], self.n_envs)
        if terminated == NULL or truncated == NULL or type(info) is not dict:
            return NotImplemented
        if self.n_waiting and not self.resets_next:
            return NotImplemented
        cdef cnp.ndarray obs = <cnp.ndarray> values[3], ended = <cnp.ndarray> self.nobody
        for env in range(self.n_envs):
            n_ended += (terminated[env] | truncated[env]) != 0
        if n_ended:
            ended = cnp.PyArray_EMPTY(1, &self.n_envs, cnp.NPY_BOOL, 0)
            for env in range(self.n_envs):
                c_bytes(ended)[env] = (terminated[env] | truncated[env]) != 0
        final = (<dict> info).get(FINAL_OBS)
        if (final is not None) != (self.resets_at_once and n_ended > 0):
            return NotImplemented
        if final is not None:
            values[3] = self.c_with_final(obs, final, c_bytes(ended))
            if values[3] is None:
                return NotImplemented
        present = None
        if self.n_waiting:
            present = self.c_present(ended)
            if present is None:
                return NotImplemented
        # All that may fail comes before the step is written, and the state after it.
        arrived = cnp.PyArray_NewCopy(obs, cnp.NPY_CORDER)
        slot = self.c_call(present, values, extra)
        self.obs[0] = arrived
        if not self.resets_at_once:
            self.waiting = ended
            self.n_waiting = n_ended
        return slot

    cdef cnp.ndarray c_present(self, cnp.ndarray ended):
        """Which environments step and do not reset; None if one of the latter has ended."""
        cdef intp_t env
        cdef const uint8_t* waiting = c_bytes(<cnp.ndarray> self.waiting)
        cdef cnp.ndarray present = cnp.PyArray_EMPTY(1, &self.n_envs, cnp.NPY_BOOL, 0)
        for env in range(self.n_envs):
            if waiting[env] and c_bytes(ended)[env]:
                return None
            c_bytes(present)[env] = not waiting[env]
        return present

    cdef object c_call(self, present, list values, dict extra):
        """Call ``add`` of the buffer, or ``add_where`` if only some environments have a step."""
        cdef PyObject* args[MOST_VALUES]
        cdef intp_t k, n = 1
        if extra:
            fields = dict(zip(self.names, values))
            if present is None:
                return self.buffer.add(**fields, **extra)
            return self.buffer.add_where(present, **fields, **extra)
        args[0] = <PyObject*> self.buffer
        if present is not None:
            args[1] = <PyObject*> present
            n = 2
        for k in range(6):
            args[n + k] = c_list_items(<PyObject*> values)[k]
        name = ADD if present is None else ADD_WHERE
        return c_call_method(<PyObject*> name, args, n, <PyObject*> self.names)

    cdef cnp.ndarray c_with_final(self, cnp.ndarray obs, final, const uint8_t* ended):
        """Observations with the final ones of those that ended, None if they are not just these."""
        cdef intp_t env, n_envs = self.n_envs, nbytes
        cdef PyObject** items
        cdef cnp.ndarray found, one
        if not cnp.PyArray_CheckExact(final):
            return None
        one = <cnp.ndarray> final
        if (
            cnp.PyArray_TYPE(one) != cnp.NPY_OBJECT
            or cnp.PyArray_NDIM(one) != 1
            or cnp.PyArray_DIMS(one)[0] != n_envs
            or not cnp.PyArray_IS_C_CONTIGUOUS(one)
        ):
            return None
        items = <PyObject**> cnp.PyArray_DATA(one)
        found = cnp.PyArray_NewCopy(obs, cnp.NPY_CORDER)
        nbytes = cnp.PyArray_NBYTES(found) // n_envs
        for env in range(n_envs):
            is_none = items[env] == NULL or items[env] == <PyObject*> None
            if is_none == (ended[env] != 0):
                return None
            if is_none:
                continue
            if not cnp.PyArray_CheckExact(<object> items[env]):
                return None
            one = <cnp.ndarray> items[env]
            if (
                not cnp.PyArray_EquivArrTypes(one, found)
                or cnp.PyArray_NDIM(one) != cnp.PyArray_NDIM(found) - 1
                or not cnp.PyArray_CompareLists(
                    cnp.PyArray_DIMS(one), cnp.PyArray_DIMS(found) + 1, cnp.PyArray_NDIM(one)
                )
                or not cnp.PyArray_IS_C_CONTIGUOUS(one)
            ):
                return None
            memcpy(<char*> cnp.PyArray_DATA(found) + env * nbytes, cnp.PyArray_DATA(one), nbytes)
        return found


cdef bint c_fits(value, tuple shape) except -1:
    """Whether it is an array of numbers of this shape, or a number if the shape is ()."""
    cdef intp_t axis
    cdef cnp.ndarray array
    if not cnp.PyArray_CheckExact(value):
        return len(shape) == 0 and type(value) in NUMBERS
    array = <cnp.ndarray> value
    if cnp.PyArray_NDIM(array) != len(shape):
        return False
    if not (cnp.PyArray_ISNUMBER(array) or cnp.PyArray_ISBOOL(array)):
        return False
    for axis in range(len(shape)):
        if cnp.PyArray_DIMS(array)[axis] != <intp_t> shape[axis]:
            return False
    return True


cdef inline uint8_t* c_bytes(cnp.ndarray array) noexcept:
    """Those of an array of bools."""
    return <uint8_t*> cnp.PyArray_DATA(array)


cdef const uint8_t* c_flags(value, intp_t n) except? NULL:
    """The bytes of n bools in an array, NULL if it is none."""
    if not cnp.PyArray_CheckExact(value):
        return NULL
    cdef cnp.ndarray array = <cnp.ndarray> value
    if (
        cnp.PyArray_TYPE(array) != cnp.NPY_BOOL
        or cnp.PyArray_NDIM(array) != 1
        or cnp.PyArray_DIMS(array)[0] != n
        or not cnp.PyArray_IS_C_CONTIGUOUS(array)
    ):
        return NULL
    return <const uint8_t*> cnp.PyArray_DATA(array)


cdef bint has_final(info) except -1:
    """Whether there may be a final observation."""
    return type(info) is not dict or (<dict> info).get(FINAL_OBS) is not None
