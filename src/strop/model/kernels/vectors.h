/* Vectors of sixteen numbers, float32 or bfloat16 in memory, for x86 and ARM alike: GCC's vector types become whatever
   the machine has. bfloat16 (`half`) is rounded only where a kernel says so (`as_stored`). */

#ifndef STROP_VECTORS_H
#define STROP_VECTORS_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif
#ifdef __AMX_BF16__
#include <sys/syscall.h>
#include <unistd.h>
#endif

typedef float v16 __attribute__((vector_size(64), aligned(4)));
typedef int32_t i16v __attribute__((vector_size(64), aligned(4)));
typedef uint32_t u16v __attribute__((vector_size(64), aligned(4)));
typedef uint16_t h16v __attribute__((vector_size(32), aligned(2)));

#define INLINE static inline __attribute__((always_inline))
#define TEXT(x) #x
#define PARALLEL(work) _Pragma(TEXT(omp parallel for schedule(static) if (work)))

/* ------------------------------------------------------------------ numbers */

INLINE float one(const void *p, long at, const int half) {
    if (!half) return ((const float *)p)[at];
    uint32_t bits = (uint32_t)((const uint16_t *)p)[at] << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

INLINE uint16_t rounded(float x) { /* to the nearest bfloat16, ties to even */
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (x != x) return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

INLINE void put(void *p, long at, float x, const int half) {
    if (half) ((uint16_t *)p)[at] = rounded(x);
    else ((float *)p)[at] = x;
}

INLINE float as_stored(float x, const int half) { /* x as its type keeps it */
    if (!half) return x;
    uint32_t bits = (uint32_t)rounded(x) << 16;
    memcpy(&x, &bits, 4);
    return x;
}

INLINE v16 load(const void *p, long at, const int half) {
    if (!half) return *(const v16 *)((const float *)p + at);
    u16v bits = __builtin_convertvector(*(const h16v *)((const uint16_t *)p + at), u16v) << 16;
    return (v16)bits;
}

INLINE v16 splat(float x) { return x - (v16){0}; }

INLINE v16 as_stored16(v16 x, const int half) {
    if (!half) return x;
#ifdef __AVX512BF16__
    __m256i bf16 = (__m256i)_mm512_cvtneps_pbh((__m512)x);
    return (v16)_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16), 16);
#endif
    u16v bits = (u16v)x, up = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u;
    i16v nan = x != x;
    return (v16)((up & ~(u16v)nan) | ((u16v)nan & 0x7fc00000u));
}

INLINE void store(void *p, long at, v16 x, const int half) { /* of what is as stored already */
    if (!half) *(v16 *)((float *)p + at) = x;
    else *(h16v *)((uint16_t *)p + at) = __builtin_convertvector((u16v)x >> 16, h16v);
}

INLINE float sum16(v16 x) {
    float s = 0;
    for (int i = 0; i < 8; i++) s += x[i] + x[i + 8];
    return s;
}

INLINE float max16(v16 x) {
    float m = x[0];
    for (int i = 1; i < 16; i++) m = x[i] > m ? x[i] : m;
    return m;
}

INLINE v16 larger(v16 a, v16 b) { return (v16)(((i16v)a & (a > b)) | ((i16v)b & ~(a > b))); }

/* eˣ to about a unit in the last place; 0 below -87, NaN of NaN. Cephes' expf. */
INLINE v16 exp16(v16 x) {
    const i16v low = x < -87.0f, high = x > 88.0f;
    x = (v16)(((i16v)x & ~low & ~high) | ((i16v)splat(-87.0f) & low) | ((i16v)splat(88.0f) & high));
    const v16 magic = splat(12582912.0f); /* 1.5 · 2²³: adding it rounds to a whole number */
    v16 n = (x * 1.44269504088896341f + magic) - magic;
    x = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    v16 y = splat(1.9875691500e-4f);
    y = y * x + 1.3981999507e-3f;
    y = y * x + 8.3334519073e-3f;
    y = y * x + 4.1665795894e-2f;
    y = y * x + 1.6666665459e-1f;
    y = y * x + 5.0000001201e-1f;
    y = y * x * x + x + 1.0f;
    i16v power = (__builtin_convertvector(n, i16v) + 127) << 23;
    return (v16)((i16v)(y * (v16)power) & ~low);
}

/* A row of RMSNorm: x · s by the weight, rounded before it; or, with `plus`, by 1 + weight and rounded once (Gemma). */
INLINE v16 normed(v16 x, float s, v16 w, int plus, const int half) {
    return as_stored16(plus ? x * s * (w + 1.0f) : w * as_stored16(x * s, half), half);
}

/* Activations are a · σ(v(a)): SiLU with v = a, GELU by tanh with v = 2 √(2/π) (a + 0.044715 a³). */
enum activation { SILU, GELU };

INLINE v16 inner(v16 a, int kind) {
    return kind == GELU ? 1.5957691216057308f * (a + 0.044715f * a * a * a) : a;
}

INLINE v16 slope(v16 a, int kind) {
    return kind == GELU ? 1.5957691216057308f * (1.0f + 0.134145f * a * a) : splat(1.0f);
}

INLINE v16 sigmoid(v16 v) { return 1.0f / (1.0f + exp16(-v)); }

#endif
