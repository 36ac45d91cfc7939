"""Changes of stored rows: an episode ends, rows are hidden, the newest or all rows are removed.

Each is an edit that readers see begin and end (``_core.c_begin_edit``), and that the next save and a
file learn of. Compiled because no other thread may run within an edit. Not here: added rows
(``_core``), values that are replaced (``gather.write``), and what an edit is recorded in (``edits``).
"""

cimport numpy as cnp

from cpprb_like._c.copying cimport c_swap
from cpprb_like._c.fences cimport c_fence
from cpprb_like._c.typedefs cimport int64_t, intp_t
from cpprb_like._core cimport (
    ABSENT_ROWS, CLEARED, CLEARS, EPISODES, EPISODE_LENS, HANDLE_BASE, RESERVED, WRITTEN, Moment, Ring,
    c_begin_edit, c_end_edit, c_living, c_note_store, c_previous, c_stored,
)
from cpprb_like._rows.chained cimport Chain
from cpprb_like._rows.edits cimport Tracker
from cpprb_like._rows.item_ring cimport LEFT, ItemRing, Living
from cpprb_like._rows.new_items cimport NewItems
from cpprb_like._rows.walk cimport ABSENT, END, TRUNCATED

import numpy as np

cnp.import_array()


cdef bint c_mark_disk(Ring ring, cnp.ndarray slots) except -1:
    """Have a file mark rows on its disk before they change: those in the slots, or all if None.

    Slots of -1 are skipped. Returns false if there is nothing to mark. Other threads may add rows
    meanwhile; the caller holds the lock of the buffer, so they neither edit nor flush.
    """
    if ring.undo is None or ring.undo.chunks is None:
        return False
    ring.undo.chunks.mark(None if slots is None else ring.row_ids(slots[slots >= 0]))
    return True


cdef int c_end_episode(Ring ring, intp_t stream) except -1:
    """Mark the newest step of a stream as truncated, unless no episode is open.

    That needs no mark of its chunk: after a crash the step is the last of its episode anyway.
    """
    if ring.state[EPISODE_LENS + stream] == 0:
        return 0
    ring.c_check_writable()
    cdef int64_t row = c_previous(ring, ring.state[WRITTEN] + stream)
    c_begin_edit(ring)
    if row >= 0:
        ring.c_flags(<intp_t> (row % ring.capacity))[0] |= END | TRUNCATED
        c_mark_edited(ring, <intp_t> (row % ring.capacity))
    c_fence()
    ring.state[EPISODE_LENS + stream] = 0
    ring.state[EPISODES] += 1
    c_end_edit(ring)
    return 0


cdef int c_hide(Ring ring, cnp.ndarray slots, Moment moment) except -1:
    """Make rows of one stream absent, by their slots, which are in use. Flags of ends stay.

    Returns 0, and changes nothing, if what was read at ``moment`` no longer holds, else 1.
    """
    ring.c_check_writable()
    c_mark_disk(ring, slots)
    if not ring.c_holds(moment, slots):
        return 0
    ring.c_expect_absent()
    c_begin_edit(ring)
    cdef int64_t row, first = ring.state[WRITTEN], last = -1
    cdef const intp_t* values = <const intp_t*> cnp.PyArray_DATA(slots)
    cdef intp_t k
    for k in range(cnp.PyArray_DIM(slots, 0)):
        if not ring.c_is_absent(values[k]):
            row = ring.c_row_at(values[k])
            first, last = min(first, row), max(last, row)
            c_hide_row(ring, row, values[k])
    ring.c_log_hidden(first, last, ring.n_envs)
    if ring.changes != NULL:  # followers in other processes read all flags again
        (<int64_t*> ring.changes)[0] += 2
    c_end_edit(ring)
    return 1


cdef bint c_make_room(Ring ring, NewItems given, intp_t rows, int64_t kept) except -1:
    """Have the oldest rows leave for the items of ``rows`` new rows, or of an update.

    Raises ``ValueError``, and changes nothing, if row ``kept`` or a later one would have to leave.

    Returns whether Python code may have run, and no row has left. Then the caller reads the values of its
    rows anew, and asks once more. Else it writes the rows before any Python code runs.
    """
    cdef int64_t oldest = max(ring.state[WRITTEN] - c_stored(ring), ring.left_before), stop
    cdef int64_t first = max(oldest, ring.state[WRITTEN] + rows - ring.capacity)
    cdef int64_t leaving = first, known = -1, row
    cdef intp_t axis, n, extent
    cdef bint are_shared = False
    cdef ItemRing items, full = None
    cdef Living living
    for items in ring.items:
        items.leaving = 0
    while known < leaving and (known < 0 or are_shared):  # no row shares items with one that leaves
        known = leaving
        for axis in range(len(ring.items)):
            items = <ItemRing> ring.items[axis]
            if items.is_next:
                continue
            living = c_living(ring, items)
            n = given.c_order_items(axis, False)
            stop = items.c_leaving(&living, known, n)
            if items.following is not None:
                are_shared = True
                given.c_find_shared(axis, &living, stop)
                n = given.c_order_items(axis, True)
                stop = items.c_leaving(&living, known, n)
            if stop > leaving:
                leaving, full = stop, items
            if items.usable < items.units and items.use is not None:
                extent = items.c_extent(&given.order[0], 2 * given.n)
                if extent > items.usable:
                    items.c_make_usable(extent)
                    return True
        if leaving > known:
            living = c_living(ring, full)
            for row in range(known, leaving):
                full.leaving += full.c_lives(&living, row)
    if full is None:
        return False
    if leaving > kept:
        raise ValueError(
            f"update: new items of axis {full.axis!r} have no place beside the old ones of these rows: "
            f"expected at most room={full.room} together"
        )
    if ring.runs.memory is None:
        ring.c_expect_absent()
        return True
    if ring.undo is not None and leaving > ring.undo.limit[0] - ring.capacity:
        # A flush may begin while Python code runs, and knows of no mark. So rows leave only where the
        # limit says that all of them have marks, as rows are overwritten.
        ring.undo.chunks.mark_for(max(leaving + ring.capacity, ring.state[WRITTEN] + rows))
        return True
    for items in ring.items:  # before they leave: a killed process has counted all that left
        items.words[LEFT] += items.leaving
    c_leave(ring, oldest, leaving)
    return False


cdef void c_leave(Ring ring, int64_t oldest, int64_t stop) noexcept:
    """Have the rows from ``oldest`` to ``stop`` leave early; all rows before have left.

    This is no edit, but part of the ``add`` or ``update`` for which they leave: derived state follows
    ``Ring.c_first``, and reads of younger rows stay valid.
    """
    cdef int64_t row
    cdef intp_t slot
    ring.left_before = stop
    if ring.gone != NULL:
        ring.gone[0] = stop
        c_fence()  # no follower finds other items in these rows
    for row in range(oldest, stop):
        slot = <intp_t> (row % ring.capacity)
        if not ring.c_is_absent(slot):
            c_hide_row(ring, row, slot)


cdef void c_hide_row(Ring ring, int64_t row, intp_t slot) noexcept:
    """Make a row absent. Flags of ends stay."""
    ring.c_join_run(row, False)
    ring.c_flags(slot)[0] |= ABSENT
    ring.state[ABSENT_ROWS] += 1
    ring.out.c_add(slot)
    c_mark_edited(ring, slot)


def items_in_use(Ring ring not None):
    """By axis the items from the oldest one that a row has to the newest: these take its room."""
    cdef ItemRing items
    cdef Living living
    cdef dict found = {}
    for items in ring.items:
        if not items.is_next:
            living = c_living(ring, items)
            found[items.axis] = items.head - items.c_tail(&living)
    return found


cdef void c_mark_edited(Ring ring, intp_t slot) noexcept:
    """Tell the trackers and ``Masses`` that the row in a slot was edited."""
    cdef Tracker tracker
    if ring.edited is not None:
        ring.edited[ring.n_edited & (ring.edited.shape[0] - 1)] = slot
        ring.n_edited += 1
    for tracker in ring.trackers:
        tracker.c_mark_row(slot)


cdef object c_rewind(Ring ring, int64_t row):
    """Make row ``row`` and all later ones absent, and end all open episodes.

    Returns how many rows held a step; None, and changes nothing, if a signal handler changed the rows.
    Forgotten rows get the flags of truncated ones: the row that is added next begins an episode. After a
    kill nothing has changed, or ``_files.recovery`` does all that follows ``c_begin_rewind``.
    """
    cdef Moment moment = ring.c_now()
    cdef int64_t stop = moment.written, first = max(row, stop - c_stored(ring)), last
    cdef int64_t episodes = ring.state[EPISODES]
    cdef intp_t slot, stream, count = 0
    cdef list cut = []  # slots of the newest steps before, whose episodes are open or go on
    ring.c_check_writable()
    for stream in range(ring.n_envs):
        last = c_previous(ring, first + stream)
        if last >= 0 and not ring.c_flags(<intp_t> (last % ring.capacity))[0] & END:
            cut.append(<intp_t> (last % ring.capacity))
    c_mark_disk(ring, (np.arange(first, stop) % ring.capacity).astype(np.intp))
    ring.c_expect_absent()
    if not ring.c_is_now(moment):
        return None
    for row in range(first, stop):
        slot = <intp_t> (row % ring.capacity)
        if not ring.c_is_absent(slot):
            count += 1
            episodes -= ring.c_flags(slot)[0] & END
    episodes = max(episodes + len(cut), 0)  # after a crash ends may be there that the header of the flush lacks
    c_begin_edit(ring)
    if ring.undo is not None:
        ring.undo.c_begin_rewind(first, episodes)
    c_note_store()
    for slot in cut:
        ring.c_flags(slot)[0] |= END | TRUNCATED
        c_mark_edited(ring, slot)
        c_note_store()
    for row in range(first, stop):
        slot = <intp_t> (row % ring.capacity)
        if ring.c_is_absent(slot):
            c_mark_edited(ring, slot)
        else:
            c_hide_row(ring, row, slot)
            c_note_store()
        ring.c_flags(slot)[0] = ABSENT | END | TRUNCATED
        c_note_store()
    ring.state[EPISODE_LENS:] = 0
    ring.state[EPISODES] = episodes
    c_note_store()
    ring.c_note_rereads()
    if ring.changes != NULL:
        (<int64_t*> ring.changes)[0] += 2
    if ring.undo is not None:
        ring.undo.c_end()
    c_note_store()
    c_end_edit(ring)
    return count


cdef int c_clear_rows(Ring ring) except -1:
    """Remove all rows."""
    cdef intp_t used = -1
    ring.c_check_writable()
    c_mark_disk(ring, None)
    while used < c_stored(ring):  # other threads may add rows during the allocation
        used = c_stored(ring)
        fresh = [np.empty_like(column.objects[:used]) for column in ring.object_columns]
    if ring.out.count:
        ring.out.c_forget(ring.out.c_allocate())
    cdef cnp.ndarray old, new
    for column, new in zip(ring.object_columns, fresh):
        old = column.objects
        c_swap(
            <char*> cnp.PyArray_DATA(old),
            <char*> cnp.PyArray_DATA(new),
            cnp.PyArray_NBYTES(new),
        )
    c_begin_edit(ring)
    if ring.undo is not None:
        ring.c_save_state()
        ring.undo.c_begin_change()
    ring.state[CLEARS] += 1
    ring.left_before = 0
    if ring.gone != NULL:
        c_fence()
        ring.gone[0] = 0
    cdef int64_t turns = (ring.state[WRITTEN] + ring.span - 1) // ring.span
    ring.state[HANDLE_BASE] += turns * ring.span
    ring.state[CLEARED] += ring.state[WRITTEN]
    ring.state[WRITTEN] = 0
    ring.state[RESERVED] = 0
    ring.state[ABSENT_ROWS] = 0
    ring.state[EPISODES:] = 0  # lengths of open episodes too
    if ring.undo is not None:
        ring.undo.c_end()
    c_end_edit(ring)
    for chain in ring.chains:
        (<Chain> chain).c_clear(ring.state[HANDLE_BASE])
    for items in ring.items:
        (<ItemRing> items).c_clear()
    return 0
