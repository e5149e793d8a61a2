/* Matrix products of few rows with weights packed beforehand. oneDNN and MKL reach the same rate at hundreds of rows, but
   pay some ten microseconds a call, which at sixteen rows is a third of their time. An output is summed over the inner
   dimension in one order, whatever the number of rows: its bits depend on its own row alone.

   For processors with AVX-512 (bfloat16: with its dot products); `strop_multiplies` tells.
   Shapes: n rows, i inner size, o outputs, padded to whole panels of 32. */

#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
#define TEXT(x) #x
#define PARALLEL(work) _Pragma(TEXT(omp parallel for schedule(static) if (work)))
#define PANEL 32 /* outputs computed together: two vectors */
#define CHUNK 64 /* rows that stay in the cache while all panels pass by */

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

/* Rows of w [o, depth] as panels [ceil(o / 32), depth, 32], zeros behind the last row; an element is 32 bits: a float, or
   a pair of bfloat16. */
void strop_pack(const uint32_t *w, uint32_t *panels, long o, long depth) {
    const long halves = (o + PANEL - 1) / PANEL * 2;
    PARALLEL(o * depth > 262144)
    for (long h = 0; h < halves; h++) {
        const long left = o - h * 16, rows = left < 0 ? 0 : left < 16 ? left : 16;
        const uint32_t *from = w + h * 16 * depth;
        uint32_t *to = panels + h / 2 * PANEL * depth + h % 2 * 16;
        long k = 0;
        if (rows == 16)
            for (; k + 16 <= depth; k += 16) transpose(from + k, depth, to + k * PANEL);
        for (; k < depth; k++)
            for (long r = 0; r < 16; r++) to[k * PANEL + r] = r < rows ? from[r * depth + k] : 0;
    }
}

/* m rows of x, `row` bytes apart, times a panel of weights over `depth` steps → out, `o` outputs a row, of which `count`
   lie in the panel. A step is one element of float32, or a pair of bfloat16. */
INLINE void tile(const char *x, long row, const char *panel, const float *bias, char *out, long o, long depth,
                 long count, const int m, const int half, const int half_out) {
    __m512 a[8], b[8];
    const __m512 start_a = bias ? _mm512_loadu_ps(bias) : _mm512_setzero_ps();
    const __m512 start_b = bias ? _mm512_loadu_ps(bias + 16) : _mm512_setzero_ps();
#pragma GCC unroll 8
    for (int r = 0; r < m; r++) a[r] = start_a, b[r] = start_b;
    for (long k = 0; k < depth; k++) {
        const __m512 wa = _mm512_loadu_ps(panel + k * 128), wb = _mm512_loadu_ps(panel + k * 128 + 64);
#pragma GCC unroll 8
        for (int r = 0; r < m; r++) {
            const __m512 v = _mm512_set1_ps(*(const float *)(x + r * row + 4 * k));
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
    const __mmask16 mask_a = count >= 16 ? 0xffff : (__mmask16)((1u << count) - 1);
    const __mmask16 mask_b = count >= 32 ? 0xffff : count > 16 ? (__mmask16)((1u << (count - 16)) - 1) : 0;
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

INLINE void multiply(const char *x, const char *packed, const float *bias, char *out, long n, long i, long o,
                     const int half, const int half_out) {
    const long row = i * (half ? 2 : 4), depth = half ? i / 2 : i, size = half_out ? 2 : 4;
    const long panels = (o + PANEL - 1) / PANEL, chunks = (n + CHUNK - 1) / CHUNK;
    PARALLEL(n * i * o > 262144)
    for (long job = 0; job < panels * chunks; job++) {
        const long p = job % panels, first = job / panels * CHUNK, last = first + CHUNK < n ? first + CHUNK : n;
        const long count = o - p * PANEL < PANEL ? o - p * PANEL : PANEL;
        const char *panel = packed + p * depth * 128;
        const float *own = bias ? bias + p * PANEL : 0;
        long r = first;
#define TILES(m)                                                                                                    \
    for (; r + m <= last; r += m)                                                                                   \
        tile(x + r * row, row, panel, own, out + (r * o + p * PANEL) * size, o, depth, count, m, half, half_out);
        TILES(8)
        TILES(4)
        TILES(2)
        TILES(1)
    }
}

/* out [n, o] = x [n, i] · weightᵀ + bias (float32, as many as the panels hold, or none). Weights are packed as
   [panels, i, 32] in float32, as [panels, i / 2, 32, 2] in bfloat16; the sum is float32, and so is `out` unless
   `half_out`. */
void strop_multiply(const void *x, const void *packed, const float *bias, void *out, long n, long i, long o, int half,
                    int half_out) {
#ifdef __AVX512BF16__
    if (half && half_out) multiply(x, packed, bias, out, n, i, o, 1, 1);
    else if (half) multiply(x, packed, bias, out, n, i, o, 1, 0);
    else
#endif
        multiply(x, packed, bias, out, n, i, o, 0, 0);
    (void)half, (void)half_out;
}
#else
void strop_multiply(const void *x, const void *packed, const float *bias, void *out, long n, long i, long o, int half,
                    int half_out) {
    (void)x, (void)packed, (void)bias, (void)out, (void)n, (void)i, (void)o, (void)half, (void)half_out;
}

void strop_pack(const uint32_t *w, uint32_t *panels, long o, long depth) {
    (void)w, (void)panels, (void)o, (void)depth;
}
#endif
