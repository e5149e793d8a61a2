/* Causal attention within sequences that lie one after another, forward and backward. Nothing is padded, and what causality
   hides is not computed, but for the corners of blocks of 32 queries. A sequence and key/value head is one job: its
   bits depend on nothing else. Every product is summed in float32.

   Shapes: h query heads, kv key/value heads, d features of a head (a multiple of 16), sequences of `length` tokens. */

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

/* ------------------------------------------------------------------ forward */

INLINE void forward_job(const char *q, const char *k, const char *v, char *out, float *lse, long length, long h, long kv,
                        long d, float scale, float *scratch, const int half) {
    const long size = half ? 2 : 4, whole = (length + 15) & ~15L, group = h / kv;
    float *keys = TAKE(length * d), *turned = TAKE(d * whole), *values = TAKE(length * d);
    float *query = TAKE(QUERIES * d), *score = TAKE(QUERIES * whole), *sum = TAKE(QUERIES * d);
    take(k, kv * d * size, keys, length, d, half);
    take(v, kv * d * size, values, length, d, half);
    transposed(keys, turned, length, whole, d);
    for (long head = 0; head < group; head++)
        for (long start = 0; start < length; start += QUERIES) {
            const long rows = length - start < QUERIES ? length - start : QUERIES, end = start + rows;
            const long wide = (end + 15) & ~15L;
            take(q + (start * h + head) * d * size, h * d * size, query, rows, d, half);
            product(query, d, 1, turned, whole, score, whole, rows, wide, d, 0);
            for (long i = 0; i < rows; i++) {
                float *s = score + i * whole;
                const long last = start + i, used = (last + 16) & ~15L;
                v16 top = splat(-INFINITY), total = {0};
                *(v16 *)(s + used - 16) = kept(*(v16 *)(s + used - 16), used - 16, last, -INFINITY);
                for (long j = 0; j < used; j += 16) top = larger(*(v16 *)(s + j), top);
                const float m = max16(top);
                for (long j = 0; j < used; j += 16) {
                    const v16 p = exp16((*(v16 *)(s + j) - m) * scale);
                    *(v16 *)(s + j) = p;
                    total += p;
                }
                memset(s + used, 0, (size_t)(wide - used) * sizeof(float));
                const float t = sum16(total);
                lse[last * h + head] = m * scale + logf(t);
                for (long j = 0; j < used; j += 16) *(v16 *)(s + j) *= 1.0f / t;
            }
            product(score, whole, 1, values, d, sum, d, rows, d, end, 0);
            give(sum, out + (start * h + head) * d * size, h * d * size, rows, d, half);
        }
}

/* ------------------------------------------------------------------ backward */

INLINE void backward_job(const char *up, const char *q, const char *k, const char *v, const char *out, const float *lse,
                         char *dq, char *dk, char *dv, long length, long h, long kv, long d, float scale,
                         float *scratch, const int half) {
    const long size = half ? 2 : 4, whole = (length + 15) & ~15L, group = h / kv;
    float *keys = TAKE(length * d), *turned = TAKE(d * whole), *values = TAKE(d * whole);
    float *dkeys = TAKE(length * d), *dvalues = TAKE(length * d), *query = TAKE(QUERIES * d), *grad = TAKE(QUERIES * d);
    float *p = TAKE(QUERIES * whole), *ds = TAKE(QUERIES * whole), *sum = TAKE(QUERIES * d);
    take(v, kv * d * size, keys, length, d, half);
    transposed(keys, values, length, whole, d);
    take(k, kv * d * size, keys, length, d, half);
    transposed(keys, turned, length, whole, d);
    memset(dkeys, 0, (size_t)(length * d) * sizeof(float));
    memset(dvalues, 0, (size_t)(length * d) * sizeof(float));
    for (long head = 0; head < group; head++)
        for (long start = 0; start < length; start += QUERIES) {
            const long rows = length - start < QUERIES ? length - start : QUERIES, end = start + rows;
            const long wide = (end + 15) & ~15L, at = (start * h + head) * d * size;
            take(q + at, h * d * size, query, rows, d, half);
            take(up + at, h * d * size, grad, rows, d, half);
            product(query, d, 1, turned, whole, p, whole, rows, wide, d, 0);
            product(grad, d, 1, values, whole, ds, whole, rows, wide, d, 0);
            for (long i = 0; i < rows; i++) {
                const long last = start + i, used = (last + 16) & ~15L;
                float *own = p + i * whole, *other = ds + i * whole;
                v16 dots = {0};
                for (long c = 0; c < d; c += 16)
                    dots += *(v16 *)(grad + i * d + c) * load(out + at + i * h * d * size, c, half);
                const float delta = sum16(dots), norm = lse[last * h + head];
                *(v16 *)(own + used - 16) = kept(*(v16 *)(own + used - 16), used - 16, last, -INFINITY);
                for (long j = 0; j < used; j += 16) {
                    const v16 one = exp16(*(v16 *)(own + j) * scale - norm);
                    *(v16 *)(own + j) = one;
                    *(v16 *)(other + j) = one * (*(v16 *)(other + j) - delta) * scale;
                }
                memset(own + used, 0, (size_t)(wide - used) * sizeof(float));
                memset(other + used, 0, (size_t)(wide - used) * sizeof(float));
            }
            product(p, 1, whole, grad, d, dvalues, d, end, d, rows, 1);
            product(ds, 1, whole, query, d, dkeys, d, end, d, rows, 1);
            product(ds, whole, 1, keys, d, sum, d, rows, d, end, 0);
            give(sum, dq + at, h * d * size, rows, d, half);
        }
    give(dkeys, dk, kv * d * size, length, d, half);
    give(dvalues, dv, kv * d * size, length, d, half);
}

/* ------------------------------------------------------------------ all sequences */

/* Floats of a job's scratch area, forward and backward alike. */
static size_t room(long length, long d) {
    const long whole = (length + 15) & ~15L;
    return (size_t)(3 * length * d + 2 * d * whole + 3 * QUERIES * d + 2 * QUERIES * whole);
}

/* Sequence s are the tokens ends[s] .. ends[s + 1] of q, out [n, h, d], k, v [n, kv, d]; lse [n, h] is kept for the
   backward. 0, or 1 where there was no memory. */
int strop_attention_forward(const char *q, const char *k, const char *v, char *out, float *lse, const int64_t *ends,
                            long sequences, long h, long kv, long d, float scale, int half) {
    const long size = half ? 2 : 4;
    int failed = 0;
#pragma omp parallel for schedule(dynamic) reduction(| : failed) if (sequences * kv > 1)
    for (long job = 0; job < sequences * kv; job++) {
        const long start = ends[job / kv], length = ends[job / kv + 1] - start, head = job % kv, group = h / kv;
        float *scratch = aligned_alloc(64, (room(length, d) * sizeof(float) + 63) & ~63UL);
        if (!scratch) {
            failed = 1;
            continue;
        }
        const long own = (start * h + head * group) * d * size, shared = (start * kv + head) * d * size;
        float *norms = lse + start * h + head * group;
        if (half) forward_job(q + own, k + shared, v + shared, out + own, norms, length, h, kv, d, scale, scratch, 1);
        else forward_job(q + own, k + shared, v + shared, out + own, norms, length, h, kv, d, scale, scratch, 0);
        free(scratch);
    }
    return failed;
}

/* The gradients dq [n, h, d], dk, dv [n, kv, d] of up [n, h, d]. */
int strop_attention_backward(const char *up, const char *q, const char *k, const char *v, const char *out,
                             const float *lse, char *dq, char *dk, char *dv, const int64_t *ends, long sequences,
                             long h, long kv, long d, float scale, int half) {
    const long size = half ? 2 : 4;
    int failed = 0;
#pragma omp parallel for schedule(dynamic) reduction(| : failed) if (sequences * kv > 1)
    for (long job = 0; job < sequences * kv; job++) {
        const long start = ends[job / kv], length = ends[job / kv + 1] - start, head = job % kv, group = h / kv;
        float *scratch = aligned_alloc(64, (room(length, d) * sizeof(float) + 63) & ~63UL);
        if (!scratch) {
            failed = 1;
            continue;
        }
        const long own = (start * h + head * group) * d * size, shared = (start * kv + head) * d * size;
        const float *norms = lse + start * h + head * group;
        if (half)
            backward_job(up + own, q + own, k + shared, v + shared, out + own, norms, dq + own, dk + shared, dv + shared,
                         length, h, kv, d, scale, scratch, 1);
        else
            backward_job(up + own, q + own, k + shared, v + shared, out + own, norms, dq + own, dk + shared, dv + shared,
                         length, h, kv, d, scale, scratch, 0);
        free(scratch);
    }
    return failed;
}
