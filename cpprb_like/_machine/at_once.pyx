"""``at_once``: several changes without a signal handler, another thread or the collector between.

Compiled as the interpreter runs signal handlers, and gives other threads a turn, between two
instructions of Python code only. So each change has to be a call of compiled code. Not here: what
is changed (``checkpoint._load``).
"""

from functools import partial

cdef extern from "Python.h":
    int PyGC_Disable()
    int PyGC_Enable()


cdef enum:
    TRIES = 1000  # of a state that signal handlers interrupt


def at_once(list calls not None):
    """Make calls of compiled code, in their order.

    Results are kept until all calls were made, as finalizers of replaced objects may run any code.
    A result that is an exception is raised then.
    """
    cdef list replaced = [None] * len(calls)
    cdef Py_ssize_t k
    cdef int was_enabled = PyGC_Disable()
    try:
        for k in range(len(calls)):
            replaced[k] = calls[k]()
    finally:
        if was_enabled:
            PyGC_Enable()
    for result in replaced:
        if isinstance(result, BaseException):
            raise result


def set_generator(rng, dict state not None):
    """Set the state of a generator, once no other thread draws from it.

    Divisions of large integers, with which NumPy sets a state, run signal handlers. An exception of
    one is returned, and the state is set nevertheless.
    """
    cdef int k
    bits = rng.bit_generator
    lock = bits.lock
    interrupted = None
    # A lock that is waited for runs signal handlers. Draws that hold this one are short.
    while not lock.acquire(False):
        with nogil:
            pass
    try:
        for k in range(TRIES):
            try:
                bits.state = state
                break
            except BaseException as error:
                if k == TRIES - 1:
                    raise
                interrupted = error
    finally:
        lock.release()
    return interrupted


def attributes_of(value, dict attributes not None):
    """Calls for ``at_once`` that replace all attributes of an object."""
    present = value.__dict__
    return [partial(dict, present), present.clear, partial(present.update, attributes)]
