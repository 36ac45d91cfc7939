"""What drawing by weight costs in C: sums and least weights over eight nodes each, and the records.

A tree of its own, as a program would write it that needs nothing else; compiled with ``steps``.
"""

# ruff: noqa: E501 (C code in a string)

from __future__ import annotations

import ctypes
from functools import partial

import numpy as np
from data import ALPHA, BETA, EPS, Batch
from numpy.typing import NDArray

from cpprb_like import ReplayBuffer
from cpprb_like._files.arenas import allocate_floats

from .steps import Columns, Floor, Repeat, build, call, repeat

Floats = NDArray[np.float64]
Indexes = NDArray[np.intp]

SOURCE = r"""
#include <math.h>
#include <stdlib.h>

enum { LEVELS = 24, GROUP = 64 };   /* levels at most; nodes whose misses overlap */

typedef struct {
    int64_t levels, count[LEVELS];  /* level 0 are the leaves, the last is the root */
    double *sums[LEVELS], *minima[LEVELS];  /* minima: infinity where there is no weight; none of the leaves */
} Tree;

static inline double sum8(const double *c)
{
    return (((c[0] + c[1]) + (c[2] + c[3])) + (c[4] + c[5])) + (c[6] + c[7]);
}

static inline double min2(double a, double b) { return a < b ? a : b; }

static inline double min8(const double *c)
{
    return min2(min2(min2(c[0], c[1]), min2(c[2], c[3])), min2(min2(c[4], c[5]), min2(c[6], c[7])));
}

/* The least of eight leaves that is not zero: with zeros out of the way it is min8. */
static inline double least8(const double *c)
{
    double d[8];
    for (int k = 0; k < 8; k++)
        d[k] = c[k] > 0.0 ? c[k] : INFINITY;
    return min8(d);
}

/* The least weights above up to GROUP leaves; a node that stays as it was leaves those above it alone. */
static void lift_minima(Tree *tree, const int64_t *leaves, int64_t n)
{
    int64_t changed[GROUP];
    for (int64_t k = 0; k < n; k++) {
        changed[k] = leaves[k];
        __builtin_prefetch(tree->minima[1] + (leaves[k] >> 3));
    }
    for (int64_t level = 1; n > 0 && level < tree->levels; level++) {
        double *minima = tree->minima[level];
        int64_t count = 0;
        for (int64_t k = 0; k < n; k++) {
            int64_t node = changed[k] >> 3;
            double least = level == 1 ? least8(tree->sums[0] + 8 * node) : min8(tree->minima[level - 1] + 8 * node);
            changed[count] = node;
            count += least != minima[node];
            minima[node] = least;
        }
        n = count;
    }
}

/* Write n leaves, and compute what stands above them level by level. */
static void set_leaves(Tree *tree, const int64_t *leaves, const double *values, int64_t n, int with_minima)
{
    double *leaf = tree->sums[0];
    int few = n < tree->count[1];
    for (int64_t start = 0; start < n; start += GROUP) {
        int64_t stop = start + GROUP < n ? start + GROUP : n;
        for (int64_t k = start; k < stop; k++)
            __builtin_prefetch(leaf + leaves[k]);
        for (int64_t k = start; k < stop; k++)
            leaf[leaves[k]] = values[k];
        if (few && with_minima)
            lift_minima(tree, leaves + start, stop - start);
    }
    for (int64_t level = 1, shift = 3; level < tree->levels; level++, shift += 3) {
        double *sums = tree->sums[level], *below = tree->sums[level - 1];
        if (tree->count[level] <= n)
            for (int64_t node = 0; node < tree->count[level]; node++)
                sums[node] = sum8(below + 8 * node);
        else
            for (int64_t k = 0; k < n; k++)
                sums[leaves[k] >> shift] = sum8(below + 8 * (leaves[k] >> shift));
        if (!few && with_minima)
            for (int64_t node = 0; node < tree->count[level]; node++)
                tree->minima[level][node] = level == 1 ? least8(leaf + 8 * node) : min8(tree->minima[level - 1] + 8 * node);
    }
}

static inline void run8(const double *c, double *before)
{
    double two = c[0] + c[1], four = two + (c[2] + c[3]), six = four + (c[4] + c[5]);
    before[0] = 0.0, before[1] = c[0], before[2] = two, before[3] = two + c[2];
    before[4] = four, before[5] = four + c[4], before[6] = six, before[7] = six + c[6];
}

/* The leaves at these targets, which lie below the total; a group of searches goes down side by side. Near the root
   the searches of a group share nodes if the targets ascend: then running sums are kept from one to the next. */
static void find_leaves(const Tree *tree, const double *targets, int64_t *leaves, int64_t n)
{
    double rest[GROUP];
    for (int64_t start = 0; start < n; start += GROUP) {
        int64_t count = start + GROUP < n ? GROUP : n - start;
        for (int64_t k = 0; k < count; k++) {
            rest[k] = targets[start + k];
            leaves[start + k] = 0;
        }
        for (int64_t level = tree->levels - 2; level >= 0; level--) {
            const double *nodes = tree->sums[level];
            int64_t last = tree->count[level] - 1, prior = -1;
            if (8 * tree->count[level + 1] <= n) {
                double before[8];
                for (int64_t k = 0; k < count; k++) {
                    int64_t child = 0, node = leaves[start + k];
                    if (node != prior)
                        run8(nodes + 8 * node, before);
                    prior = node;
                    for (int j = 1; j < 8; j++)
                        child += before[j] <= rest[k];
                    rest[k] -= before[child];
                    child += 8 * node;
                    leaves[start + k] = child < last ? child : last;
                }
                continue;
            }
            for (int64_t k = 0; k < count; k++) {
                double before[8];
                int64_t child = 0;
                run8(nodes + 8 * leaves[start + k], before);
                for (int j = 1; j < 8; j++)
                    child += before[j] <= rest[k];
                rest[k] -= before[child];
                child += 8 * leaves[start + k];
                leaves[start + k] = child < last ? child : last;  /* where a target rounds to beyond all weights */
                if (level)
                    __builtin_prefetch(tree->sums[level - 1] + 8 * leaves[start + k]);
            }
        }
    }
}

/* Set n leaves, of a new one of so many sets of leaves and values each time. */
void tree_set(Tree *tree, const int64_t *leaves, const double *values, int64_t sets, int64_t n, int64_t with_minima,
              int64_t calls)
{
    for (int64_t call = 0; call < calls; call++)
        set_leaves(tree, leaves + call % sets * n, values + call % sets * n, n, with_minima);
}

/* Search for n targets, of a new one of so many sets of targets each time. */
void tree_find(const Tree *tree, const double *targets, int64_t *leaves, int64_t sets, int64_t n, int64_t calls)
{
    for (int64_t call = 0; call < calls; call++)
        find_leaves(tree, targets + call % sets * n, leaves, n);
}

/* Draw n steps by weight, one from each n-th part of the total; copy them and their importance weights into the
   columns; then give them new priorities, of a new one of so many sets each time. */
void cycle(Tree *tree, Steps steps, BitGenerator *bits, int64_t *slots, Columns to, float *weights,
           const double *priorities, int64_t sets, double *scratch, int64_t n, double alpha, double beta, double eps,
           int64_t calls)
{
    int64_t root = tree->levels - 1;
    for (int64_t call = 0; call < calls; call++) {
        double part = tree->sums[root][0] / n, least = tree->minima[root][0];
        for (int64_t k = 0; k < n; k++)
            scratch[k] = (k + bits->next_double(bits->state)) * part;
        find_leaves(tree, scratch, slots, n);
        for (int64_t k = 0; k < n; k++)
            __builtin_prefetch(step_at(steps, slots[k]));
        for (int64_t k = 0; k < n; k++)
            weights[k] = (float)pow(tree->sums[0][slots[k]] / least, -beta);
        gather(steps, slots, to, n);
        const double *fresh = priorities + call % sets * n;
        for (int64_t k = 0; k < n; k++)
            scratch[k] = pow(fresh[k] + eps, alpha);
        set_leaves(tree, slots, scratch, n, 1);
    }
}
"""

LEVELS = 24


class Tree(ctypes.Structure):
    """Where the levels of a tree are."""

    memory: Floats
    _fields_ = (
        ("levels", ctypes.c_int64),
        ("count", ctypes.c_int64 * LEVELS),
        ("sums", ctypes.c_void_p * LEVELS),
        ("minima", ctypes.c_void_p * LEVELS),
    )


class TreeFloor:
    """A tree in C with the weights of a full array of leaves."""

    def __init__(self, weights: Floats) -> None:
        self.loops = build(SOURCE)
        tree = Tree()
        self.tree = ctypes.pointer(tree)  # it keeps the tree alive, and with it the memory
        counts = [weights.size]
        while len(counts) == 1 or counts[-1] > 1:
            counts.append(-(-counts[-1] // 8))
        sizes = [-(-count // 8) * 8 for count in counts]
        tree.memory = memory = allocate_floats(2 * sum(sizes))
        tree.levels = len(counts)
        start = 0
        for level, (count, size) in enumerate(zip(counts, sizes, strict=True)):
            sums, minima = memory[start : start + 2 * size].reshape(2, size)
            minima[:] = np.inf
            tree.count[level] = count
            tree.sums[level], tree.minima[level] = sums.ctypes.data, minima.ctypes.data
            start += 2 * size
        memory[: weights.size] = weights
        self.set(np.arange(weights.size), weights[None], with_minima=True)(1)

    def set(self, slots: Indexes, values: Floats, *, with_minima: bool = False) -> Repeat:
        """Sets leaves; rows of ``slots`` and ``values`` take turns."""
        loop = self.loops.tree_set
        return partial(call, loop, self.tree, slots, values, *values.shape, int(with_minima))

    def find(self, targets: Floats) -> Repeat:
        """Searches for targets; the rows take turns."""
        found = np.zeros(targets.shape[1], np.intp)
        return partial(call, self.loops.tree_find, self.tree, targets, found, *targets.shape)


def cycle(rb: ReplayBuffer, weights: Floats, batch: Batch, priorities: Floats) -> Repeat:
    """Draws steps of a buffer into a batch and gives them new priorities.

    The weights of the steps are the program's own; the rows of the priorities take turns.
    """
    if batch["weights"].dtype != np.float32:
        raise RuntimeError(f"the floor makes weights of float32, not {batch['weights'].dtype}")
    floor, tree = Floor(rb, SOURCE), TreeFloor(weights)
    sets, n = priorities.shape
    given = tree.tree, floor.steps(), floor.bits, np.zeros(n, np.intp), Columns.of(batch)
    further = batch["weights"], priorities, sets, np.zeros(n), n, ALPHA, BETA, EPS
    return repeat(floor.loops.cycle, *given, *further, alive=(rb, batch))
