"""Tree nodes with eight children: memory layout, sums, bounds and the search for a target.

An array holds the levels of a tree one after another, leaves first. Zeros fill each level up to a
multiple of eight nodes. So the children of a node are one cache line, if the array begins with one.
Zeros everywhere are a tree of zero weights. A sum is always added up from its children, in a fixed
order. So sums depend on the leaves alone, rounding errors do not accumulate, and every platform has
the same bits. With 16 children to a node there are fewer levels, but setting took 1.8 times as long,
and searching 1.4 times.
"""

from libc.math cimport INFINITY
from libc.string cimport memcpy

from cpprb_like._c.copying cimport FETCHED, c_prefetch
from cpprb_like._c.typedefs cimport float64_t, intp_t, uint64_t


cdef enum:
    WIDTH = 8                # children of a node
    SHIFT = 3                # log2 of it
    MAX_LEVELS = 21          # more than the largest capacity needs
    MAX_CAPACITY_BITS = 56
    SEARCHED = 128           # searches side by side: 85 draws of each of three trees got 4 % faster than with 64
    SHARED = 8               # searches for each node, from which on neighbours probably share nodes
    SIDE_LEVEL = 2           # where trees of bounds begin: their lowest nodes stand over 64 leaves
    SIDE_SHIFT = 6           # log2 of these 64


cdef struct Shape:
    intp_t levels               # number of levels, leaves and root included
    intp_t count[MAX_LEVELS]    # nodes of each level without padding; leaves are level 0
    intp_t offset[MAX_LEVELS]   # place of the first node of each level
    intp_t size                 # length of the array


cdef inline int c_measure_tree(intp_t capacity, Shape* shape) except -1:
    """Lay out the levels of a tree."""
    cdef intp_t largest = <intp_t> 1 << MAX_CAPACITY_BITS
    if not 1 <= capacity <= largest:
        raise ValueError(f"capacity: expected 1 to {largest}, got {capacity}")
    shape.levels = 0
    shape.size = 0
    while shape.levels < 3 or shape.count[shape.levels - 1] > 1:
        shape.count[shape.levels] = capacity
        shape.offset[shape.levels] = shape.size
        capacity = (capacity + WIDTH - 1) >> SHIFT
        shape.size += capacity << SHIFT
        shape.levels += 1
    shape.size += 1 - WIDTH  # the root has no neighbours
    return 0


cdef inline float64_t c_sum(const float64_t* c) noexcept nogil:
    """The sum of a node's children, equal to the last running sum of ``c_descend``."""
    return (((c[0] + c[1]) + (c[2] + c[3])) + (c[4] + c[5])) + (c[6] + c[7])


cdef inline void c_running_sums(const float64_t* c, float64_t* before) noexcept nogil:
    """The running sums of a node's children: for each child the sum of the children before it.

    The sums never decrease, however they are rounded.
    """
    cdef float64_t two = c[0] + c[1]
    cdef float64_t four = two + (c[2] + c[3])
    cdef float64_t six = four + (c[4] + c[5])
    before[0] = 0.0
    before[1] = c[0]
    before[2] = two
    before[3] = two + c[2]
    before[4] = four
    before[5] = four + c[4]
    before[6] = six
    before[7] = six + c[6]


cdef inline intp_t c_choose(const float64_t* before, float64_t* target) noexcept nogil:
    """The child that holds the target; the sum before that child is subtracted from the target.

    A child other than the last is chosen only if it raises the sum above the target, and a child
    of zero only if it is the last.
    """
    cdef intp_t child = 0, k
    for k in range(1, WIDTH):
        child += before[k] <= target[0]
    target[0] -= before[child]
    return child


cdef inline intp_t c_descend(const float64_t* c, float64_t* target) noexcept nogil:
    """``c_choose`` among the children of one node."""
    cdef float64_t before[WIDTH]
    c_running_sums(c, before)
    return c_choose(before, target)


cdef inline void c_sum_at(
    float64_t* sums, const float64_t* below, intp_t shift, const intp_t* leaves, intp_t n
) noexcept nogil:
    """Compute the sums above n leaves on one level."""
    cdef intp_t k, node
    for k in range(n):
        node = leaves[k] >> shift
        sums[node] = c_sum(below + (node << SHIFT))


cdef inline void c_sum_range(
    float64_t* sums, const float64_t* below, intp_t first, intp_t last
) noexcept nogil:
    """Compute the nodes ``first`` to ``last`` of one level."""
    cdef intp_t node
    for node in range(first, last + 1):
        sums[node] = c_sum(below + (node << SHIFT))


cdef inline uint64_t c_rank(float64_t weight) noexcept nogil:
    """A number that rises with a weight above zero, and is the highest for a weight of zero."""
    cdef uint64_t bits
    memcpy(&bits, &weight, sizeof(bits))
    return bits - 1


cdef inline float64_t c_least(const float64_t* weights, intp_t n) noexcept nogil:
    """The least of n weights that is not zero; zero if all are zero."""
    cdef uint64_t rank, lowest = c_rank(0.0)
    cdef float64_t weight
    cdef intp_t k
    for k in range(n):
        rank = c_rank(weights[k])
        lowest = rank if rank < lowest else lowest
    lowest += 1
    memcpy(&weight, &lowest, sizeof(weight))
    return weight


cdef inline void c_admit(
    float64_t* nodes, const Shape* shape, const intp_t* leaves, const float64_t* weights, intp_t n
) noexcept nogil:
    """Lower the bounds above leaves that have new weights.

    ``nodes`` is the level SIDE_LEVEL. Few weights are below the bound of 64 leaves, so mostly
    the cost is one comparison for each leaf.
    """
    cdef intp_t k, node, level
    cdef uint64_t rank
    cdef float64_t* bounds
    for k in range(n):
        rank = c_rank(weights[k] + 0.0)  # never minus zero
        bounds = nodes
        level = SIDE_LEVEL
        node = leaves[k] >> SIDE_SHIFT
        while rank < c_rank(bounds[node]):
            bounds[node] = weights[k]
            if level == shape.levels - 1:
                break
            bounds += shape.offset[level + 1] - shape.offset[level]
            node >>= SHIFT
            level += 1


cdef inline void c_settle(
    float64_t* nodes, const Shape* shape, const float64_t* leaves, intp_t first, intp_t last
) noexcept nogil:
    """Compute the nodes ``first`` to ``last`` of the level SIDE_LEVEL from their leaves, and those
    above them from their children.
    """
    cdef intp_t node, level = SIDE_LEVEL, filled = shape.offset[1]  # leaves, padding included
    cdef const float64_t* below
    for node in range(first, last + 1):
        nodes[node] = c_least(
            leaves + (node << SIDE_SHIFT), min(1 << SIDE_SHIFT, filled - (node << SIDE_SHIFT))
        )
    while level < shape.levels - 1:
        below = nodes
        nodes += shape.offset[level + 1] - shape.offset[level]
        first >>= SHIFT
        last >>= SHIFT
        level += 1
        for node in range(first, last + 1):
            nodes[node] = c_least(below + (node << SHIFT), WIDTH)


cdef inline float64_t c_least_of_all(
    float64_t* nodes, const Shape* shape, const float64_t* leaves
) noexcept nogil:
    """The least of all weights that is not zero; zero if all are zero.

    The root is a bound. Going down by the child that has its parent's bound leads to 64 leaves; if
    one of them has that weight, it is the result. Otherwise the bounds are those of earlier
    weights, and are recomputed. Each set makes at most one bound that is recomputed later.
    """
    cdef intp_t root = shape.offset[shape.levels - 1] - shape.offset[SIDE_LEVEL]
    cdef intp_t node, level, child
    cdef float64_t bound
    cdef const float64_t* line
    while True:
        bound = nodes[root]
        if not bound > 0.0:
            return 0.0
        node = 0
        for level in range(shape.levels - 2, SIDE_LEVEL - 1, -1):
            node <<= SHIFT
            line = nodes + (shape.offset[level] - shape.offset[SIDE_LEVEL]) + node
            child = 0
            while child < WIDTH - 1 and line[child] != bound:
                child += 1
            node += child
        c_settle(nodes, shape, leaves, node, node)
        if nodes[node] == bound:
            return bound


cdef inline intp_t c_count_leaves(const float64_t* tree, const Shape* shape, intp_t most) noexcept nogil:
    """Number of leaves that have a weight, counted up to ``most``.

    A node of zero is skipped with all nodes below, so the cost is a few nodes for each leaf found.
    """
    cdef intp_t node = 0, level = shape.levels - 1, found = 0
    while node < shape.count[level] and found < most:
        if level > 0 and tree[shape.offset[level] + node] > 0.0:
            level -= 1
            node <<= SHIFT
            continue
        found += tree[shape.offset[level] + node] > 0.0
        node += 1
        while node & (WIDTH - 1) == 0 and level < shape.levels - 1:
            node >>= SHIFT
            level += 1
    return found


cdef inline intp_t c_find_guarded(
    const float64_t* tree, const Shape* shape, float64_t target
) noexcept nogil:
    """Search for one target; if it lies beyond all children, take the last child with a weight.

    If the leaf that is found without this guard has a weight, the result is the same leaf.
    """
    cdef intp_t level, child, node = 0
    cdef const float64_t* line
    for level in range(shape.levels - 2, -1, -1):
        line = tree + shape.offset[level] + (node << SHIFT)
        child = c_descend(line, &target)
        while child > 0 and not line[child] > 0.0:
            child -= 1
            target = INFINITY
        node = min((node << SHIFT) + child, shape.count[level] - 1)
    return node


cdef inline intp_t c_within(intp_t node, intp_t last, float64_t* target) noexcept nogil:
    """The node, or for a node beyond all weights the last one, with the target at its end."""
    if node > last:
        target[0] = INFINITY
        return last
    return node


cdef inline void c_find_leaves(
    const float64_t* tree, const Shape* shape,
    const float64_t* targets, intp_t* leaves, float64_t* values, intp_t n,
) noexcept nogil:
    """Search for targets from 0 to the total of all weights, which is not zero.

    Many descents go down side by side, so that their cache misses overlap. Near the root, where
    targets that ascend share nodes, a descent uses the running sums of the one before: draws of
    256 from a buffer of 2^20 rows got 1.2 us faster, and targets in random order no slower.
    ``values``, unless NULL, receives the weights found; it may be the array of the targets.
    """
    cdef float64_t rest[SEARCHED]
    cdef intp_t nodes[SEARCHED]
    cdef float64_t before[WIDTH]
    cdef intp_t count, level, k, node, last, parent, start = 0
    cdef const float64_t* line
    cdef const float64_t* below
    while start < n:
        count = min(n - start, SEARCHED)
        for k in range(count):
            rest[k] = targets[start + k]
            nodes[k] = 0
        for level in range(shape.levels - 2, -1, -1):
            last = shape.count[level] - 1
            line = tree + shape.offset[level]
            below = tree + shape.offset[level - 1 if level else 0]
            if SHARED * shape.count[level + 1] <= n:
                parent = -1
                for k in range(count):
                    node = nodes[k] << SHIFT
                    if node != parent:
                        c_running_sums(line + node, before)
                        parent = node
                    nodes[k] = c_within(node + c_choose(before, &rest[k]), last, &rest[k])
                continue
            for k in range(count):
                node = nodes[k] << SHIFT
                node = c_within(node + c_descend(line + node, &rest[k]), last, &rest[k])
                nodes[k] = node
                c_prefetch(below + (node << SHIFT if level else node))
        line = tree
        for k in range(count):
            node = nodes[k]
            if not line[node] > 0.0:  # rounding made the sums less than the target
                node = c_find_guarded(tree, shape, targets[start + k])
            leaves[start + k] = node
            if values != NULL:
                values[start + k] = line[node]
        start += count
