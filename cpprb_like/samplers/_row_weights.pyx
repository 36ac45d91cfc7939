"""Weights of the rows of a ring: a row is drawn with probability ``weight / sum of weights``.

The weight is most often ``(priority + eps) ** alpha``. The sum tree is updated lazily: an added row
costs nothing, and the next draw or update sets the leaves of all new rows and sums the nodes above
them once. A row whose n-step window is not complete yet gets its weight when the ring has completed
it. So the cost is proportional to the rows that changed. Compiled because it looks at every new row.
Not here: draws (``_tree_draws``), which rows ``indexes`` mean (``_rows.row_handles``), and how a priority
becomes a weight (``_prioritized``, ``_rank_based``).
"""

cimport cython
cimport numpy as cnp

from libc.math cimport INFINITY, NAN

from cpprb_like._machine.aligned cimport c_numbers
from cpprb_like._c.fences cimport c_fence
from cpprb_like._core cimport (
    CLEARS, HANDLE_BASE, WRITTEN, Beside, Ring, c_absent, c_is_current, c_is_open, c_mark_current,
    c_stored, c_sync_open, c_walk_of,
)
from cpprb_like._rows.walk cimport ABSENT, Walk
from cpprb_like._rows.row_handles cimport GONE, NO_ROW, c_find_indexes, c_refuse, c_slot_of
from cpprb_like._segment_tree cimport MinTree, SumTree
from cpprb_like._c.typedefs cimport float64_t, int64_t, intp_t, uint8_t

import numpy as np

cnp.import_array()

cdef enum:
    NEAR = 64                # sums of hidden rows at most NEAR slots apart are computed at once

cdef enum:  # places in ``notes``
    NEWEST_WEIGHT = 0
    GREATEST_PRIORITY = 1
    FILLED = 2               # an int64, which clears do not reset
    HELD = 3                 # row ids of held weights, and then the weights


@cython.final
@cython.freelist(4)
cdef class NewWeights(Beside):
    """Priorities and weights of the rows of a call of ``add``, published in one step with the rows.

    ``RowWeights.beside`` makes the objects.
    """

    cdef int c_publish_beside(self, int64_t first, int64_t clears, const uint8_t* present) except -1:
        """See ``Beside.c_publish_beside``."""
        self.rows.c_set_new(first, self.priorities, self.weights, present)
        return 0


@cython.final
cdef class RowWeights(TreeDraws):
    """Weights of the rows of a ring, in a sum tree of as many leaves as the ring has slots.

    Rows that cannot be drawn have weight 0. New rows have the greatest weight so far, or ``first``
    before any weight was set. Threads may call the methods, and add rows, concurrently.
    """

    def __cinit__(
        self, Ring ring not None, SumTree tree not None, MinTree minima not None, float64_t first
    ):
        self.ring = ring
        self.tree = tree
        self.minima = minima
        self.first = self.newest_weight = first
        self.greatest_priority = 1.0
        self.clears = ring.state[CLEARS]
        self.held_rows = np.full(ring.lookahead * ring.n_envs, -1, np.int64)
        self.held = np.zeros(ring.lookahead * ring.n_envs, np.float64)
        self.hidden = ring.n_hidden
        self.changes = None

    # ------------------------------------------------------------------ following the ring

    cdef void c_begin_sync(self) noexcept nogil:
        """Set weights to 0: of all rows if the ring was cleared, and of rows that left or were hidden since."""
        if self.clears == self.ring.state[CLEARS]:
            if self.ring.lookahead or self.ring.left_before:
                self.c_take_out_oldest()
            if self.hidden != self.ring.n_hidden:
                self.c_catch_up_hidden()
            return
        self.clears = self.ring.state[CLEARS]
        self.tree.c_clear_first(min(self.filled, self.ring.capacity))
        self.filled = self.seen = self.oldest = self.drawn = 0
        self.held_rows[:] = -1
        self.hidden = self.ring.n_hidden
        self.newest_weight = self.first
        self.greatest_priority = 1.0

    cdef void c_sync_weights(self) noexcept nogil:
        """Bring the tree up to date."""
        if c_is_current(self):
            return
        self.c_begin_sync()
        self.c_sync_to(self.ring.state[WRITTEN])
        c_mark_current(self)
        self.c_note_down()

    cdef void c_note_down(self) noexcept nogil:
        """Write the state beside the leaves to ``notes``, after the leaves."""
        if self.notes == NULL:
            return
        c_fence()
        self.notes[NEWEST_WEIGHT] = self.newest_weight
        self.notes[GREATEST_PRIORITY] = self.greatest_priority
        (<int64_t*> self.notes)[FILLED] = self.ring.state[HANDLE_BASE] + self.filled

    cdef void c_sync_to(self, int64_t stop) noexcept nogil:
        """Fill the leaves of the rows before ``stop``, then sum the nodes above new leaves."""
        cdef intp_t capacity = self.ring.capacity
        cdef int64_t row
        if self.ring.lookahead:
            self.c_catch_up()
        self.c_fill_weights(stop, self.newest_weight)
        self.seen = max(self.seen, stop - capacity)
        if self.seen >= stop:
            return
        if c_absent(self.ring) and self.ring.lookahead == 0:
            for row in range(self.seen, stop):
                if self.ring.c_is_absent(<intp_t> (row % capacity)):
                    self.c_take_out(<intp_t> (row % capacity))
        self.c_sum_rows(self.seen, stop)
        self.seen = stop

    cdef void c_sum_rows(self, int64_t row, int64_t stop) noexcept nogil:
        """Sum the nodes above the leaves of the rows from ``row`` to ``stop``."""
        cdef intp_t capacity = self.ring.capacity, n = <intp_t> (stop - row)
        cdef intp_t first = <intp_t> (row % capacity), run = min(n, capacity - first)
        if n <= 0:
            return
        self.tree.c_sum_above(first, first + run - 1)
        if run < n:
            self.tree.c_sum_above(0, n - run - 1)

    cdef void c_fill_weights(self, int64_t stop, float64_t weight) noexcept nogil:
        """Set the weight of the rows before ``stop`` that have no weight yet."""
        cdef intp_t capacity = self.ring.capacity
        cdef float64_t* leaves = self.tree.c_level(0)
        cdef intp_t slot
        cdef int64_t row
        if self.filled >= stop:
            return
        row = max(self.filled, stop - capacity)
        if self.ring.lookahead:
            for row in range(max(row, self.ring.state[WRITTEN] - capacity), stop):
                self.c_put(row, weight)
            self.filled = stop
            return
        slot = <intp_t> (row % capacity)
        while row < stop:
            leaves[slot] = weight
            slot = slot + 1 if slot + 1 < capacity else 0
            row += 1
        self.filled = stop

    # ------------------------------------------------------------------ rows that are incomplete

    cdef void c_put(self, int64_t row, float64_t weight) noexcept nogil:
        """Set the weight of a row in the ring: now, or when its n-step window is complete."""
        cdef intp_t slot = <intp_t> (row % self.ring.capacity)
        cdef float64_t* leaf = self.tree.c_level(0) + slot
        if self.ring.c_can_draw(slot):
            leaf[0] = weight + 0.0  # never minus zero
            self.c_note_change(slot)
            return
        self.c_take_out(slot)
        if not self.ring.c_is_absent(slot) and c_is_open(self.ring, row):
            self.c_hold(row, weight)

    cdef void c_take_out(self, intp_t slot) noexcept nogil:
        """Set the weight of a slot to 0."""
        self.tree.c_level(0)[slot] = 0.0
        self.c_note_change(slot)

    cdef void c_note_change(self, intp_t slot) noexcept nogil:
        """Tell ``Masses`` that a weight changed. New rows, and a clear, need no note."""
        if self.changes is not None:
            self.changes[self.n_changes & (self.changes.shape[0] - 1)] = slot
            self.n_changes += 1

    cdef void c_hold(self, int64_t row, float64_t weight) noexcept nogil:
        """Store the weight of a row until its n-step window is complete."""
        cdef intp_t n = self.ring.lookahead, n_envs = self.ring.n_envs, k, _
        cdef intp_t stream = <intp_t> (row % n_envs), first = stream * n
        cdef intp_t place = first + <intp_t> (row // n_envs % n)
        for k in range(first, first + n):
            if self.held_rows[k] == row:
                place = k
        for _ in range(n):  # with absent rows the place may be taken by another incomplete row
            if self.held_rows[place] == row or self.held_rows[place] < self.ring.incomplete.open_from[stream]:
                break
            place = place + 1 if place + 1 < first + n else first
        self.held[place] = weight
        c_fence()
        self.held_rows[place] = row

    cdef void c_take_out_oldest(self) noexcept nogil:
        """Set the weights to 0 of rows that left early, or that the ring has left out, since the last call."""
        cdef int64_t row, first = max(self.oldest, self.ring.state[WRITTEN] - self.ring.capacity)
        cdef int64_t stop = min(self.ring.c_first(), self.filled)
        self.oldest = self.ring.c_first()
        for row in range(first, stop):
            self.c_take_out(<intp_t> (row % self.ring.capacity))
        self.c_sum_rows(first, stop)

    cdef void c_catch_up(self) noexcept nogil:
        """Update the weights of rows that the ring has completed since the last call."""
        cdef intp_t stream, k, n = self.ring.lookahead
        cdef int64_t row, first = 0, stop = 0
        c_sync_open(self.ring)
        for stream in range(self.ring.n_envs):
            for k in range(stream * n, stream * n + n):
                row = self.held_rows[k]
                if row < 0 or row >= self.ring.incomplete.open_from[stream]:
                    continue
                self.held_rows[k] = -1
                if row < self.ring.incomplete.kept_from:
                    continue
                self.c_put(row, self.held[k])
                if first < stop and first - NEAR < row < stop + NEAR:
                    first, stop = min(first, row), max(stop, row + 1)
                    continue
                self.c_sum_rows(first, stop)
                first, stop = row, row + 1
        self.c_sum_rows(first, stop)

    cdef void c_catch_up_hidden(self) noexcept nogil:
        """Set the weights to 0 of rows that the ring has hidden since the last call."""
        cdef int64_t written = self.ring.state[WRITTEN], logged = self.ring.hidden.shape[0]
        cdef const int64_t* entry
        if self.ring.n_hidden - self.hidden > logged:  # the log lacks entries: read all rows
            self.hidden = self.ring.n_hidden
            self.c_take_out_among(0, written - 1, 1)
        while self.hidden < self.ring.n_hidden:
            entry = &self.ring.hidden[self.hidden & (logged - 1), 0]
            self.c_take_out_among(entry[0], min(entry[1], written - 1), entry[2])
            self.hidden += 1

    cdef void c_take_out_among(self, int64_t first, int64_t last, int64_t step) noexcept nogil:
        """Set weights to 0 where each ``step``-th row from ``first`` to ``last`` cannot be drawn."""
        cdef const float64_t* leaves = self.tree.c_level(0)
        cdef int64_t row, oldest = self.ring.state[WRITTEN] - c_stored(self.ring)
        cdef intp_t slot, low = 0, high = -1  # slots below nodes to be summed
        row = first + max(oldest - first + step - 1, 0) // step * step
        while row <= last:
            slot = <intp_t> (row % self.ring.capacity)
            row += step
            if leaves[slot] == 0.0 or self.ring.c_can_draw(slot):
                continue
            self.c_take_out(slot)
            if high < 0 or not high < slot <= high + NEAR:
                if high >= 0:
                    self.tree.c_sum_above(low, high)
                low = slot
            high = slot
        if high >= 0:
            self.tree.c_sum_above(low, high)

    def sync(self):
        """Bring the weights up to date."""
        self.c_sync_weights()

    def set_new(
        self, int64_t first, int64_t clears, cnp.ndarray priorities, cnp.ndarray weights
    ):
        """Set the weights of new rows from row id ``first`` on, unless the ring was cleared since."""
        if self.ring.state[CLEARS] == clears:
            self.c_set_new(first, priorities, weights, NULL)

    def beside(self, cnp.ndarray priorities not None, cnp.ndarray weights not None):
        """``NewWeights`` of a call of ``add``: see ``set_new``."""
        cdef NewWeights given = NewWeights.__new__(NewWeights)
        given.ring, given.n = self.ring, cnp.PyArray_DIM(weights, 0)
        given.rows, given.priorities, given.weights = self, priorities, weights
        return given

    cdef void c_set_new(
        self, int64_t first, cnp.ndarray priorities, cnp.ndarray weights, const uint8_t* present
    ) noexcept:
        """``set_new`` in a ring that was not cleared since.

        ``present`` says which rows hold a step, rows included that the same call has overwritten.
        NULL: the flags of the rows in the ring are read, and overwritten rows hold a step.
        """
        cdef const float64_t* values = <const float64_t*> cnp.PyArray_DATA(priorities)
        cdef const float64_t* given = <const float64_t*> cnp.PyArray_DATA(weights)
        cdef intp_t k, n = cnp.PyArray_DIM(weights, 0)
        cdef int64_t oldest = self.ring.state[WRITTEN] - self.ring.capacity
        cdef bint holds_step
        self.c_begin_sync()
        if self.ring.lookahead:
            self.c_catch_up()
        self.c_fill_weights(first, self.newest_weight)
        self.c_write_weights(first, given, n)
        for k in range(n):
            if present != NULL:
                holds_step = present[k]
            else:
                holds_step = first + k < oldest or not (
                    c_absent(self.ring)
                    and self.ring.c_is_absent(<intp_t> ((first + k) % self.ring.capacity))
                )
            if holds_step:
                self.c_note(values + k, given + k, 1)
        self.c_note_down()

    cdef void c_write_weights(self, int64_t first, const float64_t* weights, intp_t n) noexcept nogil:
        """Write the leaves of n rows, and note that the nodes above need new sums."""
        cdef float64_t* leaves = self.tree.c_level(0)
        cdef intp_t capacity = self.ring.capacity
        cdef int64_t row
        for row in range(max(first, self.ring.state[WRITTEN] - capacity), first + n):
            if self.ring.lookahead:
                self.c_put(row, weights[row - first])
            else:
                leaves[row % capacity] = weights[row - first] + 0.0  # never minus zero
                self.c_note_change(<intp_t> (row % capacity))
        self.filled = max(self.filled, first + n)
        self.seen = min(self.seen, first)

    # ------------------------------------------------------------------ updating

    @property
    def largest_priority(self):
        """The greatest priority that any row was given, 1.0 at first."""
        self.c_sync_weights()
        return self.greatest_priority

    def update(
        self, cnp.ndarray indexes, cnp.ndarray priorities, cnp.ndarray weights, bint as_handles
    ):
        """Set the weights of rows; of duplicates the last wins. Dense arrays, which are overwritten.

        ``indexes`` are public slots or, if ``as_handles``, handles too. With ``as_handles`` rows that are
        gone, and slots that were overwritten since the last draw, are skipped. Raises ``IndexError`` for
        a slot that holds no step.
        """
        cdef intp_t k, n = cnp.PyArray_DIM(indexes, 0), count
        cdef cnp.ndarray found = c_numbers(1, &n, cnp.NPY_INTP)
        cdef cnp.ndarray places = c_numbers(1, &n, cnp.NPY_INTP)
        cdef intp_t* slots = <intp_t*> cnp.PyArray_DATA(found)
        cdef const intp_t* alive = <const intp_t*> cnp.PyArray_DATA(places)
        cdef float64_t* values = <float64_t*> cnp.PyArray_DATA(priorities)
        cdef float64_t* given = <float64_t*> cnp.PyArray_DATA(weights)
        self.c_sync_weights()
        count = c_find_indexes(
            self.ring, <const int64_t*> cnp.PyArray_DATA(indexes), n, as_handles, self.drawn, slots,
            <intp_t*> alive,
        )
        if 0 <= count < n:
            for k in range(count):
                values[k] = values[alive[k]]
                given[k] = given[alive[k]]
        if count > 0:
            self.c_set_weights(slots, values, given, count)
        if count < 0:
            c_refuse(self.ring, indexes[-1 - count], -1 - count)
        self.given += n
        self.late += n - count

    cdef void c_set_weights(
        self, intp_t* slots, const float64_t* priorities, float64_t* weights, intp_t n
    ) noexcept nogil:
        """Set the weights of rows in the ring, in a tree that is up to date.

        The contents of ``slots`` and ``weights`` are undefined afterwards.
        """
        self.c_note(priorities, weights, n)
        cdef intp_t k
        if self.ring.lookahead:
            n = self.c_hold_incomplete(slots, weights, n)
        self.tree.c_set(slots, weights, n)
        if self.changes is not None:
            for k in range(n):
                self.c_note_change(slots[k])
        self.c_note_down()

    cdef intp_t c_hold_incomplete(
        self, intp_t* slots, float64_t* weights, intp_t n
    ) noexcept nogil:
        """Store the weights of rows until their windows are complete.

        All other rows move to the front of both arrays; returns their number.
        """
        cdef intp_t k, count = 0
        for k in range(n):
            if self.ring.c_can_draw(slots[k]):
                slots[count], weights[count] = slots[k], weights[k]
                count += 1
            else:
                self.c_put(self.ring.c_row_at(slots[k]), weights[k])
        return count

    cdef void c_note(
        self, const float64_t* priorities, const float64_t* weights, intp_t n
    ) noexcept nogil:
        """Update the greatest priority and weight so far by those of n rows."""
        cdef intp_t k
        cdef float64_t weight = self.newest_weight, priority = self.greatest_priority
        for k in range(n):
            if weights[k] > weight:  # not for NaN
                weight = weights[k]
            priority = max(priority, priorities[k])
        self.newest_weight = weight
        self.greatest_priority = priority

    # ------------------------------------------------------------------ saving

    def save(self):
        """State as a dict, from which ``restore`` of a new object over the same rows continues.

        ``values[k]`` is the weight of row ``written - len(values) + k``, also while its n-step window is
        incomplete.
        """
        self.c_sync_weights()
        cdef int64_t written = self.ring.state[WRITTEN], row, first = written - c_stored(self.ring)
        cdef intp_t k
        values = self.tree.get(self.c_slots(first))
        for k in range(self.held_rows.shape[0]):
            row = self.held_rows[k]
            if row >= 0 and c_is_open(self.ring, row):
                values[row - first] = self.held[k]
        return {
            "capacity": self.ring.capacity, "written": written, "clears": self.ring.state[CLEARS],
            "drawn": self.drawn, "newest": self.newest_weight, "greatest": self.greatest_priority,
            "values": values,
        }

    def restore(self, dict saved not None, bint later=False):
        """Restore a state that ``save`` returned over the same rows.

        Rows are found by their ids, and absent ones get weight 0. NaN in ``values`` stands for the weight
        of a new row. A ``capacity`` of None means that the ring had another capacity, or that rows are
        missing. With ``later`` rows may have been added since, and nothing happens if the ring was
        cleared. Raises ``ValueError`` for a ring of other rows, and for a state that ``save`` cannot
        return.
        """
        cdef Ring ring = self.ring
        cdef int64_t written = saved["written"], drawn = saved["drawn"]
        cdef bint is_whole = saved["capacity"] == ring.capacity
        cdef float64_t newest = saved["newest"]
        cdef cnp.ndarray values
        if saved["clears"] != ring.state[CLEARS] or written > ring.state[WRITTEN] or not later and (
            written < ring.state[WRITTEN] or not is_whole and saved["capacity"] is not None
        ):
            if len(ring) and not later:
                raise ValueError("the sampler keeps priorities of the rows of another buffer")
            return
        if not 0 <= drawn <= written:
            raise ValueError(f"rows at the last draw: expected 0 to {written}, got {drawn}")
        self.c_check_greatest(newest, saved["greatest"])
        self.c_check_saved(saved, is_whole and not later)
        values = np.array(saved["values"])
        values[np.isnan(values)] = newest
        self.c_put_all(written - len(values), values)
        self.tree.rebuild()
        if self.changes is not None:
            self.n_changes += self.changes.shape[0] + 1  # ``Masses`` reads all leaves
        self.newest_weight, self.greatest_priority = newest, saved["greatest"]
        c_mark_current(self)
        self.hidden, self.drawn = ring.n_hidden, drawn
        self.filled = self.seen = written

    cdef object c_slots(self, int64_t first):
        """The slots of all rows in the ring, of which ``first`` is the oldest."""
        slots = np.arange(c_stored(self.ring), dtype=np.intp)
        return np.roll(slots, -<intp_t> (first % self.ring.capacity))

    cdef int c_put_all(self, int64_t first, float64_t[::1] values) except -1:
        """Set all leaves, and no sums: rows from ``first`` on have these values.

        Rows that can be drawn come first, so places of held weights are free for incomplete rows.
        """
        cdef intp_t slot, stored = c_stored(self.ring), capacity = self.ring.capacity
        cdef int64_t row, written = self.ring.state[WRITTEN], low
        cdef float64_t* leaves = self.tree.c_level(0)
        cdef bint can_draw
        if self.ring.c_drawable() == stored:  # 6 instructions a row, not 100
            np.asarray(self.tree.nodes)[:capacity] = 0.0
            low = max(first, written - stored)
            slot = <intp_t> (low % capacity)
            for row in range(low, min(first + values.shape[0], written)):
                leaves[slot] = values[row - first] + 0.0  # never minus zero
                slot = slot + 1 if slot + 1 < capacity else 0
            return 0
        for can_draw in (True, False):
            for slot in range(stored):
                if self.ring.c_can_draw(slot) != can_draw:
                    continue
                row = self.ring.c_row_at(slot)
                if 0 <= row - first < values.shape[0]:
                    self.c_put(row, values[row - first])
                else:
                    self.c_take_out(slot)
        np.asarray(self.tree.nodes)[stored : self.ring.capacity] = 0.0
        return 0

    cdef int c_check_greatest(self, float64_t weight, float64_t priority) except -1:
        """Raise unless these can be the greatest weight and priority so far."""
        if not (self.first <= weight <= self.tree.largest and 1.0 <= priority < INFINITY):
            raise ValueError(f"weight and priority of new rows: got {weight} and {priority}")
        return 0

    cdef int c_check_saved(self, dict saved, bint is_same) except -1:
        """Raise unless ``save`` of an object of this kind can have returned this state.

        ``is_same`` says that the ring is that of ``save``, but for rows that have become absent.
        """
        values, newest, stored = saved["values"], saved["newest"], c_stored(self.ring)
        if values.dtype != np.float64 or values.ndim != 1 or len(values) > saved["written"]:
            raise ValueError(f"weights: expected up to {saved['written']} of float64, got {values!r}")
        most = newest if is_same else self.tree.largest  # over several rings ``newest`` may be less
        if not (np.isnan(values) | (values >= 0.0) & (values <= most)).all():
            raise ValueError(f"weights: expected 0 to {most}")
        if is_same and len(values) != stored:
            raise ValueError(f"weights: expected {stored}, got {len(values)}")
        return 0

    # ------------------------------------------------------------------ in a file

    def keep_in(self, float64_t[::1] notes not None, bint there, bint positive):
        """Store the state beside the leaves in ``notes``, memory of a file like the leaves.

        With ``there`` an earlier object left its weights in the leaves and in ``notes``, and they are
        restored. A row that the earlier object had not seen gets the weight of a new row. With
        ``positive``, which says that all weights are above 0, so does a row of weight 0: a crash can bring
        back a row whose weight was set to 0. Raises ``ValueError`` for weights that are damaged.
        """
        if notes.shape[0] != notes_size(self.ring):
            raise ValueError(f"notes: expected {notes_size(self.ring)}, got {notes.shape[0]}")
        n = self.held_rows.shape[0]
        numbers = np.asarray(notes)
        if not there:
            numbers[HELD : HELD + n].view(np.int64)[:] = -1
        held_rows = numbers[HELD : HELD + n].view(np.int64)
        held = dict(zip(held_rows.tolist(), numbers[HELD + n :].tolist()))
        saved = self.c_left_behind(notes, held, positive) if there else None
        self.held_rows, self.held = held_rows, numbers[HELD + n :]
        if saved is not None:
            held_rows[~np.isin(held_rows, list(held))] = -1  # free these places for new rows
            self.restore(saved)
            for k in range(n):
                if held_rows[k] >= 0 and not c_is_open(self.ring, held_rows[k]):
                    held_rows[k] = -1  # its weight is in a leaf already
        self.noted = numbers
        self.notes = &notes[0]
        self.c_note_down()

    cdef dict c_left_behind(self, float64_t[::1] notes, dict held, bint positive):
        """State that an earlier object left in the leaves and in ``notes``, in the form of ``save``.

        Overwritten rows, and rows that the object had not seen, are removed from ``held``.
        """
        cdef int64_t base = self.ring.state[HANDLE_BASE], written = self.ring.state[WRITTEN]
        cdef int64_t filled = (<int64_t*> &notes[0])[FILLED] - base
        cdef int64_t first = written - c_stored(self.ring)
        newest, greatest = self.first, 1.0
        if filled > 0:  # the ring was not cleared since
            newest, greatest = notes[NEWEST_WEIGHT], notes[GREATEST_PRIORITY]
        rows = np.arange(first, written)
        leaves = np.asarray(self.tree.nodes)[: len(rows)]
        values = leaves[rows % self.ring.capacity]
        for row in list(held):
            if first <= row < min(filled, written):
                values[row - first] = held[row]
            else:
                del held[row]
        is_new = rows >= filled
        # The leaf of an absent row may not be 0 yet.
        values[~is_new & (self.ring.flags()[rows % self.ring.capacity] & ABSENT != 0)] = 0.0
        if positive:
            is_new |= values == 0.0
        known = values[~is_new]
        values[is_new] = NAN
        sound = (known >= 0.0) & (known <= self.tree.largest)
        if not sound.all() or not (
            self.first <= newest <= self.tree.largest and 1.0 <= greatest < INFINITY
        ):
            raise ValueError("the priorities of the rows were damaged")
        return {
            "capacity": None, "written": written, "clears": self.ring.state[CLEARS], "drawn": 0,
            "newest": max(newest, known.max(initial=0.0)), "greatest": greatest,
            "values": values,
        }

    def waiting(self):
        """Rows whose weight waits for their n-step window, and the rows whose window is incomplete.

        Two arrays of row ids, ascending.
        """
        cdef Walk walk
        self.c_sync_weights()
        held = np.asarray(self.held_rows)
        if self.ring.lookahead == 0:
            return held, held
        walk = c_walk_of(self.ring)
        self.ring.incomplete.c_list_open(&walk)
        open_rows = np.asarray(self.ring.incomplete.open_rows)[: self.ring.incomplete.n_open]
        return np.sort(held[held >= 0]), open_rows.copy()


def notes_size(Ring ring not None):
    """Length of ``notes`` of ``RowWeights.keep_in``."""
    return HELD + 2 * ring.lookahead * ring.n_envs


# ---------------------------------------------------------------------- several rings


cpdef sync_together(list members, float64_t priority=0.0, float64_t weight=0.0):
    """As ``RowWeights.sync``, of several rings: new rows get the greatest weight of all.

    They get at least this priority and its weight.
    """
    cdef RowWeights one
    for one in members:
        one.c_begin_sync()
        weight, priority = max(weight, one.newest_weight), max(priority, one.greatest_priority)
    for one in members:
        one.greatest_priority, one.newest_weight = priority, weight
        one.c_sync_weights()


def update_together(
    dict members not None, int bits, cnp.ndarray indexes, cnp.ndarray priorities,
    cnp.ndarray weights,
):
    """``RowWeights.update`` for rows of several rings, ``members`` by their numbers.

    ``indexes`` are handles, with the number of the ring in the low ``bits``. No Python code runs from
    the synchronization of the rings until the last weight is set. So an interrupt comes before all
    updates or after them, and no weight that waits for an n-step window is set over a newer one.
    """
    cdef intp_t k, count, number, n = cnp.PyArray_DIM(indexes, 0), left = n
    cdef intp_t mask = (<intp_t> 1 << bits) - 1
    cdef cnp.ndarray memory = c_numbers(1, &n, cnp.NPY_INTP)
    cdef cnp.ndarray own = c_numbers(1, &n, cnp.NPY_INTP)
    cdef cnp.ndarray numbers = c_numbers(1, &n, cnp.NPY_FLOAT64)
    cdef cnp.ndarray masses = c_numbers(1, &n, cnp.NPY_FLOAT64)
    cdef const int64_t* names = <const int64_t*> cnp.PyArray_DATA(indexes)
    cdef const float64_t* given = <const float64_t*> cnp.PyArray_DATA(priorities)
    cdef const float64_t* heavy = <const float64_t*> cnp.PyArray_DATA(weights)
    cdef intp_t* found = <intp_t*> cnp.PyArray_DATA(memory)
    cdef intp_t* slots = <intp_t*> cnp.PyArray_DATA(own)
    cdef float64_t* values = <float64_t*> cnp.PyArray_DATA(numbers)
    cdef float64_t* theirs = <float64_t*> cnp.PyArray_DATA(masses)
    cdef list rings = [members.get(number) for number in range(mask + 1)]
    cdef RowWeights one
    sync_together(list(members.values()))
    for k in range(n):
        one = rings[names[k] & mask]
        found[k] = NO_ROW
        if one is not None and names[k] >> bits >= one.ring.span:
            found[k] = c_slot_of(one.ring, names[k] >> bits, True)
        if found[k] == NO_ROW:
            raise IndexError(
                f"indexes[{k}]: expected that of a row of a batch, got {names[k]}"
            )
    for number in range(mask + 1):
        count = 0
        for k in range(n):
            if names[k] & mask == number and found[k] != GONE:
                slots[count], values[count], theirs[count] = found[k], given[k], heavy[k]
                count += 1
        left -= count
        if count:
            (<RowWeights> rings[number]).c_set_weights(slots, values, theirs, count)
    return left
