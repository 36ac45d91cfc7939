"""``Counters``: counts of inserted and sampled rows, and whether a limiter allows more.

Each writer and each reader has its own line of words, which only its owner writes. So no lock is
needed, and a killed process leaves none. A call is a ``Turn``: the items are announced first, and
then compared with the sums of all lines. Of two simultaneous calls at least one sees the other, so
limits hold exactly. The end of a call, by whatever cause, takes back its announcement. Compiled as
every step calls this module, and as a call must be atomic: the interpreter lock is held, and no
signal handler runs.

Not here: waiting (``_gates``), and where the words lie (on the heap, or in a file).
"""

from collections import namedtuple

cimport cython
cimport numpy as cnp
from libc.stdlib cimport llabs

from cpprb_like._c.fences cimport c_fence, c_full_fence, c_read_fence
from cpprb_like._c.typedefs cimport float64_t, int64_t, intp_t

cnp.import_array()

cdef enum:
    # The words of a line: one cache line.
    BEGUN        # items of all calls, unfinished calls included
    DONE         # items of finished calls
    ROWS         # rows that a writer holds now
    WAITS        # finished calls that had to wait
    WAITED       # nanoseconds of their waits
    SINCE        # time at which the present wait began, 0 without one
    WANTED       # items of the waiting call; negative while no caller wants its batch
    LAST         # time at which the last call ended
    WORDS

cdef enum:
    # The words of the line after the last: the counts at which the limiter began, and by how many
    # samples its first blocked call may move them. The words behind it say of each line whether it
    # was ever used, so that unused lines are not read.
    BASE_INSERTS = 0
    BASE_SAMPLES = 1
    BASE_BEGUN = 2       # BASE_SAMPLES as it began
    BASE_DOWN = 3        # by how much the balance may begin lower, for an insert
    BASE_UP = 4          # by how much the balance may begin higher, for a sample
    BASE_OPEN = 5        # whether no call has moved it

cdef enum:
    # The sums of all lines.
    INSERTS_BEGUN
    INSERTS
    HELD
    SAMPLES_BEGUN
    SAMPLES
    WAITING      # lines of writers with a waiting call; then lines of readers
    SUMS = WAITING + 2

cdef enum:
    # Nanoseconds for which older waits go first while nothing changes.
    COURTESY = 1_000_000_000


# Sums of all lines. ``inserts_at_work`` and ``samples_at_work`` are items of unfinished calls.
# ``balance`` is inserts * samples_per_insert - samples since the limiter began.
Totals = namedtuple("Totals", "inserts samples rows inserts_at_work samples_at_work balance")
# The waits of a line. ``items`` are those of the waiting call, ``last`` is the time at which the last
# call ended; each is 0 without such a call.
Waits = namedtuple("Waits", "calls nanoseconds items last rows")


def shape_for(intp_t lines):
    """The shape of the words of ``lines`` lines."""
    return lines + 1 + (lines + WORDS - 1) // WORDS, WORDS


@cython.final
cdef class Counters:
    """The counters of a limiter, with the numbers of ``RateLimiter``.

    ``words`` have the shape ``shape_for(writers + readers)`` and are zeros at first. They have a
    line for each writer, then a line for each reader.
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
        self.lines = writers + readers
        if (words.shape[0], words.shape[1]) != shape_for(self.lines):
            raise ValueError("words: expected shape shape_for(writers + readers)")
        self.memory = words
        self.words = &words[0, 0]
        self.base = &words[self.lines, 0]
        self.used = &words[self.lines + 1, 0]
        self.writers = writers
        self.samples_per_insert = samples_per_insert
        self.min_size = min_size
        self.min_diff = min_diff
        self.max_diff = max_diff
        self.turns = []

    cdef int c_check_line(self, intp_t line, int64_t n) except -1:
        if not 0 <= line < self.lines:
            raise IndexError(f"line: expected 0 to {self.lines - 1}, got {line}")
        if n < 0:
            raise ValueError(f"n: expected at least 0, got {n}")
        return 0

    cdef void c_sum_lines(self, int64_t* sums) noexcept:
        """Sum all lines.

        A writer raises ROWS before DONE, and DONE is read before ROWS. So a row that is being added
        may count twice, and no row is missed.
        """
        cdef intp_t line
        cdef volatile int64_t* words
        sums[INSERTS_BEGUN] = sums[INSERTS] = sums[HELD] = 0
        sums[SAMPLES_BEGUN] = sums[SAMPLES] = 0
        sums[WAITING] = sums[WAITING + 1] = 0
        for line in range(self.lines):
            if not self.used[line]:
                continue
            words = self.words + line * WORDS
            sums[WAITING + (line >= self.writers)] += words[SINCE] != 0
            if line < self.writers:
                sums[INSERTS] += words[DONE]
                c_read_fence()
                sums[HELD] += words[ROWS]
                sums[INSERTS_BEGUN] += words[BEGUN]
            else:
                sums[SAMPLES] += words[DONE]
                sums[SAMPLES_BEGUN] += words[BEGUN]

    def use(self, intp_t line):
        """Mark a line as used: from now on sums include it."""
        self.c_check_line(line, 0)
        self.used[line] = 1

    cdef bint c_allows(self, bint sample, int64_t* sums, int64_t more) noexcept:
        """Whether the announced items, and ``more`` items, are allowed."""
        cdef int64_t begun
        if sample:
            return sums[HELD] >= self.min_size and (
                (sums[INSERTS] - self.base[BASE_INSERTS]) * self.samples_per_insert
                - (sums[SAMPLES_BEGUN] + more - self.base[BASE_SAMPLES])
                >= self.min_diff
            )
        begun = sums[INSERTS_BEGUN] + more
        return sums[HELD] + begun - sums[INSERTS] <= self.min_size or (
            (begun - self.base[BASE_INSERTS]) * self.samples_per_insert
            - (sums[SAMPLES] - self.base[BASE_SAMPLES])
            <= self.max_diff
        )

    def set_rows(self, intp_t line, int64_t rows):
        """Set the number of rows that a writer holds."""
        self.c_check_line(line, rows)
        self.words[line * WORDS + ROWS] = rows

    def void(self, intp_t line):
        """Cancel the announcements and the wait of a line whose owner has died.

        The caller makes sure that no other process writes to the line.
        """
        self.c_check_line(line, 0)
        self.words[line * WORDS + BEGUN] = self.words[line * WORDS + DONE]
        self.words[line * WORDS + SINCE] = 0

    cdef Turn c_first_turn(self, intp_t line):
        """The oldest waiting turn of this process in a line, or None.

        Turns with a waiting caller come before turns of batches that are drawn ahead.
        """
        cdef Turn turn
        cdef Turn first = None
        for turn in self.turns:
            if turn.line == line and (first is None or (turn.wanted and not first.wanted)):
                first = turn
        return first

    cdef int c_show(self, intp_t line) except -1:
        """Write the first waiting call of a line to its words."""
        cdef Turn first = self.c_first_turn(line)
        cdef int64_t* words = &self.words[line * WORDS]
        if first is None:
            words[SINCE] = 0
            return 0
        words[WANTED] = first.n if first.wanted else -first.n
        c_fence()
        words[SINCE] = first.since
        return 0

    cdef bint c_may_go_on(self, bint sample, int64_t* sums) noexcept:
        """Whether any waiting call of a side is allowed now."""
        cdef intp_t line
        cdef int64_t* words
        for line in range(self.writers if sample else 0, self.lines if sample else self.writers):
            words = self.words + line * WORDS
            if words[SINCE] != 0 and self.c_allows(sample, sums, llabs(words[WANTED])):
                return True
        return False

    cdef bint c_steps_back(self, Turn turn, int64_t* sums, int64_t now):
        """Whether an allowed turn has to wait for an older turn of its side.

        The turn with the longest wait has precedence; otherwise small turns would starve a larger
        one. Two exceptions keep both sides from waiting for each other. First, the other side waits
        and no call of it is allowed: then only this turn can end the wait. Second, COURTESY has
        passed in which the other side did nothing, or in which the oldest turn was allowed.
        """
        cdef bint sample = turn.line >= self.writers
        cdef intp_t first = self.writers if sample else 0
        cdef intp_t stop = self.lines if sample else self.writers
        cdef int64_t oldest = 0
        cdef int64_t wanted = 0
        cdef int64_t since, done
        cdef intp_t line
        cdef bint is_own = self.c_first_turn(turn.line) is turn
        if sums[WAITING + (not sample)] and not self.c_may_go_on(not sample, sums):
            return False
        for line in range(first, stop):
            since = self.words[line * WORDS + SINCE]
            if not self.used[line] or since <= self.overtaken[sample] or (is_own and line == turn.line):
                continue
            if self.words[line * WORDS + WANTED] <= 0 or (turn.since and since > turn.since):
                continue
            if oldest == 0 or since < oldest:
                oldest, wanted = since, self.words[line * WORDS + WANTED]
        turn.behind = wanted
        if oldest == 0:
            return False
        done = sums[INSERTS if sample else SAMPLES]
        if turn.oldest != oldest or turn.stepped_back == 0 or (
            turn.done != done and not self.c_allows(sample, sums, wanted - turn.n)
        ):
            turn.oldest, turn.done, turn.stepped_back = oldest, done, now
        elif now - turn.stepped_back > COURTESY:
            self.overtaken[sample] = oldest
            return False
        return True

    def renew(self):
        """In a forked child: forget the calls of the parent's other threads."""
        self.generation += 1
        self.turns = []
        for line in range(self.lines):
            self.void(line)

    def set_base(self, int64_t inserts, int64_t samples, int64_t down=0, int64_t up=0):
        """Set the counts of the limiter: the rows inserted and the items sampled until now.

        ``settle`` may lower the balance by at most ``down``, or raise it by at most ``up``.
        """
        cdef int64_t sums[SUMS]
        self.c_sum_lines(sums)
        self.base[BASE_INSERTS] = sums[INSERTS] - inserts
        self.base[BASE_SAMPLES] = self.base[BASE_BEGUN] = sums[SAMPLES] - samples
        self.base[BASE_DOWN] = max(down, 0)
        self.base[BASE_UP] = max(up, 0)
        c_fence()
        self.base[BASE_OPEN] = down > 0 or up > 0

    def settle(self, bint sample):
        """Move the balance to where a blocked call of this side has most room, once after ``set_base``.

        Returns whether the counts changed. If two processes settle at the same time, the balance of
        one of them stays, and either gives room to one side.
        """
        cdef int64_t sums[SUMS]
        cdef float64_t balance, room
        if not self.base[BASE_OPEN]:
            return False
        self.c_sum_lines(sums)
        if sample and sums[HELD] < self.min_size:
            return False
        balance = (sums[INSERTS] - self.base[BASE_INSERTS]) * self.samples_per_insert
        balance -= sums[SAMPLES] - self.base[BASE_SAMPLES]
        room = self.max_diff - balance if sample else balance - self.min_diff
        if room < 1:
            return False
        room = min(room, self.base[BASE_UP] if sample else self.base[BASE_DOWN])
        self.base[BASE_OPEN] = 0
        c_fence()
        self.base[BASE_SAMPLES] = self.base[BASE_BEGUN] + <int64_t> (room if sample else -room)
        return True

    def totals(self):
        """The sums of all lines: see ``Totals``."""
        cdef int64_t sums[SUMS]
        self.c_sum_lines(sums)
        return Totals(
            sums[INSERTS],
            sums[SAMPLES],
            sums[HELD],
            sums[INSERTS_BEGUN] - sums[INSERTS],
            sums[SAMPLES_BEGUN] - sums[SAMPLES],
            (sums[INSERTS] - self.base[BASE_INSERTS]) * self.samples_per_insert
            - (sums[SAMPLES] - self.base[BASE_SAMPLES]),
        )

    def is_busy(self, intp_t line):
        """Whether the line has an unfinished or a waiting call."""
        self.c_check_line(line, 0)
        cdef int64_t* words = &self.words[line * WORDS]
        return words[BEGUN] != words[DONE] or words[SINCE] != 0

    def waits(self, intp_t line, int64_t now):
        """The waits of a line at a time in nanoseconds: see ``Waits``."""
        self.c_check_line(line, 0)
        cdef int64_t* words = &self.words[line * WORDS]
        cdef int64_t since = words[SINCE]
        return Waits(
            words[WAITS] + (since != 0),
            words[WAITED] + (max(now - since, 0) if since else 0),
            abs(words[WANTED]) if since else 0,
            words[LAST],
            words[ROWS],
        )


@cython.final
@cython.no_gc
cdef class Turn:
    """A call of ``add`` or ``sample`` at a limiter: announced, done, waiting, or none of these.

    ``close`` ends the turn. If an interrupt prevents that, the deletion of the object ends it.
    ``line`` is the line of the writer or reader, n the number of rows or items.
    """

    def __cinit__(self, Counters counters not None, intp_t line, int64_t n):
        counters.c_check_line(line, n)
        self.counters = counters
        self.line = line
        self.n = n
        self.generation = counters.generation

    def __dealloc__(self):
        if self.counters is not None:
            self.c_close_turn()

    def begin(self, int64_t now=0):
        """Announce the items at a time in nanoseconds.

        Returns false, and changes nothing, if the limiter does not allow the items, or another turn
        has precedence.
        """
        cdef int64_t sums[SUMS]
        cdef bint sample = self.line >= self.counters.writers
        self.now = now
        self.behind = 0
        self.counters.words[self.line * WORDS + BEGUN] += self.n
        c_full_fence()
        self.counters.c_sum_lines(sums)
        if not self.counters.c_allows(sample, sums, 0) or (
            sums[WAITING + sample] and self.counters.c_steps_back(self, sums, now)
        ):
            self.counters.words[self.line * WORDS + BEGUN] -= self.n
            return False
        self.begun = True
        self.c_leave()
        return True

    def wait(self, int64_t now, bint wanted):
        """Begin a wait, or go on with one; ``wanted``: whether a caller waits for the result."""
        if not self.since:
            self.since = self.now = max(now, 1)
            self.counters.turns.append(self)
        self.wanted = wanted
        self.counters.c_show(self.line)

    cdef int c_leave(self) except -1:
        """End the wait of this turn, if it waits."""
        cdef int64_t* words = &self.counters.words[self.line * WORDS]
        if self.since and self.generation == self.counters.generation:
            words[WAITS] += 1
            words[WAITED] += self.now - self.since
            self.counters.turns.remove(self)
            self.counters.c_show(self.line)
        self.since = 0
        return 0

    def end(self, int64_t now, held=None):
        """Count the items as done at a time; ``held()`` is the buffer of a writer."""
        if self.begun:
            if held is not None:
                self.c_count_rows(held)
            if self.generation != self.counters.generation:
                self.counters.words[self.line * WORDS + BEGUN] += self.n
            self.begun = False
            c_fence()
            self.counters.words[self.line * WORDS + DONE] += self.n
            self.counters.words[self.line * WORDS + LAST] = now

    def close(self, held=None):
        """Take back the announcement of items that were not done, and end the wait.

        The rows in the buffer ``held()`` are counted again, as an interrupted call may have added
        some.
        """
        cdef bint was_cut = self.begun
        self.c_close_turn()
        if was_cut and held is not None:
            self.c_count_rows(held)

    cdef int c_count_rows(self, held) except -1:
        """Update the number of rows in the buffer of a writer, without running Python code."""
        buffer = held()
        self.counters.set_rows(self.line, 0 if buffer is None else len(buffer.ring))
        return 0

    cdef int c_close_turn(self) except -1:
        if self.begun:
            self.begun = False
            if self.generation == self.counters.generation:
                self.counters.words[self.line * WORDS + BEGUN] -= self.n
        return self.c_leave()
