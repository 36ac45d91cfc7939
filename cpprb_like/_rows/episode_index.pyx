"""Index of the episodes (trajectories) of a ring: by number, and by row.

The index is updated lazily: an added row costs nothing. The next call reads the flags of new rows once,
notes where episodes begin and end, and drops overwritten episodes. An episode is found by number, or
deleted, in logarithmic time, and found by one of its rows in constant time. Compiled because it reads
every new row. Not here: reading episodes (``buffers._episodes``), and draws among their rows
(``samplers._starts``).
"""

cimport cython
cimport numpy as cnp
from libc.stdlib cimport qsort
from libc.string cimport memmove

from cpprb_like._c.copying cimport c_prefetch
from cpprb_like._core cimport CLEARS, WRITTEN, Moment, Ring, c_absent, c_stored
from cpprb_like._rows.changes cimport c_hide
from cpprb_like._rows.walk cimport ABSENT, END
from cpprb_like._rows.slot_set cimport SlotSet, c_has
from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t, uint32_t

import numpy as np

cnp.import_array()

cdef enum:
    FIRST_ROOM = 64          # records that the first table has room for

cdef enum:  # values of ``records`` that are no places
    NO_RECORD = -1
    CUT = -2                 # the newest episode is the cut one


cdef int c_compare_cuts(const void* one, const void* other) noexcept nogil:
    cdef intp_t first = (<const intp_t*> one)[0], second = (<const intp_t*> other)[0]
    return (first > second) - (first < second)


@cython.final
cdef class EpisodeIndex:
    """Begin, end and number of the episodes of a ring.

    An episode is listed as long as one of its rows is in the ring. Numbers are from 0, in the order
    of the oldest rows in the ring. A call holds the interpreter lock from its first look at the ring
    to its result.
    """

    def __cinit__(self, Ring ring not None):
        self.ring = ring
        self.newest = np.empty(ring.n_envs, np.int64)
        self.records = np.empty(ring.n_envs, np.intp)
        self.cut_firsts = np.empty(ring.n_envs, np.int64)
        self.cut_lasts = np.empty(ring.n_envs, np.int64)
        self.cut = np.empty(ring.n_envs, np.intp)
        self.c_forget_episodes()

    @property
    def nbytes(self):
        """Bytes of memory: proportional to the greatest number of episodes so far. Finding episodes by
        row takes 4 bytes more for each slot.
        """
        by_row = 0 if self.memory is None else self.memory.nbytes
        return self.table.nbytes + self.gone.nbytes + by_row + 4 * 8 * self.ring.n_envs

    cdef int c_forget_episodes(self) except -1:
        """Drop all episodes: the ring was cleared, or all its rows have to be read again."""
        self.shift += <uint32_t> self.tail
        self.room = FIRST_ROOM
        self.table = np.empty(4 * self.room, np.int64)
        self.gone = SlotSet(self.room)
        self.c_point_at_table()
        self.head = self.tail = self.n_cut = 0
        self.cut_is_sorted = False
        self.newest[:] = -1
        self.records[:] = NO_RECORD
        self.cut_firsts[:] = -1
        self.seen = self.oldest = 0
        self.clears, self.rereads = self.ring.state[CLEARS], self.ring.rereads
        return 0

    cdef void c_point_at_table(self) noexcept:
        self.firsts = <int64_t*> cnp.PyArray_DATA(self.table)
        self.lasts = self.firsts + self.room
        self.lengths = self.lasts + self.room
        self.befores = self.lengths + self.room

    # ------------------------------------------------------------------ following the ring

    cdef int c_sync_episodes(self) except -1:
        """Update for the rows that were added and overwritten since the last call."""
        cdef Ring ring = self.ring
        if self.clears != ring.state[CLEARS] or self.rereads != ring.rereads:
            self.c_forget_episodes()
        cdef int64_t row = max(self.seen, ring.c_first())
        cdef intp_t stream = <intp_t> (row % ring.n_envs), slot = <intp_t> (row % ring.capacity)
        while row < ring.state[WRITTEN]:
            self.c_see(row, stream, slot)
            row += 1
            self.seen = row
            stream = stream + 1 if stream + 1 < ring.n_envs else 0
            slot = slot + 1 if slot + 1 < ring.capacity else 0
        if self.oldest != ring.c_first():
            self.c_lose()
        return 0

    cdef int c_sync_numbers(self) except -1:
        """``c_sync_episodes`` for finding episodes by number."""
        cdef intp_t* cut = <intp_t*> cnp.PyArray_DATA(self.cut)
        cdef intp_t stream, k = 0
        self.c_sync_episodes()
        # In C, as NumPy's sort lets other threads run.
        if not self.cut_is_sorted:
            for stream in range(self.ring.n_envs):
                if self.cut_firsts[stream] >= 0:
                    cut[k] = <intp_t> self.cut_firsts[stream]
                    k += 1
            qsort(cut, k, sizeof(intp_t), c_compare_cuts)
            for k in range(k):
                cut[k] %= self.ring.n_envs
            self.cut_is_sorted = True
        return 0

    cdef int c_sync_rows(self) except -1:
        """``c_sync_episodes`` for finding episodes by row; the first call reads all rows."""
        cdef intp_t place
        cdef int64_t row
        if self.numbers == NULL:
            self.memory = np.zeros(self.ring.capacity, np.uint32)
            self.numbers = <uint32_t*> cnp.PyArray_DATA(self.memory)
            for place in range(self.head, self.tail):  # slots of overwritten rows are set again below
                row = -1 if c_has(self.gone, place) else self.firsts[place]
                while 0 <= row <= self.lasts[place]:
                    self.numbers[row % self.ring.capacity] = <uint32_t> place + self.shift
                    row = self.ring.c_next(row, self.seen)
        return self.c_sync_episodes()

    cdef int c_see(self, int64_t row, intp_t stream, intp_t slot) except -1:
        """Update for one row that was added."""
        cdef Ring ring = self.ring
        cdef intp_t place = self.records[stream], before
        cdef uint8_t flags = ring.c_flags(slot)[0]
        cdef int64_t last = self.newest[stream]
        # The newest step may be marked as an end until another step follows, so its flags count
        # only now. If that step was overwritten, no row of its episode is left.
        cdef bint is_known = last >= ring.c_first(), ended = False
        if is_known:
            before = slot - <intp_t> (row - last)
            before = before + ring.capacity if before < 0 else before
            ended = ring.c_flags(before)[0] & END
        if flags & ABSENT:
            if flags & END:
                self.newest[stream] = row
                self.records[stream] = NO_RECORD
            return 0
        if place == NO_RECORD or ended or not is_known:
            if self.tail == self.room:
                self.c_make_room()
            place = self.tail
            self.firsts[place] = row
            self.lengths[place] = 0
            self.befores[place] = last if ended else -1
            self.records[stream] = place
            self.tail += 1
        if place == CUT:
            self.cut_lasts[stream] = row
        else:
            self.lasts[place] = row
            self.lengths[place] += 1
            if self.numbers != NULL:
                self.numbers[slot] = <uint32_t> place + self.shift
        self.newest[stream] = row
        return 0

    cdef int c_make_room(self) except -1:
        """Move the records to the front of the table; double the table if it is too small."""
        cdef intp_t held = self.tail - self.head, room = self.room, column, stream, place
        while room < 2 * held:
            room *= 2
        cdef SlotSet gone = SlotSet(room)
        if self.gone.count:
            gone.c_make_memory()
            for place in range(held):
                if c_has(self.gone, self.head + place):
                    gone.c_add(place)
        cdef cnp.ndarray table = self.table if room == self.room else np.empty(4 * room, np.int64)
        cdef int64_t* to = <int64_t*> cnp.PyArray_DATA(table)
        for column in range(4):
            memmove(
                to + column * room, self.firsts + column * self.room + self.head,
                held * sizeof(int64_t),
            )
        for stream in range(self.ring.n_envs):
            if self.records[stream] >= 0:
                # Records before the head are of overwritten rows.
                place = self.records[stream] - self.head
                self.records[stream] = place if place >= 0 else NO_RECORD
        self.table, self.gone, self.room = table, gone, room
        self.c_point_at_table()
        self.shift += <uint32_t> self.head
        self.head, self.tail = 0, held
        return 0

    cdef int c_lose(self) except -1:
        """Drop episodes that were overwritten, and note those that were overwritten in part."""
        cdef Ring ring = self.ring
        cdef int64_t oldest = ring.c_first(), row
        cdef intp_t stream
        while self.head < self.tail and (
            self.firsts[self.head] < oldest or c_has(self.gone, self.head)
        ):
            stream = <intp_t> (self.firsts[self.head] % ring.n_envs)
            if not c_has(self.gone, self.head) and self.lasts[self.head] >= oldest:
                self.cut_firsts[stream] = self.firsts[self.head]
                self.cut_lasts[stream] = self.lasts[self.head]
                if self.records[stream] == self.head:
                    self.records[stream] = CUT
            elif self.records[stream] == self.head:
                self.records[stream] = NO_RECORD
            if self.gone.count:
                self.gone.c_remove(self.head)
            self.head += 1
        self.n_cut = 0
        for stream in range(ring.n_envs):
            if self.cut_firsts[stream] < 0:
                continue
            if self.cut_lasts[stream] < oldest:
                self.cut_firsts[stream] = -1
                if self.records[stream] == CUT:
                    self.records[stream] = NO_RECORD
                continue
            row = self.cut_firsts[stream]
            if row < oldest:
                row = oldest + (stream + ring.n_envs - oldest % ring.n_envs) % ring.n_envs
                if ring.c_is_absent(<intp_t> (row % ring.capacity)):
                    row = ring.c_next(row, ring.state[WRITTEN])
                self.cut_firsts[stream] = row
            self.n_cut += 1
        self.cut_is_sorted = False
        self.oldest = oldest
        return 0

    # ------------------------------------------------------------------ finding

    cdef intp_t c_count(self) noexcept:
        return self.n_cut + self.tail - self.head - self.gone.count

    cdef intp_t c_episodes_before(self, int64_t first) noexcept:
        """Number of episodes that are not cut and begin before a row."""
        return self.gone.c_free_before(self.c_record_of(first)) - self.head

    cdef intp_t c_record_of(self, int64_t first) noexcept:
        """The place of the first record that does not begin before a row."""
        cdef intp_t low = self.head, high = self.tail, middle
        while low < high:
            middle = (low + high) // 2
            if self.firsts[middle] < first:
                low = middle + 1
            else:
                high = middle
        return low

    cdef Bounds c_episode(self, intp_t number) noexcept:
        """The episode with a number from 0 to ``c_count() - 1``."""
        cdef const intp_t* cut = <const intp_t*> cnp.PyArray_DATA(self.cut)
        cdef intp_t low = 0, high = self.n_cut, middle, place
        cdef Bounds found
        while low < high:  # number of cut episodes whose number is at most this one
            middle = (low + high) // 2
            if middle + self.c_episodes_before(self.cut_firsts[cut[middle]]) <= number:
                low = middle + 1
            else:
                high = middle
        if low and low - 1 + self.c_episodes_before(self.cut_firsts[cut[low - 1]]) == number:
            found.place = -1 - cut[low - 1]
            found.first = self.cut_firsts[cut[low - 1]]
            found.last = self.cut_lasts[cut[low - 1]]
            found.length, found.is_known = -1, False
            return found
        place = self.gone.c_free_at(self.head + number - low)
        found.place = place
        found.first, found.last = self.firsts[place], self.lasts[place]
        found.length = <intp_t> self.lengths[place]
        found.is_known = self.c_is_known(place)
        return found

    cdef bint c_find_row(self, int64_t row, Bounds* found) noexcept nogil:
        """Find the episode of a row that was in the ring; false if it has none. After ``c_sync_rows``."""
        cdef intp_t place, stream = <intp_t> (row % self.ring.n_envs)
        if self.cut_firsts[stream] <= row <= self.cut_lasts[stream] and self.cut_firsts[stream] >= 0:
            found.place = -1 - stream
            found.first, found.last = self.cut_firsts[stream], self.cut_lasts[stream]
            found.length, found.is_known = -1, False
            return True
        place = <intp_t> (self.numbers[row % self.ring.capacity] - self.shift)
        if not self.head <= place < self.tail or c_has(self.gone, place):
            return False
        found.place = place
        found.first, found.last = self.firsts[place], self.lasts[place]
        if not found.first <= row <= found.last:  # the slot has another row by now
            return False
        found.length = <intp_t> self.lengths[place]
        found.is_known = self.c_is_known(place)
        return True

    cdef void c_fetch_rows(self, const intp_t* slots, intp_t n) noexcept nogil:
        """Prefetch what ``c_find_row`` reads of the rows in n slots."""
        cdef intp_t k, place
        for k in range(n):
            c_prefetch(&self.numbers[slots[k]])
        for k in range(n):
            place = <intp_t> (self.numbers[slots[k]] - self.shift)
            if place < self.tail:
                c_prefetch(&self.firsts[place])
                c_prefetch(&self.lasts[place])

    cdef bint c_is_known(self, intp_t place) noexcept nogil:
        """Whether the ring has the true first row of the episode of a record."""
        cdef int64_t oldest = self.ring.c_first()
        if self.befores[place] >= 0:
            return self.befores[place] >= oldest
        return oldest <= self.firsts[place] % self.ring.n_envs

    cdef intp_t c_length(self, Bounds* bounds) noexcept:
        """Number of rows of an episode. In a cut episode absent rows are counted."""
        if bounds.length < 0:
            bounds.length = self.c_list_rows(bounds.first, bounds.last, NULL, 0)
        return bounds.length

    cdef uint8_t c_ends(self, const Bounds* bounds) noexcept:
        """Flags of the last row of an episode."""
        return self.ring.c_flags(<intp_t> (bounds.last % self.ring.capacity))[0]

    cdef intp_t c_list_rows(self, int64_t first, int64_t last, intp_t* slots, intp_t most) noexcept:
        """Write the slots of at most ``most`` rows of an episode; return the number of its rows."""
        cdef Ring ring = self.ring
        cdef intp_t count = 0
        cdef int64_t row = first
        if slots == NULL and not c_absent(ring):
            return <intp_t> ((last - first) // ring.n_envs + 1)
        while 0 <= row <= last:
            if slots != NULL and count < most:
                slots[count] = <intp_t> (row % ring.capacity)
            count += 1
            row = ring.c_next(row, ring.state[WRITTEN])
        return count

    def __len__(self):
        """Number of episodes."""
        self.c_sync_episodes()
        return self.c_count()

    def version(self):
        """Numbers that change when the episodes change."""
        self.c_sync_episodes()
        return self.clears, self.rereads, self.seen, self.oldest, self.gone.count, self.n_cut

    def slots(self, intp_t number):
        """The slots of the rows of an episode, in the order of time; and the flags of the last one.

        Negative numbers count from the end. Raises ``IndexError`` if there is no such episode.
        """
        self.c_sync_numbers()
        cdef intp_t n = self.c_count()
        if not -n <= number < n:
            raise IndexError(f"number: expected {-n} to {n - 1}, got {number}")
        cdef Bounds bounds = self.c_episode(number if number >= 0 else number + n)
        cdef intp_t length = self.c_length(&bounds)
        cdef cnp.ndarray found = cnp.PyArray_SimpleNew(1, &length, cnp.NPY_INTP)
        length = self.c_list_rows(bounds.first, bounds.last, <intp_t*> cnp.PyArray_DATA(found), length)
        return found, self.c_ends(&bounds)

    def complete(self, cnp.ndarray numbers):
        """Whether each of the episodes, by number, has ended and has all its rows in the ring.

        ``numbers`` are a dense 1-d array of intp, each from 0 to ``len(self) - 1``.
        """
        self.c_sync_numbers()
        cdef const intp_t* given = <const intp_t*> cnp.PyArray_DATA(numbers)
        cdef intp_t k, n = cnp.PyArray_DIM(numbers, 0)
        cdef cnp.ndarray complete = np.zeros(n, np.bool_)
        cdef Bounds bounds
        for k in range(n):
            if given[k] >= self.c_count():
                raise IndexError(f"number: expected up to {self.c_count() - 1}, got {given[k]}")
            bounds = self.c_episode(given[k])
            (<uint8_t*> cnp.PyArray_DATA(complete))[k] = (
                bounds.is_known and self.c_ends(&bounds) & END != 0
            )
        return complete

    def describe(self, bint with_slots):
        """Describe all episodes.

        Returns, by number: id of the first row, length, flags of the last row, and whether the episode
        is complete; and the slots of all rows one after another, or None.
        """
        self.c_sync_numbers()
        cdef intp_t k, total = 0, n = self.c_count()
        cdef cnp.ndarray firsts = np.empty(n, np.int64), lengths = np.empty(n, np.int64)
        cdef cnp.ndarray lasts = np.empty(n, np.int64), slots = None
        cdef cnp.ndarray flags = np.empty(n, np.uint8), complete = np.empty(n, np.bool_)
        cdef Bounds bounds
        for k in range(n):
            bounds = self.c_episode(k)
            total += self.c_length(&bounds)
            (<int64_t*> cnp.PyArray_DATA(firsts))[k] = bounds.first
            (<int64_t*> cnp.PyArray_DATA(lasts))[k] = bounds.last
            (<int64_t*> cnp.PyArray_DATA(lengths))[k] = bounds.length
            (<uint8_t*> cnp.PyArray_DATA(flags))[k] = self.c_ends(&bounds)
            (<uint8_t*> cnp.PyArray_DATA(complete))[k] = (
                bounds.is_known and self.c_ends(&bounds) & END != 0
            )
        if with_slots:
            slots = cnp.PyArray_SimpleNew(1, &total, cnp.NPY_INTP)
            total = 0
            for k in range(n):
                total += self.c_list_rows(
                    (<int64_t*> cnp.PyArray_DATA(firsts))[k],
                    (<int64_t*> cnp.PyArray_DATA(lasts))[k],
                    <intp_t*> cnp.PyArray_DATA(slots) + total,
                    <intp_t> (<int64_t*> cnp.PyArray_DATA(lengths))[k],
                )
        return firsts, lengths, flags, complete, slots

    def hide(self, intp_t number):
        """Make the rows of an episode absent, and return their number; None if rows changed.

        Raises ``IndexError`` if there is no such episode, and ``ValueError`` if it has not ended.
        """
        cdef Moment moment = self.ring.c_now()
        cdef cnp.ndarray slots
        slots, flags = self.slots(number)
        if not flags & END:
            raise ValueError(f"number: episode {number} has not ended; on_episode_end() ends it")
        cdef int64_t first = self.ring.c_row_at((<const intp_t*> cnp.PyArray_DATA(slots))[0])
        if not c_hide(self.ring, np.concatenate([self._left_out(first), slots]), moment):
            return None
        self.c_forget_one(first)
        return cnp.PyArray_DIM(slots, 0)

    def _left_out(self, int64_t first):
        """Slots of older rows of an episode, which are in memory before its first listed row.

        They become absent with the episode. Otherwise they would join the next episode, because
        the row that ends theirs is absent.
        """
        cdef Ring ring = self.ring
        cdef int64_t oldest = ring.state[WRITTEN] - c_stored(ring), row = first - ring.n_envs
        cdef intp_t slot, place = self.c_record_of(first)
        cdef list found = []
        if place < self.tail and self.firsts[place] == first and self.befores[place] >= 0:
            row = -1  # the previous episode ended here, so no older row is left
        while row >= oldest:
            slot = <intp_t> (row % ring.capacity)
            if ring.c_flags(slot)[0] & END:
                break
            if ring.c_is_absent(slot):
                row -= <int64_t> ring.runs.back[slot] * ring.n_envs
            else:
                found.append(slot)
                row -= ring.n_envs
        return np.array(found, np.intp)

    cdef int c_forget_one(self, int64_t first) except -1:
        """Forget the episode that begins at a row."""
        cdef intp_t place = self.c_record_of(first), stream = <intp_t> (first % self.ring.n_envs)
        if place < self.tail and self.firsts[place] == first:
            self.gone.c_make_memory()
            self.gone.c_add(place)
            return 0
        if self.cut_is_sorted:
            self.c_unlist(first)
        self.cut_firsts[stream] = -1
        self.n_cut -= 1
        if self.records[stream] == CUT:
            self.records[stream] = NO_RECORD
        return 0

    cdef void c_unlist(self, int64_t first) noexcept:
        """Remove the stream whose cut episode begins at a row from the sorted list."""
        cdef intp_t* cut = <intp_t*> cnp.PyArray_DATA(self.cut)
        cdef intp_t low = 0, high = self.n_cut - 1, middle
        while low < high:
            middle = (low + high) // 2
            if self.cut_firsts[cut[middle]] < first:
                low = middle + 1
            else:
                high = middle
        memmove(cut + low, cut + low + 1, (self.n_cut - 1 - low) * sizeof(intp_t))
