"""Draws from several rings as from one: uniform ones, of starts, and by weight.

Each ring keeps the weights of its rows in a tree of its own. A draw by weight looks for each target
in the ring that holds that part of the sum of all, so rows have the probabilities, and a batch the
strata, that one tree over all rows would give. Compiled because it looks at every row that is drawn.
Not here: which rings (``processes._followers``), the weights of one of them (``_row_weights``), and what
priorities mean (``_prioritized``).
"""

cimport cython
cimport numpy as cnp
from libc.math cimport INFINITY, nextafter
from libc.stdlib cimport calloc, free, malloc
from numpy.random cimport bitgen_t

from cpprb_like._machine.aligned cimport c_numbers
from cpprb_like._c.arrays cimport c_index
from cpprb_like._c.copying cimport c_prefetch_rows
from cpprb_like._c.random_integers cimport Bits, c_bits_of, c_bounded_each
from cpprb_like.samplers._uniform_draws cimport Shuffle
from cpprb_like._c.tree_node cimport c_find
from cpprb_like._c.typedefs cimport float64_t, int64_t, intp_t
from cpprb_like._core cimport HANDLE_BASE, WRITTEN, Ring
from cpprb_like._segment_tree cimport DISTINCT, INDEPENDENT, c_bit_generator, c_check_drawn
from cpprb_like.buffers._entry cimport SampleOptions
from cpprb_like.processes._followers cimport Followers
from cpprb_like._rows.row_handles cimport GONE, NO_ROW, c_slot_of
from cpprb_like.samplers._row_weights cimport RowWeights

from functools import partial

import numpy as np

from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers._uniform_draws import draw_uniform

cnp.import_array()

cdef enum:
    GUESSES = 64             # of the part that a place is in: the fewer, the more steps after them
    MOST_ROWS = 1000000000   # from here on ``Generator.hypergeometric`` refuses
    FETCHED_ROWS = 512       # batches whose records stay in a cache until they are copied

cdef float64_t LARGEST = 2.0 ** 1000  # a weight, as long as there is no row


# ---------------------------------------------------------------------- uniform


def draw_uniform_together(
    Followers group not None, rng, SampleOptions options not None, intp_t n
):
    """Draw n rows of all rings, each with the same probability.

    Parameters
    ----------
    group : Followers
        The rings.
    rng : numpy.random.Generator
        Where the randomness comes from.
    options : SampleOptions
        ``replace`` says whether a row may be drawn more than once. If not, the order is random.
    n : int
        How many rows, at least 0.

    Returns
    -------
    rows : ndarray of intp, shape (n,)
        Numbers of rows, as ``Followers`` has them.
    extra : dict
        Further columns of a batch: none.

    Raises
    ------
    NotEnoughDataError
        There is no row, or fewer than n without replacement.

    Notes
    -----
    Cost: proportional to n; if some rows of a ring cannot be drawn, a draw of ``draw_uniform`` for
    each ring.
    """
    cdef cnp.ndarray rows = c_numbers(1, &n, cnp.NPY_INTP)
    cdef intp_t* values = <intp_t*> cnp.PyArray_DATA(rows)
    bit_generator = rng.bit_generator
    cdef Bits bits = c_bits_of(c_bit_generator(bit_generator))
    cdef Shuffle shuffle = None
    cdef intp_t total, number, count = 0
    cdef bint is_plain, replace = options.replace
    cdef Part* parts = <Part*> malloc(group.width * sizeof(Part))
    if parts == NULL:
        raise MemoryError("no memory left to draw rows")
    try:
        is_plain = c_plan(group, parts, &count)
        total = parts[count - 1].stop if count else 0
        if total == 0:
            raise NotEnoughDataError("cannot sample: there is no row that can be drawn")
        if not replace and n > total:
            raise NotEnoughDataError(f"cannot sample {n} distinct rows: there are {total}")
        if not is_plain:
            counts = [0] * group.width
            for number in range(count):
                counts[parts[number].number] = parts[number].stop - parts[number].start
            draw = partial(draw_of_ring, group, rng, replace)
            return (draw_each if replace else draw_distinct_of)(group, counts, draw, n, rng), {}
        if not replace:
            shuffle = Shuffle(total, n)
        lock = bit_generator.lock
        lock.acquire()  # nothing is allocated and nothing raised until it is released: see ``draw_uniform``
        if replace:
            c_bounded_each(&bits, total, values, n)
        else:
            shuffle.c_take(&bits, values, n)
        lock.release()
        c_find_rows(parts, count, group.bits, values, n)
    finally:
        free(parts)
    return rows, {}


def draw_of_ring(Followers group not None, rng, bint replace, intp_t number, intp_t n):
    """Draw n slots of one ring."""
    return draw_uniform(group.c_ring(number), n, rng, replace)


cdef bint c_plan(Followers group, Part* parts, intp_t* count) except -1:
    """Find the rings that have rows, and how many these are.

    Returns whether all rows from the oldest one of each to its newest can be drawn.
    """
    cdef intp_t number, drawable, stop = 0
    cdef bint is_plain = True
    cdef Ring ring
    count[0] = 0
    for number in range(group.width):
        if not group.c_is_usable(number):
            continue
        ring = group.c_ring(number)
        drawable = ring.c_drawable()
        if drawable == 0:
            continue
        is_plain &= drawable == <intp_t> (ring.c_stop() - ring.c_first())
        parts[count[0]].start = stop
        stop += drawable
        parts[count[0]].number, parts[count[0]].stop = number, stop
        parts[count[0]].capacity = ring.capacity
        parts[count[0]].first = <intp_t> (ring.c_first() % ring.capacity)
        parts[count[0]].records = <const char*> ring.c_record(0)
        parts[count[0]].stride = ring.record_stride
        count[0] += 1
    return is_plain


cdef void c_find_rows(
    const Part* parts, intp_t count, int spread, intp_t* rows, intp_t n
) noexcept nogil:
    """Places among the rows of all parts become numbers of rows; their records are fetched.

    Each part has all of its rows.
    """
    cdef const Part* guesses[GUESSES]
    cdef intp_t k, slot, place, number, guessed = 0, total = parts[count - 1].stop
    cdef intp_t fetched = n if n <= FETCHED_ROWS else 0
    cdef int shift = 0
    cdef const Part* part
    while (total - 1) >> shift >= GUESSES:
        shift += 1
    for number in range(count):
        for k in range(guessed, ((parts[number].stop - 1) >> shift) + 1):
            guesses[k] = parts + number  # the part of the first place of each
        guessed = max(guessed, ((parts[number].stop - 1) >> shift) + 1)
    for k in range(n):
        place = rows[k]
        part = guesses[place >> shift]
        while place >= part.stop:
            part += 1
        slot = part.first + place - part.start
        slot = slot if slot < part.capacity else slot - part.capacity
        rows[k] = slot << spread | part.number
        if k < fetched:
            c_prefetch_rows(part.records, part.stride, part.stride, &slot, 1)


# ---------------------------------------------------------------------- ring by ring


def draw_each(Followers group not None, list counts, draw, intp_t n, rng):
    """Draw n of the rows that ``counts`` says there are in each ring.

    Each has the same probability. ``draw(number, k)`` draws k of those of one ring, independently.
    """
    cdef intp_t k, number, found = 0, total = sum(counts), width = group.width
    cdef cnp.ndarray numbers = c_numbers(1, &n, cnp.NPY_INTP)
    cdef intp_t* rows = <intp_t*> cnp.PyArray_DATA(numbers)
    cdef list drawn = [None] * width
    bit_generator = rng.bit_generator
    cdef Bits bits = c_bits_of(c_bit_generator(bit_generator))
    cdef intp_t* stops = <intp_t*> calloc(3 * width, sizeof(intp_t))
    cdef intp_t* taken = stops + width
    cdef const intp_t** slots = <const intp_t**> (taken + width)
    if stops == NULL:
        raise MemoryError("no memory left to draw rows")
    try:
        for number in range(width):
            found += <intp_t> counts[number]
            stops[number] = found
        lock = bit_generator.lock
        lock.acquire()  # nothing is allocated and nothing raised until it is released
        c_bounded_each(&bits, total, rows, n)
        lock.release()
        for k in range(n):
            number = 0
            while rows[k] >= stops[number]:
                number += 1
            rows[k] = number
            taken[number] += 1
        for number in range(width):
            if taken[number]:
                drawn[number] = draw(number, taken[number])
                slots[number] = <const intp_t*> cnp.PyArray_DATA(<cnp.ndarray?> drawn[number])
        for k in range(n):
            number = rows[k]
            rows[k] = slots[number][0] << group.bits | number
            slots[number] += 1
    finally:
        free(stops)
    return numbers


def draw_distinct_of(Followers group not None, list counts, draw, n, rng):
    """As ``draw_each``, n different rows; ``draw(number, k)`` draws k different ones."""
    drawn = [np.empty(0, np.intp)]
    for number, own in enumerate(c_distinct_counts(counts, n, rng)):
        if own:
            drawn.append(group.name(number, draw(number, own)))
    return rng.permutation(np.concatenate(drawn))


cdef object c_distinct_counts(list counts, intp_t n, rng):
    """How many of n different rows are in each ring; there are so many."""
    cdef intp_t total = sum(counts)
    cdef list found = []
    cdef cnp.ndarray places
    cdef Shuffle shuffle
    cdef Bits bits
    if total < MOST_ROWS:
        for count in counts:
            total -= count
            found.append(rng.hypergeometric(count, total, n) if count else 0)
            n -= <intp_t> found[len(found) - 1]
        return found
    shuffle = Shuffle(total, n)
    places = c_numbers(1, &n, cnp.NPY_INTP)
    bit_generator = rng.bit_generator
    bits = c_bits_of(c_bit_generator(bit_generator))
    lock = bit_generator.lock
    lock.acquire()  # nothing is allocated and nothing raised until it is released
    shuffle.c_take(&bits, <intp_t*> cnp.PyArray_DATA(places), n)
    lock.release()
    numbers = np.searchsorted(np.cumsum(counts), places, "right")
    return np.bincount(numbers, minlength=len(counts)).tolist()


# ---------------------------------------------------------------------- of starts


@cython.final
cdef class StartsTogether:
    """The rows of several rings at which the items of a view can start.

    It is for several rings what ``Starts`` is for one: the same methods, of numbers of rows.

    Parameters
    ----------
    ring : Followers
        The rings.
    find : callable
        ``find(number)`` gives the ``Starts`` of a ring that is there.
    """

    def __cinit__(self, Followers ring not None, find):
        self.ring = ring
        self.find = find
        self.members = [None] * ring.width

    def of(self, intp_t number):
        """The starts of one ring."""
        if self.members[number] is None:
            self.members[number] = self.find(number)
        return self.members[number]

    cdef list c_counts(self):
        """The starts of each ring; none of one that is not usable."""
        cdef intp_t number
        return [
            self.of(number).count if self.ring.c_is_usable(number) else 0
            for number in range(self.ring.width)
        ]

    @property
    def count(self):
        """How many starts there are."""
        return sum(self.c_counts())

    def tell(self, rows):
        """See ``Starts.tell``."""
        found = np.full(len(rows), -1, np.int8)
        for number, places, slots in self.ring.split(rows):
            if self.ring.c_is_usable(number):
                found[places] = self.of(number).tell(slots)
        return found

    def slots(self):
        """All of them: see ``Starts.slots``."""
        return np.concatenate([np.empty(0, np.intp), *[
            self.ring.name(number, self.members[number].slots())
            for number, count in enumerate(self.c_counts()) if count
        ]])

    def draw(self, intp_t n, rng):
        """Draw n of them, each with the same probability: see ``Starts.draw``."""
        counts = self.c_counts()
        if not any(counts):
            self.refuse()
        return draw_each(
            self.ring, counts, lambda number, k: self.members[number].draw(k, rng), n, rng
        )

    def draw_distinct(self, intp_t n, rng):
        """As ``draw``, n different ones: see ``Starts.draw_distinct``."""
        counts = self.c_counts()
        if n > sum(counts):
            self.refuse(n)
        return draw_distinct_of(
            self.ring, counts, lambda number, k: self.members[number].draw_distinct(k, rng), n, rng
        )

    def refuse(self, distinct=None):
        """Raise ``NotEnoughDataError``: see ``Starts.refuse``."""
        rings = [one for one, _ in self.ring.usable_rings]
        for number in rings:
            if distinct is None or len(rings) == 1:
                self.of(number).refuse(distinct)
        wanted = "" if distinct is None else f" {distinct} distinct rows"
        raise NotEnoughDataError(
            f"cannot sample{wanted}: of {len(self.ring)} rows {self.count} can be drawn"
        )


# ---------------------------------------------------------------------- by weight


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
