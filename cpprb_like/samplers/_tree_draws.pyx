"""Draws of the rows of a ring by a sum tree: a row is drawn with probability ``leaf / sum of leaves``.

Compiled because it looks at every drawn row. Not here: what the leaves are (``_row_weights``,
``_masses``), and how they are summed and searched (``_segment_tree``).
"""

cimport numpy as cnp

from libc.math cimport INFINITY, nextafter
from numpy.random cimport bitgen_t

from cpprb_like._machine.aligned cimport c_numbers
from cpprb_like._c.arrays cimport c_index
from cpprb_like._rows.row_handles cimport c_indexes
from cpprb_like._c.random_integers cimport c_bit_generator
from cpprb_like._segment_tree cimport DISTINCT, INDEPENDENT, STRATIFIED, Manner, c_check_drawn
from cpprb_like._c.tree_node cimport c_count_leaves, c_find_leaves
from cpprb_like._c.typedefs cimport float64_t, int64_t, intp_t

cnp.import_array()

cdef enum:
    RANDOM_BITS = 53             # of a random number from 0 to 1, which is a multiple of 2 ** -53


cdef class TreeDraws(DerivedState):
    """Base class of draws by the leaves of a sum tree, which has as many as the ring has slots."""

    cdef void c_sync_weights(self) noexcept nogil:
        """Bring the tree up to date."""

    cdef float64_t c_least(self) noexcept nogil:
        """The least leaf above 0; infinity if all are 0, and without a ``MinTree``."""
        return INFINITY if self.minima is None else self.minima.c_min()

    def draw(
        self, n, rng, bint replace, bint stratified, bint as_handles, cnp.ndarray without=None
    ):
        """Draw n rows, none of the slots ``without``; see ``SumTree.draw`` and ``draw_distinct``.

        Returns their slots, their ``indexes`` for ``update``, and their weights; then the least weight
        of all rows, and the sum of all weights, at that time.
        """
        cdef Manner manner = (
            DISTINCT if not replace else STRATIFIED if stratified else INDEPENDENT
        )
        cdef intp_t count = c_index(n), found = 0
        cdef int64_t stop = 0
        cdef float64_t least = 0.0, total = 0.0
        cdef const intp_t* passed = NULL
        cdef intp_t n_passed = 0
        cdef cnp.ndarray lifted = None
        if count < 0:
            raise ValueError(f"n: expected 0 or more, got {n}")
        bit_generator = rng.bit_generator
        cdef bitgen_t* bitgen = c_bit_generator(bit_generator)
        if without is not None:
            n_passed = self.tree.c_check_indexes(without)
            passed = <const intp_t*> cnp.PyArray_DATA(without)
            lifted = c_numbers(1, &n_passed, cnp.NPY_FLOAT64)
        cdef cnp.ndarray slots = c_numbers(1, &count, cnp.NPY_INTP)
        cdef cnp.ndarray weights = c_numbers(1, &count, cnp.NPY_FLOAT64)
        cdef intp_t* leaves = <intp_t*> cnp.PyArray_DATA(slots)
        cdef float64_t* values = <float64_t*> cnp.PyArray_DATA(weights)
        with bit_generator.lock:
            stop = self.ring.c_stop()
            self.c_sync_weights()
            if n_passed:
                self.c_lift(passed, <float64_t*> cnp.PyArray_DATA(lifted), n_passed)
            found = self.tree.c_draw_leaves(bitgen, manner, leaves, values, count)
            if n_passed:
                self.c_put_back(passed, <const float64_t*> cnp.PyArray_DATA(lifted), n_passed)
            least, total = self.c_least(), self.tree.c_total()
        c_check_drawn(manner, found, count)
        self.drawn = stop
        return slots, c_indexes(self.ring, slots, as_handles), weights, least, total

    def draw_parts(self, list trees not None, list ends not None, n, rng, bint stratified):
        """Draw n rows with replacement: of each of ``trees``, which are parts of this one, its share.

        ``ends`` are cumulative shares from 0 on, as integers. The share of a part without weights goes
        to the others. A part has its share of n rows, rounded down or up at random: see ``cut``. Returns
        the slots and the weights, part by part, and of each row the sum of the weights of its part,
        divided by the share of this part; or None if no part has weights, or one lost its own meanwhile.
        Under the generator's lock no Python code runs.
        """
        cdef Manner manner = STRATIFIED if stratified else INDEPENDENT
        cdef intp_t k, row, count = c_index(n), n_parts = len(trees), n_ends = n_parts + 1
        cdef int64_t stop
        cdef float64_t number, total
        cdef bint is_drawn = True
        cdef TreeDraws one
        cdef list own = [0]
        cdef cnp.ndarray slots = c_numbers(1, &count, cnp.NPY_INTP)
        cdef cnp.ndarray weights = c_numbers(1, &count, cnp.NPY_FLOAT64)
        cdef cnp.ndarray totals = c_numbers(1, &count, cnp.NPY_FLOAT64)
        cdef cnp.ndarray ends_of_parts = c_numbers(1, &n_ends, cnp.NPY_INTP)
        cdef intp_t* leaves = <intp_t*> cnp.PyArray_DATA(slots)
        cdef float64_t* values = <float64_t*> cnp.PyArray_DATA(weights)
        cdef float64_t* sums = <float64_t*> cnp.PyArray_DATA(totals)
        cdef intp_t* places = <intp_t*> cnp.PyArray_DATA(ends_of_parts)
        if len(ends) != n_ends:
            raise ValueError(f"ends: expected {n_ends}, got {len(ends)}")
        for k in range(n_parts):
            one = trees[k]
            one.c_sync_weights()
            own.append(own[k] + ends[k + 1] - ends[k] if one.tree.c_total() > 0.0 else own[k])
        if own[n_parts] == 0:
            return None
        bit_generator = rng.bit_generator
        cdef bitgen_t* bitgen = c_bit_generator(bit_generator)
        with bit_generator.lock:
            number = bitgen.next_double(bitgen.state)
        for k, place in enumerate(cut(n, own, number)):
            places[k] = place
        with bit_generator.lock:
            stop = self.ring.c_stop()
            for k in range(n_parts):
                count = places[k + 1] - places[k]
                if count:
                    one = trees[k]
                    one.c_sync_weights()
                    is_drawn &= one.tree.c_draw_leaves(bitgen, manner, leaves + places[k], values + places[k], count)
                    sums[places[k]] = one.tree.c_total()
        if not is_drawn:
            return None
        for k in range(n_parts):
            if places[k] < places[k + 1]:
                total = sums[places[k]] / ((own[k + 1] - own[k]) / own[n_parts])
                for row in range(places[k], places[k + 1]):
                    sums[row] = total
        self.drawn = stop
        return slots, weights, totals

    cdef void c_lift(
        self, const intp_t* slots, float64_t* weights, intp_t n
    ) noexcept nogil:
        """Set the weights of n slots to 0 for a draw; ``weights`` gets the old ones."""
        cdef float64_t* leaves = self.tree.c_level(0)
        cdef intp_t k
        for k in range(n):
            weights[k] = leaves[slots[k]]
            leaves[slots[k]] = 0.0
        self.tree.c_set(slots, NULL, n)

    cdef void c_put_back(
        self, const intp_t* slots, const float64_t* weights, intp_t n
    ) noexcept nogil:
        """Undo ``c_lift``: every node gets its old value."""
        cdef float64_t* leaves = self.tree.c_level(0)
        cdef intp_t k = n
        while k > 0:  # from the end: of a repeated slot the first has the weight
            k -= 1
            leaves[slots[k]] = weights[k]
        self.tree.c_set(slots, NULL, n)

    def check_draw(self, n, bint replace):
        """Raise what ``draw`` would raise, without a draw."""
        cdef Manner manner = INDEPENDENT if replace else DISTINCT
        cdef intp_t count = c_index(n), found
        self.c_sync_weights()
        if replace:
            found = self.tree.c_total() > 0.0
        else:
            found = c_count_leaves(&self.tree.nodes[0], &self.tree.shape, count)
        c_check_drawn(manner, found, count)

    @property
    def least(self):
        """The least weight above 0; infinity if all weights are 0."""
        self.c_sync_weights()
        return self.c_least()

    @property
    def total(self):
        """The sum of all weights."""
        self.c_sync_weights()
        return self.tree.total

    @property
    def largest(self):
        """The greatest weight that a row may have."""
        return self.tree.largest

    def count(self, intp_t n):
        """Number of rows that have a weight, counted up to n."""
        self.c_sync_weights()
        return c_count_leaves(&self.tree.nodes[0], &self.tree.shape, n)

    def get(self, cnp.ndarray slots):
        """The weights of the slots, a dense 1-d array of intp."""
        self.c_sync_weights()
        return self.tree.get(slots)

    def indexes(self, cnp.ndarray slots, bint as_handles):
        """The ``indexes`` of these slots, for ``update``: public slots, or handles."""
        return c_indexes(self.ring, slots, as_handles)


def cut(n, list ends not None, double number):
    """Where the parts of n rows begin and end, rounded by a random number from 0 to 1.

    ``ends`` are cumulative shares from 0 on, as integers.
    """
    if not ends:
        raise ValueError("ends: expected cumulative shares, got none")
    last = ends[len(ends) - 1]
    offset = <int64_t> (number * 2.0 ** RANDOM_BITS) * last >> RANDOM_BITS
    return [0, *[(n * end + offset) // last for end in ends[1:len(ends) - 1]], n]


# ---------------------------------------------------------------------- several rings


def draw_together(list parts not None, int bits, n, rng, bint stratified):
    """Draw n rows of several rings, each in proportion to its weight.

    A part is the number of a ring, and its ``TreeDraws``, which are up to date. Targets from 0 to the
    sum of all weights fall into parts, and are searched there. So probabilities and strata are those of
    one tree.

    Returns the numbers of rows, which are slots with the number of the ring in the low ``bits``, and
    their weights; then the least weight of all rows, and the sum of all weights. Raises
    ``NotEnoughDataError`` if that sum is 0.
    """
    cdef intp_t k, number, found, size = c_index(n)
    cdef float64_t mass, most, start = 0.0, least = INFINITY, total = 0.0
    cdef TreeDraws one, last = None
    cdef cnp.ndarray rows = c_numbers(1, &size, cnp.NPY_INTP)
    cdef cnp.ndarray masses = c_numbers(1, &size, cnp.NPY_FLOAT64)
    cdef cnp.ndarray own = c_numbers(1, &size, cnp.NPY_FLOAT64)
    cdef cnp.ndarray memory = c_numbers(1, &size, cnp.NPY_INTP)
    cdef cnp.ndarray leaves = c_numbers(1, &size, cnp.NPY_INTP)
    cdef intp_t* names = <intp_t*> cnp.PyArray_DATA(rows)
    cdef float64_t* targets = <float64_t*> cnp.PyArray_DATA(masses)
    cdef float64_t* theirs = <float64_t*> cnp.PyArray_DATA(own)
    cdef intp_t* places = <intp_t*> cnp.PyArray_DATA(memory)
    cdef intp_t* slots = <intp_t*> cnp.PyArray_DATA(leaves)
    bit_generator = rng.bit_generator
    cdef bitgen_t* source = c_bit_generator(bit_generator)
    for _, one in parts:
        total += one.tree.c_total()
        least = min(least, one.c_least())
        last = one
    c_check_drawn(INDEPENDENT, total > 0.0, size)
    with bit_generator.lock:
        for k in range(size):
            targets[k] = source.next_double(source.state)
    for k in range(size):
        targets[k] = ((k + targets[k]) / size if stratified else targets[k]) * total
        names[k] = -1
    for number, one in parts:
        mass = one.tree.c_total()
        most = nextafter(mass, 0.0)
        found = 0
        for k in range(size):
            if names[k] < 0 and (targets[k] < start + mass or one is last):
                # The difference may round up to the total.
                theirs[found] = min(targets[k] - start, most)
                places[found] = k
                found += 1
        c_find_leaves(&one.tree.nodes[0], &one.tree.shape, theirs, slots, theirs, found)
        for k in range(found):
            names[places[k]] = slots[k] << bits | number
            targets[places[k]] = theirs[k]
        start += mass
    return rows, masses, least, total
