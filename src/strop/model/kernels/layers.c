/* What a decoder layer computes between its matrix products, forward and backward, each in one pass over memory: norms,
   rotary positions, the gated unit. The counterpart for a CPU of strop/model/kernels/layers.py: float32 inside, rounded where
   transformers' modules round; gradients are rounded once, at the end.

   Sums over rows are made by blocks of BLOCK rows, whatever the number of threads.
   Shapes: n rows, e features of a row, h heads, d features of a head. */

#include "vectors.h"

#define BLOCK 64

/* ------------------------------------------------------------------ norm */

INLINE float scale_of(const char *x, long e, float eps, const int half) {
    v16 squares = {0};
    for (long i = 0; i < e; i += 16) {
        const v16 a = load(x, i, half);
        squares += a * a;
    }
    return 1.0f / sqrtf(sum16(squares) / (float)e + eps);
}

INLINE void norm_forward(const char *x, const void *w, char *y, float *scale, long n, long e, float eps, int plus,
                         const int half) {
    const long row = e * (half ? 2 : 4);
    PARALLEL(n * e > 65536)
    for (long r = 0; r < n; r++) {
        const float s = scale[r] = scale_of(x + r * row, e, eps, half);
        for (long i = 0; i < e; i += 16)
            store(y + r * row, i, normed(load(x + r * row, i, half), s, load(w, i, half), plus, half), half);
    }
}

/* y = round(x · s) · w, or x · s · (1 + w) with `plus`; s = 1 / √(mean x² + eps) is kept [n]. */
void strop_norm_forward(const void *x, const void *w, void *y, float *scale, long n, long e, float eps, int plus,
                        int half) {
    if (half) norm_forward(x, w, y, scale, n, e, eps, plus, 1);
    else norm_forward(x, w, y, scale, n, e, eps, plus, 0);
}

/* One row of ∂x = s (g − x̂ · mean(g x̂)), x̂ = x s, g = up · (w + plus), and ∂w += up · x̂. */
INLINE void norm_row_backward(const void *up, const void *x, const void *w, float s, void *dx, float *dw, long e,
                              float plus, const int half) {
    v16 dots = {0};
    for (long i = 0; i < e; i += 16) {
        const v16 hat = load(x, i, half) * s, u = load(up, i, half);
        dots += u * (load(w, i, half) + plus) * hat;
        *(v16 *)(dw + i) += u * hat;
    }
    const float mean = sum16(dots) / (float)e;
    for (long i = 0; i < e; i += 16) {
        const v16 hat = load(x, i, half) * s, g = load(up, i, half) * (load(w, i, half) + plus);
        store(dx, i, as_stored16(s * (g - hat * mean), half), half);
    }
}

INLINE void norm_backward(const char *up, const char *x, const void *w, const float *scale, char *dx, float *dw, long n,
                          long e, int plus, const int half) {
    const long row = e * (half ? 2 : 4), blocks = (n + BLOCK - 1) / BLOCK;
    PARALLEL(n * e > 65536)
    for (long b = 0; b < blocks; b++) {
        float *own = dw + b * e;
        memset(own, 0, (size_t)e * sizeof(float));
        const long end = (b + 1) * BLOCK < n ? (b + 1) * BLOCK : n;
        for (long r = b * BLOCK; r < end; r++)
            norm_row_backward(up + r * row, x + r * row, w, scale[r], dx + r * row, own, e, (float)plus, half);
    }
}

/* Of `strop_norm_forward`, with the sums dw [blocks of 64 rows, e]. */
void strop_norm_backward(const void *up, const void *x, const void *w, const float *scale, void *dx, float *dw, long n,
                         long e, int plus, int half) {
    if (half) norm_backward(up, x, w, scale, dx, dw, n, e, plus, 1);
    else norm_backward(up, x, w, scale, dx, dw, n, e, plus, 0);
}

/* ------------------------------------------------------------------ rotary positions */

INLINE void turn(const void *x, const void *c, const void *s, void *y, long d, const int half) {
    for (long i = 0; i < d / 2; i += 16) {
        const v16 a = load(x, i, half), b = load(x, i + d / 2, half), ca = load(c, i, half), sa = load(s, i, half);
        const v16 left = as_stored16(a * ca, half) - as_stored16(b * sa, half);
        const v16 right = as_stored16(b * ca, half) + as_stored16(a * sa, half);
        store(y, i, as_stored16(left, half), half);
        store(y, i + d / 2, as_stored16(right, half), half);
    }
}

INLINE void turn_back(const void *up, const void *c, const void *s, float *to, long d, const int half) {
    for (long i = 0; i < d / 2; i += 16) {
        const v16 l = load(up, i, half), r = load(up, i + d / 2, half), ca = load(c, i, half), sa = load(s, i, half);
        *(v16 *)(to + i) = l * ca + r * sa;
        *(v16 *)(to + i + d / 2) = r * ca - l * sa;
    }
}

INLINE void rotary_forward(const char *x, const void *w, const char *cosine, const char *sine, char *y, float *scale,
                           long n, long h, long d, float eps, int plus, const int half) {
    const long size = half ? 2 : 4;
    PARALLEL(n * h * d > 65536)
    for (long r = 0; r < n; r++)
        for (long head = 0; head < h; head++) {
            const long at = r * h + head;
            const char *from = x + at * d * size;
            char *to = y + at * d * size;
            if (w) {
                const float s = scale[at] = scale_of(from, d, eps, half);
                for (long i = 0; i < d; i += 16)
                    store(to, i, normed(load(from, i, half), s, load(w, i, half), plus, half), half);
                from = to;
            }
            turn(from, cosine + r * d * size, sine + r * d * size, to, d, half);
        }
}

/* Heads x [n, h, d], normed by w [d] (or not, null; else their scales are kept [n, h]), then turned by cosine and sine
   [n, d], whose halves are equal → y; d is a multiple of 32. */
void strop_rotary_forward(const void *x, const void *w, const void *cosine, const void *sine, void *y, float *scale,
                          long n, long h, long d, float eps, int plus, int half) {
    if (half) rotary_forward(x, w, cosine, sine, y, scale, n, h, d, eps, plus, 1);
    else rotary_forward(x, w, cosine, sine, y, scale, n, h, d, eps, plus, 0);
}

INLINE void rotary_backward(const char *up, const char *x, const void *w, const char *cosine, const char *sine,
                            const float *scale, char *dx, float *dw, long n, long h, long d, int plus,
                            const int half) {
    const long size = half ? 2 : 4, blocks = (n + BLOCK - 1) / BLOCK;
    PARALLEL(n * h * d > 65536)
    for (long b = 0; b < blocks; b++) {
        float *own = dw + b * d, g[d] __attribute__((aligned(64))), wide[d] __attribute__((aligned(64)));
        if (w) {
            memset(own, 0, (size_t)d * sizeof(float));
            for (long i = 0; i < d; i += 16) *(v16 *)(wide + i) = load(w, i, half) + (float)plus;
        }
        const long end = (b + 1) * BLOCK < n ? (b + 1) * BLOCK : n;
        for (long at = b * BLOCK * h; at < end * h; at++) {
            const long r = at / h;
            char *to = dx + at * d * size;
            turn_back(up + at * d * size, cosine + r * d * size, sine + r * d * size, g, d, half);
            if (w) {
                const char *from = x + at * d * size;
                const float s = scale[at];
                v16 dots = {0};
                for (long i = 0; i < d; i += 16) {
                    const v16 hat = load(from, i, half) * s, u = *(v16 *)(g + i);
                    dots += u * *(v16 *)(wide + i) * hat;
                    *(v16 *)(own + i) += u * hat;
                }
                const float mean = sum16(dots) / (float)d;
                for (long i = 0; i < d; i += 16) {
                    const v16 hat = load(from, i, half) * s;
                    *(v16 *)(g + i) = s * (*(v16 *)(g + i) * *(v16 *)(wide + i) - hat * mean);
                }
            }
            for (long i = 0; i < d; i += 16) store(to, i, as_stored16(*(v16 *)(g + i), half), half);
        }
    }
}

/* Of `strop_rotary_forward`, with the sums dw [blocks of 64 rows, d] where there is a norm. */
void strop_rotary_backward(const void *up, const void *x, const void *w, const void *cosine, const void *sine,
                           const float *scale, void *dx, float *dw, long n, long h, long d, int plus, int half) {
    if (half) rotary_backward(up, x, w, cosine, sine, scale, dx, dw, n, h, d, plus, 1);
    else rotary_backward(up, x, w, cosine, sine, scale, dx, dw, n, h, d, plus, 0);
}

/* ------------------------------------------------------------------ the gated unit */

INLINE void gate_forward(const void *gate, const void *up, void *y, long n, int kind, const int half) {
    PARALLEL(n > 16384)
    for (long i = 0; i < n; i += 16) {
        const v16 a = load(gate, i, half);
        store(y, i, as_stored16(as_stored16(a * sigmoid(inner(a, kind)), half) * load(up, i, half), half), half);
    }
}

/* y = round(activation(gate)) · up, n numbers each, a multiple of 16. */
void strop_gate_forward(const void *gate, const void *up, void *y, long n, int kind, int half) {
    if (half) gate_forward(gate, up, y, n, kind, 1);
    else gate_forward(gate, up, y, n, kind, 0);
}

INLINE void gate_backward(const void *dy, const void *gate, const void *up, void *dgate, void *dup, long n, int kind,
                          const int half) {
    PARALLEL(n > 16384)
    for (long i = 0; i < n; i += 16) {
        const v16 a = load(gate, i, half), y = load(dy, i, half), sigma = sigmoid(inner(a, kind));
        const v16 da = y * load(up, i, half) * sigma * (1.0f + a * (1.0f - sigma) * slope(a, kind));
        store(dgate, i, as_stored16(da, half), half);
        store(dup, i, as_stored16(y * a * sigma, half), half);
    }
}

/* ∂gate = ∂y · up · σ (1 + gate (1 − σ) v'), ∂up = ∂y · gate · σ, σ = σ(v(gate)). */
void strop_gate_backward(const void *dy, const void *gate, const void *up, void *dgate, void *dup, long n, int kind,
                         int half) {
    if (half) gate_backward(dy, gate, up, dgate, dup, n, kind, 1);
    else gate_backward(dy, gate, up, dgate, dup, n, kind, 0);
}
