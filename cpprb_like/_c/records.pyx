"""Records without what pads them, as they are in files, and back.

A record is the bytes of its fields, what pads it, and a byte of flags; an *entry* has the flags
right behind the fields. Compiled because both are one pass over memory: NumPy needs two, one for
the flags, and to load 10^6 records of 64 bytes took it an eighth longer than without padding. Not
here: which records, and what is in them (``checkpoint._segments``).
"""

from libc.string cimport memcpy

from cpprb_like._c.typedefs cimport intp_t, uint8_t


def pack(const uint8_t[:, ::1] records not None, uint8_t[:, ::1] entries not None):
    """Set entries to those of records. ``ValueError`` if there are not as many, or larger ones."""
    cdef intp_t n = c_check(records, entries)
    if n:
        with nogil:
            c_pack(&records[0, 0], records.shape[1], &entries[0, 0], entries.shape[1] - 1, n)


def spread(const uint8_t[:, ::1] entries not None, uint8_t[:, ::1] records not None):
    """Set records to what entries have; what pads them stays. ``ValueError`` as ``pack``."""
    cdef intp_t n = c_check(records, entries)
    if n:
        with nogil:
            c_spread(&entries[0, 0], entries.shape[1] - 1, &records[0, 0], records.shape[1], n)


cdef intp_t c_check(const uint8_t[:, ::1] records, const uint8_t[:, ::1] entries) except -1:
    """How many records there are; ``ValueError`` if they are no pairs."""
    if records.shape[0] != entries.shape[0] or not 1 <= entries.shape[1] <= records.shape[1]:
        raise ValueError(
            f"expected as many entries as records, and no larger ones, got {entries.shape[0]} of "
            f"{entries.shape[1]} bytes for {records.shape[0]} of {records.shape[1]}"
        )
    return records.shape[0]


cdef void c_pack(
    const uint8_t* record, intp_t stride, uint8_t* entry, intp_t used, intp_t n
) noexcept nogil:
    """As ``pack``, of fields of so many bytes."""
    cdef intp_t k
    for k in range(n):
        memcpy(entry + k * (used + 1), record + k * stride, used)
        entry[k * (used + 1) + used] = record[k * stride + stride - 1]


cdef void c_spread(
    const uint8_t* entry, intp_t used, uint8_t* record, intp_t stride, intp_t n
) noexcept nogil:
    """As ``spread``, of fields of so many bytes."""
    cdef intp_t k
    for k in range(n):
        memcpy(record + k * stride, entry + k * (used + 1), used)
        record[k * stride + stride - 1] = entry[k * (used + 1) + used]
