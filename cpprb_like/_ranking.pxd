"""Attributes and C signatures of ``Ranking``, and the order below it: search, changes, sorting.

An *order* has entries, each a key and a slot, in blocks. Larger keys come first, and of equal keys
the smaller slot. The memory is the caller's, as described at ``Order``. What holds between calls:

- The entries of a block are in order and lie side by side; there are 1 to ``size`` of them, or none
  in the only block.
- The directory lists the blocks in use in order, each with an entry that none of its own comes
  before and that all of the earlier blocks come before. For the first block it is not read.
- The homes of all blocks of the directory, used or free, are all places of the pool, each once.

A full block is split in two. An empty one is freed. When none is free, neighbours that fit into one
block are merged; then any two neighbours have more than ``size`` entries, so at most two blocks are
in use for every ``size`` entries begun, and ``c_blocks_for`` counts some more.

An update costs two binary searches and the move of half a block; with 10^6 entries at random this
is as fast with prefetching as without. The first read after updates also sums the counts of all
blocks: little beside a batch of updates, and what keeps the directory free of a tree above it.
"""

from libc.stdint cimport int32_t
from libc.string cimport memcpy, memmove, memset

from cpprb_like._typedefs cimport float64_t, intp_t, uint64_t

cdef enum:
    MOST_SLOTS = 0x7FFFFFFF      # that an int32 can number


cdef struct Block:               # what the directory says of a block
    float64_t key                # with ``slot``: the entry that none of its own comes before
    int32_t slot
    int32_t home                 # its place in the pool
    int32_t count                # of its entries
    int32_t before               # entries of all earlier blocks, unless the order is stale


cdef struct Order:
    Block* blocks                # the directory: ``used`` blocks in order, then the free ones
    float64_t* keys              # the pool: places for ``most`` times ``size`` entries ...
    int32_t* slots               # ... whose keys and slots lie apart
    intp_t size                  # of a block, at least 2
    intp_t most
    intp_t used
    intp_t length                # entries
    bint stale


cdef inline intp_t c_blocks_for(intp_t length, intp_t size) noexcept nogil:
    """Blocks that are always enough for so many entries."""
    return 2 * ((length + size - 1) // size) + length // (32 * size) + 1


cdef inline intp_t c_nbytes(intp_t most, intp_t size) noexcept nogil:
    """Memory of an order."""
    return most * (<intp_t> sizeof(Block) + size * <intp_t> (sizeof(float64_t) + sizeof(int32_t)))


cdef inline void c_begin(Order* order, void* memory, intp_t most, intp_t size) noexcept nogil:
    """An order without entries over memory that is aligned like a float64."""
    order.blocks = <Block*> memory
    order.keys = <float64_t*> (order.blocks + most)
    order.slots = <int32_t*> (order.keys + most * size)
    order.size = size
    order.most = most
    c_lay_out(order, 0)


# ---- searching ----------------------------------------------------------------------------------


cdef inline bint c_precedes(
    float64_t key, int32_t slot, float64_t other_key, int32_t other_slot
) noexcept nogil:
    # Branches, so that the processor loads what comes next before it knows: 1.3 times as fast.
    return key > other_key or (key == other_key and slot < other_slot)


cdef inline Block* c_block_of(Order* order, float64_t key, int32_t slot) noexcept nogil:
    """The block that holds an entry, or would hold it."""
    cdef Block* first = order.blocks
    cdef intp_t count = order.used, half
    while count > 1:  # it is one of ``count`` from ``first`` on
        half = count >> 1
        if not c_precedes(key, slot, first[half].key, first[half].slot):
            first += half
        count -= half
    return first


cdef inline intp_t c_place_of(
    const Order* order, const Block* block, float64_t key, int32_t slot
) noexcept nogil:
    """Where in the pool an entry of this block is, or would be."""
    cdef intp_t first = block.home * order.size, count = block.count, half
    while count > 0:  # it is one of ``count`` from ``first`` on, or comes after them
        half = count >> 1
        if c_precedes(order.keys[first + half], order.slots[first + half], key, slot):
            first += half + 1
            count -= half + 1
        else:
            count = half
    return first


cdef inline intp_t c_rank_of(Order* order, float64_t key, int32_t slot) noexcept nogil:
    """How many entries come before this one."""
    c_count(order)
    cdef const Block* block = c_block_of(order, key, slot)
    return block.before + c_place_of(order, block, key, slot) - block.home * order.size


cdef inline intp_t c_place_at(Order* order, intp_t rank) noexcept nogil:
    """Where in the pool the entry is that ``rank`` entries come before."""
    c_count(order)
    cdef const Block* first = order.blocks
    cdef intp_t count = order.used, half
    while count > 1:  # it is in one of ``count`` from ``first`` on
        half = count >> 1
        if rank >= first[half].before:
            first += half
        count -= half
    return first.home * order.size + rank - first.before


cdef inline void c_count(Order* order) noexcept nogil:
    """Bring ``before`` of all blocks up to date."""
    cdef intp_t number
    cdef int32_t before = 0
    if order.stale:
        for number in range(order.used):
            order.blocks[number].before = before
            before += order.blocks[number].count
        order.stale = False


# ---- changing -----------------------------------------------------------------------------------


cdef inline void c_insert(Order* order, float64_t key, int32_t slot) noexcept nogil:
    """Insert an entry that is not there. The pool must have been made for one more."""
    cdef Block* block = c_block_of(order, key, slot)
    cdef intp_t place
    while block.count == order.size:
        if order.used == order.most:
            c_merge(order)
        else:
            c_split(order, block)
        block = c_block_of(order, key, slot)
    place = c_place_of(order, block, key, slot)
    c_move(order, place + 1, place, block.home * order.size + block.count - place)
    order.keys[place] = key
    order.slots[place] = slot
    block.count += 1
    order.length += 1
    order.stale = True


cdef inline bint c_remove(Order* order, float64_t key, int32_t slot) noexcept nogil:
    """Remove an entry; false if it is not there."""
    cdef Block* block = c_block_of(order, key, slot)
    cdef intp_t place = c_place_of(order, block, key, slot)
    cdef intp_t after = block.home * order.size + block.count - place - 1
    cdef int32_t home = block.home
    if after < 0 or order.slots[place] != slot or order.keys[place] != key:
        return False
    c_move(order, place, place + 1, after)
    block.count -= 1
    order.length -= 1
    order.stale = True
    if block.count == 0 and order.used > 1:
        order.used -= 1
        memmove(block, block + 1, (order.blocks + order.used - block) * sizeof(Block))
        order.blocks[order.used].home = home
    return True


cdef inline void c_split(Order* order, Block* block) noexcept nogil:
    """Move the second half of a block to a free one, and make that the next."""
    cdef Block* then = block + 1
    cdef int32_t home = order.blocks[order.used].home
    cdef intp_t kept = block.count >> 1, place = block.home * order.size + kept
    memmove(then + 1, then, (order.blocks + order.used - then) * sizeof(Block))
    then.key = order.keys[place]
    then.slot = order.slots[place]
    then.home = home
    then.count = block.count - kept
    block.count = kept
    c_move(order, home * order.size, place, then.count)
    order.used += 1


cdef inline void c_merge(Order* order) noexcept nogil:
    """Merge neighbours that fit into one block, first come first served."""
    cdef Block* done = order.blocks  # the last of these; freed ones follow, then those to come
    cdef Block* block
    cdef Block freed
    cdef intp_t number
    for number in range(1, order.used):
        block = order.blocks + number
        if done.count + block.count <= order.size:
            c_move(
                order, done.home * order.size + done.count, block.home * order.size, block.count
            )
            done.count += block.count
        else:
            done += 1
            freed = done[0]
            done[0] = block[0]
            block[0] = freed
    order.used = done - order.blocks + 1


cdef inline void c_move(Order* order, intp_t to, intp_t place, intp_t n) noexcept nogil:
    """Move n entries within the pool; the two places may overlap."""
    memmove(order.keys + to, order.keys + place, n * sizeof(float64_t))
    memmove(order.slots + to, order.slots + place, n * sizeof(int32_t))


# ---- all at once --------------------------------------------------------------------------------


cdef inline void c_order_all(Order* order, const float64_t* keys, intp_t n) noexcept nogil:
    """Replace all entries by the slots 0 to n - 1 with these keys, but for those that are NaN."""
    cdef intp_t slot, length = 0, place
    for slot in range(n):
        length += keys[slot] == keys[slot]
    place = order.most * order.size - length
    for slot in range(n):
        if keys[slot] == keys[slot]:
            order.keys[place] = keys[slot]
            order.slots[place] = slot
            place += 1
    c_sort(order, length)
    c_lay_out(order, length)


cdef inline bint c_is_sorted(const float64_t* keys, intp_t n) noexcept nogil:
    cdef intp_t k
    cdef bint right = True
    for k in range(1, n):
        right &= keys[k - 1] >= keys[k]
    return right


cdef inline intp_t c_digit(float64_t key, intp_t shift) noexcept nogil:
    """Eight bits of a number that is smaller the larger the key, which is 0 or more."""
    cdef uint64_t bits
    memcpy(&bits, &key, sizeof(bits))
    return (~bits >> shift) & 0xFF


cdef inline void c_sort(Order* order, intp_t n) noexcept nogil:
    """Sort the last n places of the pool, where slots ascend, with the n before them as scratch.

    Radix sort from the lowest digit up: a pass keeps the order of what it finds equal.
    """
    cdef intp_t last = order.most * order.size - n, place = last, to = last - n, spare
    cdef intp_t shift, k, digit
    cdef int32_t starts[256]
    cdef int32_t start, count
    if c_is_sorted(order.keys + place, n):  # such as equal keys of rows that were just added
        return
    for shift in range(0, 64, 8):
        memset(starts, 0, sizeof(starts))
        for k in range(place, place + n):
            starts[c_digit(order.keys[k], shift)] += 1
        if starts[c_digit(order.keys[place], shift)] == n:
            continue
        start = 0
        for digit in range(256):
            count = starts[digit]
            starts[digit] = start
            start += count
        for k in range(place, place + n):
            digit = c_digit(order.keys[k], shift)
            order.keys[to + starts[digit]] = order.keys[k]
            order.slots[to + starts[digit]] = order.slots[k]
            starts[digit] += 1
        spare = place
        place = to
        to = spare
    if place != last:
        c_move(order, last, place, n)


cdef inline void c_lay_out(Order* order, intp_t n) noexcept nogil:
    """Make blocks, three quarters full, of the last n places of the pool.

    These are at most half of it, so the place of a block ends before the next one's entries begin.
    """
    cdef intp_t fill = order.size - order.size // 4, number, place
    cdef Block* block
    for number in range(order.most):
        block = order.blocks + number
        block.home = number
        block.count = min(fill, max(n - number * fill, 0))
        if block.count > 0:
            place = order.most * order.size - n + number * fill
            block.key = order.keys[place]
            block.slot = order.slots[place]
            c_move(order, number * order.size, place, block.count)
    order.used = max((n + fill - 1) // fill, 1)
    order.length = n
    order.stale = True


# ---- the class ----------------------------------------------------------------------------------


cdef class Ranking:
    cdef readonly intp_t capacity    # slots
    cdef float64_t[::1] keys         # of all slots, NaN where absent
    cdef float64_t[::1] memory       # of the order
    cdef Order order                 # of the slots that are present

    cdef intp_t c_check_indexes(self, indexes) except -1
    cdef int c_check_keys(self, keys, intp_t n) except -1
    cdef int c_set(self, const intp_t* slots, intp_t first, const float64_t* keys, intp_t n) except -1
    cdef bint c_set_keys(
        self, const intp_t* slots, intp_t first, const float64_t* keys, intp_t n
    ) noexcept nogil
    cdef bint c_is_many(self, intp_t n) noexcept nogil
    cdef void c_order(self) noexcept nogil
    cdef void c_clear(self) noexcept nogil
    cdef void c_find_slots(self, intp_t* ranks, intp_t n) noexcept nogil
    cdef intp_t c_rank(self, intp_t slot) noexcept nogil
    cdef bint c_set_one(self, intp_t slot, float64_t key) noexcept nogil
