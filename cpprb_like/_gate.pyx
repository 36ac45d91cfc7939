"""One call at a time, with or without the interpreter lock.

Short calls keep the interpreter lock, which is enough; long ones give it up, and then every other
call waits at the gate. Compiled because a call of less than a microsecond passes it.
"""

cimport cython

from cpprb_like._typedefs cimport intp_t

from _thread import allocate_lock

cdef enum:
    UNLOCKED = 4096          # less work keeps the interpreter lock: taking it back costs more


@cython.final
cdef class Gate:
    """Belongs to what the calls work on, and is called with the interpreter lock held."""

    def __cinit__(self):
        self.lock = allocate_lock()

    cdef bint c_enter(self, intp_t n) except -1:
        """Begin a call on n elements. If true, it may run without the interpreter lock and must
        ``c_leave``; if false, it must keep that lock to its end.
        """
        if n < UNLOCKED and not self.busy:
            return False
        self.lock.acquire()
        self.busy = True
        return True

    cdef int c_leave(self) except -1:
        """End a call for which ``c_enter`` was true."""
        self.busy = False
        self.lock.release()
        return 0
