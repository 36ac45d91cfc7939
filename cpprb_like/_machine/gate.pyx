"""``Gate``: mutual exclusion of calls, with or without the interpreter lock (GIL).

Short calls hold the GIL, which excludes the others. Long calls release the GIL and hold the gate's
lock instead; then every other call waits for that. Compiled because calls of less than a
microsecond pass it. Waiting runs no signal handler, so no Python code runs between a call and the
locks that it holds.
"""

cimport cython
from cpython.pythread cimport (
    NOWAIT_LOCK, PY_LOCK_ACQUIRED, WAIT_LOCK, PyLockStatus, PyThread_acquire_lock,
    PyThread_allocate_lock, PyThread_free_lock, PyThread_release_lock, PyThread_type_lock,
)

from cpprb_like._c.typedefs cimport intp_t

from cpprb_like._machine import forks

cdef extern from "pythread.h":
    unsigned long c_this_thread "PyThread_get_thread_ident"() nogil
    PyLockStatus c_acquire_timed "PyThread_acquire_lock_timed"(
        PyThread_type_lock lock, long long microseconds, int interrupted
    ) nogil

cdef enum:
    UNLOCKED = 4096          # elements; for fewer, taking the GIL back costs more than it saves


@cython.final
cdef class Gate:
    """A lock of the object that the calls work on; its methods are called with the GIL held."""

    def __cinit__(self):
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL:
            raise MemoryError("no memory left for a lock")
        forks.watch(self, forks.TREE)

    def __dealloc__(self):
        if self.lock != NULL:
            PyThread_free_lock(self.lock)

    cdef bint c_enter(self, intp_t n) except -1:
        """Begin a call on n elements. If true, it may release the GIL, and must ``c_leave``; if false,
        it must hold the GIL to its end.
        """
        if n < UNLOCKED and not self.busy:
            return False
        if self.forks and self.forker == c_this_thread():
            return False     # no call is at work, and none will begin before this thread has forked
        if not PyThread_acquire_lock(self.lock, NOWAIT_LOCK):
            with nogil:
                PyThread_acquire_lock(self.lock, WAIT_LOCK)
        self.busy = True
        return True

    cdef int c_leave(self) except -1:
        """End a call for which ``c_enter`` was true."""
        self.busy = False
        PyThread_release_lock(self.lock)
        return 0

    # ------------------------------------------------------------------ forks, see forks.py

    def acquire(self, bint blocking=True, double timeout=-1):
        """Exclude the calls of other threads; false if one does not end within the timeout."""
        cdef long long microseconds = <long long> (1e6 * timeout) if timeout >= 0 else -1
        cdef bint is_ours
        with nogil:
            is_ours = c_acquire_timed(
                self.lock, microseconds if blocking else 0, 0
            ) == PY_LOCK_ACQUIRED
        if is_ours:
            self.busy = self.forks = True
            self.forker = c_this_thread()
        return is_ours

    def release(self):
        """End ``acquire``."""
        self.forks = False
        self.c_leave()

    def _at_fork_reinit(self):
        """Make the lock anew, in a child process in which the thread that held it does not exist."""
        cdef PyThread_type_lock fresh = PyThread_allocate_lock()
        if fresh == NULL:
            raise MemoryError("no memory left for a lock")
        self.lock = fresh    # the old one may be held by a lost thread: freeing it is undefined
        self.busy = self.forks = False
