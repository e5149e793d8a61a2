/* Matrix products summed in float32: with weights packed beforehand (decoding), and of bfloat16 with weights as they are,
   forward and backward (the head). oneDNN and MKL pay some ten microseconds a call, which at sixteen rows is a third of
   their time, and return no float32 of bfloat16. An output is summed over the inner dimension in one order, whatever the
   number of rows and wherever its operands lie: its bits depend on its own row alone, and a trainer's logits are those
   of decoding.

   For processors with AVX-512 (bfloat16: with its dot products); `strop_multiplies` tells.
   Shapes: n rows, i inner size, o outputs, padded to whole panels of 32. A step of the inner dimension is 32 bits: a
   float, or a pair of bfloat16. */

#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
#define TEXT(x) #x
#define PARALLEL(work) _Pragma(TEXT(omp parallel for schedule(static) if (work)))
#define PANEL 32 /* outputs computed together: two vectors */
#define FEW 64 /* rows that stay in the cache while all panels pass by */
#define MANY 1024 /* rows for which a panel is packed */
#define DEPTH 2048 /* steps of a panel that is packed, and stays in the cache */

int strop_multiplies(int half) {
#if defined(__AVX512F__) && defined(__AVX512BF16__)
    return half >= 0;
#elif defined(__AVX512F__)
    return !half;
#else
    return half < 0;
#endif
}

#ifdef __AVX512F__
#include <immintrin.h>

INLINE __m512i rounded(__m512 x) { /* to the nearest bfloat16, ties to even, in the low halves */
    __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
    return _mm512_mask_mov_epi32(up, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc0));
}

/* A block of 16 × 16 elements of 32 bits, rows `stride` apart → its columns, a panel's width apart. */
INLINE void transpose(const uint32_t *from, long stride, uint32_t *to) {
    __m512i r[16], t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(from + i * stride);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2)
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]), t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4)
        for (int u = 0; u < 2; u++) {
            r[i + 2 * u] = _mm512_unpacklo_epi64(t[i + u], t[i + u + 2]);
            r[i + 2 * u + 1] = _mm512_unpackhi_epi64(t[i + u], t[i + u + 2]);
        }
    /* Quarter q of r[4 i + c] is column 4 q + c of rows 4 i to 4 i + 3. */
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        const __m512i a = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88), d = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd);
        const __m512i b = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
        const __m512i e = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
        _mm512_storeu_si512(to + c * PANEL, _mm512_shuffle_i32x4(a, b, 0x88));
        _mm512_storeu_si512(to + (4 + c) * PANEL, _mm512_shuffle_i32x4(d, e, 0x88));
        _mm512_storeu_si512(to + (8 + c) * PANEL, _mm512_shuffle_i32x4(a, b, 0xdd));
        _mm512_storeu_si512(to + (12 + c) * PANEL, _mm512_shuffle_i32x4(d, e, 0xdd));
    }
}

/* Half of a panel [depth, 32] of `rows` (at most 16 are taken) of w, `stride` steps apart; zeros behind the last. */
INLINE void pack_rows(const uint32_t *w, long stride, long rows, long depth, uint32_t *to) {
    long k = 0;
    if (rows >= 16)
        for (; k + 16 <= depth; k += 16) transpose(w + k, stride, to + k * PANEL);
    for (; k < depth; k++)
        for (long r = 0; r < 16; r++) to[k * PANEL + r] = r < rows ? w[r * stride + k] : 0;
}

/* Rows of w [o, depth] as panels [ceil(o / 32), depth, 32], zeros behind the last row. */
void strop_pack(const uint32_t *w, uint32_t *panels, long o, long depth) {
    const long halves = (o + PANEL - 1) / PANEL * 2;
    PARALLEL(o * depth > 262144)
    for (long h = 0; h < halves; h++)
        pack_rows(w + h * 16 * depth, depth, o - h * 16, depth, panels + h / 2 * PANEL * depth + h % 2 * 16);
}

#ifdef __AVX512BF16__
/* A panel [ceil(k / 2), 32] of `count` columns of b, whose k rows are `stride` numbers apart: pairs are of two rows; zeros
   behind the last row and column. */
INLINE void pack_columns(const uint16_t *b, long stride, long k, long count, uint32_t *to) {
    const __mmask32 mask = count >= PANEL ? 0xffffffff : (1u << count) - 1;
    for (long at = 0; at < k; at += 2, b += 2 * stride, to += PANEL) {
        const __m512i even = _mm512_maskz_loadu_epi16(mask, b);
        const __m512i odd = _mm512_maskz_loadu_epi16(at + 1 < k ? mask : 0, b + stride);
        for (int h = 0; h < 2; h++) {
            const __m256i low = h ? _mm512_extracti64x4_epi64(even, 1) : _mm512_castsi512_si256(even);
            const __m256i high = h ? _mm512_extracti64x4_epi64(odd, 1) : _mm512_castsi512_si256(odd);
            const __m512i pairs = _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16);
            _mm512_storeu_si512(to + 16 * h, _mm512_or_si512(pairs, _mm512_cvtepu16_epi32(low)));
        }
    }
}
#endif

/* m rows of x, `row` bytes apart and their steps `step`, times a panel of weights over `depth` steps → out, `o` outputs a
   row, of which `count` lie in the panel. Sums go on from `start`, whose rows are `next` apart (0: a bias), or from 0. */
INLINE void tile(const char *x, long row, long step, const char *panel, const float *start, long next, char *out, long o,
                 long depth, long count, int half_out, const int m, const int half) {
    __m512 a[8], b[8];
    const __mmask16 mask_a = count >= 16 ? 0xffff : (__mmask16)((1u << count) - 1);
    const __mmask16 mask_b = count >= 32 ? 0xffff : count > 16 ? (__mmask16)((1u << (count - 16)) - 1) : 0;
#pragma GCC unroll 8
    for (int r = 0; r < m; r++) {
        a[r] = start ? _mm512_maskz_loadu_ps(mask_a, start + r * next) : _mm512_setzero_ps();
        b[r] = start ? _mm512_maskz_loadu_ps(mask_b, start + r * next + 16) : _mm512_setzero_ps();
    }
    for (long k = 0; k < depth; k++, x += step, panel += 128) {
        const __m512 wa = _mm512_loadu_ps(panel), wb = _mm512_loadu_ps(panel + 64);
#pragma GCC unroll 8
        for (int r = 0; r < m; r++) {
            const __m512 v = _mm512_set1_ps(*(const float *)(x + r * row));
#ifdef __AVX512BF16__
            if (half) {
                a[r] = _mm512_dpbf16_ps(a[r], (__m512bh)v, (__m512bh)wa);
                b[r] = _mm512_dpbf16_ps(b[r], (__m512bh)v, (__m512bh)wb);
                continue;
            }
#endif
            a[r] = _mm512_fmadd_ps(v, wa, a[r]);
            b[r] = _mm512_fmadd_ps(v, wb, b[r]);
        }
    }
    (void)half;
#pragma GCC unroll 8
    for (int r = 0; r < m; r++) {
        if (half_out) {
            uint16_t *to = (uint16_t *)out + r * o;
            _mm256_mask_storeu_epi16(to, mask_a, _mm512_cvtepi32_epi16(rounded(a[r])));
            if (mask_b) _mm256_mask_storeu_epi16(to + 16, mask_b, _mm512_cvtepi32_epi16(rounded(b[r])));
        } else {
            float *to = (float *)out + r * o;
            _mm512_mask_storeu_ps(to, mask_a, a[r]);
            if (mask_b) _mm512_mask_storeu_ps(to + 16, mask_b, b[r]);
        }
    }
}

/* A product out [n, o] = x · weights. */
struct product {
    const char *x;           /* rows; of the transpose of a gradient 32 of them, those that are being computed */
    long block, row, step;   /* bytes from 32 rows to the next, from row to row and from step to step */
    const void *w;           /* panels; or rows [o, i] or columns [i, o] of bfloat16, which are packed on the way */
    enum { PANELS, ROWS, COLUMNS } layout;
    const float *bias;       /* for whole panels, or none */
    void *out;
    long n, i, o;
    int half, half_out, add; /* `add`: to the float32 that is there */
};

/* The rows first to last of a panel of outputs, from `depth` steps at `at`. Sums that are not finished stay in `sums`. */
INLINE void strip(const struct product *p, long panel, long first, long last, long at, long depth, const void *weights,
                  float *sums, const int half) {
    const long from = panel * PANEL, count = p->o - from < PANEL ? p->o - from : PANEL;
    const int ends = at + depth == (p->half ? (p->i + 1) / 2 : p->i);
    for (long r = first, m; r < last; r += m) {
        m = last - r >= 8 ? 8 : last - r >= 4 ? 4 : last - r >= 2 ? 2 : 1;
        float *own = sums + (r - first) * PANEL, *there = (float *)p->out + r * p->o + from;
        const char *x = p->x + r / PANEL * p->block + r % PANEL * p->row + at * p->step;
        const float *start = at ? own : p->add ? there : p->bias ? p->bias + from : 0;
        const long next = at ? PANEL : p->add ? p->o : 0;
        const int half_out = ends && p->half_out;
        char *out = !ends ? (char *)own : half_out ? (char *)((uint16_t *)p->out + r * p->o + from) : (char *)there;
        const long stride = ends ? p->o : PANEL, wide = ends ? count : PANEL;
#define TILE(m) tile(x, p->row, p->step, weights, start, next, out, stride, depth, wide, half_out, m, half)
        if (m == 8) TILE(8);
        else if (m == 4) TILE(4);
        else if (m == 2) TILE(2);
        else TILE(1);
#undef TILE
    }
}

#ifdef __AVX512BF16__
/* The same for weights that are no panels yet: they are packed, as much as stays in the cache, for all rows. */
static void strip_packing(const struct product *p, long panel, long first, long last) {
    static _Thread_local uint32_t packed[DEPTH * PANEL] __attribute__((aligned(64)));
    static _Thread_local float sums[MANY * PANEL] __attribute__((aligned(64)));
    const long from = panel * PANEL, left = p->o - from, steps = p->i / 2;
    for (long at = 0; at < steps; at += DEPTH) {
        const long depth = steps - at < DEPTH ? steps - at : DEPTH;
        const uint32_t *rows = (const uint32_t *)p->w + from * steps + at;
        if (p->layout == ROWS) {
            pack_rows(rows, steps, left, depth, packed);
            pack_rows(rows + 16 * steps, steps, left - 16, depth, packed + 16);
        } else
            pack_columns((const uint16_t *)p->w + 2 * at * p->o + from, p->o, 2 * depth, left, packed);
        strip(p, panel, first, last, at, depth, packed, sums, 1);
    }
}
#endif

static void compute(const struct product *p) {
    const long rows = p->layout == PANELS ? FEW : MANY, depth = p->half ? p->i / 2 : p->i;
    const long panels = (p->o + PANEL - 1) / PANEL, jobs = panels * ((p->n + rows - 1) / rows);
    PARALLEL(p->n * p->i * p->o > 262144)
    for (long job = 0; job < jobs; job++) {
        const long panel = job % panels, first = job / panels * rows, last = first + rows < p->n ? first + rows : p->n;
        const char *weights = (const char *)p->w + panel * depth * 128;
#ifdef __AVX512BF16__
        if (p->layout != PANELS) strip_packing(p, panel, first, last);
        else if (p->half) strip(p, panel, first, last, 0, depth, weights, 0, 1);
        else
#endif
            strip(p, panel, first, last, 0, depth, weights, 0, 0);
    }
}

static struct product of_rows(const void *x, const void *w, void *out, long n, long i, long o, int half, int half_out) {
    const long row = i * (half ? 2 : 4);
    return (struct product){.x = x, .block = PANEL * row, .row = row, .step = 4, .w = w, .out = out, .n = n, .i = i,
                            .o = o, .half = half, .half_out = half_out};
}

/* out [n, o] = x [n, i] · weightᵀ + bias (float32, as many as the panels hold, or none). Weights are packed as
   [panels, i, 32] in float32, as [panels, i / 2, 32, 2] in bfloat16; the sum is float32, and so is `out` unless
   `half_out`. */
void strop_multiply(const void *x, const void *packed, const float *bias, void *out, long n, long i, long o, int half,
                    int half_out) {
    struct product p = of_rows(x, packed, out, n, i, o, half, half_out);
    p.bias = bias;
    compute(&p);
}

/* The same of weights w [o, i] in bfloat16 as they are; i is even. */
void strop_linear(const void *x, const void *w, const float *bias, void *out, long n, long i, long o, int half_out) {
    struct product p = of_rows(x, w, out, n, i, o, 1, half_out);
    p.layout = ROWS, p.bias = bias;
    compute(&p);
}

/* out [n, i] = g [n, o] · w [o, i] in bfloat16; o is even. */
void strop_grad_input(const void *g, const void *w, void *out, long n, long i, long o, int half_out) {
    struct product p = of_rows(g, w, out, n, o, i, 1, half_out);
    p.layout = COLUMNS;
    compute(&p);
}

#define LONGEST (2 * DEPTH) /* rows that a gradient of weights is summed over at once */

/* out [o, i] = gᵀ · x, or with `add` += (out is float32 then), of g [n, o] and x [n, i] in bfloat16, n at most LONGEST;
   `panels` has room for x as panels [ceil(i / 32), ceil(n / 2), 32] of pairs. */
void strop_grad_weight(const uint16_t *g, const uint16_t *x, uint32_t *panels, void *out, long n, long i, long o,
                       int half_out, int add) {
#ifdef __AVX512BF16__
    const long count = (i + PANEL - 1) / PANEL, steps = (n + 1) / 2, size = steps * PANEL;
    PARALLEL(n * i > 65536)
    for (long p = 0; p < count; p++) pack_columns(x + p * PANEL, i, n, i - p * PANEL, panels + p * size);
    PARALLEL(n * i * o > 262144)
    for (long first = 0; first < o; first += PANEL) {
        static _Thread_local uint32_t rows[DEPTH * PANEL] __attribute__((aligned(64))); /* of the transpose of g */
        pack_columns(g + first, o, n, o - first, rows);
        const struct product p = {.x = (const char *)rows, .row = 4, .step = 128, .out = out, .n = o, .i = n, .o = i,
                                  .half = 1, .half_out = half_out, .add = add};
        const long last = first + PANEL < o ? first + PANEL : o;
        for (long c = 0; c < count; c++) strip(&p, c, first, last, 0, steps, panels + c * size, 0, 1);
    }
#else
    (void)g, (void)x, (void)panels, (void)out, (void)n, (void)i, (void)o, (void)half_out, (void)add;
#endif
}
#else /* there is nothing here to call: `strop_multiplies` says so */
void strop_pack(void) {}
void strop_multiply(void) {}
void strop_linear(void) {}
void strop_grad_input(void) {}
void strop_grad_weight(void) {}
#endif
