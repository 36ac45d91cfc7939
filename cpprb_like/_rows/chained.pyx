"""Chained fields: values that mostly repeat other rows, such as next observations and frame stacks.

The next observation of a step usually is the observation of the next step. A frame stack usually is
the previous one shifted by a frame. ``add`` compares the bytes with neighbouring rows, and stores
other values in the ``overflow``. So reads return exactly what was added, wherever episodes end.
Compiled because it compares every row. Not here: reads of several fields (``views._rows``), and
fields that are stored as they are (``_core``).
"""

cimport cython
cimport numpy as cnp
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from cpprb_like._rows.overflow cimport Overflow
from cpprb_like._rows.column cimport Column
from cpprb_like._rows.walk cimport ABSENT, END
from cpprb_like._machine.blocks cimport Values, c_gather_values
from cpprb_like._c.copying cimport c_pick
from cpprb_like._c.fences cimport c_fence, c_read_fence
from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t

import math

import numpy as np

cnp.import_array()

cdef int64_t MOST = <int64_t> 1 << 62  # no row has such an id

cdef enum:
    DEEPEST = 256            # most frames of a stack, as ``runs`` are bytes
    LINE = 64                # bytes of a cache line
    HELD_NBYTES = 16384      # most bytes that a follower copies each time, in some 0.3 us

cdef enum:  # where the next value of a row is
    FOLLOWS = 0              # value of the next row
    APART_WHOLE = 1
    APART_FRAME = 2          # stack of the row itself, shifted by a frame in the overflow


cdef class Chain:
    """A chained field: values of ``nbytes`` bytes, which may repeat other rows of their stream."""

    def __cinit__(
        self, str name, intp_t nbytes, intp_t capacity, intp_t n_envs, uint8_t[::1] newest, *_
    ):
        self.name = name
        self.nbytes = nbytes
        self.capacity = capacity
        self.n_envs = n_envs
        self.half_nbytes = (n_envs * nbytes + LINE - 1) // LINE * LINE
        if newest.shape[0] != LINE + 2 * self.half_nbytes:
            raise ValueError("newest: of a wrong length")
        self.latest = newest
        self.tags = <int64_t*> &newest[0]
        self.seen = np.zeros(n_envs, np.uint8)
        self.choices = np.zeros(1, np.uint8)

    cdef int c_reserve(self, NewRows* rows) except -1:
        """Compare the values of new rows with those of neighbouring rows, once.

        The outcomes are the ``choices`` that ``c_write`` follows. Nothing else is written. Returns 1
        if ``Overflow.prepare`` has to come before ``c_write``.
        """
        return 0

    cdef void c_write(self, NewRows* rows) noexcept nogil:
        """Write the values of rows that are being added, directly after ``c_reserve``."""

    cdef int c_gather(
        self, const int64_t* rows, intp_t n, int64_t written, char* to
    ) except -1:
        """Copy the values of rows of a ring that had ``written`` rows when they were chosen.

        Called with the interpreter lock, and copies without it; the caller has to check whether the
        rows were overwritten during the call.
        """
        cdef Values values
        self.c_open(&values, to, n)
        self.c_aim(rows, NULL, n, written, &values)
        with nogil:
            c_gather_values(&values, n, False)
        c_close(&values)
        return 0

    cdef int c_open(self, Values* values, char* to, intp_t n) except -1:
        """Allocate the addresses of n values that will be copied to ``to``; ``c_close`` frees them."""
        return 0

    cdef void c_aim(
        self, const int64_t* rows, const intp_t* places, intp_t n, int64_t written, Values* values
    ) noexcept:
        """Note the addresses of the values of rows, at their ``places`` in ``values``, or in order.

        A value that the next row will overwrite is copied at once.
        """

    cdef char* c_latest(self, intp_t which) noexcept nogil:
        """Address of one of the two places of newest values."""
        return <char*> self.tags + LINE + which * self.half_nbytes

    cdef void c_find_promises(self, int64_t tag) noexcept:
        """Use the newest values that were stored with ``tag``, if they still exist."""
        self.which = 1 if self.tags[1] == tag else 0
        self.promise = tag
        self.is_held = self.is_promise_lost = False

    cdef int c_hold_promises(self, int64_t tag) except -1:
        """``c_find_promises`` of a follower, which copies them if they are small.

        The second ``add`` from then on overwrites them, before a long read comes to them.
        """
        cdef intp_t nbytes = self.n_envs * self.nbytes
        self.c_find_promises(tag)
        if nbytes <= HELD_NBYTES:
            if self.held is None:
                self.held = np.empty(nbytes, np.uint8)
            memcpy(cnp.PyArray_DATA(self.held), self.c_latest(self.which), nbytes)
            self.is_held = self.c_has_promises()
        return 0

    cdef bint c_has_promises(self) noexcept:
        """Whether what was read so far of the newest values was not overwritten."""
        c_read_fence()
        return self.tags[self.which] == self.promise

    cdef int c_follow(self, int64_t base, int64_t written, int64_t oldest, bint anew) except -1:
        """Take in the values that another process has stored for rows ``oldest`` to ``written``.

        With ``anew``, read known values again, too.
        """
        cdef Overflow aside
        for aside in self.asides:
            aside.c_follow(base, oldest, written, anew)
        return 0

    cdef void c_clear(self, int64_t base) noexcept nogil:
        """Remove all rows. ``base`` is at least the number of rows written so far."""
        cdef intp_t stream
        for stream in range(self.n_envs):
            (<uint8_t*> cnp.PyArray_DATA(self.seen))[stream] = False

    cdef void c_keep_latest(self, NewRows* rows, const char* values) noexcept nogil:
        """Store the newest value of each stream."""
        cdef intp_t k, stream
        cdef char* to = self.c_latest(1 - self.which)  # readers use the old values until then
        if rows.n == 0:  # the newest values remain
            return
        self.which = 1 - self.which
        self.tags[self.which] = -1
        c_fence()
        for k in range(max(0, rows.n - self.n_envs), rows.n):
            stream = <intp_t> ((rows.first + k) % self.n_envs)
            memcpy(to + stream * self.nbytes, values + k * self.nbytes, self.nbytes)
            (<uint8_t*> cnp.PyArray_DATA(self.seen))[stream] = True
        c_fence()
        self.tags[self.which] = rows.base + rows.first + rows.n

    @property
    def overflow_nbytes(self):
        """Bytes of memory for values that no neighbouring row holds, used or not."""
        return sum([aside.total_nbytes for aside in self.asides])

    def newest(self):
        """The value of the newest row of each stream, and whether a row exists: fresh arrays."""
        cdef cnp.ndarray latest = np.empty((self.n_envs, self.nbytes), np.uint8)
        memcpy(cnp.PyArray_DATA(latest), self.c_latest(self.which), self.n_envs * self.nbytes)
        return latest, self.seen.copy()

    def save(self):
        """The newest values, and ids and values of each overflow: fresh arrays."""
        return *self.newest(), [aside.part(0, MOST) for aside in self.asides]


cdef inline const char* c_before(
    Chain chain, NewRows* rows, intp_t k, const char* values
) noexcept nogil:
    """The value of the row before row k in its stream, or NULL; ``values`` are the new ones."""
    cdef intp_t stream
    if k >= chain.n_envs:
        return values + (k - chain.n_envs) * chain.nbytes
    stream = <intp_t> ((rows.first + k) % chain.n_envs)
    if not (<const uint8_t*> cnp.PyArray_DATA(chain.seen))[stream]:
        return NULL
    return chain.c_latest(chain.which) + stream * chain.nbytes


cdef inline void c_count_apart(Chain chain, NewRows* rows, int64_t before, bint is_whole) noexcept nogil:
    """Count a value that does not follow from the row ``before`` in its stream.

    At starts of episodes that is no reason to warn.
    """
    if before < max(0, rows.oldest) or (
        rows.flags[before % chain.capacity * rows.flag_stride] & (END | ABSENT)
    ):
        chain.compared -= 1
    else:
        chain.apart += is_whole


cdef inline uint8_t* c_choices_of(Chain chain, intp_t n) except NULL:
    """Memory for the choices of n rows: see ``c_reserve``."""
    if cnp.PyArray_DIM(chain.choices, 0) < n:
        chain.choices = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_UINT8)
    return <uint8_t*> cnp.PyArray_DATA(chain.choices)


cdef void c_close(Values* values) noexcept:
    """Free the memory that ``Chain.c_open`` allocated."""
    free(values.frames if values.wholes == NULL else values.wholes)


def find_values(Chain chain not None, int64_t base, int64_t written, cnp.ndarray seen not None):
    """Use the values that the memory has for a ring of ``written`` rows.

    Newest values are used of the streams that are ``seen``. ``base`` is the base of the handles. Raises
    ``ValueError`` if the memory was damaged.

    The memory of newest values has two words in a cache line, and two places for the value of the newest
    row of each stream, padded to cache lines. The words are the tags of the two places: the number of
    rows written when the values were stored, rows before the last clear included. Without the tag no
    stream is seen.
    """
    cdef Overflow aside
    chain.c_find_promises(base + written)
    chain.seen[...] = seen & (chain.tags[chain.which] == chain.promise)
    for aside in chain.asides:
        aside.derive(base, written)


def load(Chain chain not None, int64_t base, int64_t written, saved):
    """Restore a state that ``save`` returned; ``ValueError`` if it does not fit.

    ``base`` is the base of the handles of the rows, of which there are ``written``.
    """
    latest, seen, queues = saved
    shapes = (chain.n_envs, chain.nbytes), (chain.n_envs,)
    if (latest.shape, seen.shape) != shapes or (latest.dtype, seen.dtype) != (np.uint8,) * 2:
        raise ValueError(f"field {chain.name!r}: expected newest values of shape {shapes}")
    dense = np.ascontiguousarray(latest)
    memcpy(chain.c_latest(chain.which), cnp.PyArray_DATA(dense), chain.n_envs * chain.nbytes)
    chain.tags[chain.which], chain.tags[1 - chain.which] = base + written, -1
    chain.seen[...] = seen
    for aside, (ids, values) in zip(chain.asides, queues, strict=True):
        aside.load(base, ids, values)


@cython.final
cdef class FrameStack(Chain):
    """A frame stack (Mnih et al., 2015): only the newest frame of each row is stored.

    The older frames of a stack that is not the previous one shifted by a frame go to the overflow.
    A value has ``outer * depth * inner`` bytes, with ``axis`` of length ``depth``, 1 to 256. ``frames``
    is memory for ``capacity + (depth - 1) * n_envs`` frames, so the oldest rows of the ring have the
    frames of the rows before them.
    """

    def __cinit__(
        self, str name, intp_t nbytes, intp_t capacity, intp_t n_envs, uint8_t[::1] newest, tuple shape,
        intp_t axis, uint8_t[::1] frames, uint8_t[::1] runs, Overflow older not None,
    ):
        if not 0 <= axis < len(shape) or not 1 <= shape[axis] <= DEEPEST:
            raise ValueError(f"axis: expected one of 1 to {DEEPEST} frames, got {axis} of {shape}")
        self.shape = shape
        self.axis = axis
        self.depth = depth = shape[axis]
        self.outer = math.prod(shape[:axis])
        self.inner = nbytes // max(1, self.outer * depth)
        self.frame_nbytes = self.outer * self.inner
        self.n_frames = capacity + (depth - 1) * n_envs
        if depth * self.frame_nbytes != nbytes:
            raise ValueError(f"shape: expected one of {nbytes} bytes, got {shape}")
        if frames.shape[0] != self.n_frames * self.frame_nbytes or runs.shape[0] != capacity:
            raise ValueError("frames, runs: of a wrong length")
        self.older = older
        self.asides = (older,)
        self.frames = frames
        self.frame_data = <char*> cnp.PyArray_DATA(np.asarray(frames))  # a frame may have no bytes
        self.runs = runs

    cdef int c_reserve(self, NewRows* rows) except -1:
        cdef const char* values = rows.values[self.place]
        cdef const char* before
        cdef uint8_t* choices = c_choices_of(self, rows.n)  # by row: whether its stack is the previous one shifted
        cdef intp_t k, count = 0
        for k in range(rows.n):
            before = c_before(self, rows, k, values)
            choices[k] = before != NULL and self.c_is_slide(before, values + k * self.nbytes)
            count += not choices[k] and k >= rows.n - self.n_frames
        return self.older.c_reserve(count, rows.first + rows.n - self.n_frames)

    cdef void c_clear(self, int64_t base) noexcept nogil:
        Chain.c_clear(self, base)
        self.older.c_clear(base)

    cdef int c_follow(self, int64_t base, int64_t written, int64_t oldest, bint anew) except -1:
        return Chain.c_follow(self, base, written, oldest - (self.depth - 1) * self.n_envs, anew)

    cdef void c_write(self, NewRows* rows) noexcept nogil:
        cdef const char* values = rows.values[self.place]
        cdef const char* value
        cdef const uint8_t* choices = <const uint8_t*> cnp.PyArray_DATA(self.choices)
        cdef char* found
        cdef intp_t k, frame
        cdef int64_t row, needed = rows.first + rows.n - self.n_frames
        cdef uint8_t run
        self.compared += rows.n
        self.older.c_drop(needed)
        for k in range(rows.n):
            row = rows.first + k
            value = values + k * self.nbytes
            if choices[k]:
                run = self.runs[(row - self.n_envs) % self.capacity]
                run = run + 1 if run + 1 < self.depth else run
            else:
                run = 0
                c_count_apart(self, rows, row - self.n_envs, True)
                if row >= needed:
                    found = self.older.c_push(row)
                    for frame in range(self.depth - 1):
                        self.c_split(value, frame, found + frame * self.frame_nbytes)
            self.runs[row % self.capacity] = run
            self.c_split(value, self.depth - 1, <char*> self.c_frame(row))
        self.c_keep_latest(rows, values)

    cdef const char* c_frame(self, int64_t row) noexcept nogil:
        """Address of the newest frame of a row."""
        return self.frame_data + row % self.n_frames * self.frame_nbytes

    cdef bint c_is_slide(self, const char* before, const char* value) noexcept nogil:
        """Whether a value is the stack ``before`` shifted by one frame."""
        cdef intp_t o, size = self.depth * self.inner, overlap = size - self.inner
        cdef uint8_t differs = 0
        cdef const uint8_t* b = <const uint8_t*> before
        cdef const uint8_t* v = <const uint8_t*> value
        if size == 4 and self.inner == 1:  # four frames of one byte each
            for o in range(0, 4 * self.outer, 4):
                differs |= (b[o + 1] ^ v[o]) | (b[o + 2] ^ v[o + 1]) | (b[o + 3] ^ v[o + 2])
            return differs == 0
        for o in range(self.outer):
            if memcmp(before + o * size + self.inner, value + o * size, overlap):
                return False
        return True

    cdef bint c_is_moved_on(self, const char** frames, const char* value) noexcept nogil:
        """``c_is_slide`` for a previous value given by the addresses of its frames."""
        cdef intp_t frame, o, inner = self.inner, size = self.depth * inner
        cdef const char* a
        cdef const char* b
        cdef bint differs
        for frame in range(self.depth - 1):
            a = frames[frame + 1]
            b = value + frame * inner
            for o in range(self.outer):
                if inner == 1:
                    differs = a[o] != b[o * size]
                else:
                    differs = memcmp(a + o * inner, b + o * size, inner) != 0
                if differs:
                    return False
        return True

    cdef void c_split(self, const char* value, intp_t frame, char* to) noexcept nogil:
        """Copy one frame out of a value."""
        cdef intp_t o, inner = self.inner, size = self.depth * inner
        value += frame * inner
        if inner == 1:
            c_pick(to, value, size, self.outer)
        else:
            for o in range(self.outer):
                memcpy(to + o * inner, value + o * size, inner)

    cdef void c_point(self, int64_t row, const char** frames) noexcept nogil:
        """Addresses of the frames of the value of a row, oldest first."""
        cdef intp_t run = self.runs[row % self.capacity], age
        cdef const char* found = NULL
        if run < self.depth - 1:
            found = self.older.c_find(row - run * self.n_envs)
        # Damaged memory, such as a mapped file, gives wrong frames, but no wrong addresses.
        if run * self.n_envs > row:
            run = <intp_t> (row // self.n_envs)
        for age in range(self.depth):
            if age > run and found != NULL:
                frames[self.depth - 1 - age] = (
                    found + (self.depth - 1 - (age - run)) * self.frame_nbytes
                )
            else:
                frames[self.depth - 1 - age] = self.c_frame(
                    row - min(age, run) * self.n_envs
                )

    cdef int c_open(self, Values* values, char* to, intp_t n) except -1:
        cdef const char** frames = <const char**> malloc((1 + n * self.depth) * sizeof(char*))
        if frames == NULL:
            raise MemoryError("no memory left to gather rows")
        values[0] = Values(to, NULL, frames, self.nbytes, self.depth, self.outer, self.inner)
        return 0

    cdef void c_aim(
        self, const int64_t* rows, const intp_t* places, intp_t n, int64_t written, Values* values
    ) noexcept:
        cdef intp_t k
        for k in range(n):
            self.c_point(rows[k], values.frames + (k if places == NULL else places[k]) * self.depth)


@cython.final
cdef class NextOf(Chain):
    """The next value of a field, such as the next observation: in the next row, or the overflow.

    If the next value is the stack of its own row shifted by a frame, the overflow has only
    the newest frame. ``source``, the field whose next value this is, is a ``FrameStack``, or a
    ``Column`` that lies in ``arena``.
    """

    def __cinit__(
        self, str name, intp_t nbytes, intp_t capacity, intp_t n_envs, uint8_t[::1] newest, source,
        uint8_t[::1] arena, uint8_t[::1] marks, Overflow whole not None, Overflow newest_frames=None,
    ):
        if marks.shape[0] != capacity:
            raise ValueError(f"marks: expected {capacity}, got {marks.shape[0]}")
        self.column = source if isinstance(source, Column) else None
        self.stack = source if isinstance(source, FrameStack) else None
        self.whole, self.newest = whole, newest_frames
        self.asides = (whole,) if newest_frames is None else (whole, newest_frames)
        self.arena = arena
        self.marks = marks

    cdef intp_t c_source(self) noexcept nogil:
        return self.stack.place if self.column is None else self.column.place

    cdef bint c_is_own(self, NewRows* rows, intp_t k, const char* promised) noexcept nogil:
        """Whether the next value of the row before row k is the stack of that row, shifted."""
        cdef const char* frames[DEEPEST]
        if self.stack is None:
            return False
        if k >= self.n_envs:
            return self.stack.c_is_slide(
                c_before(self, rows, k, rows.values[self.stack.place]), promised
            )
        self.stack.c_point(rows.first + k - self.n_envs, frames)
        return self.stack.c_is_moved_on(frames, promised)

    cdef int c_reserve(self, NewRows* rows) except -1:
        cdef const char* values = rows.values[self.place]
        cdef const char* source = rows.values[self.c_source()]
        cdef const char* promised
        cdef uint8_t* choices = c_choices_of(self, rows.n)
        cdef intp_t k, whole = 0, frames = 0
        for k in range(max(0, rows.n - self.capacity + self.n_envs), rows.n):  # rows before k that stay
            promised = c_before(self, rows, k, values)
            if promised == NULL or not memcmp(promised, source + k * self.nbytes, self.nbytes):
                choices[k] = FOLLOWS
            elif self.c_is_own(rows, k, promised):
                choices[k] = APART_FRAME
                frames += 1
            else:
                choices[k] = APART_WHOLE
                whole += 1
        cdef bint lacks = self.whole.c_reserve(whole, rows.oldest)
        return lacks if self.newest is None else self.newest.c_reserve(frames, rows.oldest) or lacks

    cdef void c_clear(self, int64_t base) noexcept nogil:
        Chain.c_clear(self, base)
        self.whole.c_clear(base)
        if self.newest is not None:
            self.newest.c_clear(base)

    cdef void c_write(self, NewRows* rows) noexcept nogil:
        cdef const uint8_t* choices = <const uint8_t*> cnp.PyArray_DATA(self.choices)
        cdef intp_t k
        cdef int64_t row
        self.compared += rows.n
        self.whole.c_drop(rows.oldest)
        if self.newest is not None:
            self.newest.c_drop(rows.oldest)
        for k in range(rows.n):
            row = rows.first + k - self.n_envs
            if row >= rows.oldest and choices[k] != FOLLOWS:
                c_count_apart(self, rows, row, choices[k] == APART_WHOLE)
                if not rows.flags[row % self.capacity * rows.flag_stride] & ABSENT:
                    self.c_keep(rows, k, choices[k])
            self.marks[(rows.first + k) % self.capacity] = FOLLOWS
        self.c_keep_latest(rows, rows.values[self.place])

    cdef void c_keep(self, NewRows* rows, intp_t k, uint8_t choice) noexcept nogil:
        """Put the next value of the row before row k into the overflow, after all stacks."""
        cdef int64_t row = rows.first + k - self.n_envs
        cdef const char* promised = c_before(self, rows, k, rows.values[self.place])
        self.marks[row % self.capacity] = choice
        if choice == APART_FRAME:
            self.stack.c_split(promised, self.stack.depth - 1, self.newest.c_push(row))
        else:
            memcpy(self.whole.c_push(row), promised, self.nbytes)

    cdef const char* c_whole(self, int64_t row) noexcept nogil:
        """Address of a next value that is stored whole; NULL: ``c_point`` finds its frames."""
        cdef const char* found = NULL
        if self.marks[row % self.capacity] == APART_WHOLE:
            found = self.whole.c_find(row)
        if found != NULL or self.column is None:
            return found
        return <const char*> &self.arena[0] + (
            self.column.offset + (row + self.n_envs) % self.capacity * self.column.stride
        )

    cdef void c_point(self, int64_t row, const char** frames) noexcept nogil:
        """Addresses of the frames of the next value of a row, oldest first."""
        cdef intp_t frame
        cdef const char* found = NULL
        if self.marks[row % self.capacity] == APART_FRAME:
            found = self.newest.c_find(row)
        self.stack.c_point(row if found != NULL else row + self.n_envs, frames)
        if found != NULL:
            for frame in range(self.stack.depth - 1):
                frames[frame] = frames[frame + 1]
            frames[self.stack.depth - 1] = found

    cdef int c_open(self, Values* values, char* to, intp_t n) except -1:
        cdef intp_t depth = 1 if self.stack is None else self.stack.depth
        cdef const char** found = <const char**> malloc((1 + n * (1 + depth)) * sizeof(char*))
        if found == NULL:
            raise MemoryError("no memory left to gather rows")
        values[0] = Values(to, found, found + n, self.nbytes, depth, 1, self.nbytes)
        if self.stack is not None:
            values.outer, values.inner = self.stack.outer, self.stack.inner
        return 0

    cdef void c_aim(
        self, const int64_t* rows, const intp_t* places, intp_t n, int64_t written, Values* values
    ) noexcept:
        cdef intp_t k, place
        for k in range(n):
            place = k if places == NULL else places[k]
            if rows[k] + self.n_envs >= written:  # the next row will overwrite it
                values.wholes[place] = values.out + place * self.nbytes
                memcpy(values.out + place * self.nbytes, self.c_promised(rows[k]), self.nbytes)
                self.is_promise_lost |= not (self.is_held or self.c_has_promises())
                continue
            values.wholes[place] = self.c_whole(rows[k])
            if values.wholes[place] == NULL:
                self.c_point(rows[k], values.frames + place * values.depth)

    cdef const char* c_promised(self, int64_t row) noexcept nogil:
        """The next value of the newest row of a stream."""
        cdef const char* first = <const char*> cnp.PyArray_DATA(self.held) if self.is_held else (
            self.c_latest(self.which)
        )
        return first + row % self.n_envs * self.nbytes
