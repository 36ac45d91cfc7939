"""C signatures of copies of sequences."""

from numpy cimport ndarray

from cpprb_like._rows.chained cimport Chain
from cpprb_like._rows.column cimport Column
from cpprb_like._core cimport Cursor, Ring, Walk
from cpprb_like.samplers._starts cimport Starts
from cpprb_like._c.typedefs cimport int64_t, intp_t, uint8_t


cdef struct Part:            # a column of a batch that is copied in runs
    char* to                 # its rows
    const char* column       # the row in slot 0
    intp_t stride            # from slot to slot
    intp_t nbytes            # of a row
    bint first_only          # only the first row of each sequence is read
    const uint8_t* apart     # next values only: of each slot, whether the value is stored apart ...
    uint8_t* aside           # ... and of each row of the batch, whether the chain has to be read


cdef struct Plan:            # of a batch
    Part* parts
    intp_t n_parts
    intp_t rows              # of a sequence
    bint across              # sequences run over the ends of episodes
    uint8_t* marks           # of each row of the batch: see ``take_sequences``
    int64_t* ids             # of each row of the batch; NULL if they are not needed
    Walk walk
    const char* records      # that of slot 0, ...
    intp_t record_stride     # ... and from slot to slot
    const intp_t* starts     # slots of the first rows of its sequences
    const intp_t* places     # of these sequences in the batch; NULL: they are all of it, in order


cdef struct Place:           # of a row
    Cursor at                # in the ring
    intp_t number            # in the batch


cdef class Sequences:
    cdef Starts starts       # of the ring that is read, as are ...
    cdef ndarray slots       # ... those of the first rows, and ...
    cdef ndarray places      # ... the places of the sequences in the batch; None: all of it, in order
    cdef tuple wanted        # the columns that are read
    cdef frozenset single    # names of the columns of which the first row only is read
    cdef dict given          # arrays of the caller's by name, or None
    cdef dict columns        # of the batch
    cdef ndarray marks
    cdef ndarray ids         # of all rows; None if they are not needed
    cdef dict asides         # by name: which next values are read from the chain
    cdef set unstored        # names of the columns of which nothing is copied in runs

    cdef int c_open(self, Starts starts, tuple columns, intp_t n, bint located) except -1
    cdef bint c_read(self, Starts starts, ndarray slots, ndarray places) except -1
    cdef int c_copy_stored(self) except -1
    cdef ndarray c_new_column(self, Column column, const intp_t* lengths)
    cdef intp_t c_describe(self, Part* parts) except -1
    cdef int c_box(self, Column column) except -1
    cdef int c_ask(self, Chain chain) except -1
    cdef int c_amend(self, Chain chain, ndarray aside, ndarray values) except -1
    cdef int c_gather(self, Chain chain, ndarray ids, ndarray values) except -1
    cdef int c_clear(self, values) except -1


cdef void c_copy_sequences(const void* work, intp_t first, intp_t stop) noexcept nogil
cdef intp_t c_copy_sequence(const Plan* plan, Place place) noexcept nogil
cdef intp_t c_run(const Plan* plan, const Place* place, intp_t most) noexcept nogil
cdef void c_copy_run(const Plan* plan, const Place* place, intp_t n) noexcept nogil
cdef void c_copy_next(
    const Plan* plan, const Part* part, const Place* place, intp_t n
) noexcept nogil
cdef void c_blank(const Plan* plan, intp_t number, intp_t n) noexcept nogil
