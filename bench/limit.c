/* What the multiply-add units of a core can do at most: twelve independent sums of the widest vectors, in registers. */

#ifdef __AVX512F__
#define WIDTH 16
#elif defined(__AVX2__)
#define WIDTH 8
#else
#define WIDTH 4
#endif

typedef float vec __attribute__((vector_size(4 * WIDTH)));

/* Operations of a round: a multiplication and an addition for each number of twelve vectors. */
long strop_limit_round(void) { return 2 * 12 * WIDTH; }

float strop_limit(long rounds) {
    vec factor, term, total;
    for (int i = 0; i < WIDTH; i++) factor[i] = 1 + 1e-7f * (float)i, term[i] = 1e-9f;
    vec a = term, b = term, c = term, d = term, e = term, f = term, g = term, h = term, i = term, j = term, k = term,
        l = term;
    for (long n = 0; n < rounds; n++) {
        a = a * factor + term, b = b * factor + term, c = c * factor + term, d = d * factor + term;
        e = e * factor + term, f = f * factor + term, g = g * factor + term, h = h * factor + term;
        i = i * factor + term, j = j * factor + term, k = k * factor + term, l = l * factor + term;
        __asm__("" : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f), "+v"(g), "+v"(h), "+v"(i), "+v"(j));
    }
    total = a + b + c + d + e + f + g + h + i + j + k + l;
    float sum = 0;
    for (int n = 0; n < WIDTH; n++) sum += total[n];
    return sum;
}
