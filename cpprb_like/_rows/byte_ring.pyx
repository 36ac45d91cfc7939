"""Byte rings: places of entries of different lengths in one memory, without moving any.

An entry takes one or more units and is never split. Entries come and leave in the same order, but
not at the same rate: a ring in use has a few runs of entries that lie one behind the other. A new
entry goes

1. behind the newest entry, if there are enough free units below the extent;
2. otherwise to the lowest gap of at least an eighth of the extent, where a run begins;
3. otherwise behind the last living unit, so that the extent grows;
4. otherwise, at the end of the ring, to the largest gap.

Shorter gaps stay free, because runs in them would be as short as entries. If every entry has one
unit, there are at most 20 runs. A run that began in a gap is longer than an eighth of the extent,
unless it is the oldest or the newest: at most 8 + 1 runs. A run at the end of the extent ends as soon
as there is such a gap: at most one such run before each of the 9, and one after them. The last of the
20 is the oldest run. A search for bad histories found 12 runs, and an extent of 1.5 times the greatest
number of units in use. With episodes of games the extent is 1.1 times this number
(``benchmarks/kept_aside.py``), and stays the same over any number of rows.

Runs are derived from the entries in the order of their keys. The order of places is not enough: a run
may begin right behind an older one, with other runs between them in time, so keys that ascend from
place to place are not always one run. A reader in another process first frees the places of entries
that were removed, because new entries may lie in these places.

Compiled because ``add`` chooses places row by row. Not here: keys, values, and the way from a row to
its entry.
"""

from cpprb_like._c.typedefs cimport intp_t


cdef intp_t c_next_run(const Places* places, intp_t place) noexcept nogil:
    """Number of the first run from a place on, in the order of places; -1 without one."""
    cdef intp_t k, following = -1
    for k in range(places.n_runs):
        if places.runs[k].start >= place and (
            following < 0 or places.runs[k].start < places.runs[following].start
        ):
            following = k
    return following


cdef intp_t c_choose(const Places* places, intp_t n) noexcept nogil:
    """Place for a new entry of n units; -1 if there is none until old entries leave."""
    cdef intp_t least = max(n, (places.extent + 7) // 8)
    cdef intp_t place = 0, stop, following, largest = 0, largest_place = -1
    if places.n_runs:
        place = places.runs[places.n_runs - 1].stop
        following = c_next_run(places, place)
        stop = places.extent if following < 0 else places.runs[following].start
        if place + n <= stop:
            return place
    place = 0
    while True:  # over the gaps, from the begin of the ring on
        following = c_next_run(places, place)
        stop = places.extent if following < 0 else places.runs[following].start
        if stop - place >= least:
            return place
        if stop - place > largest:
            largest, largest_place = stop - place, place
        if following < 0:
            break
        place = places.runs[following].stop
    if place + n <= places.units:
        return place
    return largest_place if largest >= n else -1


cdef intp_t c_put(Places* places, intp_t n) noexcept nogil:
    """Take the place of a new entry of n units; -1 if there is none until old entries leave."""
    cdef intp_t place = c_choose(places, n)
    cdef Run* newest = &places.runs[places.n_runs - 1]
    if place < 0:
        return -1
    if places.n_runs and newest.stop == place:
        newest.stop += n
    elif places.n_runs == MOST_RUNS:
        return -1
    else:
        places.runs[places.n_runs] = Run(place, place + n)
        places.n_runs += 1
    places.extent = max(places.extent, place + n)
    return place


cdef void c_remove(Places* places, intp_t n) noexcept nogil:
    """Free the n units of the oldest entries."""
    cdef intp_t k, length, n_left = 0  # runs without a living entry
    while n_left < places.n_runs:
        length = places.runs[n_left].stop - places.runs[n_left].start
        if n < length:
            places.runs[n_left].start += n
            break
        n -= length
        n_left += 1
    if n_left:
        places.n_runs -= n_left
        for k in range(places.n_runs):
            places.runs[k] = places.runs[k + n_left]
