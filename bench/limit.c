/* What the multiply-add units of a core can do at most: ten independent sums of the widest vectors that stay in
   registers. */

#ifdef __AVX512F__
#define WIDTH 16
#elif defined(__AVX2__)
#define WIDTH 8
#else
#define WIDTH 4
#endif
#define SUMS 10

typedef float vec __attribute__((vector_size(4 * WIDTH)));

/* The operations of `rounds` rounds are 2 · SUMS · WIDTH each, which `strop_limit_round` returns. */
long strop_limit_round(void) { return 2 * SUMS * WIDTH; }

float strop_limit(long rounds) {
    vec sum[SUMS], factor, term;
    for (int i = 0; i < WIDTH; i++) factor[i] = 1 + 1e-7f * (float)i, term[i] = 1e-9f;
    for (int j = 0; j < SUMS; j++) sum[j] = factor * (float)j;
    for (long k = 0; k < rounds; k++) {
#pragma GCC unroll 10
        for (int j = 0; j < SUMS; j++) sum[j] = sum[j] * factor + term;
        __asm__ volatile("" ::: "memory");
    }
    float total = 0;
    for (int j = 0; j < SUMS; j++)
        for (int i = 0; i < WIDTH; i++) total += sum[j][i];
    return total;
}
