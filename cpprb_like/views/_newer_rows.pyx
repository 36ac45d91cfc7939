"""``NewerRows``: the rows of versions from a cut on, in a linked list for each version.

So a rise of the cut finds the rows that it leaves out without a look at others. A heap gives the least of
these versions. One without a row any more stays there until it is the least, or until most are such.
Compiled because it is told of each new row. Not here: where the cut is, and masses (``_newest``).
"""

cimport cython
cimport numpy as cnp

from cpprb_like._c.typedefs cimport int64_t, intp_t
from cpprb_like._machine.aligned cimport c_numbers

from heapq import heappop, heappush

import numpy as np

cnp.import_array()

cdef enum:
    END = -1                     # no row before, or behind
    OLDER = -2                   # instead of the row before: the version is before the cut
    NO_ROW = -3                  # instead of the row before: the slot has no row
    SPARE = 64                   # entries of the heap beside two for each version


@cython.final
cdef class NewerRows:
    """Rows by slot, below ``numbers``, and their versions, which are int64.

    ``cut`` is the least version whose rows are listed; None, at first, for none. ``count`` is the number
    of versions from the cut on that have rows, and ``least`` the least of these, or None. After an
    interrupt in a call only ``clear`` is defined.
    """

    cdef int64_t[::1] of_slots   # versions
    cdef intp_t[::1] before      # row before in the list, or one of the above, by slot
    cdef intp_t[::1] behind      # row behind in the list, or END, by slot of a listed row
    cdef intp_t listed           # rows in lists
    cdef intp_t recent           # the row that was listed last, or END
    cdef bint is_open            # whether there is a cut
    cdef int64_t least_listed    # the cut, if there is one
    cdef dict firsts             # first listed row of each version
    cdef list heap               # each of these versions, and some that have no row any more

    def __cinit__(self, intp_t numbers):
        self.of_slots = np.zeros(numbers, np.int64)
        self.before, self.behind = np.empty((2, numbers), np.intp)
        self.clear()

    def clear(self):
        """Forget all rows and the cut."""
        self.before[:] = NO_ROW
        self.firsts, self.heap = {}, []
        self.listed = 0
        self.recent = END
        self.is_open = False

    @property
    def versions(self):
        """Those of the rows, by slot."""
        return np.asarray(self.of_slots)

    @property
    def cut(self):
        return self.least_listed if self.is_open else None

    @property
    def count(self):
        return len(self.firsts)

    @property
    def least(self):
        return self.heap[0] if self.heap else None

    def put(self, const intp_t[::1] slots not None, const int64_t[::1] versions not None):
        """Note the versions of rows; of a row that comes twice the last one counts.

        Returns for each whether it is from the cut on.
        """
        cdef intp_t k, slot, n = slots.shape[0]
        cdef cnp.ndarray newer = c_numbers(1, &n, cnp.NPY_BOOL)
        cdef cnp.npy_bool* is_newer = <cnp.npy_bool*> cnp.PyArray_DATA(newer)
        assert versions.shape[0] == n
        self.c_check(slots)
        for k in range(n):
            slot = slots[k]
            is_newer[k] = self.is_open and versions[k] >= self.least_listed
            if self.before[slot] >= END:
                if self.of_slots[slot] == versions[k]:
                    continue
                self.c_take_out(slot)
            self.of_slots[slot] = versions[k]
            self.before[slot] = OLDER
            if is_newer[k]:
                self.c_list(slot)
        self.c_tidy()
        return newer

    def take_out(self, const intp_t[::1] slots not None):
        """Note that slots have no row."""
        cdef intp_t k
        self.c_check(slots)
        for k in range(slots.shape[0]):
            if self.before[slots[k]] >= END:
                self.c_take_out(slots[k])
            self.before[slots[k]] = NO_ROW
        self.c_tidy()

    def rows(self):
        """The slots of all rows. Cost: a look at all."""
        return np.flatnonzero(np.asarray(self.before) != NO_ROW)

    def older(self):
        """The versions of the rows before the cut. Cost: a look at all rows."""
        return self.versions[np.asarray(self.before) == OLDER]

    def move(self, cut, intp_t most):
        """Move the cut; then, if it rose or stayed, on to the ``most`` greatest of more versions.

        Returns the rows that it lets in, or leaves out, and for each whether it lets it in. Cost: that of
        the rows that it leaves out, and of a cut that falls a look at all.
        """
        cdef bint is_fall = cut is not None and (not self.is_open or cut < self.least_listed)
        cdef const intp_t[::1] slots
        cdef intp_t k
        self.is_open = cut is not None
        if self.is_open:
            self.least_listed = cut
        if is_fall:
            found = np.flatnonzero((np.asarray(self.before) == OLDER) & (self.versions >= cut))
            slots = found
            for k in range(slots.shape[0]):
                self.c_list(slots[k])
        else:
            found = self.c_leave_out(most)
        return found, np.full(len(found), is_fall)

    cdef int c_check(self, const intp_t[::1] slots) except -1:
        """Raise ``IndexError`` for a slot that is not below ``numbers``, as a user's rule may pass."""
        cdef intp_t k
        for k in range(slots.shape[0]):
            if not 0 <= slots[k] < self.before.shape[0]:
                raise IndexError(f"slots[{k}]: expected 0 to {self.before.shape[0] - 1}, got {slots[k]}")
        return 0

    cdef cnp.ndarray c_leave_out(self, intp_t most):
        """Take out the least versions: those before the cut, and while there are more than ``most``."""
        cdef cnp.ndarray found = c_numbers(1, &self.listed, cnp.NPY_INTP)
        cdef intp_t* slots = <intp_t*> cnp.PyArray_DATA(found)
        cdef intp_t slot, n = 0
        while self.heap:
            if <intp_t> len(self.firsts) > most:
                self.least_listed = self.heap[0] + 1  # of some more versions one is greater
            if self.is_open and self.heap[0] >= self.least_listed:
                break
            slot = self.firsts.pop(heappop(self.heap), END)
            while slot != END:
                slots[n] = slot
                n += 1
                self.before[slot] = OLDER
                slot = self.behind[slot]
        self.listed -= n
        self.c_tidy()
        return found[:n]

    cdef int c_list(self, intp_t slot) except -1:
        """Put a row into the list of its version: behind the last such row, or behind the first one."""
        cdef int64_t version = self.of_slots[slot]
        cdef intp_t first = self.recent, second = END
        if first == END or self.before[first] < END or self.of_slots[first] != version:
            first = self.firsts.get(version, END)
            if first == END:
                self.firsts[version] = slot
                heappush(self.heap, version)
        if first != END:
            second = self.behind[first]
            self.behind[first] = slot
        if second != END:
            self.before[second] = slot
        self.before[slot], self.behind[slot] = first, second
        self.listed += 1
        self.recent = slot
        return 0

    cdef int c_take_out(self, intp_t slot) except -1:
        """Take a row out of its list; the caller sets ``before``."""
        cdef intp_t before = self.before[slot], behind = self.behind[slot]
        if behind != END:
            self.before[behind] = before
        if before != END:
            self.behind[before] = behind
        elif behind != END:
            self.firsts[self.of_slots[slot]] = behind
        else:
            del self.firsts[self.of_slots[slot]]
        self.listed -= 1
        return 0

    cdef int c_tidy(self) except -1:
        """Forget versions without a row, so that the least of the heap has one."""
        if len(self.heap) > 2 * len(self.firsts) + SPARE:
            self.heap = sorted(self.firsts)
        while self.heap and self.heap[0] not in self.firsts:
            heappop(self.heap)
        return 0
