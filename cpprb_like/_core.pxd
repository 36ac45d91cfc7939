"""Attributes and C signatures of ``Ring``."""

from numpy cimport ndarray

from cpprb_like._rows.chained cimport NewRows
from cpprb_like._rows.column cimport Column
from cpprb_like._machine.aligned cimport Pool
from cpprb_like._rows.item_ring cimport ItemRing, Living
from cpprb_like._rows.new_items cimport NewItems
from cpprb_like._rows.incomplete_rows cimport IncompleteRows, c_has_open
from cpprb_like._rows.slot_set cimport AbsentRuns, SlotSet, c_has
from cpprb_like._rows.walk cimport ABSENT, Walk
from cpprb_like._rows.edits cimport Tracker, Undo
from cpprb_like._c.typedefs cimport int32_t, int64_t, intp_t, uint8_t


cdef enum:  # words of the header
    WRITTEN = 0      # rows written since the last clear
    ABSENT_ROWS = 1  # rows in the ring that hold no step
    CLEARS = 2     # clears so far
    HANDLE_BASE = 3  # base of handles: rows before the last clear, rounded up at each clear
    EDITS = 4      # change counter of stored rows: +1 when an edit begins and when it ends, odd in between
    RESERVED = 5   # rows whose bytes may have been written: WRITTEN, and the rows of an ``add`` in progress
    CLEARED = 6    # rows written before the last clear
    EPISODES = 7   # episodes that have ended since the last clear; those in the ring after a load
    EPISODE_LENS = 8  # one word for each stream


cdef enum:  # columns of Ring.table
    OFFSET = 0
    STRIDE = 1
    NBYTES = 2


cdef class Moment:
    cdef readonly int64_t written    # rows written since the last clear
    cdef readonly int64_t clears     # clears so far
    cdef readonly int64_t edits      # the word EDITS of the header


cdef class Ring:
    cdef readonly intp_t capacity    # slots in memory
    cdef readonly intp_t size        # rows that can be drawn, at most
    cdef readonly intp_t span        # number of public slots: row id modulo ``span`` is the public slot
    cdef readonly intp_t n_envs
    cdef readonly tuple columns      # Column of each field, in declared order
    cdef readonly tuple stored_columns  # columns whose values are stored as they are
    cdef readonly tuple chains       # Chain of each other column
    cdef readonly tuple items        # ItemRing of each axis
    cdef NewItems new_items          # items of the rows that are about to be written; None without axes
    cdef readonly intp_t lookahead   # n - 1 for n-step returns, else 0
    cdef uint8_t[::1] arena
    cdef int64_t[::1] state          # words of the header, see above
    cdef intp_t[:, ::1] table        # offset, stride, nbytes of each column that lies in the arena
    cdef intp_t[:, ::1] ends         # of each end field: place, byte of the sign, bits set, bits cleared
    cdef tuple object_columns                 # the columns that hold Python objects
    cdef intp_t in_record            # leading rows of ``table`` whose columns lie in the record
    cdef intp_t record_offset
    cdef intp_t record_stride
    cdef intp_t flag_byte            # offset of the flags in a record
    cdef uint8_t* flag_data          # flag byte of slot 0
    cdef intp_t flag_stride          # bytes from the flag byte of a slot to that of the next
    cdef ndarray all_flags           # view of the flag bytes of all slots
    cdef bint has_own_flags          # whether the flags lie in memory of a follower, not in the records
    cdef const volatile int64_t* live  # header of the process that writes the rows, or NULL
    cdef ndarray live_state          # owner of the memory of ``live``
    cdef int64_t live_edits          # EDITS of ``live`` when this ring was last followed
    cdef volatile int64_t* gone      # ``left_before`` of the writer: see ``tell_followers``; or NULL
    cdef ndarray gone_memory         # owner of the memory of ``gone``
    cdef readonly int64_t left_before  # rows before this one left early; of a follower those it has followed
    cdef const volatile int64_t* changes  # change counter: see ``tell_followers``
    cdef int64_t seen                # value of ``changes`` when this ring was last followed
    cdef readonly intp_t row_nbytes  # bytes of one drawn row, all columns
    cdef Pool pool                   # memory for large batches
    cdef Undo undo                   # undo log of an arena in a file; None on the heap
    cdef int64_t* lens_before        # ``undo.lens``; NULL on the heap
    cdef bint announces              # whether more than RESERVED comes before the rows: a file, or items
    cdef str frozen                  # reason why the ring is read-only, or None
    cdef SlotSet out                 # slots in use whose rows are absent
    cdef AbsentRuns runs             # runs of absent rows
    cdef tuple trackers              # objects that record which rows are edited
    cdef intp_t[::1] edited          # circular log of the slots of edited rows; None until ``Masses`` read it
    cdef int64_t n_edited            # entries ever written to ``edited``
    cdef int64_t[:, ::1] hidden      # circular log of rows that became absent: first, last, step
    cdef int64_t n_hidden            # entries ever written to ``hidden``
    cdef readonly int64_t rereads    # times that derived state had to read all rows
    cdef IncompleteRows incomplete   # rows without their n-step window; None without lookahead

    cdef uint8_t* c_record(self, intp_t slot) noexcept nogil
    cdef uint8_t* c_flags(self, intp_t slot) noexcept nogil
    cdef intp_t c_drawable(self) noexcept nogil
    cdef int64_t c_first(self) noexcept nogil
    cdef int64_t c_first_left(self) noexcept nogil
    cdef int64_t c_stop(self) noexcept nogil
    cdef bint c_can_draw(self, intp_t slot) noexcept nogil
    cdef int64_t c_next(self, int64_t row, int64_t written) noexcept nogil
    cdef intp_t c_slot_of_nth(self, intp_t place, int64_t base) noexcept nogil
    cdef intp_t c_drawable_before(self, int64_t row) noexcept nogil
    cdef int64_t c_row_at(self, intp_t slot) noexcept nogil
    cdef int c_prepare(self, char** rows, intp_t n) except -1
    cdef NewRows c_describe(self, char** rows, intp_t n) noexcept
    cdef void c_write_chains(self, char** rows, intp_t n) noexcept
    cdef Moment c_now(self)
    cdef bint c_is_now(self, Moment moment) noexcept
    cdef bint c_holds(self, Moment moment, ndarray slots) noexcept
    cdef int c_expect_absent(self) except -1
    cdef int c_check_writable(self) except -1
    cdef void c_announce(self, int64_t written, intp_t n) noexcept
    cdef void c_reserve_rows(self, int64_t written, intp_t n) noexcept nogil
    cdef void c_save_state(self) noexcept nogil
    cdef void c_join_run(self, int64_t row, bint is_newest) noexcept nogil
    cdef int c_rebuild(self) except -1
    cdef int c_find_items(self) except -1
    cdef void c_log_hidden(self, int64_t first, int64_t last, intp_t step) noexcept nogil
    cdef void c_note_rereads(self) noexcept nogil
    cdef bint c_is_absent(self, intp_t slot) noexcept nogil
    cdef intp_t c_publish(self, char** rows, intp_t n, const uint8_t* present) noexcept
    cdef void c_write_record(self, char** rows, intp_t slot) noexcept nogil
    cdef void c_write_records(
        self, char** rows, intp_t n, intp_t skip, intp_t slot, const uint8_t* present
    ) noexcept nogil
    cdef void c_count_steps(
        self, const uint8_t* flags, intp_t start, intp_t n, uint8_t any_flag
    ) noexcept nogil
    cdef void c_count_absent(
        self, const uint8_t* flags, intp_t slot, intp_t n, intp_t stored
    ) noexcept nogil
    cdef uint8_t c_find_flags(
        self, char** rows, intp_t start, intp_t n, const uint8_t* present, uint8_t* flags
    ) noexcept nogil
    cdef bint c_overwritten(self, ndarray slots, int64_t written) noexcept
    cdef bint c_any_left(self, ndarray slots) noexcept
    cdef Column c_column(self, str name)
    cdef ItemRing c_axis(self, str name)
    cdef int c_check_slots(self, slots) except -1


cdef void c_find_open(Ring ring) noexcept nogil


cdef inline void c_sync_open(Ring ring) noexcept nogil:
    """Update ``ring.incomplete``, which is not None. The caller holds the interpreter lock."""
    if (
        ring.incomplete.written != ring.state[WRITTEN] or ring.incomplete.edits != ring.state[EDITS]
        or ring.incomplete.clears != ring.state[CLEARS]
    ):
        c_find_open(ring)


cdef inline bint c_is_open(Ring ring, int64_t row) noexcept nogil:
    """Whether a row that holds a step is incomplete, and not left out."""
    if ring.lookahead == 0:
        return False
    c_sync_open(ring)
    return c_has_open(ring.incomplete, row)


cdef class DerivedState:
    cdef readonly Ring ring
    # The ring at the last ``c_mark_current``:
    cdef int64_t clears              # clears of the ring
    cdef int64_t seen                # rows written
    cdef int64_t oldest              # the oldest row that is not left out
    cdef int64_t edits               # edits of the ring


cdef inline bint c_is_current(DerivedState state) noexcept nogil:
    """Whether nothing has changed in the ring since ``c_mark_current``."""
    return (
        state.seen == state.ring.state[WRITTEN]
        and state.edits == state.ring.state[EDITS]
        and state.clears == state.ring.state[CLEARS]
    )


cdef inline void c_mark_current(DerivedState state) noexcept nogil:
    """Note that the state is up to date."""
    state.clears = state.ring.state[CLEARS]
    state.seen = state.ring.state[WRITTEN]
    state.oldest = state.ring.c_first()
    state.edits = state.ring.state[EDITS]


cdef class Beside:
    cdef readonly Ring ring          # the only ring that may add the rows; None: any ring
    cdef readonly intp_t n           # number of rows
    cdef object publish

    cdef int c_publish_beside(self, int64_t first, int64_t clears, const uint8_t* present) except -1


cdef int64_t c_previous(Ring ring, int64_t row) noexcept nogil
cdef void c_begin_edit(Ring ring) noexcept nogil
cdef void c_end_edit(Ring ring) noexcept nogil
cdef void c_note_store() noexcept nogil
cdef int64_t c_bound(Ring ring) noexcept nogil
cdef int64_t c_reserved(Ring ring) noexcept nogil


cdef inline Living c_living(Ring ring, ItemRing items) noexcept nogil:
    """The rows of a ring, as the memory of an axis looks at them."""
    cdef Living living
    living.written = ring.state[WRITTEN]
    living.oldest = living.written - c_stored(ring)
    living.capacity = ring.capacity
    living.flags, living.flag_stride, living.absent = ring.flag_data, ring.flag_stride, ABSENT
    living.entries = <const char*> &ring.arena[items.entry.offset]
    living.stride = items.entry.stride
    living.nexts, living.lag = NULL, 1
    if items.following is not None:
        living.nexts, living.lag = <const char*> &ring.arena[items.following.entry.offset], ring.n_envs
    return living


cdef inline intp_t c_absent(Ring ring) noexcept nogil:
    """Number of absent rows in the ring."""
    return <intp_t> ring.state[ABSENT_ROWS]


cdef inline intp_t c_stored(Ring ring) noexcept nogil:
    """Number of slots in use, absent rows included."""
    cdef int64_t written = ring.state[WRITTEN]
    return <intp_t> written if written < ring.capacity else ring.capacity


cdef inline Walk c_walk_of(Ring ring) noexcept nogil:
    """A walk through the rows that a ring has now."""
    cdef Walk walk
    walk.flags = ring.flag_data
    walk.stride = ring.flag_stride
    walk.capacity = ring.capacity
    walk.n_envs = ring.n_envs
    walk.stop = ring.state[WRITTEN]
    walk.first = walk.stop - c_stored(ring)
    walk.head = <intp_t> (walk.stop % ring.capacity)
    walk.any_absent = ring.state[ABSENT_ROWS] != 0
    walk.onward = ring.runs.onward
    walk.back = ring.runs.back
    return walk
