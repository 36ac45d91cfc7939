"""C signatures of copying large values."""

from cpprb_like._c.typedefs cimport intp_t

# Does the items from start to stop of a piece of work; it must not touch what belongs to others.
ctypedef void (*Job)(const void* work, intp_t start, intp_t stop) noexcept nogil


cdef void c_share(Job job, const void* work, intp_t n, intp_t nbytes) noexcept nogil


cdef struct Block:           # rows of a column that are copied into a batch
    char* out
    const char* column       # the row in slot 0
    intp_t stride            # from slot to slot
    intp_t nbytes            # of a row
    const intp_t* slots      # of the rows


cdef struct Values:          # that lie anywhere, and are copied into a batch
    char* out
    const char** wholes      # where each value lies; NULL where it is made of frames. NULL: all are
    const char** frames      # where the frames of each value lie
    intp_t nbytes            # of a value
    intp_t depth             # frames of a value
    intp_t outer             # runs of bytes of a frame ...
    intp_t inner             # ... and the length of one


cdef void c_gather_blocks(const Block* blocks, intp_t count, intp_t n) noexcept nogil
cdef void c_gather_values(const Values* values, intp_t n, bint beside_actors) noexcept nogil
