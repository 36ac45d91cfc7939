"""C signatures of copying large values."""

from cpprb_like._c.typedefs cimport intp_t

# Does the items from start to stop of a piece of work, and writes nothing of other items.
ctypedef void (*Job)(const void* work, intp_t start, intp_t stop) noexcept nogil


cdef void c_share(Job job, const void* work, intp_t n, intp_t nbytes) noexcept nogil


cdef struct Block:           # rows of a column that are copied into a batch
    char* out
    const char* column       # value in slot 0
    intp_t stride            # bytes from slot to slot
    intp_t nbytes            # bytes of a value
    const intp_t* slots      # slots of the rows


cdef struct Values:          # values at any addresses that are copied into a batch
    char* out
    const char** wholes      # address of each value, NULL for a value of frames; NULL: all are of frames
    const char** frames      # addresses of the frames of each value
    intp_t nbytes            # bytes of a value
    intp_t depth             # frames of a value
    intp_t outer             # number of runs of bytes of a frame
    intp_t inner             # bytes of a run


cdef void c_gather_blocks(const Block* blocks, intp_t count, intp_t n) noexcept nogil
cdef void c_gather_values(const Values* values, intp_t n, bint beside_actors) noexcept nogil
