"""Memory fences: stores before a fence reach memory before stores after it.
A full fence also keeps loads after it behind stores before it.

A killed process stops between two stores, and another process may read the same memory at any time.
The second of two stores must never be found without the first. So a reader has a fence between its
loads, too. On x86 such a fence only binds the compiler.
"""

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define CPPRB_FENCE() __atomic_thread_fence(__ATOMIC_RELEASE)
    #define CPPRB_READ_FENCE() __atomic_thread_fence(__ATOMIC_ACQUIRE)
    #define CPPRB_FULL_FENCE() __atomic_thread_fence(__ATOMIC_SEQ_CST)
    #elif defined(_MSC_VER)
    #include <intrin.h>
    #if defined(_M_ARM64)
    #define CPPRB_FENCE() __dmb(_ARM64_BARRIER_ISH)
    #define CPPRB_FULL_FENCE() __dmb(_ARM64_BARRIER_ISH)
    #else
    #define CPPRB_FENCE() _ReadWriteBarrier()
    #define CPPRB_FULL_FENCE() do { _ReadWriteBarrier(); __faststorefence(); } while (0)
    #endif
    #define CPPRB_READ_FENCE() CPPRB_FENCE()
    #else
    #include <stdatomic.h>
    #define CPPRB_FENCE() atomic_thread_fence(memory_order_release)
    #define CPPRB_READ_FENCE() atomic_thread_fence(memory_order_acquire)
    #define CPPRB_FULL_FENCE() atomic_thread_fence(memory_order_seq_cst)
    #endif
    """
    void c_fence "CPPRB_FENCE"() noexcept nogil
    void c_read_fence "CPPRB_READ_FENCE"() noexcept nogil
    void c_full_fence "CPPRB_FULL_FENCE"() noexcept nogil
