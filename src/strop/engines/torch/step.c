/* What a decode step computes beside its matrix products, for x86 and ARM alike: GCC's vector types become whatever
   the machine has. Every row is computed on its own, in an order that depends on nothing but the row, so that the bits
   of a sequence never depend on its neighbours.

   Rows are float32, or bfloat16 (`half`), which is rounded just where transformers' modules round it.
   Shapes: n rows, e hidden size, h query heads, kv key/value heads, d head dimension, v vocabulary. */

#include "vectors.h"

#define BLOCK 64 /* keys between two looks at the largest score */

/* ------------------------------------------------------------------ norms, positions, the gated unit */

INLINE void norm_row(const void *x, const void *w, void *out, long e, float eps, int plus, const int half) {
    v16 squares = {0};
    for (long i = 0; i < e; i += 16) {
        v16 a = load(x, i, half);
        squares += a * a;
    }
    const float scale = 1.0f / sqrtf(sum16(squares) / (float)e + eps);
    for (long i = 0; i < e; i += 16) store(out, i, normed(load(x, i, half), scale, load(w, i, half), plus, half), half);
}

INLINE void add_norm(char *x, const char *delta, const void *inner, const void *w, char *out, long n, long e, float eps,
                     int plus, const int half) {
    const long row = e * (half ? 2 : 4);
    PARALLEL(n * e > 65536)
    for (long r = 0; r < n; r++) {
        char *own = x + r * row, *to = out + r * row;
        const char *more = delta ? delta + r * row : 0;
        if (more && inner) {
            norm_row(more, inner, to, e, eps, plus, half);
            more = to;
        }
        if (more)
            for (long i = 0; i < e; i += 16)
                store(own, i, as_stored16(load(own, i, half) + load(more, i, half), half), half);
        norm_row(own, w, to, e, eps, plus, half);
    }
}

/* x [n, e] += delta [n, e] (or nothing; normed by `inner` first where that is given), then out [n, e] = RMSNorm(x) by w
   (see `normed`); e is a multiple of 16. */
void strop_add_norm(void *x, const void *delta, const void *inner, const void *w, void *out, long n, long e, float eps,
                    int plus, int half) {
    if (half) add_norm(x, delta, inner, w, out, n, e, eps, plus, 1);
    else add_norm(x, delta, inner, w, out, n, e, eps, plus, 0);
}

INLINE void rotate_head(char *x, const char *c, const char *s, long d, const int half) {
    for (long i = 0; i < d / 2; i += 16) {
        const v16 a = load(x, i, half), b = load(x, i + d / 2, half);
        const v16 ca = load(c, i, half), sa = load(s, i, half);
        const v16 cb = load(c, i + d / 2, half), sb = load(s, i + d / 2, half);
        const v16 x1 = as_stored16(a * ca, half) - as_stored16(b * sa, half);
        const v16 x2 = as_stored16(b * cb, half) + as_stored16(a * sb, half);
        store(x, i, as_stored16(x1, half), half);
        store(x, i + d / 2, as_stored16(x2, half), half);
    }
}

INLINE void rotate(char *x, const void *wq, const void *wk, const char *cosine, const char *sine, const int64_t *at,
                   long n, long stride, long h, long kv, long d, float eps, int plus, const int half) {
    const long size = half ? 2 : 4;
    PARALLEL(n * (h + kv) * d > 65536)
    for (long r = 0; r < n; r++)
        for (long head = 0; head < h + kv; head++) {
            char *own = x + (r * stride + head * d) * size;
            const void *w = head < h ? wq : wk;
            if (w) norm_row(own, w, own, d, eps, plus, half);
            rotate_head(own, cosine + at[r] * d * size, sine + at[r] * d * size, d, half);
        }
}

/* The h query and kv key heads at the start of each row of x [n, stride], normed by wq and wk [d] (or not), then turned
   to their positions `at` [n] by the tables [positions, d]; d is a multiple of 32. */
void strop_rotate(void *x, const void *wq, const void *wk, const void *cosine, const void *sine, const int64_t *at,
                  long n, long stride, long h, long kv, long d, float eps, int plus, int half) {
    if (half) rotate(x, wq, wk, cosine, sine, at, n, stride, h, kv, d, eps, plus, 1);
    else rotate(x, wq, wk, cosine, sine, at, n, stride, h, kv, d, eps, plus, 0);
}

INLINE void gate(const char *x, char *out, long n, long f, int kind, const int half) {
    const long size = half ? 2 : 4;
    PARALLEL(n * f > 16384)
    for (long r = 0; r < n; r++)
        for (long i = 0; i < f; i += 16) {
            const v16 a = load(x + 2 * r * f * size, i, half), b = load(x + (2 * r + 1) * f * size, i, half);
            const v16 active = as_stored16(a * sigmoid(inner(a, kind)), half);
            store(out + r * f * size, i, as_stored16(active * b, half), half);
        }
}

/* out [n, f] = activation(x[:, :f]) · x[:, f:] of x [n, 2 f]; f is a multiple of 16. */
void strop_gate(const void *x, void *out, long n, long f, int kind, int half) {
    if (half) gate(x, out, n, f, kind, 1);
    else gate(x, out, n, f, kind, 0);
}

/* ------------------------------------------------------------------ attention of one query a sequence */

#define PAIR(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)

/* The sums of 16 vectors as one; part[i] is that of lane `order[i]`. */
static const int order[16] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};

INLINE v16 sums(v16 *part) {
    for (int i = 0; i < 8; i++)
        part[i] = PAIR(part[i], part[i + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                  PAIR(part[i], part[i + 8], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    for (int i = 0; i < 4; i++)
        part[i] = PAIR(part[i], part[i + 4], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
                  PAIR(part[i], part[i + 4], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    for (int i = 0; i < 2; i++)
        part[i] = PAIR(part[i], part[i + 2], 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29) +
                  PAIR(part[i], part[i + 2], 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31);
    return PAIR(part[0], part[1], 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
           PAIR(part[0], part[1], 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}

/* Into the second cache: the first one waits for fewer lines at once than memory can send. */
#define FETCH(from, bytes) for (long b = 0; b < (bytes); b += 64) __builtin_prefetch((from) + b, 0, 2)

/* The products of g query heads q [g, d] with a key, not yet summed: in float32, of queries in float32, or of bfloat16 as
   they are (`own`) where the processor multiplies those; exact either way. */
INLINE void score_of(const float *q, const char *own, const char *key, v16 *s, long d, const int g, const int half) {
#ifdef __AVX512BF16__
    if (half) {
        for (long c = 0; c < 2 * d; c += 64) {
            const __m512bh x = (__m512bh)_mm512_loadu_si512(key + c);
            for (int i = 0; i < g; i++)
                s[i] = (v16)_mm512_dpbf16_ps((__m512)s[i], x, (__m512bh)_mm512_loadu_si512(own + 2 * i * d + c));
        }
        return;
    }
#endif
    (void)own;
    for (long c = 0; c < d; c += 16) {
        v16 x = load(key, c, half);
        for (int i = 0; i < g; i++) s[i] += x * *(const v16 *)(q + i * d + c);
    }
}

/* g query heads (q [g, d] in float32, `own` as they are) over `length` keys and values [length, d] of one head, of which
   the first `skip` (fewer than 16) do not count → out [g, d]. Slots lie far apart, so that no processor guesses what
   comes next: with a block's keys those of the block after it are fetched, and its values with the values; after the
   last block these are the first of the `next_length` keys and values of another head. */
INLINE void attend(const float *q, const char *own, float scale, const char *keys, const char *values, char *out,
                   float *acc, long length, long skip, long d, const char *next, const char *next_values,
                   long next_length, const int g, const int half) {
    const long size = half ? 2 : 4, row = d * size;
    float score[4][BLOCK] __attribute__((aligned(64))), top[4], total[4];
    memset(acc, 0, (size_t)(g * d) * sizeof(float));
    for (int i = 0; i < g; i++) top[i] = -INFINITY, total[i] = 0;
    for (long start = 0; start < length; start += BLOCK) {
        const long left = length - start, count = left < BLOCK ? left : BLOCK;
        const char *ahead = left > BLOCK ? keys + (start + BLOCK) * row : next;
        const char *ahead_values = left > BLOCK ? values + (start + BLOCK) * row : next_values;
        long coming = left > BLOCK ? left - BLOCK : next_length;
        if (coming > BLOCK) coming = BLOCK;
        if (count < coming) {
            FETCH(ahead + count * row, (coming - count) * row);
            FETCH(ahead_values + count * row, (coming - count) * row);
        }
        for (long k = 0; k < count; k += 16) {
            v16 part[4][16];
            for (int j = 0; j < 16; j++) {
                /* Rows end with a whole block of 32 keys: what lies behind the last key may be read. */
                const char *key = keys + (start + k + order[j]) * row;
                if (k + j < coming) FETCH(ahead + (k + j) * row, row);
                v16 s[4] = {{0}, {0}, {0}, {0}};
                score_of(q, own, key, s, d, g, half);
                for (int i = 0; i < g; i++) part[i][j] = s[i];
            }
            for (int i = 0; i < g; i++) *(v16 *)(score[i] + k) = sums(part[i]) * scale;
        }
        for (int i = 0; i < g; i++) {
            const long whole = (count + 15) & ~15L;
            for (long k = count; k < whole; k++) score[i][k] = -INFINITY;
            for (long k = 0; k < skip && !start; k++) score[i][k] = -INFINITY;
            v16 m = *(v16 *)score[i];
            for (long k = 16; k < whole; k += 16) m = larger(*(v16 *)(score[i] + k), m);
            float now = max16(m);
            if (!(now > top[i])) now = top[i];
            if (now != top[i]) {
                const float less = start ? expf(top[i] - now) : 0;
                total[i] *= less;
                for (long c = 0; c < d; c += 16) *(v16 *)(acc + i * d + c) *= less;
                top[i] = now;
            }
            v16 t = {0};
            for (long k = 0; k < whole; k += 16) {
                v16 p = exp16(*(v16 *)(score[i] + k) - now);
                *(v16 *)(score[i] + k) = p;
                t += p;
            }
            total[i] += sum16(t);
        }
        const char *value = values + start * d * size;
        for (long c = 0; c < d; c += 32) {
            v16 a[4][2];
            for (int i = 0; i < g; i++)
                for (int u = 0; u < 2; u++) a[i][u] = *(v16 *)(acc + i * d + c + 16 * u);
            for (long k = 0; k < count; k++) {
                if (k < coming) FETCH(ahead_values + (k * d + c) * size, 32 * size);
                const v16 x = load(value + k * d * size, c, half), y = load(value + k * d * size, c + 16, half);
                for (int i = 0; i < g; i++) {
                    a[i][0] += score[i][k] * x;
                    a[i][1] += score[i][k] * y;
                }
            }
            for (int i = 0; i < g; i++)
                for (int u = 0; u < 2; u++) *(v16 *)(acc + i * d + c + 16 * u) = a[i][u];
        }
    }
    for (int i = 0; i < g; i++)
        for (long c = 0; c < d; c += 16)
            store(out, i * d + c, as_stored16(*(v16 *)(acc + i * d + c) / total[i], half), half);
}

INLINE void heads(const float *q, const char *own, float scale, const char *k, const char *v, char *out, float *acc,
                  long length, long skip, const long d, const char *next, const char *next_values, long coming,
                  long group, const int half) {
    const long size = half ? 2 : 4;
    while (group >= 4) {
        attend(q, own, scale, k, v, out, acc, length, skip, d, next, next_values, coming, 4, half);
        q += 4 * d, own += 4 * d * size, out += 4 * d * size, group -= 4;
    }
    if (group >= 2) {
        attend(q, own, scale, k, v, out, acc, length, skip, d, next, next_values, coming, 2, half);
        q += 2 * d, own += 2 * d * size, out += 2 * d * size, group -= 2;
    }
    if (group) attend(q, own, scale, k, v, out, acc, length, skip, d, next, next_values, coming, 1, half);
}

INLINE void decode(const char *query, const char *key, const char *value, long query_stride, long kv_stride, char *keys,
                   char *values, const int64_t *slots, const int64_t *lengths, const int64_t *firsts, char *out, long n,
                   long h, long kv, long d, long capacity, float scale, const int half) {
    const long size = half ? 2 : 4, group = h / kv, whole = capacity * d * size;
    PARALLEL(n * kv > 1)
    for (long job = 0; job < n * kv; job++) {
        const long r = job / kv, head = job % kv, length = lengths[r];
        char *to = out + (r * h + head * group) * d * size;
        if (length <= 0) {
            memset(to, 0, (size_t)(group * d * size));
            continue;
        }
        const long place = (slots ? slots[r] : r) * kv + head;
        char *own_keys = keys + place * whole, *own_values = values + place * whole;
        if (key) {
            memcpy(own_keys + (length - 1) * d * size, key + (r * kv_stride + head * d) * size, (size_t)(d * size));
            memcpy(own_values + (length - 1) * d * size, value + (r * kv_stride + head * d) * size, (size_t)(d * size));
        }
        float q[group * d] __attribute__((aligned(64))), acc[4 * d] __attribute__((aligned(64)));
        const char *from = query + (r * query_stride + head * group * d) * size;
        for (long i = 0; i < group * d; i++) q[i] = one(from, i, half);
        /* From a multiple of 16 on, so that no whole block goes beyond the row. */
        const long first = firsts ? firsts[r] : 0, skip = first % 16, seen = length - (first - skip);
        const char *k = own_keys + (first - skip) * d * size, *v = own_values + (first - skip) * d * size;
        const long after = (job + 1) / kv;
        const long coming = after < n ? lengths[after] : 0;
        const long next = coming ? ((slots ? slots[after] : after) * kv + (job + 1) % kv) * whole : place * whole;
        const char *nk = keys + next, *nv = values + next;
        /* The usual sizes as constants, which the compiler unrolls. */
        if (d == 64) heads(q, from, scale, k, v, to, acc, seen, skip, 64, nk, nv, coming, group, half);
        else if (d == 128) heads(q, from, scale, k, v, to, acc, seen, skip, 128, nk, nv, coming, group, half);
        else heads(q, from, scale, k, v, to, acc, seen, skip, d, nk, nv, coming, group, half);
    }
}

/* Rows with a query of h heads and a key and value of kv heads, `stride` elements from row to row: key and value become
   number lengths[r] - 1 of slot slots[r] (none given: slot r) in keys, values [slots, kv, capacity, d], and the query
   attends to those from number firsts[r] on (no firsts: from 0) → out [n, h, d]; a row of length 0 gives zeros and
   writes nothing. Without key and value, which stand there already, rows may share a slot. d is a multiple of 32,
   capacity of 32. */
void strop_decode(const void *query, const void *key, const void *value, long query_stride, long kv_stride, void *keys,
                  void *values, const int64_t *slots, const int64_t *lengths, const int64_t *firsts, void *out, long n,
                  long h, long kv, long d, long capacity, float scale, int half) {
    if (half)
        decode(query, key, value, query_stride, kv_stride, keys, values, slots, lengths, firsts, out, n, h, kv, d,
               capacity, scale, 1);
    else
        decode(query, key, value, query_stride, kv_stride, keys, values, slots, lengths, firsts, out, n, h, kv, d,
               capacity, scale, 0);
}

/* ------------------------------------------------------------------ the draw */

#define RUN 256 /* probabilities that are summed before they are looked at one by one */

#define FARTHEST -128.0f /* below the maximum: tokens beyond have probability 0, and 0 · -inf would be no number */

static void draw_row(float *z, long v, float temperature, double uniform, int greedy, int64_t *token, float *logprob,
                     float *entropy) {
    v16 high = splat(-INFINITY);
    long i = 0;
    float top = -INFINITY;
    if (temperature != 1.0f)
        for (long j = 0; j < v; j++) z[j] /= temperature;
    for (; i + 16 <= v; i += 16) high = larger(*(v16 *)(z + i), high);
    top = max16(high);
    for (; i < v; i++) top = z[i] > top ? z[i] : top;
    long best = 0;
    float best_z = 0;
    if (greedy) {
        while (best < v - 1 && z[best] != top) best++;
        best_z = z[best];
    }
    const long runs = (v + RUN - 1) / RUN;
    double sums[runs], total = 0, weighted = 0; /* of e^a and of a e^a, where a is how far a logit lies below the top */
    for (long b = 0; b < runs; b++) {
        const long end = (b + 1) * RUN < v ? (b + 1) * RUN : v;
        v16 s = {0}, w = {0};
        for (i = b * RUN; i + 16 <= end; i += 16) {
            v16 a = *(v16 *)(z + i) - top, p = exp16(a);
            *(v16 *)(z + i) = p;
            s += p;
            w += p * larger(a, splat(FARTHEST));
        }
        if (i < end) {
            v16 tail = splat(-INFINITY);
            memcpy(&tail, z + i, (size_t)(end - i) * sizeof(float));
            v16 a = tail - top, p = exp16(a);
            memcpy(z + i, &p, (size_t)(end - i) * sizeof(float));
            s += p;
            w += p * larger(a, splat(FARTHEST));
        }
        sums[b] = (double)sum16(s);
        total += sums[b];
        weighted += (double)sum16(w);
    }
    *entropy = (float)(log(total) - weighted / total);
    if (greedy) {
        *token = best;
        *logprob = (best_z - top) - (float)log(total);
        return;
    }
    /* The first token at which the sum of probabilities exceeds the target: first the run of tokens, then the token,
       which rounding may put at the run's end, but never on a token of probability 0. */
    double target = uniform * total, before = 0;
    if (!(target < total)) target = nextafter(total, 0.0);
    long b = 0;
    while (b < runs - 1 && !(before + sums[b] > target)) before += sums[b++];
    const long end = (b + 1) * RUN < v ? (b + 1) * RUN : v;
    long last = end - 1;
    for (i = b * RUN; i < end; i++) {
        if (!(z[i] > 0)) continue;
        last = i;
        before += (double)z[i];
        if (before > target) break;
    }
    *token = last;
    *logprob = logf(z[last]) - (float)log(total);
}

/* A token and its log-prob of each row of logits [n, v] / temperature [n] (which are overwritten) by inverting the
   cumulative distribution at uniform [n], or the most probable one where `greedy` [n]; and the entropy of the row. */
void strop_draw(float *logits, const float *temperature, const double *uniform, const uint8_t *greedy, int64_t *tokens,
                float *logprobs, float *entropies, long n, long v) {
    PARALLEL(n * v > 16384)
    for (long r = 0; r < n; r++)
        draw_row(logits + r * v, v, temperature[r], uniform[r], greedy[r], tokens + r, logprobs + r, entropies + r);
}
