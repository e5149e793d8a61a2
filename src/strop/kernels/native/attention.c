/* Causal attention within sequences that lie one after another, forward and backward. Nothing is padded, and what causality
   hides is not computed, but for the corners of blocks of 32 queries. Sequences that begin alike are a group of pieces:
   the beginning, which is there once, and what each goes on with, which sees the beginning before itself. A group and
   key/value head is one job: its bits depend on nothing else, and those of a token's output on its sequence alone.
   Every product is summed in float32.

   Shapes: h query heads, kv key/value heads, d features of a head (a multiple of 16), a piece of `length` tokens that sees
   `before` tokens of its group's beginning, together `all`. */

#include "vectors.h"

#define QUERIES 32
#define ROWS 8

/* ------------------------------------------------------------------ products of small matrices in the cache */

INLINE void tile(const float *a, long a_row, long a_inner, const float *b, long b_row, float *c, long c_row, long k,
                 int add, const int rows, const int vectors) {
    v16 sum[ROWS][2];
    for (int i = 0; i < rows; i++)
        for (int u = 0; u < vectors; u++) sum[i][u] = add ? *(v16 *)(c + i * c_row + 16 * u) : (v16){0};
    for (long l = 0; l < k; l++) {
        v16 right[2];
        for (int u = 0; u < vectors; u++) right[u] = *(const v16 *)(b + l * b_row + 16 * u);
        for (int i = 0; i < rows; i++) {
            const v16 left = splat(a[i * a_row + l * a_inner]);
            for (int u = 0; u < vectors; u++) sum[i][u] += left * right[u];
        }
    }
    for (int i = 0; i < rows; i++)
        for (int u = 0; u < vectors; u++) *(v16 *)(c + i * c_row + 16 * u) = sum[i][u];
}

INLINE void strip(const float *a, long a_row, long a_inner, const float *b, long b_row, float *c, long c_row, long m,
                  long k, int add, const int vectors) {
    for (; m >= ROWS; m -= ROWS, a += ROWS * a_row, c += ROWS * c_row)
        tile(a, a_row, a_inner, b, b_row, c, c_row, k, add, ROWS, vectors);
    if (m & 4) {
        tile(a, a_row, a_inner, b, b_row, c, c_row, k, add, 4, vectors);
        a += 4 * a_row, c += 4 * c_row;
    }
    if (m & 2) {
        tile(a, a_row, a_inner, b, b_row, c, c_row, k, add, 2, vectors);
        a += 2 * a_row, c += 2 * c_row;
    }
    if (m & 1) tile(a, a_row, a_inner, b, b_row, c, c_row, k, add, 1, vectors);
}

/* c [m, n] = a [m, k] · b [k, n], or added to it; element (i, l) of a is a[i · a_row + l · a_inner], n a multiple of 16. */
static void product(const float *a, long a_row, long a_inner, const float *b, long b_row, float *c, long c_row, long m,
                    long n, long k, int add) {
    long j = 0;
    for (; j + 32 <= n; j += 32) strip(a, a_row, a_inner, b + j, b_row, c + j, c_row, m, k, add, 2);
    if (j < n) strip(a, a_row, a_inner, b + j, b_row, c + j, c_row, m, k, add, 1);
}

/* ------------------------------------------------------------------ copies in float32 */

INLINE void take(const char *from, long stride, float *to, long length, long d, const int half) {
    for (long t = 0; t < length; t++)
        for (long c = 0; c < d; c += 16) *(v16 *)(to + t * d + c) = load(from + t * stride, c, half);
}

/* [length, d] as [d, whole], zeros behind the last. */
static void transposed(const float *from, float *to, long length, long whole, long d) {
    for (long c = 0; c < d; c++) {
        for (long t = 0; t < length; t++) to[c * whole + t] = from[t * d + c];
        for (long t = length; t < whole; t++) to[c * whole + t] = 0;
    }
}

INLINE void give(const float *from, char *to, long stride, long length, long d, const int half) {
    for (long t = 0; t < length; t++)
        for (long c = 0; c < d; c += 16) store(to + t * stride, c, as_stored16(*(v16 *)(from + t * d + c), half), half);
}

/* Numbers for `count` floats from a scratch area. */
#define TAKE(count) (scratch += (count), scratch - (count))

static const i16v lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

INLINE v16 kept(v16 x, long at, long last, float other) { /* x up to place `last`, `other` behind it */
    const i16v keep = lanes + (int32_t)at <= (i16v){0} + (int32_t)last;
    return (v16)(((i16v)x & keep) | ((i16v)splat(other) & ~keep));
}

/* What a job works on: addresses of its first key/value head and of its group of query heads. */
typedef struct {
    const char *q, *k, *v, *up;
    char *out, *dq, *dk, *dv;
    float *lse;
    long h, kv, d, group, size;
    float scale;
} heads_t;

/* The keys or values [all, d] that a piece at token `from` sees: those of the beginning at token `start`, then its own. */
INLINE void seen(const char *states, const heads_t *w, long start, long before, long from, long length, float *to,
                 const int half) {
    const long row = w->kv * w->d * w->size;
    take(states + start * row, row, to, before, w->d, half);
    take(states + from * row, row, to + before * w->d, length, w->d, half);
}

/* ------------------------------------------------------------------ forward */

INLINE void forward_piece(const heads_t *w, long start, long before, long from, long length, float *scratch,
                          const int half) {
    const long h = w->h, d = w->d, size = w->size, all = before + length, whole = (all + 15) & ~15L;
    float *keys = TAKE(all * d), *turned = TAKE(d * whole), *values = TAKE(all * d);
    float *query = TAKE(QUERIES * d), *score = TAKE(QUERIES * whole), *sum = TAKE(QUERIES * d);
    seen(w->k, w, start, before, from, length, keys, half);
    seen(w->v, w, start, before, from, length, values, half);
    transposed(keys, turned, all, whole, d);
    for (long head = 0; head < w->group; head++)
        for (long first = 0; first < length; first += QUERIES) {
            const long rows = length - first < QUERIES ? length - first : QUERIES, end = before + first + rows;
            const long wide = (end + 15) & ~15L, at = ((from + first) * h + head) * d * size;
            take(w->q + at, h * d * size, query, rows, d, half);
            product(query, d, 1, turned, whole, score, whole, rows, wide, d, 0);
            for (long i = 0; i < rows; i++) {
                float *s = score + i * whole;
                const long last = before + first + i, used = (last + 16) & ~15L;
                v16 top = splat(-INFINITY), total = {0};
                *(v16 *)(s + used - 16) = kept(*(v16 *)(s + used - 16), used - 16, last, -INFINITY);
                for (long j = 0; j < used; j += 16) top = larger(*(v16 *)(s + j), top);
                const float m = max16(top);
                for (long j = 0; j < used; j += 16) {
                    const v16 p = exp16((*(v16 *)(s + j) - m) * w->scale);
                    *(v16 *)(s + j) = p;
                    total += p;
                }
                memset(s + used, 0, (size_t)(wide - used) * sizeof(float));
                const float t = sum16(total);
                w->lse[(from + first + i) * h + head] = m * w->scale + logf(t);
                for (long j = 0; j < used; j += 16) *(v16 *)(s + j) *= 1.0f / t;
            }
            product(score, whole, 1, values, d, sum, d, rows, d, end, 0);
            give(sum, w->out + at, h * d * size, rows, d, half);
        }
}

/* ------------------------------------------------------------------ backward */

/* Gradients of a piece's queries, and dkeys, dvalues [all, d] of what it sees. */
INLINE void backward_piece(const heads_t *w, long start, long before, long from, long length, float *dkeys,
                           float *dvalues, float *scratch, const int half) {
    const long h = w->h, d = w->d, size = w->size, all = before + length, whole = (all + 15) & ~15L;
    float *keys = TAKE(all * d), *turned = TAKE(d * whole), *values = TAKE(d * whole);
    float *query = TAKE(QUERIES * d), *grad = TAKE(QUERIES * d), *sum = TAKE(QUERIES * d);
    float *p = TAKE(QUERIES * whole), *ds = TAKE(QUERIES * whole);
    seen(w->v, w, start, before, from, length, keys, half);
    transposed(keys, values, all, whole, d);
    seen(w->k, w, start, before, from, length, keys, half);
    transposed(keys, turned, all, whole, d);
    memset(dkeys, 0, (size_t)(all * d) * sizeof(float));
    memset(dvalues, 0, (size_t)(all * d) * sizeof(float));
    for (long head = 0; head < w->group; head++)
        for (long first = 0; first < length; first += QUERIES) {
            const long rows = length - first < QUERIES ? length - first : QUERIES, end = before + first + rows;
            const long wide = (end + 15) & ~15L, at = ((from + first) * h + head) * d * size;
            take(w->q + at, h * d * size, query, rows, d, half);
            take(w->up + at, h * d * size, grad, rows, d, half);
            product(query, d, 1, turned, whole, p, whole, rows, wide, d, 0);
            product(grad, d, 1, values, whole, ds, whole, rows, wide, d, 0);
            for (long i = 0; i < rows; i++) {
                const long last = before + first + i, used = (last + 16) & ~15L;
                float *own = p + i * whole, *other = ds + i * whole;
                v16 dots = {0};
                for (long c = 0; c < d; c += 16)
                    dots += *(v16 *)(grad + i * d + c) * load(w->out + at + i * h * d * size, c, half);
                const float delta = sum16(dots), norm = w->lse[(from + first + i) * h + head];
                *(v16 *)(own + used - 16) = kept(*(v16 *)(own + used - 16), used - 16, last, -INFINITY);
                for (long j = 0; j < used; j += 16) {
                    const v16 one = exp16(*(v16 *)(own + j) * w->scale - norm);
                    *(v16 *)(own + j) = one;
                    *(v16 *)(other + j) = one * (*(v16 *)(other + j) - delta) * w->scale;
                }
                memset(own + used, 0, (size_t)(wide - used) * sizeof(float));
                memset(other + used, 0, (size_t)(wide - used) * sizeof(float));
            }
            product(p, 1, whole, grad, d, dvalues, d, end, d, rows, 1);
            product(ds, 1, whole, query, d, dkeys, d, end, d, rows, 1);
            product(ds, whole, 1, keys, d, sum, d, rows, d, end, 0);
            give(sum, w->dq + at, h * d * size, rows, d, half);
        }
}

/* ------------------------------------------------------------------ all groups */

/* Floats of a job's scratch area: what a piece takes, and gradients of what it sees and of the beginning. */
static size_t room(const int64_t *ends, long from, long to, long d) {
    const long before = ends[from + 1] - ends[from];
    long most = before;
    for (long piece = from + 1; piece < to; piece++) {
        const long all = before + ends[piece + 1] - ends[piece];
        most = all > most ? all : most;
    }
    const long whole = (most + 15) & ~15L;
    return (size_t)(4 * most * d + 2 * before * d + 2 * d * whole + 3 * QUERIES * d + 2 * QUERIES * whole);
}

INLINE void forward_group(const heads_t *w, const int64_t *ends, long from, long to, float *scratch, const int half) {
    const long start = ends[from], before = ends[from + 1] - start;
    forward_piece(w, start, 0, start, before, scratch, half);
    for (long piece = from + 1; piece < to; piece++)
        forward_piece(w, start, before, ends[piece], ends[piece + 1] - ends[piece], scratch, half);
}

INLINE void backward_group(const heads_t *w, const int64_t *ends, long from, long to, float *scratch, const int half) {
    const long start = ends[from], before = ends[from + 1] - start, row = w->kv * w->d * w->size, d = w->d;
    float *shared_keys = TAKE(before * d), *shared_values = TAKE(before * d);
    backward_piece(w, start, 0, start, before, shared_keys, shared_values, scratch, half);
    for (long piece = from + 1; piece < to; piece++) {
        const long at = ends[piece], length = ends[piece + 1] - at, all = before + length;
        float *dkeys = scratch, *dvalues = scratch + all * d;
        backward_piece(w, start, before, at, length, dkeys, dvalues, scratch + 2 * all * d, half);
        for (long c = 0; c < before * d; c += 16) {
            *(v16 *)(shared_keys + c) += *(v16 *)(dkeys + c);
            *(v16 *)(shared_values + c) += *(v16 *)(dvalues + c);
        }
        give(dkeys + before * d, w->dk + at * row, row, length, d, half);
        give(dvalues + before * d, w->dv + at * row, row, length, d, half);
    }
    give(shared_keys, w->dk + start * row, row, before, d, half);
    give(shared_values, w->dv + start * row, row, before, d, half);
}

/* Every group and key/value head on its own; 1 where there was no memory. */
static int every_group(heads_t all, const int64_t *ends, const int64_t *groups, long count, int backward, int half) {
    int failed = 0;
#pragma omp parallel for schedule(dynamic) reduction(| : failed) if (count * all.kv > 1)
    for (long job = 0; job < count * all.kv; job++) {
        const long from = groups[job / all.kv], to = groups[job / all.kv + 1], head = job % all.kv;
        float *scratch = aligned_alloc(64, (room(ends, from, to, all.d) * sizeof(float) + 63) & ~63UL);
        if (!scratch) {
            failed = 1;
            continue;
        }
        const long own = head * all.group * all.d * all.size, shared = head * all.d * all.size;
        heads_t w = all;
        w.q += own, w.out += own, w.k += shared, w.v += shared, w.lse += head * all.group;
        if (backward) {
            w.up += own, w.dq += own, w.dk += shared, w.dv += shared;
            if (half) backward_group(&w, ends, from, to, scratch, 1);
            else backward_group(&w, ends, from, to, scratch, 0);
        } else if (half) forward_group(&w, ends, from, to, scratch, 1);
        else forward_group(&w, ends, from, to, scratch, 0);
        free(scratch);
    }
    return failed;
}

/* Piece p are the tokens ends[p] .. ends[p + 1] of q, out [n, h, d], k, v [n, kv, d]; group g are the pieces groups[g] ..
   groups[g + 1], the first of them its beginning. lse [n, h] is kept for the backward. 1 where there was no memory. */
int strop_attention_forward(const char *q, const char *k, const char *v, char *out, float *lse, const int64_t *ends,
                            const int64_t *groups, long count, long h, long kv, long d, float scale, int half) {
    const heads_t all = {.q = q, .k = k, .v = v, .out = out, .lse = lse, .h = h, .kv = kv, .d = d, .group = h / kv,
                         .size = half ? 2 : 4, .scale = scale};
    return every_group(all, ends, groups, count, 0, half);
}

/* The gradients dq [n, h, d], dk, dv [n, kv, d] of up [n, h, d]. */
int strop_attention_backward(const char *up, const char *q, const char *k, const char *v, const char *out,
                             const float *lse, char *dq, char *dk, char *dv, const int64_t *ends,
                             const int64_t *groups, long count, long h, long kv, long d, float scale, int half) {
    const heads_t all = {.q = q, .k = k, .v = v, .up = up, .out = (char *)out, .dq = dq, .dk = dk, .dv = dv,
                         .lse = (float *)lse, .h = h, .kv = kv, .d = d, .group = h / kv, .size = half ? 2 : 4,
                         .scale = scale};
    return every_group(all, ends, groups, count, 1, half);
}
