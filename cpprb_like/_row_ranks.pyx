"""The order of a ring's rows by priority, brought up to date when somebody asks for it.

As ``_row_weights``, but what a row weighs follows from its rank. Compiled because every change of
the order is one step that nothing interrupts: no Python code runs in it, so no signal handler,
finalizer or other thread sees half of it. Not here: the order itself (``_ranking``), which rows
indexes mean (``_row_tags``), and what a priority is (``ranked``).
"""

cimport cython
cimport numpy as cnp
from libc.math cimport NAN, pow
from numpy.random cimport bitgen_t

from cpprb_like._arrays cimport c_index
from cpprb_like._core cimport ABSENT, REVISION, WRITTEN, Moment, Ring
from cpprb_like._ranking cimport Ranking
from cpprb_like._row_tags cimport RowTags, c_refuse
from cpprb_like._segment_tree cimport (
    DISTINCT, INDEPENDENT, STRATIFIED, Manner, SumTree, c_bit_generator,
)
from cpprb_like._typedefs cimport float64_t, int64_t, intp_t

import numpy as np

from cpprb_like._row_tags import waiting_rows
from cpprb_like.errors import NotEnoughDataError

cnp.import_array()


@cython.final
cdef class RowRanks:
    """The order of a ring's rows by priority, and a tree that has a weight for each rank.

    Absent rows, and rows whose n-step window is not complete yet, have no rank. Any number of
    threads may call, and add to the ring or clear it meanwhile; so may what runs while a thread is
    in a call, such as a signal handler or a finalizer.

    Parameters
    ----------
    ring : Ring
        The rows.
    ranking : Ranking
        Of as many slots as the ring has, all of them absent.
    tree : SumTree
        Of as many leaves, all zero.
    alpha : float
        Rank r weighs ``r ** -alpha``.
    """

    def __cinit__(
        self, Ring ring not None, Ranking ranking not None, SumTree tree not None,
        float64_t alpha,
    ):
        self.ring = ring
        self.ranking = ranking
        self.tree = tree
        self.alpha = alpha
        self.tags = RowTags(ring)
        self.revision = ring.state[REVISION]
        self.greatest = 1.0
        self.waiting = np.empty(0, np.int64)
        self.held = np.empty(0, np.float64)

    # ------------------------------------------------------------------ following the ring

    cdef int c_look(self) except -1:
        """Find the rows that wait, and room for their priorities, before anything is changed.

        What is allocated here may run the garbage collector, and that may change the ring.
        """
        cdef int64_t written = -1, revision = -1
        cdef cnp.ndarray rows, held
        if self.ring.ahead == 0:
            return 0
        while written != self.ring.state[WRITTEN] or revision != self.ring.state[REVISION]:
            written, revision = self.ring.state[WRITTEN], self.ring.state[REVISION]
            rows = np.ascontiguousarray(waiting_rows(self.ring), np.int64)
            held = np.empty(cnp.PyArray_DIM(rows, 0), np.float64)
        self.found, self.room = rows, held
        return 0

    cdef void c_follow(self, int64_t stop) noexcept:
        """Put the rows before row id ``stop`` in order that are new; those that wait as well."""
        cdef int64_t first, written = self.ring.state[WRITTEN]
        if self.revision != self.ring.state[REVISION]:
            self.ranking.c_clear()
            self.revision = self.ring.state[REVISION]
            self.followed = 0
            self.greatest = 1.0
            self.n_waiting = 0
            self.kept_from = 0
        self.c_release()
        first = max(self.followed, written - self.ring.capacity)
        self.c_put(first, NULL, min(stop, written) - first)

    cdef void c_release(self) noexcept:
        """Put the rows that waited back in order, as far as they are in the ring."""
        cdef const int64_t* rows = <const int64_t*> cnp.PyArray_DATA(self.waiting)
        cdef const float64_t* priorities = <const float64_t*> cnp.PyArray_DATA(self.held)
        cdef intp_t k, slot
        for k in range(self.n_waiting):
            slot = <intp_t> (rows[k] % self.ring.capacity)
            if rows[k] >= self.ring.c_first() and not (
                self.ring.c_absent() and self.ring.c_is_absent(slot)
            ):
                self.c_set(slot, priorities[k])
        self.n_waiting = 0

    cdef void c_hold(self) noexcept:
        """Take the rows out that wait for others to follow, keep their priorities, and give each
        rank its weight.
        """
        cdef const int64_t* rows
        cdef float64_t* priorities
        cdef int64_t row
        cdef intp_t k, slot, among
        if self.ring.ahead:
            self.waiting, self.held = self.found, self.room
            rows = <const int64_t*> cnp.PyArray_DATA(self.waiting)
            priorities = <float64_t*> cnp.PyArray_DATA(self.held)
            for k in range(cnp.PyArray_DIM(self.waiting, 0)):
                slot = <intp_t> (rows[k] % self.ring.capacity)
                priorities[k] = self.ranking.keys[slot]
                self.c_set(slot, NAN)
            self.n_waiting = cnp.PyArray_DIM(self.waiting, 0)
            row = max(self.kept_from, self.ring.state[WRITTEN] - self.ring.capacity)
            self.kept_from = self.ring.c_first()
            while row < self.kept_from:
                self.c_set(<intp_t> (row % self.ring.capacity), NAN)
                row += 1
        among = self.ranking.order.length
        for k in range(self.weighed, among):
            self.tree.c_level(0)[k] = pow(<float64_t> (k + 1), -self.alpha)
        for k in range(among, self.weighed):
            self.tree.c_level(0)[k] = 0.0
        if among != self.weighed:
            self.tree.c_sum_above(min(among, self.weighed), max(among, self.weighed) - 1)
        self.weighed = among

    cdef void c_set(self, intp_t slot, float64_t priority) noexcept:
        """Set the priority of one slot; NaN for none."""
        self.ranking.c_set_keys(&slot, 0, &priority, 1)

    cdef void c_put(self, int64_t first, const float64_t* priorities, int64_t n) noexcept:
        """Set the priorities of n rows from row id ``first`` on, the greatest so far if NULL; but
        for those that are gone.
        """
        cdef intp_t capacity = self.ring.capacity, slot
        cdef int64_t row, stop = first + n
        cdef float64_t priority
        cdef bint at_once
        if n <= 0:
            return
        self.followed = max(self.followed, stop)
        row = max(first, self.ring.state[WRITTEN] - capacity)
        at_once = self.ranking.c_is_many(<intp_t> (stop - row))
        while row < stop:
            slot = <intp_t> (row % capacity)
            priority = self.greatest if priorities == NULL else priorities[row - first]
            if row < self.ring.c_first() or self.ring.c_absent() and self.ring.c_is_absent(slot):
                priority = NAN
            if at_once:
                self.ranking.keys[slot] = priority + 0.0  # never minus zero
            else:
                self.c_set(slot, priority)
            row += 1
        if at_once:
            self.ranking.c_order()

    cdef int c_bring_up_to_date(self) except -1:
        """Put all rows in order that are in the ring."""
        self.c_look()
        self.c_follow(self.ring.state[WRITTEN])
        self.c_hold()
        return 0

    def stage(self, int64_t first, int64_t revision, cnp.ndarray priorities):
        """Note the priorities of the rows from row id ``first`` on, which have just been written.

        If the ring has another revision by now, the rows are gone.
        """
        cdef const float64_t* values = <const float64_t*> cnp.PyArray_DATA(priorities)
        cdef intp_t k, n = cnp.PyArray_DIM(priorities, 0)
        cdef int64_t oldest
        self.c_look()
        if self.ring.state[REVISION] != revision:
            return
        self.c_follow(first)
        oldest = self.ring.state[WRITTEN] - self.ring.capacity
        for k in range(n):
            if first + k < oldest or not (self.ring.c_absent() and self.ring.c_is_absent(
                <intp_t> ((first + k) % self.ring.capacity)
            )):
                self.greatest = max(self.greatest, values[k])
        self.c_put(first, values, n)
        self.c_hold()

    # ------------------------------------------------------------------ drawing and updating

    def draw(self, n, rng, bint replace, bint stratified, bint tagged):
        """Draw n rows; see ``SumTree.draw`` and, without ``replace``, ``SumTree.draw_distinct``.

        Returns their slots, what ``update`` takes for them, the weights of their ranks; and the
        weight of the last rank and the sum of all.
        """
        cdef Manner manner = (
            DISTINCT if not replace else STRATIFIED if stratified else INDEPENDENT
        )
        cdef intp_t count = c_index(n), among = 0
        cdef int64_t written = -1, revision = -1
        cdef float64_t least = 0.0, total = 0.0
        if count < 0:
            raise ValueError(f"n: expected 0 or more, got {n}")
        bit_generator = rng.bit_generator
        cdef bitgen_t* bitgen = c_bit_generator(bit_generator)
        cdef cnp.ndarray slots = cnp.PyArray_SimpleNew(1, &count, cnp.NPY_INTP)
        cdef cnp.ndarray weights = cnp.PyArray_SimpleNew(1, &count, cnp.NPY_FLOAT64)
        cdef intp_t* places = <intp_t*> cnp.PyArray_DATA(slots)
        while written != self.ring.state[WRITTEN] or revision != self.ring.state[REVISION]:
            self.c_bring_up_to_date()
            written, revision = self.ring.state[WRITTEN], self.ring.state[REVISION]
            among = self.weighed
            if among == 0 or (count > among and not replace):
                self.c_refuse_draw(count, among)
            # While the lock is held nothing is allocated: no code of anybody else's can run.
            with bit_generator.lock:
                if written == self.ring.state[WRITTEN] and revision == self.ring.state[REVISION]:
                    among = self.weighed
                    self.tree.c_draw(
                        bitgen, manner, places, <float64_t*> cnp.PyArray_DATA(weights), count
                    )
                    self.ranking.c_find_slots(places, count)
                    least = self.tree.c_level(0)[among - 1]
                    total = self.tree.c_total()
                    self.tags.c_begin()
                    self.tags.drawn = self.ring.c_stop()
        return slots, self.tags.c_indexes(slots, tagged), weights, least, total

    cdef int c_refuse_draw(self, intp_t n, intp_t among) except -1:
        raise NotEnoughDataError(f"cannot sample {n} distinct rows: the buffer holds {among}")

    def check_draw(self, n, bint replace):
        """Raise what ``draw`` would raise, without a draw."""
        cdef intp_t count = c_index(n)
        self.c_bring_up_to_date()
        if self.weighed == 0 or (count > self.weighed and not replace):
            self.c_refuse_draw(count, self.weighed)

    def get(self, cnp.ndarray slots):
        """The weights of the ranks of rows; 0 for one that has none, since it cannot be drawn."""
        cdef intp_t k, rank, n = self.ranking.c_check_indexes(slots)
        cdef const intp_t* wanted = <const intp_t*> cnp.PyArray_DATA(slots)
        cdef cnp.ndarray weights = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_FLOAT64)
        cdef float64_t* out = <float64_t*> cnp.PyArray_DATA(weights)
        self.c_bring_up_to_date()
        for k in range(n):
            rank = self.ranking.c_rank(wanted[k])
            out[k] = 0.0 if rank < 0 else self.tree.c_level(0)[rank]
        return weights

    def indexes(self, cnp.ndarray slots, bint tagged):
        """What ``update`` takes for rows; see ``draw``."""
        return self.tags.c_indexes(slots, tagged)

    def drop(self, cnp.ndarray slots, Moment moment not None):
        """Take rows out of the order: see ``ByPriority.drop``."""
        cdef intp_t k, n = self.ranking.c_check_indexes(slots)
        self.c_look()
        if not self.ring.c_holds(moment, slots):  # later ones are yet to come
            return
        self.c_follow(self.ring.state[WRITTEN])
        for k in range(n):
            self.c_set((<const intp_t*> cnp.PyArray_DATA(slots))[k], NAN)
        self.c_hold()

    @property
    def largest_priority(self):
        """The greatest priority that any row was given, 1.0 at first."""
        self.c_bring_up_to_date()
        return self.greatest

    def update(self, cnp.ndarray indexes, cnp.ndarray priorities, bint tagged):
        """Set the priorities of rows: of duplicates the last wins.

        See ``RowTags.find`` for ``indexes`` and ``tagged``, and for what is raised. ``priorities``
        are a dense 1-d array of float64, one for each of them.
        """
        cdef intp_t k, n = cnp.PyArray_DIM(indexes, 0), count
        cdef cnp.ndarray found = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_INTP)
        cdef cnp.ndarray places = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_INTP)
        cdef cnp.ndarray kept = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_FLOAT64)
        cdef float64_t* values = <float64_t*> cnp.PyArray_DATA(kept)
        self.c_look()
        count = self.tags.c_find(
            <const int64_t*> cnp.PyArray_DATA(indexes), n, tagged,
            <intp_t*> cnp.PyArray_DATA(found), <intp_t*> cnp.PyArray_DATA(places),
        )
        self.c_follow(self.ring.state[WRITTEN])
        for k in range(count):
            values[k] = (<const float64_t*> cnp.PyArray_DATA(priorities))[
                (<const intp_t*> cnp.PyArray_DATA(places))[k]
            ]
            self.greatest = max(self.greatest, values[k])
        if count > 0:
            self.ranking.c_set_keys(<const intp_t*> cnp.PyArray_DATA(found), 0, values, count)
        self.c_hold()
        if count < 0:
            c_refuse(self.ring, indexes[-1 - count], -1 - count)

    # ------------------------------------------------------------------ saving

    def save(self):
        """All that a new object over an equal ring needs to go on like this one."""
        self.c_bring_up_to_date()
        priorities = np.array(self.ranking.keys[: self.ring.c_stored()])
        slots = self.waiting[: self.n_waiting] % self.ring.capacity
        priorities[slots] = self.held[: self.n_waiting]
        return self.tags.save(), priorities, self.greatest

    def load(self, saved):
        """Go on where another object was saved. See ``RowTags.load``."""
        tags, priorities, greatest = saved
        values = np.asarray(priorities)
        if not self.tags.load(tags):
            return
        if values.dtype != np.float64 or values.shape != (self.ring.c_stored(),):
            raise ValueError(
                f"priorities: expected {self.ring.c_stored()} of float64, "
                f"got {values.dtype} of shape {values.shape}"
            )
        there = self.ring.flags() & <int> ABSENT == 0
        sound = 1.0 <= float(greatest) < np.inf and np.array_equal(there, ~np.isnan(values))
        if not (sound and ((values[there] >= 0.0) & (values[there] <= greatest)).all()):
            raise ValueError(
                f"priorities: expected numbers from 0 to the greatest, {greatest}, of all rows"
            )
        np.asarray(self.ranking.keys)[: len(values)] = values
        self.ranking.rebuild()
        self.revision = self.ring.state[REVISION]
        self.followed = self.ring.state[WRITTEN]
        self.greatest = greatest
        self.c_bring_up_to_date()
