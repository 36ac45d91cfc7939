"""Copies of large values into a batch, by several cores, and past the caches for large batches.

Large values are rows of columns with a block of their own, single values, and stacks of frames. A
large copy starts its threads and waits for them. A thread costs 10 to 20 us, and the smallest copy
with threads takes 400 us. So no pool of threads is needed, which forks and the end of the program
would complicate.

Compiled because such copies are the main cost of a batch of images. The threads run without the
interpreter. Not here: columns of records (``_rows.gather``), and the loops over bytes
(``copying``).
"""

from libc.string cimport memcpy

from cpprb_like._c.copying cimport (
    CACHED_NBYTES, STREAMED_NBYTES, STREAMS, c_copy, c_end_stream, c_gather_strided, c_interleave,
    c_prefetch, c_stream_ahead,
)
from cpprb_like._c.typedefs cimport intp_t

import os

from cpprb_like._arguments.checks import as_int

cdef extern from "Python.h":
    int PyGILState_Check() noexcept nogil

cdef extern from *:
    """
    #if defined(_WIN32)
    /* Without threads: one core copies everything. */
    typedef int cpprb_thread;
    typedef int cpprb_signals;
    #define cpprb_start(thread, run, argument) ((void)(thread), (void)(run), (void)(argument), -1)
    #define cpprb_join(thread) ((void)(thread))
    #define cpprb_block(signals) ((void)(signals))
    #define cpprb_unblock(signals) ((void)(signals))
    static int cpprb_cores(void) { return 1; }
    #else
    #include <pthread.h>
    #include <sched.h>
    #include <signal.h>
    #include <unistd.h>
    typedef pthread_t cpprb_thread;
    typedef sigset_t cpprb_signals;
    #define cpprb_start(thread, run, argument) pthread_create(thread, NULL, run, argument)
    #define cpprb_join(thread) ((void)pthread_join(thread, NULL))

    /* Threads of this module block all signals, which are for the threads of the program. */
    static inline void cpprb_block(sigset_t *before)
    {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, before);
    }
    #define cpprb_unblock(before) ((void)pthread_sigmask(SIG_SETMASK, before, NULL))

    /* The cores that this process may use, by the scheduler's mask where the system has one. */
    static int cpprb_cores(void)
    {
    #if defined(__linux__) && defined(CPU_COUNT)
        cpu_set_t allowed;
        if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
            return CPU_COUNT(&allowed);
    #endif
        return (int)sysconf(_SC_NPROCESSORS_ONLN);
    }
    #endif
    """
    ctypedef struct cpprb_thread:
        pass
    ctypedef struct cpprb_signals:
        pass
    int cpprb_start(cpprb_thread* thread, void* (*run)(void*) noexcept nogil, void* argument) nogil
    void cpprb_join(cpprb_thread thread) nogil
    void cpprb_block(cpprb_signals* before) nogil
    void cpprb_unblock(const cpprb_signals* before) nogil
    int cpprb_cores() nogil

cdef enum:
    MOST = 64                    # most threads of a copy
    FETCHED_NBYTES = 128         # larger frames are fetched by the processor itself
    FETCHED_FRAMES = 2048        # fewer are in the second cache, since their rows were chosen
    BY_DEFAULT = 4               # default; more threads are no faster, as memory is the limit

cdef intp_t wanted = 0               # threads; 0: the number of cores, up to BY_DEFAULT
cdef intp_t share_nbytes = 1 << 21   # smallest number of bytes of a thread


cdef struct JobShare:
    Job job
    const void* work
    intp_t start
    intp_t stop


def set_num_threads(n):
    """Set how many threads copy a large batch, one of 4 MiB or more.

    Parameters
    ----------
    n : int or None
        At least 1; with 1, the thread that draws copies all by itself. None stands for the default:
        the value of the environment variable ``CPPRB_LIKE_NUM_THREADS`` when the package was
        imported, or else as many as the process may use cores, up to 4; for learners of a
        ``SharedReplay`` one, as actors need the other cores.

    Raises
    ------
    TypeError, ValueError
        ``n`` is no integer of at least 1.

    Notes
    -----
    The values of a batch do not depend on it. Smaller batches are copied by one thread. The threads
    run while a batch is copied and end with it: a process that forks, or draws nothing, has none. A
    program that draws large batches in as many processes as there are cores does best with 1.

    Examples
    --------
    >>> import cpprb_like
    >>> before = cpprb_like.get_num_threads()
    >>> cpprb_like.set_num_threads(2)
    >>> cpprb_like.get_num_threads()
    2
    >>> cpprb_like.set_num_threads(None)
    >>> cpprb_like.get_num_threads() == before
    True
    """
    global wanted
    wanted = by_default if n is None else min(as_int("n", n, 1), MOST)


def get_num_threads():
    """How many threads copy a large batch, at most; see ``set_num_threads``.

    Returns
    -------
    int

    Examples
    --------
    >>> import cpprb_like
    >>> cpprb_like.get_num_threads() >= 1
    True
    """
    return c_limit()


def share_from(intp_t nbytes):
    """Set the smallest number of bytes of a thread, for tests; returns the previous number."""
    global share_nbytes
    before, share_nbytes = share_nbytes, nbytes
    return before


def _read_default(given):
    """The number of threads in the environment variable; 0 for an empty one."""
    if not given:
        return 0
    if not given.isdecimal() or int(given) < 1:
        raise ValueError(f"CPPRB_LIKE_NUM_THREADS: expected an integer of at least 1, got {given!r}")
    return min(int(given), MOST)


cdef intp_t by_default = _read_default(os.environ.get("CPPRB_LIKE_NUM_THREADS", ""))
wanted = by_default


cdef intp_t c_limit() noexcept nogil:
    """The greatest number of threads of a copy."""
    return wanted if wanted else max(1, min(cpprb_cores(), BY_DEFAULT))


cdef void* c_run_share(void* argument) noexcept nogil:
    cdef JobShare* share = <JobShare*> argument
    share.job(share.work, share.start, share.stop)
    return NULL


cdef void c_share(Job job, const void* work, intp_t n, intp_t nbytes) noexcept nogil:
    """Do n items, of ``nbytes`` in all, with a number of threads that fits the bytes.

    If a thread cannot be started, the caller does its items. A caller that holds the interpreter
    lock does all items: its copy is small, and in modules built for tracing the threads would wait
    for the lock.
    """
    cdef JobShare[MOST] shares
    cdef cpprb_thread[MOST] threads
    cdef bint[MOST] started
    cdef cpprb_signals signals
    cdef intp_t k, count = min(nbytes // max(share_nbytes, 1), n)
    if count > 1:
        count = min(count, c_limit())
    if count <= 1 or PyGILState_Check():
        job(work, 0, n)
        return
    cpprb_block(&signals)
    for k in range(1, count):
        shares[k].job, shares[k].work = job, work
        shares[k].start, shares[k].stop = n * k // count, n * (k + 1) // count
        started[k] = cpprb_start(&threads[k], c_run_share, &shares[k]) == 0
    cpprb_unblock(&signals)
    job(work, 0, n // count)
    for k in range(1, count):
        if started[k]:
            cpprb_join(threads[k])
        else:
            c_run_share(&shares[k])


cdef intp_t past_caches = CACHED_NBYTES  # larger batches are written past the caches


cdef struct Gathering:       # arguments of ``c_gather_part``
    const Block* blocks
    intp_t count
    bint streams


cdef struct Placing:         # arguments of ``c_place_part``
    const Values* values
    intp_t n
    bint streams


def stream_from(intp_t nbytes):
    """Write larger batches past the caches, for tests; returns the previous number."""
    global past_caches
    before, past_caches = past_caches, nbytes
    return before


cdef inline bint c_is_past_caches(intp_t nbytes) noexcept nogil:
    """Whether a batch of ``nbytes`` is written past the caches."""
    return STREAMS and nbytes > past_caches


cdef void c_gather_blocks(const Block* blocks, intp_t count, intp_t n) noexcept nogil:
    """Copy n rows of each block."""
    cdef Gathering work
    cdef intp_t k, nbytes = 0
    for k in range(count):
        nbytes += n * blocks[k].nbytes
    work.blocks, work.count, work.streams = blocks, count, c_is_past_caches(nbytes)
    c_share(c_gather_part, &work, n, nbytes)


cdef void c_gather_part(const void* work, intp_t start, intp_t stop) noexcept nogil:
    cdef const Gathering* gathering = <const Gathering*> work
    cdef const Block* block
    cdef const char* row
    cdef const char* following
    cdef intp_t number, k
    for number in range(gathering.count):
        block = gathering.blocks + number
        if not gathering.streams or block.nbytes < STREAMED_NBYTES:
            c_gather_strided(
                block.out + start * block.nbytes, block.column, block.stride, block.nbytes,
                block.slots + start, stop - start,
            )
            continue
        for k in range(start, stop):
            row = block.column + block.slots[k] * block.stride
            following = block.column + block.slots[min(k + 1, stop - 1)] * block.stride
            c_stream_ahead(block.out + k * block.nbytes, row, following, block.nbytes)
    if gathering.streams:
        c_end_stream()


cdef void c_gather_values(const Values* values, intp_t n, bint beside_actors) noexcept nogil:
    """Copy n values, or build them from their frames.

    With ``beside_actors`` and the default number of threads, the calling thread works alone. Actors
    need the other cores: a second thread would wait for one, and cost a third more processor time.
    """
    cdef Placing work
    work.values, work.n, work.streams = values, n, c_is_past_caches(n * values.nbytes)
    if beside_actors and not wanted:
        c_place_part(&work, 0, n)
    else:
        c_share(c_place_part, &work, n, n * values.nbytes)


cdef void c_place_part(const void* work, intp_t start, intp_t stop) noexcept nogil:
    cdef const Placing* placing = <const Placing*> work
    cdef const Values* values = placing.values
    cdef const char** frames
    cdef const char* whole = NULL
    cdef const char* following
    cdef char* to
    cdef intp_t i, k
    cdef bint fetches = (
        values.wholes == NULL and values.inner <= FETCHED_NBYTES
        and placing.n * values.depth >= FETCHED_FRAMES
    )
    for k in range(start, stop):
        to = values.out + k * values.nbytes
        if values.wholes != NULL:
            whole = values.wholes[k]
        frames = values.frames + k * values.depth
        if whole == to:
            continue
        if whole != NULL:
            following = values.wholes[min(k + 1, stop - 1)]
            if following == NULL:
                following = whole
            c_place_value(to, whole, following, values.nbytes, placing.streams)
        elif values.outer != 1:
            c_interleave(to, frames, values.depth, values.outer, values.inner)
        elif placing.streams and values.inner >= STREAMED_NBYTES:
            for i in range(values.depth):
                c_stream_ahead(to + i * values.inner, frames[i], frames[i], values.inner)
        else:
            if fetches and k + 1 < stop:
                c_fetch_frames(frames + values.depth, values.depth, values.inner)
            c_copy_frames(to, frames, values.depth, values.inner)
    if placing.streams:
        c_end_stream()


cdef inline void c_fetch_frames(const char** frames, intp_t depth, intp_t nbytes) noexcept nogil:
    """Prefetch frames of some cache lines at most."""
    cdef intp_t i
    for i in range(depth):
        c_prefetch(frames[i])
        c_prefetch(frames[i] + nbytes - 1)


cdef inline void c_copy_frames(
    char* to, const char** frames, intp_t depth, intp_t nbytes
) noexcept nogil:
    """Copy frames one behind the other; those of numbers without a call for each."""
    cdef intp_t i
    if nbytes > 16:
        for i in range(depth):
            memcpy(to, frames[i], nbytes)
            to += nbytes
    else:
        for i in range(depth):
            c_copy(to, frames[i], nbytes)
            to += nbytes


cdef inline void c_place_value(
    char* to, const char* value, const char* following, intp_t nbytes, bint streams
) noexcept nogil:
    """Copy a value; past the caches while the following value is fetched."""
    if streams and nbytes >= STREAMED_NBYTES:
        c_stream_ahead(to, value, following, nbytes)
    else:
        c_copy(to, value, nbytes)
