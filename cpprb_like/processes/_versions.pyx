"""``Versions``: which slot holds which version of some bytes that one process writes and many read.

Three slots are written in turn. A word for each says which version is whole in it, and is 0 while it
is written; a last one says which version is the newest. A reader copies the newest, and looks again
at the word of its slot: if that has changed, what it copied is mixed, and it takes the one that is the
newest now. So nobody waits for anybody. A writer that is killed leaves the newest version as it was,
and a slot that no word names; a reader is disturbed only if two further versions are begun
while it copies one.

Compiled for its fences: a processor may show stores in another order than they were made. Not here:
the bytes, and that one process at a time writes (``_parameters``).
"""

cimport cython

from cpprb_like._c.fences cimport c_fence, c_full_fence, c_read_fence
from cpprb_like._c.typedefs cimport int64_t

cdef enum:
    SLOTS = 3
    NEWEST = 0       # place of the word of the newest version
    FIRST = 1        # and of that of the first slot


def fence():
    """Order what Python code reads and writes in shared memory before and after this call."""
    c_full_fence()


def n_slots():
    """Slots that are written in turn."""
    return SLOTS


def n_words():
    """Words that ``Versions`` takes, zeros at first."""
    return FIRST + SLOTS


@cython.final
cdef class Versions:
    """The words of some slots.

    Parameters
    ----------
    words : ndarray of int64, shape (n_words(),)
        Zeros at first. They are written to.
    """

    def __cinit__(self, int64_t[::1] words not None):
        if words.shape[0] != FIRST + SLOTS:
            raise ValueError(f"words: expected {FIRST + SLOTS}, got {words.shape[0]}")
        self.memory = words
        self.words = &words[0]

    def newest(self):
        """The newest version; 0 if there is none."""
        return self.words[NEWEST]

    def begin(self):
        """Begin to write: the next version, and its slot, which is nobody's from now on."""
        cdef int64_t version = self.words[NEWEST] + 1
        self.words[FIRST + version % SLOTS] = 0
        c_fence()
        return version, version % SLOTS

    def end(self, int64_t version):
        """The slot of this version is written: it is the newest."""
        if version != self.words[NEWEST] + 1:
            raise ValueError(f"version: expected {self.words[NEWEST] + 1}, got {version}")
        c_fence()
        self.words[FIRST + version % SLOTS] = version
        c_fence()
        self.words[NEWEST] = version

    def find(self):
        """The newest version and its slot, to be read; None if there is none, or it is gone again."""
        cdef int64_t version = self.words[NEWEST]
        c_read_fence()
        if version <= 0 or self.words[FIRST + version % SLOTS] != version:
            return None
        c_read_fence()
        return version, version % SLOTS

    def is_there(self, int64_t version):
        """Whether what was read of the slot of this version is whole."""
        c_read_fence()
        return self.words[FIRST + version % SLOTS] == version
