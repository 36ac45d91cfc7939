"""The first try at a learner's batch: rows are followed, chosen, read and checked.

Compiled because a learner draws in every step of its training, and each Python frame on the way
costs as much as the copy of ten small rows. Not here: how rows are chosen (``_draws``) and read
(``processes._followers``), and the tries that follow if rows were written over meanwhile (``_sharded``).
"""

from cpprb_like._machine.aligned cimport c_aligned
from cpprb_like._c.typedefs cimport intp_t
from cpprb_like.processes._followers cimport Followers


def attempt(
    Followers group not None, look, choose, rng, replace, beta, intp_t n, tuple columns not None,
    list arrays, bint named, draws,
):
    """A batch of all shards as they are now; None if some of its rows were written over meanwhile.

    Parameters
    ----------
    group : Followers
        The shards.
    look : callable
        ``look(busy)`` waits for the shards whose numbers ``Followers.follow`` gave.
    choose : callable
        ``choose(rng, replace, beta, n)`` chooses n rows, and gives further columns.
    rng, replace, beta, n
        What it is given; n is a number of rows.
    columns, arrays
        See ``Followers.read``.
    named : bool
        Whether the batch has a column ``indexes`` with any sampler.
    draws : Draws, optional
        Whose state is put back if there is no batch; None if a draw changes none.
    """
    cdef intp_t late = -1
    cdef dict batch = None
    cdef list busy = group.c_follow()
    if busy:
        look(busy)
    noted = None if draws is None else draws.noted()
    try:
        rows, extra = choose(rng, replace, beta, n)
        if named and "indexes" not in extra:
            extra = {**extra, "indexes": group.handles(rows)}
        batch = group.c_read(rows, columns, arrays, &late)
        if late >= 0:
            batch = None
    finally:
        if batch is None and noted is not None:
            draws.put_back(noted)
    if batch is None:
        return None
    for name, values in extra.items():
        batch[name] = c_aligned(values)
    return batch
