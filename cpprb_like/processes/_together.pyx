"""Draws from several rings as from one, by weight.

Each ring keeps the weights of its rows in a tree of its own. A draw by weight looks for each target
in the ring that holds that part of the sum of all, so rows have the probabilities, and a batch the
strata, that one tree over all rows would give. Compiled because it looks at every row that is drawn.
Not here: which rings (``processes._followers``), the weights of one of them (``_row_weights``), and what
priorities mean (``_prioritized``).
"""

cimport cython
cimport numpy as cnp
from libc.math cimport INFINITY, nextafter
from libc.stdlib cimport free, malloc
from numpy.random cimport bitgen_t

from cpprb_like._machine.aligned cimport c_numbers
from cpprb_like._c.arrays cimport c_index
from cpprb_like._c.tree_node cimport c_find
from cpprb_like._c.typedefs cimport float64_t, int64_t, intp_t
from cpprb_like._core cimport HANDLE_BASE, WRITTEN, Ring
from cpprb_like._segment_tree cimport DISTINCT, INDEPENDENT, c_bit_generator, c_check_drawn
from cpprb_like.processes._followers cimport Followers
from cpprb_like._rows.row_handles cimport GONE, NO_ROW, c_slot_of
from cpprb_like.samplers._row_weights cimport RowWeights

import numpy as np


cnp.import_array()

cdef enum:
    GUESSES = 64             # of the part that a place is in: the fewer, the more steps after them
    MOST_ROWS = 1000000000   # from here on ``Generator.hypergeometric`` refuses
    FETCHED_ROWS = 512       # batches whose records stay in a cache until they are copied

cdef float64_t LARGEST = 2.0 ** 1000  # a weight, as long as there is no row


@cython.final
cdef class WeightsTogether:
    """The weights of the rows of several rings: what ``RowWeights`` is for one.

    A row is drawn with probability ``weight / sum of all weights``, whichever ring it is in; or, with
    ``by_rows``, a ring is drawn by the number of its rows, and a row in it by weight: for weights that
    say nothing outside of their ring, such as those of ranks. New rows get the greatest weight of all.

    Parameters
    ----------
    ring : Followers
        The rings, by whose numbers rows are called.
    by_rows : bool
        See above.
    """

    def __cinit__(self, Followers ring not None, bint by_rows):
        self.ring = ring
        self.by_rows = by_rows
        self.members = [None] * ring.width

    cdef RowWeights c_member(self, intp_t number):
        """The weights of a ring that is there."""
        return <RowWeights> self.members[number]

    def put(self, intp_t number, RowWeights weights not None):
        """The weights of the rows of a ring."""
        self.members[number] = weights

    def weights_of(self, intp_t number):
        """The weights of one ring."""
        return self.c_member(number)

    def sync(self):
        """Bring the trees up to date: rows that have come get the greatest weight of all rings."""
        self.c_sync()

    cdef int c_sync(self) except -1:
        """As ``sync``."""
        cdef float64_t newest = 0.0, priority = 0.0
        cdef RowWeights one
        for member in self.members:
            if member is not None:
                one = <RowWeights> member
                one.c_begin()
                newest = max(newest, one.newest_weight)
                priority = max(priority, one.greatest_priority)
        for member in self.members:
            if member is not None:
                one = <RowWeights> member
                one.greatest_priority = priority
                one.newest_weight = newest
                one.c_sync()
        return 0

    cdef intp_t c_measure(self, Part* parts) except -1:
        """The rings that have rows of a weight, and their shares; how many these are.

        A row's share of a draw is its weight times ``mass / total``, which is 1 unless ``by_rows``.
        """
        cdef intp_t number, count = 0
        cdef RowWeights one
        for number in range(self.ring.width):
            if not self.ring.c_is_usable(number):
                continue
            one = self.c_member(number)
            if one.tree.c_total() > 0.0:
                parts[count].number = number
                parts[count].total = one.tree.c_total()
                parts[count].mass = parts[count].total
                if self.by_rows:
                    parts[count].mass = <float64_t> one.ring.c_drawable()
                count += 1
        return count

    @property
    def largest(self):
        """The greatest weight that a row may have."""
        largest = LARGEST
        for member in self.members:
            if member is not None:
                largest = min(largest, (<RowWeights> member).tree.largest / self.ring.width)
        return largest

    @property
    def largest_priority(self):
        """The greatest priority that any row was given, 1.0 at first."""
        self.c_sync()
        return max([(<RowWeights> one).greatest_priority for one in self.members if one is not None],
                   default=1.0)

    @property
    def total(self):
        """The sum of all masses."""
        return sum([mass for _, mass, _ in self._parts()])

    @property
    def least(self):
        """The least mass of a row, above 0; infinity if there is none."""
        return min(
            [self.c_member(number).minima.c_min() * (mass / total)
             for number, mass, total in self._parts()],
            default=INFINITY,
        )

    def _parts(self):
        """Number, share, and sum of weights of each ring that has any."""
        self.c_sync()
        cdef Part* parts = <Part*> malloc(self.ring.width * sizeof(Part))
        cdef intp_t k
        if parts == NULL:
            raise MemoryError("no memory left to draw rows")
        try:
            return [
                (parts[k].number, parts[k].mass, parts[k].total)
                for k in range(self.c_measure(parts))
            ]
        finally:
            free(parts)

    # ------------------------------------------------------------------ drawing

    def draw(self, n, rng, bint replace, bint stratified, bint as_handles, without=None):
        """Draw n rows; see ``RowWeights.draw``, whose slots are numbers of rows here.

        Rows ``without`` are left out of draws without replacement only. Returns numbers of rows, their
        ``indexes`` for ``update``, their masses; the least mass of all rows, and the sum of all masses.
        """
        cdef intp_t k, count, size = c_index(n)
        cdef float64_t least = INFINITY, total = 0.0
        cdef Part* parts
        if size < 0:
            raise ValueError(f"n: expected 0 or more, got {n}")
        self.c_sync()
        if not replace:
            rows, weights = self._draw_distinct(size, rng, without)
            return rows, self.ring.c_handles(rows), weights, self.least, self.total
        self.c_rank()
        cdef cnp.ndarray drawn = c_numbers(1, &size, cnp.NPY_INTP)
        cdef cnp.ndarray masses = c_numbers(1, &size, cnp.NPY_FLOAT64)
        cdef float64_t* targets = <float64_t*> cnp.PyArray_DATA(masses)
        bit_generator = rng.bit_generator
        cdef bitgen_t* source = c_bit_generator(bit_generator)
        parts = <Part*> malloc(self.ring.width * sizeof(Part))
        if parts == NULL:
            raise MemoryError("no memory left to draw rows")
        try:
            count = self.c_measure(parts)
            for k in range(count):
                total += parts[k].mass
                least = min(
                    least,
                    self.c_member(parts[k].number).minima.c_min()
                    * (parts[k].mass / parts[k].total),
                )
            c_check_drawn(INDEPENDENT, total > 0.0, size)
            with bit_generator.lock:
                for k in range(size):
                    targets[k] = source.next_double(source.state)
            for k in range(size):
                targets[k] = ((k + targets[k]) / size if stratified else targets[k]) * total
            self.c_search(parts, count, targets, <intp_t*> cnp.PyArray_DATA(drawn), size)
        finally:
            free(parts)
        return drawn, self.ring.c_handles(drawn), masses, least, total

    cdef int c_search(
        self, const Part* parts, intp_t count, float64_t* targets, intp_t* rows, intp_t n
    ) except -1:
        """Search for targets in the rings; they become the masses that were found."""
        cdef intp_t k, i, number, found
        cdef float64_t before = 0.0, scale, target
        cdef RowWeights one
        cdef float64_t* own = <float64_t*> malloc(n * sizeof(float64_t) + 1)
        cdef intp_t* places = <intp_t*> malloc(2 * n * sizeof(intp_t) + 1)
        cdef intp_t* leaves = places + n
        if own == NULL or places == NULL:
            free(own)
            free(places)
            raise MemoryError("no memory left to draw rows")
        for k in range(n):
            rows[k] = -1
        for i in range(count):
            one = self.c_member(parts[i].number)
            scale = parts[i].mass / parts[i].total
            found = 0
            for k in range(n):
                if rows[k] < 0 and (targets[k] < before + parts[i].mass or i == count - 1):
                    target = max(targets[k] - before, 0.0) / scale
                    if not target < parts[i].total:  # a difference may round up
                        target = nextafter(parts[i].total, 0.0)
                    own[found], places[found] = target, k
                    found += 1
            c_find(&one.tree.nodes[0], &one.tree.shape, own, leaves, own, found)
            number = parts[i].number
            for k in range(found):
                rows[places[k]] = leaves[k] << self.ring.bits | number
                targets[places[k]] = own[k] * scale
            before += parts[i].mass
        free(own)
        free(places)
        return 0

    cdef int c_rank(self) except -1:
        """Sort the rows of each ring by priority where weights are of ranks and it is due.

        The trees are up to date. It is called before masses are measured: a ring that is sorted later
        would be drawn by its new weights and measured by its old ones.
        """
        cdef intp_t number
        for number in range(self.ring.width):
            if self.ring.c_is_usable(number):
                self.c_member(number).c_rank(1)
        return 0

    def _draw_distinct(self, intp_t n, rng, without):
        """Distinct rows, one after another, each by its mass among those that are left.

        Each ring draws so by itself, as a process in time: one row comes after another at the rate of
        the mass that is left. So the first n of all rings come in the order, and with the
        probabilities, of draws from all.
        """
        cdef intp_t passed = 0 if without is None else len(without)
        drawn, masses, times = [], [], []
        if passed + n > 0 and self.count(passed + n) == passed + n:  # otherwise refused, and not sorted
            self.c_rank()
        others = {} if without is None else {
            number: slots for number, _, slots in self.ring.split(without)
        }
        for number, mass, total in self._parts():
            one = self.c_member(number)
            own = others.get(number)
            passed = 0 if own is None else len(own)
            count = one.count(passed + n) - passed
            slots, _, weights, _, _ = one.draw(count, rng, False, False, True, own)
            scale = mass / total
            if own is not None:
                total -= one.get(own).sum()
            left = np.maximum(total - np.concatenate([np.zeros(1), weights.cumsum()])[:count], weights)
            drawn.append(self.ring.name(number, slots))
            masses.append(weights * scale)
            times.append((rng.exponential(size=count) / (left * scale)).cumsum())
        found = sum([len(rows) for rows in drawn])
        c_check_drawn(INDEPENDENT if n == 0 else DISTINCT, len(drawn) if n == 0 else found, n)
        order = np.argsort(np.concatenate(times), kind="stable")[:n]
        return np.concatenate(drawn)[order], np.concatenate(masses)[order]

    def check_draw(self, n, bint replace):
        """Raise what ``draw`` would raise, without a draw."""
        if replace:
            c_check_drawn(INDEPENDENT, len(self._parts()), n)
        else:
            c_check_drawn(DISTINCT, self.count(n), n)

    def count(self, intp_t n):
        """How many rows have a weight, but no more than n of them."""
        return min(n, sum([self.c_member(number).count(n) for number, _, _ in self._parts()]))

    def get(self, cnp.ndarray rows not None):
        """The masses of rows, of which there is a dense 1-d array of intp."""
        scales = {number: mass / total for number, mass, total in self._parts()}
        self.ring.c_check_rows(rows, NULL)
        found = np.zeros(len(rows))
        for number, places, slots in self.ring.split(rows):
            if number in scales:
                found[places] = self.c_member(number).get(slots) * scales[number]
        return found

    def indexes(self, cnp.ndarray rows not None, bint as_handles):
        """What names these rows for ``update``: handles, whatever ``as_handles`` says."""
        return self.ring.handles(rows)

    # ------------------------------------------------------------------ saving

    def save(self):
        """Nothing: a copy of a sampler of several rings starts without priorities. See ``save_rings``."""

    def save_rings(self):
        """For each ring what ``RowWeights.resume`` takes, or None."""
        self.c_sync()
        return [None if member is None else member.save() for member in self.members]

    # ------------------------------------------------------------------ updating

    cdef intp_t c_slot(self, int64_t index) noexcept:
        """The slot of the row that an index names; ``GONE``, or ``NO_ROW`` if it never named one.

        A row that another process has hidden counts as overwritten: a learner cannot distinguish them.
        """
        cdef intp_t slot, number = <intp_t> (index & self.ring.mask)
        cdef int64_t handle = index >> self.ring.bits
        cdef Ring ring
        if index < 0 or number >= self.ring.width or self.members[number] is None:
            return NO_ROW
        ring = self.c_member(number).ring
        if handle < ring.span or handle - ring.span - ring.state[HANDLE_BASE] >= ring.state[WRITTEN]:
            return NO_ROW
        slot = c_slot_of(ring, handle, True)
        return slot if slot >= 0 else GONE

    def without_row(self, const int64_t[::1] indexes):
        """The positions of the indexes that name no row and never did: an array of intp."""
        cdef intp_t k, n = indexes.shape[0], count = 0
        cdef cnp.ndarray places = c_numbers(1, &n, cnp.NPY_INTP)
        for k in range(n):
            if self.c_slot(indexes[k]) == NO_ROW:
                (<intp_t*> cnp.PyArray_DATA(places))[count] = k
                count += 1
        return places[:count]

    def update(
        self, cnp.ndarray indexes, cnp.ndarray priorities, cnp.ndarray weights, bint as_handles
    ):
        """Set the weights of rows: of duplicates the last wins. Those that are gone are passed over.

        Raises ``IndexError``, and nothing has changed, if an index names no row and never did.
        """
        cdef intp_t k, number, slot, n = cnp.PyArray_DIM(indexes, 0), width = self.ring.width
        cdef const int64_t[::1] given = np.ascontiguousarray(indexes)
        cdef const float64_t* values = <const float64_t*> cnp.PyArray_DATA(priorities)
        cdef const float64_t* masses = <const float64_t*> cnp.PyArray_DATA(weights)
        cdef Updates updates
        self.c_sync()
        updates.slots = <intp_t*> malloc((2 * n + width + 1) * sizeof(intp_t))
        updates.priorities = <float64_t*> malloc((2 * n + 1) * sizeof(float64_t))
        updates.weights = updates.priorities + n
        cdef intp_t* found = updates.slots + n
        cdef intp_t* stops = found + n
        if updates.slots == NULL or updates.priorities == NULL:
            free(updates.slots)
            free(updates.priorities)
            raise MemoryError("no memory left to update priorities")
        try:
            for number in range(width + 1):
                stops[number] = 0
            for k in range(n):
                found[k] = slot = self.c_slot(given[k])
                if slot == NO_ROW:
                    raise IndexError(
                        f"indexes[{k}]: expected that of a row of a batch, got {given[k]}"
                    )
                stops[(given[k] & self.ring.mask) + 1] += slot >= 0
            for number in range(width):
                stops[number + 1] += stops[number]
            self.given += n
            self.late += n - stops[width]
            for k in range(n):  # ring by ring, and in each in their order, as the last counts
                if found[k] >= 0:
                    number = <intp_t> (given[k] & self.ring.mask)
                    slot = stops[number]
                    stops[number] += 1
                    updates.slots[slot] = found[k]
                    updates.priorities[slot], updates.weights[slot] = values[k], masses[k]
            k = 0
            for number in range(width):  # now each is where the rows of its ring stop
                if stops[number] > k:
                    self.c_set(self.c_member(number), &updates, k, stops[number])
                k = stops[number]
        finally:
            free(updates.slots)
            free(updates.priorities)

    cdef int c_set(
        self, RowWeights one, const Updates* updates, intp_t first, intp_t stop
    ) except -1:
        """Set the weights of rows of one ring."""
        one.c_sync()
        one.c_set(
            updates.slots + first, updates.priorities + first, updates.weights + first, stop - first
        )
        return 0
