"""Segment trees over the weights of slots: their sum and minimum, and draws by weight.

Trees over arrays that the caller allocated. Each slot has a leaf. A node above holds the sum of its
eight children, or a bound of the leaves below it. Compiled because an update or a draw touches a
node on each level. Not here: how nodes lie in memory and the arithmetic on them (``_c.tree_node``),
which slots have a weight (``samplers._row_weights``), and why (``samplers._prioritized``).
"""

cimport cython
cimport numpy as cnp
from libc.math cimport INFINITY
from numpy.random cimport bitgen_t

from cpprb_like._machine.aligned cimport c_numbers
from cpprb_like._c.arrays cimport c_check_array, c_index
from cpprb_like._c.copying cimport FETCHED, c_prefetch
from cpprb_like._c.random_integers cimport c_bit_generator
from cpprb_like._c.tree_node cimport (
    SHIFT, SIDE_LEVEL, SIDE_SHIFT, Shape, c_admit, c_count_leaves, c_find_leaves, c_least_of_all,
    c_measure_tree, c_settle, c_sum_at, c_sum_range,
)
from cpprb_like._c.typedefs cimport float64_t, intp_t

import numpy as np

from cpprb_like.errors import NotEnoughDataError

cnp.import_array()

cdef enum:
    LEAST_ROUND = 64             # least limit of draws in a further round of ``draw_distinct``


def tree_size(capacity):
    """Length of the array of a ``SumTree``: about 8/7 of ``capacity``."""
    cdef Shape shape
    c_measure_tree(c_index(capacity), &shape)
    return shape.size


def min_tree_size(capacity):
    """Length of the array of a ``MinTree``: about 1/56 of ``capacity``."""
    cdef Shape shape
    c_measure_tree(c_index(capacity), &shape)
    return shape.size - shape.offset[SIDE_LEVEL]


cdef int c_check_drawn(Manner manner, intp_t found, intp_t n) except -1:
    """Raise unless the slots with a weight that ``c_draw_leaves`` found are enough for a draw of n."""
    if manner == DISTINCT and found < n:
        raise NotEnoughDataError(
            f"cannot draw {n} distinct slots: {found} have a weight above zero"
        )
    if manner != DISTINCT and found == 0:
        raise NotEnoughDataError("cannot draw: there are no rows, or all weights are zero")
    return 0


@cython.final
cdef class MinTree:
    """The least weight above zero of a ``SumTree``.

    The leaves are those of the sum tree, which updates both trees. Each of the lowest nodes is above
    64 leaves. A node holds a lower bound of its leaves, which one leaf had at some time. Bounds are
    made exact only where the least of all depends on it. So setting a leaf rarely costs more than a
    comparison; with exact nodes it cost a cache miss and a look at eight children. ``nodes`` is memory
    for ``min_tree_size(tree.capacity)`` numbers, with the rules of ``SumTree``.
    """

    def __cinit__(self, float64_t[::1] nodes not None, SumTree tree not None):
        cdef intp_t size = tree.shape.size - tree.shape.offset[SIDE_LEVEL]
        if nodes.shape[0] != size:
            raise ValueError(f"nodes: expected {size}, got {nodes.shape[0]}")
        if tree.minima is not None:
            raise ValueError("tree: it has a MinTree already")
        self.nodes = nodes
        self.leaves = tree.nodes
        self.shape = tree.shape
        tree.minima = self

    cdef float64_t c_min(self) noexcept nogil:
        """``min`` in C."""
        cdef float64_t least = c_least_of_all(&self.nodes[0], &self.shape, &self.leaves[0])
        return least if least > 0.0 else INFINITY

    @property
    def min(self):
        """The least weight above zero; infinity if there is none."""
        return self.c_min()


@cython.final
cdef class SumTree:
    """Sum tree: weights of the slots 0 to ``capacity - 1``, and draws in proportion to them.

    A weight is at least 0 and at most ``largest``, so that no sum overflows. A slot of weight 0, or
    one that was never set, is never found and never drawn. A call that raises changes nothing.
    Arrays of indexes and weights must be dense, 1-d, and of dtype intp and float64.

    Thread-safe: each call is atomic, as it holds the interpreter lock.

    Parameters
    ----------
    nodes : ndarray of float64, shape (tree_size(capacity),)
        Memory for the nodes, dense and writeable, best aligned to cache lines of 64 bytes: without
        that the tree is 1.1 to 1.3 times slower. Zeros for a tree of zero weights, or what an
        earlier tree left there; otherwise call ``rebuild``.
    capacity : int
        Leaves. A ``MinTree`` can be built over the same leaves.
    """

    def __cinit__(self, float64_t[::1] nodes not None, capacity):
        cdef intp_t leaves = c_index(capacity)
        c_measure_tree(leaves, &self.shape)
        if nodes.shape[0] != self.shape.size:
            raise ValueError(f"nodes: expected {self.shape.size}, got {nodes.shape[0]}")
        self.nodes = nodes
        self.capacity = leaves
        self.largest = 2.0 ** 1023
        while leaves > 1:
            self.largest /= 2
            leaves = (leaves + 1) >> 1

    @property
    def total(self):
        """The sum of all weights."""
        return self.c_total()

    def copy(self):
        """A tree with the same nodes in memory of its own, and its ``MinTree``.

        Raises ``ValueError`` if this tree has no ``MinTree``.
        """
        if self.minima is None:
            raise ValueError("tree: it has no MinTree")
        cdef SumTree tree = SumTree(np.empty(self.shape.size), self.capacity)
        cdef MinTree minima = MinTree(np.empty(self.minima.nodes.shape[0]), tree)
        # No Python code runs from here on, so all nodes are of one moment.
        tree.nodes[:] = self.nodes
        minima.nodes[:] = self.minima.nodes
        return tree, minima

    cdef float64_t* c_level(self, intp_t level) noexcept nogil:
        return &self.nodes[0] + self.shape.offset[level]

    cdef float64_t c_total(self) noexcept nogil:
        return self.nodes[self.shape.size - 1]

    # ------------------------------------------------------------------ writing

    def set(self, indexes, values):
        """Set the weight of slot ``indexes[k]`` to ``values[k]``; of duplicates the last wins.

        Raises ``TypeError`` for other arrays, ``IndexError`` for a slot out of range, and
        ``ValueError`` for a weight that is none or another number of weights.
        """
        cdef intp_t n = self.c_check_indexes(indexes)
        self.c_check_values(values, n)
        self.c_set(
            <const intp_t*> cnp.PyArray_DATA(indexes),
            <const float64_t*> cnp.PyArray_DATA(values),
            n,
        )

    def set_range(self, first, values):
        """Set the weights of consecutive slots, from ``first`` on. Cost: about that of a copy.

        Raises like ``set``.
        """
        c_check_array(values, "values", cnp.NPY_FLOAT64, -1)
        cdef intp_t n = cnp.PyArray_DIM(values, 0), start = c_index(first)
        if not (0 <= start <= self.capacity and n <= self.capacity - start):
            raise IndexError(
                f"range: expected slots from 0 to {self.capacity - 1}, got {n} from {first} on"
            )
        self.c_check_values(values, n)
        self.c_set_range(start, <const float64_t*> cnp.PyArray_DATA(values), n)

    def clear(self):
        """Set all weights to zero."""
        self.c_clear_leaves(0)

    cdef void c_clear_leaves(self, intp_t first) noexcept nogil:
        """Set the nodes from ``first`` on, and all nodes of the ``MinTree``, to zero."""
        self.nodes[first:] = 0.0
        if self.minima is not None:
            self.minima.nodes[:] = 0.0

    cdef void c_clear_first(self, intp_t n) noexcept nogil:
        """Set all weights to zero, where all but the first n leaves are zero already."""
        cdef intp_t level, nodes = n, offset
        for level in range(self.shape.levels if n else 0):
            offset = self.shape.offset[level]
            self.nodes[offset : offset + nodes] = 0.0
            if level >= SIDE_LEVEL and self.minima is not None:
                offset -= self.shape.offset[SIDE_LEVEL]
                self.minima.nodes[offset : offset + nodes] = 0.0
            nodes = (nodes + (1 << SHIFT) - 1) >> SHIFT

    def rebuild(self):
        """Compute all nodes from the leaves, such as after loading the leaves alone.

        Raises ``ValueError`` if a leaf is no weight.
        """
        self.c_check_values(np.asarray(self.nodes)[: self.capacity], self.capacity)
        self.c_rebuild_nodes()

    cdef void c_rebuild_nodes(self) noexcept nogil:
        cdef intp_t leaf
        for leaf in range(self.capacity):
            self.nodes[leaf] += 0.0  # never minus zero
        self.c_clear_leaves(self.capacity)
        self.c_sum_above(0, self.capacity - 1)

    cdef intp_t c_check_indexes(self, indexes) except -1:
        """Raise unless these are slots; return their number."""
        c_check_array(indexes, "indexes", cnp.NPY_INTP, -1)
        cdef const intp_t* leaves = <const intp_t*> cnp.PyArray_DATA(indexes)
        cdef intp_t k, capacity = self.capacity, n = cnp.PyArray_DIM(indexes, 0)
        cdef bint wrong = False
        for k in range(n):
            wrong |= <size_t> leaves[k] >= <size_t> capacity
        if wrong:
            raise IndexError(
                f"indexes: expected 0 to {capacity - 1}, got {indexes.min()} to {indexes.max()}"
            )
        return n

    cdef int c_check_values(self, values, intp_t n) except -1:
        """Raise unless these are n weights."""
        c_check_array(values, "values", cnp.NPY_FLOAT64, n)
        cdef const float64_t* weights = <const float64_t*> cnp.PyArray_DATA(values)
        cdef float64_t largest = self.largest
        cdef intp_t k
        cdef bint right = True
        for k in range(n):
            right &= (weights[k] >= 0.0) & (weights[k] <= largest)  # false for NaN
        if not right:
            wrong = np.flatnonzero(~((values >= 0.0) & (values <= largest)))[0]
            raise ValueError(
                f"values[{wrong}]: expected a weight from 0 to {largest!r}, got {values[wrong]}"
            )
        return 0

    cdef void c_set(self, const intp_t* leaves, const float64_t* values, intp_t n) noexcept nogil:
        """Set the weights of n leaves, then sum level by level, so that cache misses overlap.

        ``values`` is NULL if the leaves are written already. Then they must be zeros, or weights that
        they had before the zeros, because the ``MinTree`` does not get them.
        """
        if n == 0:
            return
        cdef intp_t k, count, start = 0, level = 1, shift = SHIFT
        cdef intp_t low = leaves[0], high = leaves[0]
        for k in range(1, n):
            low = leaves[k] if leaves[k] < low else low
            high = leaves[k] if leaves[k] > high else high
        # If half of the nodes above the leaves change, computing all of them takes less time.
        cdef bint scattered = (high >> SHIFT) - (low >> SHIFT) >= 2 * n
        while start < n:
            count = min(n - start, FETCHED)
            if values != NULL:
                self.c_write_leaves(leaves + start, values + start, count)
            if scattered:
                c_sum_at(self.c_level(1), self.c_level(0), SHIFT, leaves + start, count)
            start += count
        # A level with fewer nodes than there are leaves to set is summed from end to end instead.
        while scattered and (high >> shift) - (low >> shift) >= n:
            if level > 1:
                c_sum_at(self.c_level(level), self.c_level(level - 1), shift, leaves, n)
            level += 1
            shift += SHIFT
        self.c_sum_from(level, low >> (shift - SHIFT), high >> (shift - SHIFT))

    cdef void c_write_leaves(self, const intp_t* leaves, const float64_t* values, intp_t n) noexcept nogil:
        """Write up to FETCHED leaves; the sums above them are not computed yet."""
        cdef float64_t* weights = self.c_level(0)
        cdef intp_t k
        for k in range(n):
            c_prefetch(weights + leaves[k])
        if self.minima is not None:
            c_admit(&self.minima.nodes[0], &self.shape, leaves, values, n)
        for k in range(n):
            weights[leaves[k]] = values[k] + 0.0  # never minus zero

    cdef void c_set_range(self, intp_t first, const float64_t* values, intp_t n) noexcept nogil:
        cdef intp_t k
        cdef float64_t* weights = self.c_level(0) + first
        if n == 0:
            return
        for k in range(n):
            weights[k] = values[k] + 0.0  # never minus zero
        self.c_sum_above(first, first + n - 1)

    cdef void c_sum_above(self, intp_t first, intp_t last) noexcept nogil:
        """Compute all nodes above the leaves ``first`` to ``last``, after these were written."""
        self.c_sum_from(1, first, last)
        if self.minima is not None:
            c_settle(
                &self.minima.nodes[0], &self.shape, &self.nodes[0], first >> SIDE_SHIFT,
                last >> SIDE_SHIFT,
            )

    cdef void c_sum_from(self, intp_t level, intp_t first, intp_t last) noexcept nogil:
        """Compute the sums from ``level`` up above the nodes ``first`` to ``last`` of the level
        below it.
        """
        while level < self.shape.levels:
            first >>= SHIFT
            last >>= SHIFT
            c_sum_range(self.c_level(level), self.c_level(level - 1), first, last)
            level += 1

    # ------------------------------------------------------------------ reading

    def get(self, indexes):
        """The weights of the slots, as a fresh array. Raises like ``set``."""
        cdef intp_t n = self.c_check_indexes(indexes)
        cdef const intp_t* leaves = <const intp_t*> cnp.PyArray_DATA(indexes)
        cdef cnp.ndarray values = c_numbers(1, &n, cnp.NPY_FLOAT64)
        cdef float64_t* out = <float64_t*> cnp.PyArray_DATA(values)
        cdef const float64_t* weights = self.c_level(0)
        cdef intp_t k
        for k in range(n):
            out[k] = weights[leaves[k]]
        return values

    # ------------------------------------------------------------------ drawing

    def find(self, targets):
        """Prefix search: the slots in whose interval of the running sum of weights the targets are.

        The interval of slot i is from the sum of the weights before it, included, to that sum plus
        its own weight, excluded, up to the rounding of these sums. The last slot with a weight
        includes ``total``.

        Raises ``ValueError`` for a target that is not from 0 to ``total``, and
        ``NotEnoughDataError`` if all weights are zero.
        """
        c_check_array(targets, "targets", cnp.NPY_FLOAT64, -1)
        cdef intp_t n = cnp.PyArray_DIM(targets, 0)
        cdef const float64_t* wanted = <const float64_t*> cnp.PyArray_DATA(targets)
        cdef cnp.ndarray indexes = c_numbers(1, &n, cnp.NPY_INTP)
        cdef intp_t* leaves = <intp_t*> cnp.PyArray_DATA(indexes)
        if not self.c_targets_fit(wanted, n):
            self._refuse_targets(targets)
        c_find_leaves(&self.nodes[0], &self.shape, wanted, leaves, NULL, n)
        return indexes

    def _refuse_targets(self, targets):
        total = self.total
        if total == 0.0:
            raise NotEnoughDataError("cannot search: all weights are zero")
        wrong = np.flatnonzero(~((targets >= 0.0) & (targets <= total)))[0]
        raise ValueError(
            f"targets[{wrong}]: expected 0 to the total of {total!r}, got {targets[wrong]}"
        )

    def draw(self, n, rng, bint stratified=True):
        """Draw n slots with probabilities in proportion to their weights; return slots and weights.

        Draw i takes one uniform number u. With ``stratified``, its target is
        ``(i + u) / n * total``: one draw from each of n equal parts of the total, and the slots
        ascend. Without it the target is ``u * total``: the draws are independent.

        Raises ``NotEnoughDataError`` if all weights are zero, even for ``n=0``.
        """
        return self.c_drawn(n, rng, STRATIFIED if stratified else INDEPENDENT)

    def draw_distinct(self, n, rng):
        """Draw n distinct slots (weighted sampling without replacement); return slots and weights.

        The slots are drawn one after another, each in proportion to its weight among those that are
        not drawn yet, and returned in this order: WRS-N-W of P. Efraimidis ("Weighted Random
        Sampling over Data Streams", 2010, section 2). By rejection: a round makes independent draws
        as ``draw`` does, and rejects repeats; drawn slots have weight 0 in the next round. The
        first round has n draws. A further one has as many as are missing, but at most twice the
        number that the round before accepted, or 64 if that is more. So the number of draws is
        proportional to n whatever the weights. Afterwards every node is as it was.

        Raises ``NotEnoughDataError``, before any draw, if fewer than n slots have a weight.

        Examples
        --------
        >>> import numpy as np
        >>> from cpprb_like._segment_tree import SumTree, tree_size
        >>> tree = SumTree(np.zeros(tree_size(4)), 4)
        >>> tree.set_range(0, np.array([0.0, 1e300, 0.0, 1e-300]))
        >>> slots, weights = tree.draw_distinct(2, np.random.default_rng(0))
        >>> slots.tolist(), weights.tolist()
        ([1, 3], [1e+300, 1e-300])
        """
        return self.c_drawn(n, rng, DISTINCT)

    cdef tuple c_drawn(self, n, rng, Manner manner):
        """Arrays of n slots and their weights, or an exception."""
        cdef intp_t count = c_index(n), found = 0
        if count < 0:
            raise ValueError(f"n: expected 0 or more, got {n}")
        bit_generator = rng.bit_generator
        cdef bitgen_t* bitgen = c_bit_generator(bit_generator)
        cdef cnp.ndarray indexes = c_numbers(1, &count, cnp.NPY_INTP)
        cdef cnp.ndarray values = c_numbers(1, &count, cnp.NPY_FLOAT64)
        cdef intp_t* leaves = <intp_t*> cnp.PyArray_DATA(indexes)
        cdef float64_t* weights = <float64_t*> cnp.PyArray_DATA(values)
        with bit_generator.lock:
            found = self.c_draw_leaves(bitgen, manner, leaves, weights, count)
        c_check_drawn(manner, found, count)
        return indexes, values

    cdef intp_t c_draw_leaves(
        self, bitgen_t* bitgen, Manner manner, intp_t* leaves, float64_t* values, intp_t n
    ) noexcept nogil:
        """Draw; return how many slots have a weight, counted up to the number that is needed.

        Nothing is drawn if too few slots have one: none, or less than n for distinct slots.
        """
        cdef float64_t total = self.c_total()
        cdef intp_t k
        if manner == DISTINCT:
            return self.c_draw_distinct(bitgen, leaves, values, n)
        if not total > 0.0:
            return 0
        if manner == INDEPENDENT:
            self.c_draw_independent(bitgen, leaves, values, n)
            return 1
        for k in range(n):
            values[k] = bitgen.next_double(bitgen.state)
        for k in range(n):
            values[k] = (k + values[k]) / n * total
        c_find_leaves(&self.nodes[0], &self.shape, values, leaves, values, n)
        return 1

    cdef void c_draw_independent(
        self, bitgen_t* bitgen, intp_t* leaves, float64_t* values, intp_t n
    ) noexcept nogil:
        cdef float64_t total = self.c_total()
        cdef intp_t k
        for k in range(n):
            values[k] = bitgen.next_double(bitgen.state) * total
        c_find_leaves(&self.nodes[0], &self.shape, values, leaves, values, n)

    cdef intp_t c_draw_distinct(
        self, bitgen_t* bitgen, intp_t* leaves, float64_t* values, intp_t n
    ) noexcept nogil:
        """Draw distinct slots; return n, or how many slots have a weight if fewer than n."""
        cdef float64_t* weights = self.c_level(0)
        cdef intp_t k, count, accepted, found = 0, summed = 0, max_draws = n
        count = c_count_leaves(&self.nodes[0], &self.shape, n)
        if count < n:
            return count
        while found < n:
            count = min(n - found, max_draws)
            self.c_draw_independent(bitgen, leaves + found, values + found, count)
            accepted = found
            for k in range(found, found + count):
                if weights[leaves[k]] > 0.0:  # a leaf of 0.0 was drawn before
                    leaves[accepted] = leaves[k]
                    values[accepted] = values[k]
                    weights[leaves[k]] = 0.0
                    accepted += 1
            if accepted == found:  # only in a damaged tree, whose nodes are no sums of its leaves
                break
            max_draws = max(2 * (accepted - found), LEAST_ROUND)
            if accepted < n:
                self.c_set(leaves + found, NULL, accepted - found)
                summed = accepted
            found = accepted
        for k in range(found):
            weights[leaves[k]] = values[k]
        self.c_set(leaves, NULL, summed)  # the nodes above the others were never changed
        return found

    cdef bint c_targets_fit(self, const float64_t* targets, intp_t n) noexcept nogil:
        cdef float64_t total = self.c_total()
        cdef intp_t k
        cdef bint right = total > 0.0 or n == 0
        for k in range(n):
            right &= (targets[k] >= 0.0) & (targets[k] <= total)  # false for NaN
        return right
