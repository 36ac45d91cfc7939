"""C types that all compiled modules share."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from numpy cimport float32_t, float64_t, npy_intp

ctypedef npy_intp intp_t
