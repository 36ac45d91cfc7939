"""Attributes and C signatures of ``BufferBase``."""

from cpython.object cimport PyObject

from numpy cimport ndarray

from cpprb_like._rows.column cimport Column
from cpprb_like._rows.new_items cimport NewItems
from cpprb_like.buffers._draw_counts cimport DrawCounts
from cpprb_like._core cimport Beside, Ring
from cpprb_like._c.typedefs cimport intp_t, uint8_t


cdef class SampleOptions:
    cdef readonly object beta        # importance-sampling exponent: float, schedule or None
    cdef readonly bint replace
    cdef readonly object out         # dict of arrays, or None
    cdef readonly bint indexes
    cdef readonly object fields      # names as the caller gave them; None for all

    cdef bint c_is_plain(self) noexcept


cdef class BufferBase:
    cdef Ring c_ring                 # None until memory is allocated
    cdef DrawCounts draw_counts
    cdef object counted              # class of the sampler whose draws are counted
    cdef intp_t fixed_nbytes         # bytes of the rows and of the sampler
    cdef readonly object _lock       # RLock: a reader holds it to make writers wait
    cdef public bint _paused         # whether a thread holds ``_lock``
    cdef bint is_plain               # no chained fields, no lookahead, no marks on a disk: rows are stored as they are
    cdef bint is_watched             # chained values are counted until WATCHED_VALUES are there
    cdef bint warns                  # most chained values are stored apart: the next ``add`` warns
    cdef bint has_priorities         # ``add`` takes the keyword ``priorities``
    cdef tuple names                 # field names, in declared order
    cdef dict numbers                # number of each field, by name
    cdef tuple further               # names of the columns that a batch has beside the fields
    cdef intp_t n_fields
    cdef intp_t n_resolved           # fields of a call that ``c_resolve_call`` reads; NEVER with ragged ones
    cdef intp_t n_streams            # the ring's n_envs
    cdef PyObject** name_items       # items of ``names``
    cdef PyObject** column_items     # items of the ring's ``columns``
    cdef intp_t[::1] sources         # addresses of the values of the call in progress
    cdef uint8_t[::1] scratch        # room for one scalar of each field
    cdef list rooms                  # reused memory for casts, by field: array of bytes or None
    cdef NewItems new_items          # items of the call in progress; None without ragged fields

    cdef int c_wait_for_turn(self) except -1
    cdef int c_count_draw(
        self, Ring ring, ndarray slots, object sampler, bint of_all
    ) except -1
    cdef int c_check_ring(self, Ring ring) except -1
    cdef bint c_resolve_items(self, PyObject** values, PyObject* names, intp_t other) except -1
    cdef intp_t c_find_field(self, PyObject* name) noexcept
    cdef inline intp_t c_resolve(self, intp_t number, PyObject* value, bint converted) except -2
    cdef intp_t c_resolve_cast(self, intp_t number, PyObject* value) except -2
    cdef intp_t c_resolve_call(self, PyObject** values, PyObject* names, intp_t other) except -2
    cdef list c_convert_call(self, Ring ring, PyObject** values, PyObject* names, intp_t other)
    cdef object c_convert(self, Column column, intp_t number, value)
    cdef object c_add_otherwise(
        self, PyObject** values, PyObject* names, intp_t other, ndarray present, Beside beside
    )
    cdef int c_refuse_counts(self, list values) except -1
    cdef object c_add_resolved(
        self, Ring ring, PyObject** values, PyObject* names, intp_t other, list ordered,
        ndarray present, Beside beside,
    )
    cdef void c_watch(self) noexcept
    cdef inline bint c_is_ready(self, intp_t n) except -1
    cdef object c_publish_rows(self, intp_t n, const uint8_t* present, Beside beside)
    cdef intp_t c_read_batch_size(self, batch_size, tuple columns) except -1
    cdef dict c_draw(
        self, rows, draw, intp_t n, bint replace, list arrays, take, tuple columns, further
    )


cdef class Attachment:
    cdef BufferBase buffer
    cdef Ring ring
    cdef object lock
    cdef tuple further
    cdef dict attributes
    cdef tuple names
    cdef dict numbers
    cdef intp_t[::1] sources
    cdef uint8_t[::1] scratch
    cdef list rooms
    cdef NewItems new_items
    cdef DrawCounts draw_counts
    cdef object counted
    cdef intp_t fixed_nbytes
    cdef bint has_priorities
