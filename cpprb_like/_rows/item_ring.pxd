"""Attributes and C signatures of ``ItemRing``."""

from numpy cimport ndarray

from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t, uint32_t, uint64_t
from cpprb_like._rows.column cimport Column

cdef enum:                       # words of an item ring
    VALID = 0                    # which of the two triples is valid
    TRIPLES = 1                  # HEAD, BASE and PREVIOUS, twice
    LEFT = 7                     # rows that left because the room was full


cdef struct Living:              # the rows of a ring, as an item ring looks at them
    int64_t oldest               # id of the oldest row in memory
    int64_t written
    intp_t capacity
    const uint8_t* flags
    intp_t flag_stride
    uint8_t absent               # the flag of absent rows
    const char* entries          # of slot 0
    const char* nexts            # entries of next values; or NULL
    intp_t lag                   # rows between a row and the one with its next values; 1 without them
    intp_t stride


cdef struct Entry:
    int64_t place
    int64_t count
    bint is_moved


cdef struct Moved:               # items of a row that ``update`` has placed anew
    int64_t place                # number of the first one among all items ever placed
    int64_t row


cdef class ItemRing:
    cdef readonly str axis
    cdef readonly intp_t room        # most items
    cdef readonly intp_t units       # items for which there are places
    cdef readonly ItemRing following  # the same memory under the names of next values; or None
    cdef readonly bint is_next       # whether the memory is that of another ring, which has its places
    cdef readonly Column entry       # the hidden column of places and counts
    cdef readonly tuple columns      # the ragged columns of the axis
    cdef readonly tuple names        # their names
    cdef intp_t[:, ::1] table        # of each ragged column: place in the arena, bytes of an item
    cdef uint8_t[::1] arena
    cdef int64_t[::1] words
    cdef int64_t head                # items ever placed; the next entry goes there
    cdef int64_t base                # ``head`` when the present lap began
    cdef int64_t previous            # ``head`` when the lap before began
    cdef int64_t tail_row            # rows before this one have no items, or have moved ones
    cdef Moved* moved                # heap of moved entries, the oldest items first
    cdef intp_t n_moved
    cdef intp_t most_moved           # entries for which the heap has memory
    cdef int64_t leaving             # rows that leave for the call, as this room is full
    cdef object use                  # makes units usable; None for memory that is only read
    cdef intp_t usable

    cdef int c_find_head(self) except -1
    cdef int c_find_moved(self, ndarray rows, ndarray entries) except -1
    cdef Entry c_entry(self, const Living* rows, int64_t row) noexcept nogil
    cdef Entry c_next_entry(self, const Living* rows, int64_t row) noexcept nogil
    cdef bint c_lives(self, const Living* rows, int64_t row) noexcept nogil
    cdef int64_t c_virtual(self, int64_t place) noexcept nogil
    cdef int64_t c_first_item(self, const Living* rows, int64_t row) noexcept nogil
    cdef void c_pass_rows(self, const Living* rows) noexcept nogil
    cdef int64_t c_tail(self, const Living* rows) noexcept nogil
    cdef int64_t c_leaving(self, const Living* rows, int64_t first, int64_t n) noexcept nogil
    cdef bint c_is_there(self, const Living* rows, const Moved* one) noexcept nogil
    cdef int64_t c_last_moved(self, const Living* rows, intp_t k, int64_t limit) noexcept nogil
    cdef int c_expect_moved(self, intp_t n) except -1
    cdef void c_push_moved(self, int64_t place, int64_t row) noexcept nogil
    cdef void c_pop_moved(self) noexcept nogil
    cdef intp_t c_extent(self, const int64_t* counts, intp_t n) noexcept nogil
    cdef int64_t c_place(self, int64_t count) noexcept nogil
    cdef void c_put_entry(self, char* to, int64_t place, int64_t count, bint is_moved) noexcept nogil
    cdef char* c_items(self, intp_t number, int64_t place) noexcept nogil
    cdef void c_note_words(self) noexcept nogil
    cdef int c_make_usable(self, intp_t stop) except -1
    cdef void c_clear(self) noexcept


cdef inline Entry c_unpack(const char* entry, intp_t nbytes) noexcept nogil:
    """An entry as it is stored."""
    cdef Entry found
    cdef uint64_t count
    if nbytes == 8:
        found.place = (<const uint32_t*> entry)[0]
        count = (<const uint32_t*> entry)[1]
        found.is_moved = count >> 31
        found.count = <int64_t> (count & 0x7FFFFFFF)
    else:
        found.place = <int64_t> (<const uint64_t*> entry)[0]
        count = (<const uint64_t*> entry)[1]
        found.is_moved = count >> 63
        found.count = <int64_t> (count << 1 >> 1)
    return found
