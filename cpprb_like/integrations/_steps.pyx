"""State of a recorder between two steps, and a compiled path for the usual steps.

``Steps`` holds the observations before the next step, and which episodes have ended. It hands valid
steps to ``add`` of the buffer, if observations and actions are arrays of numbers, or dicts and
tuples of them. It begins episodes of such environments too. For other steps, and for all errors, it
returns NotImplemented, and ``gymnasium.py`` handles them. Compiled because the checks in Python
took longer than ``add``. Not here: spaces (``_spaces``).
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
    PyObject* c_look_up "PyDict_GetItemWithError"(PyObject* items, PyObject* key) except? NULL

cdef str ADD = "add", ADD_WHERE = "add_where", FINAL_OBS = "final_obs"
# Names of final observations in ``info`` that environments give which have reset already.
FINAL_NAMES = (FINAL_OBS, "final_observation", "terminal_observation")
# Classes of immutable numbers, which need no copy. Instances of subclasses may be mutable.
cdef frozenset NUMBERS = frozenset(
    {bool, int, float, *(np.dtype(code).type for code in "?bBhHiIlLqQefdg")}
)
cdef object NUMPY_BOOL = np.bool_


@cython.final
cdef class SpaceParts:
    """Structure of a value of a space: an array of numbers, or parts in a dict or a tuple.

    ``shape`` is the shape of an array, including a leading axis of environments.
    """

    def __init__(self, tuple keys, tuple children, tuple shape not None):
        cdef intp_t axis
        if len(shape) > MOST_DIMS:
            raise ValueError(f"expected at most {MOST_DIMS} axes, got {len(shape)}")
        self.keys = keys
        self.children = children
        self.ndim = len(shape)
        for axis in range(self.ndim):
            self.dims[axis] = shape[axis]

    cdef bint c_collect(self, value, list into) except -1:
        """Append the arrays and numbers of a value, leaf by leaf. False if the value does not fit.

        The arrays are not copied.
        """
        cdef intp_t k
        cdef PyObject* found
        if self.children is None:
            if not self.c_fits(value):
                return False
            into.append(value)
            return True
        if self.keys is None:
            if type(value) is not tuple or len(<tuple> value) != len(self.children):
                return False
        elif type(value) is not dict or len(<dict> value) != len(self.keys):
            return False
        for k in range(len(self.children)):
            if self.keys is None:
                part = (<tuple> value)[k]
            else:
                found = c_look_up(<PyObject*> value, <PyObject*> self.keys[k])
                if found == NULL:
                    return False
                part = <object> found
            if not (<SpaceParts> self.children[k]).c_collect(part, into):
                return False
        return True

    cdef bint c_fits(self, value) except -1:
        """Whether the value is an array of numbers of this shape, or a number for shape ()."""
        cdef cnp.ndarray array
        if not cnp.PyArray_CheckExact(value):
            return self.ndim == 0 and type(value) in NUMBERS
        array = <cnp.ndarray> value
        return (
            cnp.PyArray_NDIM(array) == self.ndim
            and (cnp.PyArray_ISNUMBER(array) or cnp.PyArray_ISBOOL(array))
            and cnp.PyArray_CompareLists(cnp.PyArray_DIMS(array), self.dims, self.ndim)
        )


@cython.final
cdef class Steps:
    """State of a recorder between two steps, and the compiled path of a step to the buffer.

    ``names`` are the fields of the leaves, in this order: observation, action, reward, next
    observation, terminated, truncated. A ``SpaceParts`` is None if a leaf is no array of numbers.
    ``n_rows`` is the number of environments, None without a leading axis.
    """

    def __init__(
        self,
        tuple names not None,
        SpaceParts obs_parts,
        SpaceParts one_obs_parts,
        SpaceParts act_parts,
        n_rows,
        str mode,
    ):
        self.names = names
        self.obs_parts = obs_parts
        self.one_obs_parts = one_obs_parts
        self.act_parts = act_parts
        self.is_vector = n_rows is not None
        self.n_envs = n_rows if self.is_vector else 1
        self.resets_at_once = mode == "SAME_STEP"
        self.resets_next = mode == "NEXT_STEP"
        self.none = np.zeros(self.n_envs, np.bool_) if self.is_vector else np.False_
        self.attach(None)

    def attach(self, buffer):
        """Add to this buffer from the next reset on."""
        self.buffer = buffer
        self.obs = None
        self.wait_for(self.none)

    def wait_for(self, envs):
        """Set which episodes have ended: an array or a scalar, which no caller changes later."""
        self.n_waiting = np.count_nonzero(envs)
        self.waiting = envs

    def begin(self, obs, mask, /):
        """Begin new episodes, of all environments or of those in ``mask``.

        Returns NotImplemented, and does nothing, for values that the compiled path does not take.
        """
        cdef list first = []
        cdef cnp.ndarray waiting
        cdef const uint8_t* chosen
        cdef intp_t env, n_waiting = 0
        if self.obs_parts is None or self.buffer is None:
            return NotImplemented
        if not self.obs_parts.c_collect(obs, first):
            return NotImplemented
        first = c_copies(first, 0)
        if mask is None:
            self.buffer.on_episode_end()
            self.obs = first
            self.waiting = self.none
            self.n_waiting = 0
            return None
        if self.obs is None or not self.is_vector:
            return NotImplemented
        chosen = c_mask_bytes(mask, self.n_envs)
        if chosen == NULL:
            return NotImplemented
        mask = cnp.PyArray_NewCopy(<cnp.ndarray> mask, cnp.NPY_CORDER)  # calls may change it
        chosen = c_bytes(<cnp.ndarray> mask)
        if not self.c_keep_first(first, chosen):
            return NotImplemented
        waiting = cnp.PyArray_NewCopy(<cnp.ndarray> self.waiting, cnp.NPY_CORDER)
        for env in range(self.n_envs):
            if chosen[env]:
                c_bytes(waiting)[env] = 0
                self.buffer.on_episode_end(env)
            n_waiting += c_bytes(waiting)[env] != 0
        self.obs = first
        self.waiting = waiting
        self.n_waiting = n_waiting
        return None

    cdef bint c_keep_first(self, list first, const uint8_t* chosen) except -1:
        """Copy the old observations of environments that were not chosen into ``first``."""
        cdef intp_t k, env, nbytes
        cdef cnp.ndarray now, before
        for k in range(len(first)):
            if not cnp.PyArray_CheckExact(self.obs[k]):
                return False
            now, before = <cnp.ndarray> first[k], <cnp.ndarray> self.obs[k]
            if not (
                cnp.PyArray_EquivArrTypes(now, before) and cnp.PyArray_IS_C_CONTIGUOUS(before)
            ):
                return False
            nbytes = cnp.PyArray_NBYTES(now) // self.n_envs
            for env in range(self.n_envs):
                if not chosen[env]:
                    memcpy(
                        <char*> cnp.PyArray_DATA(now) + env * nbytes,
                        <char*> cnp.PyArray_DATA(before) + env * nbytes,
                        nbytes,
                    )
        return True

    def add(self, action, obs, reward, terminated, truncated, info, dict extra not None, /):
        """Add a step, and return the result of ``add`` of the buffer.

        Returns NotImplemented, and does nothing, for steps that the compiled path does not take.
        """
        # Two places for the buffer and the mask of ``add_where``, then values in order of names.
        cdef list values = [None, None]
        cdef intp_t first
        if self.obs is None or self.buffer is None:
            return NotImplemented
        if self.obs_parts is None or self.act_parts is None:
            return NotImplemented
        if extra and not extra.keys().isdisjoint(self.names):
            return NotImplemented
        values.extend(self.obs)
        if not self.act_parts.c_collect(action, values):
            return NotImplemented
        values.append(reward)
        first = len(values)
        if not self.obs_parts.c_collect(obs, values):
            return NotImplemented
        if self.is_vector:
            return self.c_add_many(values, first, terminated, truncated, info, extra)
        return self.c_add_one(values, first, terminated, truncated, info, extra)

    cdef object c_add_one(
        self, list values, intp_t first, terminated, truncated, info, dict extra
    ):
        """A step of a single environment; its observations begin at ``first``."""
        if self.n_waiting or not (c_is_bool(terminated) and c_is_bool(truncated)):
            return NotImplemented
        cdef bint ended = bool(terminated) or bool(truncated)
        if ended or self.resets_at_once:
            if (ended and self.resets_at_once) or has_final(info):
                return NotImplemented
        cdef list copies = c_copies(values, first)
        slot = self.c_call(None, values, terminated, truncated, extra)
        self.obs = copies
        if ended:
            self.waiting = np.True_
            self.n_waiting = 1
        return slot

    cdef object c_add_many(
        self, list values, intp_t first, terminated, truncated, info, dict extra
    ):
        """A step of each environment of several; their observations begin at ``first``."""
        cdef intp_t env, n_ended = 0
        cdef const uint8_t* terminal = c_mask_bytes(terminated, self.n_envs)
        cdef const uint8_t* cut = c_mask_bytes(truncated, self.n_envs)
        if terminal == NULL or cut == NULL or type(info) is not dict:
            return NotImplemented
        if self.n_waiting and not self.resets_next:
            return NotImplemented
        cdef cnp.ndarray ended = <cnp.ndarray> self.none
        for env in range(self.n_envs):
            n_ended += (terminal[env] | cut[env]) != 0
        if n_ended:
            ended = cnp.PyArray_EMPTY(1, &self.n_envs, cnp.NPY_BOOL, 0)
            for env in range(self.n_envs):
                c_bytes(ended)[env] = (terminal[env] | cut[env]) != 0
        final = (<dict> info).get(FINAL_OBS)
        if (final is not None) != (self.resets_at_once and n_ended > 0):
            return NotImplemented
        # Calls that may fail come before the step is written, and the new state is set after it.
        cdef list copies = c_copies(values, first)
        if final is not None and not self.c_put_final(values, first, final, c_bytes(ended)):
            return NotImplemented
        present = None
        if self.n_waiting:
            present = self.c_present(c_bytes(ended))
            if present is None:
                return NotImplemented
        slot = self.c_call(present, values, terminated, truncated, extra)
        self.obs = copies
        if not self.resets_at_once:
            self.waiting = ended
            self.n_waiting = n_ended
        return slot

    cdef cnp.ndarray c_present(self, const uint8_t* ended):
        """Which environments step and do not reset; None if one that resets has ended."""
        cdef intp_t env
        cdef const uint8_t* waiting = c_bytes(<cnp.ndarray> self.waiting)
        cdef cnp.ndarray present = cnp.PyArray_EMPTY(1, &self.n_envs, cnp.NPY_BOOL, 0)
        for env in range(self.n_envs):
            if waiting[env] and ended[env]:
                return None
            c_bytes(present)[env] = not waiting[env]
        return present

    cdef object c_call(self, present, list values, terminated, truncated, dict extra):
        """Call ``add`` of the buffer, or ``add_where`` if only some environments have a step."""
        cdef tuple names = self.names
        cdef PyObject** items
        values.append(terminated)
        values.append(truncated)
        if extra:
            names += tuple(extra)
            values.extend(extra.values())
        if present is None:
            values[1] = self.buffer
            items = c_list_items(<PyObject*> values)
            return c_call_method(<PyObject*> ADD, items + 1, 1, <PyObject*> names)
        values[0], values[1] = self.buffer, present
        items = c_list_items(<PyObject*> values)
        return c_call_method(<PyObject*> ADD_WHERE, items, 2, <PyObject*> names)

    cdef bint c_put_final(
        self, list values, intp_t first, final, const uint8_t* ended
    ) except -1:
        """Replace the first observations of new episodes by the final ones of the old episodes.

        False unless the environments with final observations are those that ended.
        """
        cdef intp_t k, env, nbytes, n_envs = self.n_envs
        cdef PyObject** items
        cdef cnp.ndarray one, column
        cdef list found, leaves
        if not cnp.PyArray_CheckExact(final):
            return False
        one = <cnp.ndarray> final
        if (
            cnp.PyArray_TYPE(one) != cnp.NPY_OBJECT
            or cnp.PyArray_NDIM(one) != 1
            or cnp.PyArray_DIMS(one)[0] != n_envs
            or not cnp.PyArray_IS_C_CONTIGUOUS(one)
        ):
            return False
        items = <PyObject**> cnp.PyArray_DATA(one)
        found = c_copies(values, first)
        for env in range(n_envs):
            item = None if items[env] == NULL else <object> items[env]
            if (item is None) == (ended[env] != 0):
                return False
            if item is None:
                continue
            leaves = []
            if not self.one_obs_parts.c_collect(item, leaves):
                return False
            for k in range(len(leaves)):
                column = <cnp.ndarray> found[k]
                one = <cnp.ndarray> cnp.PyArray_FROM_O(leaves[k])
                if not (
                    cnp.PyArray_EquivArrTypes(one, column) and cnp.PyArray_IS_C_CONTIGUOUS(one)
                ):
                    return False
                nbytes = cnp.PyArray_NBYTES(one)
                memcpy(
                    <char*> cnp.PyArray_DATA(column) + env * nbytes, cnp.PyArray_DATA(one), nbytes
                )
        values[first:] = found
        return True


cdef list c_copies(list leaves, intp_t first):
    """Copies of the arrays of a list from index ``first`` on. Numbers are not copied."""
    cdef intp_t k
    cdef list copies = []
    for k in range(first, len(leaves)):
        leaf = leaves[k]
        copies.append(c_copy_array(<cnp.ndarray> leaf) if cnp.PyArray_CheckExact(leaf) else leaf)
    return copies


cdef cnp.ndarray c_copy_array(cnp.ndarray array):
    """A copy of an array. For contiguous arrays in native order it takes half of NumPy's time."""
    cdef cnp.ndarray copied
    if not (cnp.PyArray_IS_C_CONTIGUOUS(array) and cnp.PyArray_ISNOTSWAPPED(array)):
        return <cnp.ndarray> cnp.PyArray_NewCopy(array, cnp.NPY_CORDER)
    copied = <cnp.ndarray> cnp.PyArray_EMPTY(
        cnp.PyArray_NDIM(array), cnp.PyArray_DIMS(array), cnp.PyArray_TYPE(array), 0
    )
    memcpy(cnp.PyArray_DATA(copied), cnp.PyArray_DATA(array), cnp.PyArray_NBYTES(array))
    return copied


cdef inline bint c_is_bool(value) noexcept:
    """Whether the value is a bool of Python or NumPy."""
    return type(value) is bool or type(value) is NUMPY_BOOL


cdef inline uint8_t* c_bytes(cnp.ndarray array) noexcept:
    """Pointer to the bytes of an array of bools."""
    return <uint8_t*> cnp.PyArray_DATA(array)


cdef const uint8_t* c_mask_bytes(value, intp_t n) except? NULL:
    """The bytes of an array of n bools; NULL for any other value."""
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
    """Whether ``info`` may have a final observation."""
    if type(info) is not dict:
        return True
    for name in FINAL_NAMES:
        if (<dict> info).get(name) is not None:
            return True
    return False
