"""A clock that all processes of a machine share: nanoseconds that never go back.

It is read with every row that is added to shared memory, so it is the system's fastest and not its
finest: on Linux it moves on every 4 ms or less, and reading it takes 5 ns.
"""

from cpprb_like._c.typedefs cimport int64_t

cdef extern from *:
    """
    #include <stdint.h>
    #if defined(_WIN32)
    #include <windows.h>
    static inline int64_t cpprb_clock(void) { return (int64_t)GetTickCount64() * 1000000; }
    #else
    #include <time.h>
    #if defined(CLOCK_MONOTONIC_COARSE)
    #define CPPRB_CLOCK CLOCK_MONOTONIC_COARSE
    #else
    #define CPPRB_CLOCK CLOCK_MONOTONIC
    #endif
    static inline int64_t cpprb_clock(void)
    {
        struct timespec now;
        clock_gettime(CPPRB_CLOCK, &now);
        return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }
    #endif
    """
    int64_t c_clock "cpprb_clock"() noexcept nogil
