/* Causal attention within sequences that lie one after another, forward and backward. Nothing is padded, and what
   causality hides is not computed, but for the corners of blocks of 32 queries. Sequences that begin alike are a group
   of pieces: the beginning, which is there once, and what each goes on with, which sees the beginning before itself. A
   piece and key/value head is one job: a token's bits depend on its sequence alone, those of a beginning's gradients on
   its group, whose pieces are summed in their order. Every product is summed in float32.

   Shapes: h query heads, kv key/value heads, d features of a head (a multiple of 16), a piece of `length` tokens that
   sees `before` tokens of its group's beginning, together `all`. */

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

/* c [m, n] = a [m, k] · b [k, n], or added to it; element (i, l) of a is a[i · a_row + l · a_inner]; n % 16 is 0. */
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

/* The keys or values [all, d] that a piece at token `from` sees: those of the beginning at `start`, then its own. */
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

/* ------------------------------------------------------------------ all pieces */

/* A piece: its first token and length, the first token and length of what it sees before, and, in a group of several,
   the place of its gradients of the beginning among those of all (of one head, in floats; else -1). */
typedef struct {
    long from, length, start, before, partial;
} piece_t;

/* All pieces, and how many floats their gradients of beginnings take for a head; null where there is no memory. */
static piece_t *listed(const int64_t *ends, const int64_t *groups, long count, long d, size_t *floats) {
    piece_t *pieces = malloc(((size_t)groups[count] + 1) * sizeof(piece_t));
    size_t taken = 0;
    for (long g = 0; pieces && g < count; g++) {
        const long first = groups[g], last = groups[g + 1], start = ends[first], before = ends[first + 1] - start;
        for (long p = first; p < last; p++) {
            pieces[p] = (piece_t){ends[p], ends[p + 1] - ends[p], start, p == first ? 0 : before, -1};
            if (last - first > 1) pieces[p].partial = (long)taken, taken += (size_t)(2 * before * d);
        }
    }
    *floats = taken;
    return pieces;
}

/* Floats of a job's scratch area. */
static size_t room(const piece_t *piece, long d) {
    const long all = piece->before + piece->length, whole = (all + 15) & ~15L;
    return (size_t)(4 * all * d + 2 * d * whole + 3 * QUERIES * d + 2 * QUERIES * whole);
}

/* The work of one key/value head of it and its query heads. */
static heads_t of_head(heads_t w, long head) {
    const long own = head * w.group * w.d * w.size, shared = head * w.d * w.size;
    w.q += own, w.out += own, w.k += shared, w.v += shared, w.lse += head * w.group;
    if (w.up) w.up += own, w.dq += own, w.dk += shared, w.dv += shared;
    return w;
}

INLINE void backward_job(const heads_t *w, const piece_t *piece, float *partial, float *scratch, const int half) {
    const long before = piece->before, length = piece->length, all = before + length, d = w->d;
    const long row = w->kv * d * w->size, several = piece->partial >= 0;
    float *dkeys = TAKE(all * d), *dvalues = TAKE(all * d);
    backward_piece(w, piece->start, before, piece->from, length, dkeys, dvalues, scratch, half);
    const long shared = before || !several ? before : length; /* a beginning waits for what its group says of it */
    if (several) {
        memcpy(partial, dkeys, (size_t)(shared * d) * sizeof(float));
        memcpy(partial + shared * d, dvalues, (size_t)(shared * d) * sizeof(float));
    }
    if (shared == all) return;
    give(dkeys + shared * d, w->dk + piece->from * row, row, all - shared, d, half);
    give(dvalues + shared * d, w->dv + piece->from * row, row, all - shared, d, half);
}

/* The gradients of a group's beginning: the sum of what its pieces [count] found, in their order. */
INLINE void gather(const heads_t *w, const piece_t *pieces, long count, float *partial, const int half) {
    const long length = pieces->length, d = w->d, row = w->kv * d * w->size, size = 2 * length * d;
    for (long p = 1; p < count; p++)
        for (long c = 0; c < size; c += 16) *(v16 *)(partial + c) += *(v16 *)(partial + p * size + c);
    give(partial, w->dk + pieces->from * row, row, length, d, half);
    give(partial + length * d, w->dv + pieces->from * row, row, length, d, half);
}

/* Every piece and key/value head on its own; 1 where there was no memory. */
static int every_piece(heads_t all, const int64_t *ends, const int64_t *groups, long count, int half) {
    size_t floats;
    piece_t *pieces = listed(ends, groups, count, all.d, &floats);
    const size_t bytes = all.up ? (floats * (size_t)all.kv * sizeof(float) + 63) & ~63UL : 0;
    float *partials = bytes ? aligned_alloc(64, bytes) : NULL;
    int failed = !pieces || (bytes && !partials);
    const long jobs = failed ? 0 : groups[count] * all.kv;
#pragma omp parallel for schedule(dynamic) reduction(| : failed) if (jobs > 1)
    for (long job = 0; job < jobs; job++) {
        const piece_t *piece = pieces + job / all.kv;
        const heads_t w = of_head(all, job % all.kv);
        float *scratch = aligned_alloc(64, (room(piece, all.d) * sizeof(float) + 63) & ~63UL);
        float *partial = piece->partial < 0 ? NULL : partials + (size_t)(job % all.kv) * floats + piece->partial;
        if (!scratch) failed = 1;
        else if (!w.up && half) forward_piece(&w, piece->start, piece->before, piece->from, piece->length, scratch, 1);
        else if (!w.up) forward_piece(&w, piece->start, piece->before, piece->from, piece->length, scratch, 0);
        else if (half) backward_job(&w, piece, partial, scratch, 1);
        else backward_job(&w, piece, partial, scratch, 0);
        free(scratch);
    }
    const long sums = failed || !all.up ? 0 : count * all.kv;
#pragma omp parallel for schedule(dynamic) if (sums > 1)
    for (long job = 0; job < sums; job++) {
        const long g = job / all.kv, members = groups[g + 1] - groups[g];
        const heads_t w = of_head(all, job % all.kv);
        const piece_t *first = pieces + groups[g];
        if (members < 2) continue;
        float *partial = partials + (size_t)(job % all.kv) * floats + first->partial;
        if (half) gather(&w, first, members, partial, 1);
        else gather(&w, first, members, partial, 0);
    }
    free(partials);
    free(pieces);
    return failed;
}

/* Piece p are the tokens ends[p] .. ends[p + 1] of q, out [n, h, d], k, v [n, kv, d]; group g are the pieces
   groups[g] .. groups[g + 1], the first of them its beginning. lse [n, h] is kept for the backward. 1 where there was no
   memory. */
int strop_attention_forward(const char *q, const char *k, const char *v, char *out, float *lse, const int64_t *ends,
                            const int64_t *groups, long count, long h, long kv, long d, float scale, int half) {
    const heads_t all = {.q = q, .k = k, .v = v, .out = out, .lse = lse, .h = h, .kv = kv, .d = d, .group = h / kv,
                         .size = half ? 2 : 4, .scale = scale};
    return every_piece(all, ends, groups, count, half);
}

/* The gradients dq [n, h, d], dk, dv [n, kv, d] of up [n, h, d]. */
int strop_attention_backward(const char *up, const char *q, const char *k, const char *v, const char *out,
                             const float *lse, char *dq, char *dk, char *dv, const int64_t *ends,
                             const int64_t *groups, long count, long h, long kv, long d, float scale, int half) {
    const heads_t all = {.q = q, .k = k, .v = v, .up = up, .out = (char *)out, .dq = dq, .dk = dk, .dv = dv,
                         .lse = (float *)lse, .h = h, .kv = kv, .d = d, .group = h / kv, .size = half ? 2 : 4,
                         .scale = scale};
    return every_piece(all, ends, groups, count, half);
}
