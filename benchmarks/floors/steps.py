"""What the same work on steps, and sequences of them, costs in C: in the same memory and layout.

Compiled at run time by the system's C compiler with the flags of the package, into a folder that is
deleted when the process ends. Each function repeats its work ``calls`` times, so that entering C from Python does
not count. Rows are read into two batches in turn, as in a program that keeps one until it has the
next: a single one would stay in nearer caches.
"""

# ruff: noqa: E501 (C code in a string)

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from contender import Cannot
from data import Batch

from cpprb_like import ReplayBuffer
from cpprb_like._core import FLAG_END

Repeat = Callable[[int], None]  # does its work that many times
Batches = tuple[Batch, Batch]  # read in turn

STEP_OFFSETS = {"obs": 8, "act": 0, "rew": 24, "next_obs": 28, "done": 44}  # of Step, below

SOURCE = r"""
#include <stdint.h>
#include <string.h>

typedef struct {               /* the record that the package makes of ENV_DICT */
    int64_t act;
    float obs[4], rew, next_obs[4];
    uint8_t done, flags;       /* flags: whether the step ended an episode, and why */
} Step;

typedef struct {               /* steps, a record of so many bytes each */
    char *records;
    int64_t stride;
} Steps;

static inline Step *step_at(Steps steps, int64_t slot)
{
    return (Step *)(steps.records + slot * steps.stride);
}

typedef struct {               /* columns of as many steps as the caller says */
    float (*obs)[4];
    int64_t *act;
    float *rew;
    float (*next_obs)[4];
    uint8_t *done;
} Columns;

typedef struct {               /* how NumPy's bit generators are called from C */
    void *state;
    uint64_t (*next_uint64)(void *);
    uint32_t (*next_uint32)(void *);
    double (*next_double)(void *);
} BitGenerator;

/* D. Lemire, "Fast Random Integer Generation in an Interval" (2019), for n below 2**32. */
static int64_t bounded(BitGenerator *bits, uint32_t n)
{
    uint64_t product = (uint64_t)bits->next_uint32(bits->state) * n;
    if ((uint32_t)product < n) {
        uint32_t threshold = -n % n;
        while ((uint32_t)product < threshold)
            product = (uint64_t)bits->next_uint32(bits->state) * n;
    }
    return (int64_t)(product >> 32);
}

typedef struct {               /* a field, for a loop that does not know the fields when it is compiled */
    int64_t offset, nbytes;
    const char *from;
} Field;

static void scatter_field(char *to, int64_t stride, const char *from, int64_t nbytes, int64_t n)
{
    switch (nbytes) {
    case 1: for (int64_t k = 0; k < n; k++) to[k * stride] = from[k]; break;
    case 4: for (int64_t k = 0; k < n; k++) memcpy(to + k * stride, from + 4 * k, 4); break;
    case 8: for (int64_t k = 0; k < n; k++) memcpy(to + k * stride, from + 8 * k, 8); break;
    case 16: for (int64_t k = 0; k < n; k++) memcpy(to + k * stride, from + 16 * k, 16); break;
    default: for (int64_t k = 0; k < n; k++) memcpy(to + k * stride, from + nbytes * k, (size_t)nbytes);
    }
}

/* Write n steps at slot, field by field, and again behind them, calls times; returns the next slot. */
int64_t scatter(char *records, int64_t stride, int64_t capacity, int64_t slot, const Field *fields, int64_t n_fields,
                int64_t n, int64_t calls)
{
    enum { CHUNK = 32 };       /* the fastest here: 16 to 256 were tried */
    while (calls--) {
        if (slot + n > capacity)
            slot = 0;
        for (int64_t start = 0; start < n; start += CHUNK) {
            int64_t count = n - start < CHUNK ? n - start : CHUNK;
            char *to = records + (slot + start) * stride;
            for (const Field *field = fields; field < fields + n_fields; field++)
                scatter_field(to + field->offset, stride, field->from + start * field->nbytes, field->nbytes, count);
        }
        slot += n;
    }
    return slot;
}

static inline void copy_step(Columns to, int64_t k, const Step *from)
{
    memcpy(to.obs[k], from->obs, sizeof from->obs);
    to.act[k] = from->act;
    to.rew[k] = from->rew;
    memcpy(to.next_obs[k], from->next_obs, sizeof from->next_obs);
    to.done[k] = from->done;
}

/* Copy the steps at these slots into the columns, fetching some steps ahead. */
static void gather(Steps steps, const int64_t *slots, Columns to, int64_t n)
{
    enum { AHEAD = 32 };
    for (int64_t k = 0; k < AHEAD && k < n; k++)
        __builtin_prefetch(step_at(steps, slots[k]));
    for (int64_t k = 0; k < n; k++) {
        if (k + AHEAD < n)
            __builtin_prefetch(step_at(steps, slots[k + AHEAD]));
        copy_step(to, k, step_at(steps, slots[k]));
    }
}

/* Draw n slots, then copy their steps. */
void sample(Steps steps, int64_t stored, BitGenerator *bits, int64_t *slots, const Columns *batches, int64_t n,
            int64_t calls)
{
    while (calls--) {
        for (int64_t k = 0; k < n; k++)
            slots[k] = bounded(bits, (uint32_t)stored);
        gather(steps, slots, batches[calls & 1], n);
    }
}

typedef struct {               /* two columns of wide rows */
    char *left, *right;
    int64_t stride;
} Pairs;

/* Draw n slots, and memcpy the rows of two columns at these slots. */
void copy_pairs(Pairs from, int64_t nbytes, int64_t stored, BitGenerator *bits, int64_t *slots, const Pairs *batches,
                int64_t n, int64_t calls)
{
    while (calls--) {
        Pairs to = batches[calls & 1];
        for (int64_t k = 0; k < n; k++)
            slots[k] = bounded(bits, (uint32_t)stored);
        for (int64_t k = 0; k < n; k++)
            memcpy(to.left + k * to.stride, from.left + slots[k] * from.stride, (size_t)nbytes);
        for (int64_t k = 0; k < n; k++)
            memcpy(to.right + k * to.stride, from.right + slots[k] * from.stride, (size_t)nbytes);
    }
}

/* Memcpy the same pair into the next row, calls times; returns the next slot. */
int64_t write_pairs(Pairs to, int64_t nbytes, int64_t capacity, int64_t slot, Pairs from, int64_t calls)
{
    while (calls--) {
        memcpy(to.left + slot * to.stride, from.left, (size_t)nbytes);
        memcpy(to.right + slot * to.stride, from.right, (size_t)nbytes);
        slot = slot + 1 < capacity ? slot + 1 : 0;
    }
    return slot;
}

/* Draw n starts, and copy the length steps from each of them into the columns, fetching the next sequence.
   A sequence stops where its episode ends, or goes on across the end; marks say which steps it has, or which
   follow an end. */
void sequences(Steps steps, int64_t starts, BitGenerator *bits, int64_t *slots, const Columns *batches,
               uint8_t *const *marks, int64_t end, int64_t across, int64_t n, int64_t length, int64_t calls)
{
    while (calls--) {
        Columns to = batches[calls & 1];
        uint8_t *mark = marks[calls & 1];
        for (int64_t k = 0; k < n; k++)
            slots[k] = bounded(bits, (uint32_t)starts);
        memset(mark, 0, (size_t)(n * length));
        for (int64_t k = 0; k < n; k++) {
            int64_t next = slots[k + 1 < n ? k + 1 : k];
            int ended = 0;
            for (int64_t t = 0, row = k * length; t < length; t++, row++) {
                const Step *from = step_at(steps, slots[k] + t);
                __builtin_prefetch(step_at(steps, next + t));
                copy_step(to, row, from);
                mark[row] = across ? ended : 1;
                ended = (from->flags & end) != 0;
                if (ended && !across)
                    break;
            }
        }
    }
}

/* Draw n slots, sum the discounted rewards of the size steps from each of them to the end of its episode, and copy
   the steps; next observations and done are the last step's. Rows are fetched some windows ahead. */
void sum_steps(Steps steps, int64_t starts, BitGenerator *bits, int64_t *slots, const Columns *batches, int64_t end,
               double gamma, int64_t n, int64_t size, int64_t calls)
{
    enum { AHEAD = 32 };
    while (calls--) {
        Columns to = batches[calls & 1];
        for (int64_t k = 0; k < n; k++)
            slots[k] = bounded(bits, (uint32_t)starts);
        for (int64_t k = 0; k < n + AHEAD; k++) {
            for (int64_t t = 0; k < n && t < size; t++)
                __builtin_prefetch(step_at(steps, slots[k] + t));
            if (k < AHEAD)
                continue;
            int64_t row = k - AHEAD;
            const Step *first = step_at(steps, slots[row]), *last = first;
            double sum = first->rew, power = 1.0;
            for (int64_t t = 1; t < size && !(last->flags & end); t++) {
                last = step_at(steps, slots[row] + t);
                sum += (power *= gamma) * last->rew;
            }
            copy_step(to, row, first);
            to.rew[row] = (float)sum;
            memcpy(to.next_obs[row], last->next_obs, sizeof last->next_obs);
            to.done[row] = last->done;
        }
    }
}

/* Draw n starts, and memcpy the length rows from each of them, as they lie in memory. */
void copy_runs(const char *rows, int64_t stride, int64_t starts, BitGenerator *bits, int64_t *slots,
               char *const *batches, int64_t n, int64_t length, int64_t calls)
{
    while (calls--) {
        char *to = batches[calls & 1];
        for (int64_t k = 0; k < n; k++)
            slots[k] = bounded(bits, (uint32_t)starts);
        for (int64_t k = 0; k < n; k++)
            memcpy(to + k * length * stride, rows + slots[k] * stride, (size_t)(length * stride));
    }
}
"""


class Field(ctypes.Structure):
    """A field of a record, and where its values come from."""

    _fields_ = (
        ("offset", ctypes.c_int64),
        ("nbytes", ctypes.c_int64),
        ("source", ctypes.c_void_p),
    )


class Steps(ctypes.Structure):
    """Where the records of steps are."""

    _fields_ = (("records", ctypes.c_void_p), ("stride", ctypes.c_int64))


class Columns(ctypes.Structure):
    """Addresses of the columns of a batch of steps."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in STEP_OFFSETS)

    @classmethod
    def of(cls, batch: Batch) -> Columns:
        """The columns of a batch, which the caller keeps alive."""
        return cls(*(batch[name].ctypes.data for name in STEP_OFFSETS))


class Pairs(ctypes.Structure):
    """Where two columns of wide rows are."""

    _fields_ = (
        ("left", ctypes.c_void_p),
        ("right", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
    )

    @classmethod
    def of(cls, batch: Batch) -> Pairs:
        """The observations of a batch, which the caller keeps alive."""
        left, right = batch["obs"], batch["next_obs"]
        return cls(left.ctypes.data, right.ctypes.data, left.strides[0])


@cache
def build(*sources: str) -> ctypes.CDLL:
    """The loops, and further ones that build on them, compiled. Raises Cannot."""
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    flags = ["-O3", "-funroll-loops", "-shared", "-fPIC"]
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "floor.c"), Path(folder, "floor.so")
        source.write_text("\n".join((SOURCE, *sources)), encoding="utf-8")
        try:
            command += [*flags, str(source), "-lm", "-o", str(library)]
            subprocess.run(command, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise Cannot(f"needs gcc or clang as CC: {error}") from error
        return ctypes.CDLL(str(library))


class Floor:
    """The loops, at work on the memory of a buffer and with its random numbers."""

    def __init__(self, rb: ReplayBuffer, *sources: str) -> None:
        self.loops = build(*sources)
        self.rb = rb
        self.bits = ctypes.c_void_p(rb.rng.bit_generator.ctypes.bit_generator.value)

    def steps(self) -> Steps:
        """The records, which must lie as ``Step`` has them."""
        columns = {column.name: column for column in self.rb.ring.columns}
        first, stride = columns["act"].offset, columns["act"].stride
        found = {name: column.offset - first for name, column in columns.items()}
        if found != STEP_OFFSETS or {column.stride for column in columns.values()} != {stride}:
            raise RuntimeError(f"the package lays steps out in another way than the floor: {found}")
        return Steps(self._address(first).value, stride)

    def pairs(self) -> Pairs:
        """The observations, which must lie in two columns alike."""
        left, right = (
            next(column for column in self.rb.ring.columns if column.name == name)
            for name in ("obs", "next_obs")
        )
        if (left.nbytes, left.stride) != (right.nbytes, right.stride):
            raise RuntimeError("the package lays observations out in another way than the floor")
        return Pairs(
            self._address(left.offset).value, self._address(right.offset).value, left.stride
        )

    def scatter(self, batch: Batch) -> Repeat:
        """Writes the steps of a batch behind those before, by a table of the fields."""
        columns = self.rb.ring.columns
        first = min(column.offset for column in columns)
        table = [
            Field(column.offset - first, column.nbytes, batch[column.name].ctypes.data)
            for column in columns
        ]
        source = (Field * len(table))(*table), len(table), len(batch["act"])
        return self._write(
            self.loops.scatter, (self._address(first), columns[0].stride), source, batch
        )

    def write_pairs(self, batch: Batch) -> Repeat:
        """Writes the first observations of a batch into the next row, with memcpy."""
        to = self.pairs(), batch["obs"][0].nbytes
        return self._write(self.loops.write_pairs, to, (Pairs.of(batch),), batch)

    def _write(
        self, loop: Any, to: tuple[Any, ...], source: tuple[Any, ...], owner: Batch
    ) -> Repeat:
        loop.restype = ctypes.c_int64
        slot = 0

        def work(calls: int, _: Batch = owner) -> None:
            nonlocal slot
            slot = call(loop, *to, self.rb.capacity, slot, *source, calls)

        return work

    def sample(self, batches: Batches) -> Repeat:
        """Draws steps into batches."""
        columns = (Columns * 2)(*map(Columns.of, batches))
        return self._draw(self.loops.sample, (self.steps(),), columns, batches)

    def copy_pairs(self, batches: Batches) -> Repeat:
        """Draws the observations of batches, with memcpy."""
        source = self.pairs(), batches[0]["obs"][0].nbytes
        pairs = (Pairs * 2)(*map(Pairs.of, batches))
        return self._draw(self.loops.copy_pairs, source, pairs, batches)

    def _draw(self, loop: Any, source: tuple[Any, ...], to: Any, batches: Batches) -> Repeat:
        n = len(batches[0]["act"])
        given = *source, len(self.rb), self.bits, np.zeros(n, np.int64), to, n
        return repeat(loop, *given, alive=(self.rb, batches))

    def sequences(self, batches: Batches, length: int, *, across: bool) -> Repeat:
        """Draws sequences of steps into batches of sequences, with a mark for each step."""
        n, columns = len(batches[0]["act"]), (Columns * 2)(*map(Columns.of, batches))
        marks = [np.zeros(n * length, np.uint8) for _ in batches]
        addresses = (ctypes.c_void_p * 2)(*(mark.ctypes.data for mark in marks))
        source = self.steps(), self._starts(length), self.bits, np.zeros(n, np.int64)
        to = columns, addresses, int(FLAG_END), int(across), n, length
        return repeat(self.loops.sequences, *source, *to, alive=(self.rb, batches, marks))

    def sum_steps(self, batches: Batches, size: int, gamma: float) -> Repeat:
        """Draws n-step returns of steps."""
        n, columns = len(batches[0]["act"]), (Columns * 2)(*map(Columns.of, batches))
        source = self.steps(), self._starts(size), self.bits, np.zeros(n, np.int64)
        to = columns, int(FLAG_END), gamma, n, size
        return repeat(self.loops.sum_steps, *source, *to, alive=(self.rb, batches))

    def copy_runs(self, name: str, n: int, length: int) -> Repeat:
        """Draws sequences of what holds a field, its block or all records, with memcpy."""
        (column,) = [column for column in self.rb.ring.columns if column.name == name]
        batches = [np.zeros(n * length * column.stride, np.uint8) for _ in range(2)]
        addresses = (ctypes.c_void_p * 2)(*(batch.ctypes.data for batch in batches))

        source = self._address(column.offset), column.stride, self._starts(length), self.bits
        given = *source, np.zeros(n, np.int64), addresses, n, length
        return repeat(self.loops.copy_runs, *given, alive=(self.rb, batches))

    def _starts(self, length: int) -> int:
        return self.rb.capacity - length + 1

    def _address(self, offset: int) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.rb._arena.ctypes.data + offset)


def repeat(loop: Any, *arguments: Any, alive: object) -> Repeat:
    """Calls of a function in C; ``alive`` has the memory that it uses."""

    def work(calls: int, _: object = alive) -> None:
        call(loop, *arguments, calls)

    return work


def call(loop: Any, *arguments: Any) -> Any:
    """Call a function in C: numbers are int64 or double, arrays the address of their memory."""
    given: list[Any] = []
    for argument in arguments:
        if isinstance(argument, (int, np.integer)):
            given.append(ctypes.c_int64(int(argument)))
        elif isinstance(argument, float):
            given.append(ctypes.c_double(argument))
        elif isinstance(argument, np.ndarray):
            given.append(ctypes.c_void_p(argument.ctypes.data))
        else:
            given.append(argument)
    return loop(*given)
