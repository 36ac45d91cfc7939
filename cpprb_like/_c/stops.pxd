"""Stop places: points between two stores at which tests stop or kill a process that writes.

A signal from outside arrives at a random moment, and most moments are harmless. So the few critical
places have names, and ``_core.stop_at`` sets the place at which the process signals itself. A place
costs a load and a branch; ``add`` passes one only if the rows lie in a file.
"""

cdef extern from *:
    """
    #include <signal.h>
    static int cpprb_stop_place = 0, cpprb_stop_signal = 0, cpprb_stop_visits = 0;
    static inline void cpprb_stop(int place)
    {
        if (cpprb_stop_place == place && --cpprb_stop_visits == 0) {
            cpprb_stop_place = 0;
            raise(cpprb_stop_signal);
        }
    }
    static inline void cpprb_stop_at(int place, int number, int visits)
    {
        cpprb_stop_signal = number;
        cpprb_stop_visits = visits;
        cpprb_stop_place = place;
    }
    """
    void c_come_to "cpprb_stop"(int place) noexcept nogil
    void c_stop_at "cpprb_stop_at"(int place, int signal, int visits) noexcept nogil


cdef enum:
    NOWHERE = 0
    STOP_RESERVED = 1   # rows are reserved, none of their bytes is written
    STOP_AMID = 2       # records are written, large and chained fields are not
    STOP_WRITTEN = 3    # all bytes are written, the rows are not published
    STOP_EDITING = 4    # an edit of stored rows is announced
    STOP_REWINDING = 5  # each store of a rewind
