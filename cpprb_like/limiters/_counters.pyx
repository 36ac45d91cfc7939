"""``Counters``: how many rows were inserted and sampled, and whether a limiter allows some more.

Each writer and each reader has a line of words of its own, and nobody writes to another's: so no
lock is needed, and none is left behind by a process that is killed. A call announces its items
first (``begin``), and looks at the sums of all lines then: of two calls that race at least one sees
the other, so limits hold exactly; it takes its announcement back (``cancel``) if there is no room.
Compiled because it stands before every step, and because calls of threads must not see one
another in the middle: it holds the interpreter lock.

Not here: waiting (``_gates``), and where the words lie (on the heap, or in a file).
"""

cimport cython
cimport numpy as cnp

from cpprb_like._c.fences cimport c_fence, c_full_fence, c_read_fence
from cpprb_like._c.typedefs cimport float64_t, int64_t, intp_t

cnp.import_array()

cdef enum:
    # The words of a line: one cache line.
    BEGUN        # items of all calls, those that are at work included
    DONE         # items of the calls that have ended
    ROWS         # of a writer: rows that are held now
    WAITS        # calls that had to wait
    WAITED       # nanoseconds that they waited
    SINCE        # when the call began to wait that waits now, 0 if none does
    WANTED       # items of the call that waits
    LAST         # when the last call ended
    WORDS

cdef enum:
    # The words of the line after the last: counts from which the limiter counts. Behind it are lines
    # with a word for each line above: whether anybody ever used it, as most are never read so.
    BASE_INSERTS = 0
    BASE_SAMPLES = 1

cdef enum:
    # The sums of all lines.
    INSERTS_BEGUN
    INSERTS
    HELD
    SAMPLES_BEGUN
    SAMPLES
    SUMS


def shape_for(intp_t lines):
    """The shape of the words of so many lines."""
    return lines + 1 + (lines + WORDS - 1) // WORDS, WORDS


@cython.final
cdef class Counters:
    """The counters of a limiter.

    Parameters
    ----------
    words : ndarray of int64, shape shape_for(writers + readers)
        Zeros at first. A line for each writer, then one for each reader. They are written to.
    writers, readers : int
        How many there are at most.
    samples_per_insert, min_size, min_diff, max_diff : float
        See ``RateLimiter``.
    """

    def __cinit__(
        self,
        int64_t[:, ::1] words not None,
        intp_t writers,
        intp_t readers,
        float64_t samples_per_insert,
        float64_t min_size,
        float64_t min_diff,
        float64_t max_diff,
    ):
        if writers < 1 or readers < 1:
            raise ValueError("writers, readers: expected at least 1")
        self.lines = writers + readers
        rows, columns = shape_for(self.lines)
        if words.shape[0] != rows or words.shape[1] != columns:
            raise ValueError(
                f"words: expected shape ({rows}, {columns}), got "
                f"({words.shape[0]}, {words.shape[1]})"
            )
        self.memory = words
        self.words = &words[0, 0]
        self.base = &words[self.lines, 0]
        self.used = &words[self.lines + 1, 0]
        self.writers = writers
        self.samples_per_insert = samples_per_insert
        self.min_size = min_size
        self.min_diff = min_diff
        self.max_diff = max_diff

    cdef int c_check(self, intp_t line, int64_t n) except -1:
        if not 0 <= line < self.lines:
            raise IndexError(f"line: expected 0 to {self.lines - 1}, got {line}")
        if n < 0:
            raise ValueError(f"n: expected at least 0, got {n}")
        return 0

    cdef void c_sum(self, int64_t* sums) noexcept:
        """Sum all lines.

        A writer raises ROWS before DONE, and DONE is read before ROWS: a row that is being added
        may count twice, and none is missed.
        """
        cdef intp_t line
        cdef volatile int64_t* words
        sums[INSERTS_BEGUN] = sums[INSERTS] = sums[HELD] = 0
        sums[SAMPLES_BEGUN] = sums[SAMPLES] = 0
        for line in range(self.lines):
            if not self.used[line]:
                continue
            words = self.words + line * WORDS
            if line < self.writers:
                sums[INSERTS] += words[DONE]
                c_read_fence()
                sums[HELD] += words[ROWS]
                sums[INSERTS_BEGUN] += words[BEGUN]
            else:
                sums[SAMPLES] += words[DONE]
                sums[SAMPLES_BEGUN] += words[BEGUN]

    def use(self, intp_t line):
        """Begin to use a line: from now on all who look at the counters look at it too."""
        self.c_check(line, 0)
        self.used[line] = 1

    def begin_insert(self, intp_t line, int64_t n):
        """Announce n rows; false, and nothing is changed, if the limiter does not allow them."""
        cdef int64_t sums[SUMS]
        cdef int64_t begun
        self.c_check(line, n)
        self.words[line * WORDS + BEGUN] += n
        c_full_fence()
        self.c_sum(sums)
        begun = sums[INSERTS_BEGUN]
        if sums[HELD] + begun - sums[INSERTS] <= self.min_size or (
            (begun - self.base[BASE_INSERTS]) * self.samples_per_insert
            - (sums[SAMPLES] - self.base[BASE_SAMPLES])
            <= self.max_diff
        ):
            return True
        self.words[line * WORDS + BEGUN] -= n
        return False

    def begin_sample(self, intp_t line, int64_t n):
        """The same for n items that are to be drawn."""
        cdef int64_t sums[SUMS]
        self.c_check(line, n)
        self.words[line * WORDS + BEGUN] += n
        c_full_fence()
        self.c_sum(sums)
        if sums[HELD] >= self.min_size and (
            (sums[INSERTS] - self.base[BASE_INSERTS]) * self.samples_per_insert
            - (sums[SAMPLES_BEGUN] - self.base[BASE_SAMPLES])
            >= self.min_diff
        ):
            return True
        self.words[line * WORDS + BEGUN] -= n
        return False

    def end(self, intp_t line, int64_t n, int64_t now):
        """The call that announced n items has ended, at this time in nanoseconds."""
        self.c_check(line, n)
        c_fence()
        self.words[line * WORDS + DONE] += n
        self.words[line * WORDS + LAST] = now

    def cancel(self, intp_t line, int64_t n):
        """The call that announced n items was refused, or has failed."""
        self.c_check(line, n)
        self.words[line * WORDS + BEGUN] -= n

    def set_rows(self, intp_t line, int64_t rows):
        """A writer holds so many rows now."""
        self.c_check(line, rows)
        self.words[line * WORDS + ROWS] = rows

    def void(self, intp_t line):
        """Forget what the calls of a line announced and did not do, and that one waits: its owner
        has died, and nobody else writes to it now.
        """
        self.c_check(line, 0)
        self.words[line * WORDS + BEGUN] = self.words[line * WORDS + DONE]
        self.words[line * WORDS + SINCE] = 0

    def begin_wait(self, intp_t line, int64_t n, int64_t now):
        """A call for n items begins to wait."""
        self.c_check(line, n)
        self.words[line * WORDS + WANTED] = n
        self.words[line * WORDS + SINCE] = now

    def end_wait(self, intp_t line, int64_t waited, bint others):
        """A call has waited for so many nanoseconds; do others of the same line go on waiting?"""
        self.c_check(line, waited)
        self.words[line * WORDS + WAITS] += 1
        self.words[line * WORDS + WAITED] += waited
        if not others:
            self.words[line * WORDS + SINCE] = 0

    def set_base(self, int64_t inserts, int64_t samples):
        """Let the limiter count as if so many rows had been inserted and items sampled by now."""
        cdef int64_t sums[SUMS]
        self.c_sum(sums)
        self.base[BASE_INSERTS] = sums[INSERTS] - inserts
        self.base[BASE_SAMPLES] = sums[SAMPLES] - samples

    def totals(self):
        """Rows inserted, rows held now, and items sampled, of calls that have ended."""
        cdef int64_t sums[SUMS]
        self.c_sum(sums)
        return sums[INSERTS], sums[HELD], sums[SAMPLES]

    def balance(self, int64_t n_inserts=0, int64_t n_samples=0):
        """``inserts * samples_per_insert - samples`` as the limiter counts, after so many more."""
        cdef int64_t sums[SUMS]
        self.c_sum(sums)
        return (sums[INSERTS] + n_inserts - self.base[BASE_INSERTS]) * self.samples_per_insert - (
            sums[SAMPLES] + n_samples - self.base[BASE_SAMPLES]
        )

    def is_busy(self, intp_t line):
        """Whether a call of the line has announced items and not done them yet, or waits."""
        self.c_check(line, 0)
        cdef int64_t* words = &self.words[line * WORDS]
        return words[BEGUN] != words[DONE] or words[SINCE] != 0

    def rows(self, intp_t line):
        """Rows that a writer holds."""
        self.c_check(line, 0)
        return self.words[line * WORDS + ROWS]

    def waits(self, intp_t line, int64_t now):
        """Calls of a line that waited, and for how many nanoseconds; items of the one that waits
        now, 0 if none does; and when the last call ended, 0 if none has.
        """
        self.c_check(line, 0)
        cdef int64_t* words = &self.words[line * WORDS]
        cdef int64_t since = words[SINCE]
        return (
            words[WAITS] + (since != 0),
            words[WAITED] + (max(now - since, 0) if since else 0),
            words[WANTED] if since else 0,
            words[LAST],
        )
