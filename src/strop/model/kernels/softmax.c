/* Log-probs and entropies of logits, and the gradient of both, each in one pass over a row: PyTorch's operators go
   through memory a dozen times, and [n, v] is the largest thing there is in an update. Sums are made by runs, in double
   beyond them, whatever the number of threads.

   Shapes: n rows, v vocabulary. */

#include "vectors.h"

#define RUN 1024 /* probabilities that are summed in float32 */

#define FARTHEST -128.0f /* below the maximum: what lies beyond has probability 0, and 0 · -inf would be no number */

/* Sixteen logits from z on, or as many as there are; -inf behind the last. */
INLINE v16 some(const float *z, long left) {
    if (left >= 16) return *(const v16 *)z;
    v16 tail = splat(-INFINITY);
    memcpy(&tail, z, (size_t)left * sizeof(float));
    return tail;
}

static void forward_row(const float *z, long v, long target, float *logprob, float *entropy, float *normaliser) {
    v16 high = splat(-INFINITY);
    for (long i = 0; i < v; i += 16) high = larger(some(z + i, v - i), high);
    const float top = max16(high);
    double total = 0, weighted = 0; /* of e^a and of a e^a, where a is how far a logit lies below the top */
    for (long run = 0; run < v; run += RUN) {
        const long end = run + RUN < v ? run + RUN : v;
        v16 s = {0}, w = {0};
        for (long i = run; i < end; i += 16) {
            const v16 a = some(z + i, v - i) - top, p = exp16(a);
            s += p;
            w += p * larger(a, splat(FARTHEST));
        }
        total += (double)sum16(s);
        weighted += (double)sum16(w);
    }
    const double log_total = log(total);
    *logprob = (float)((double)(z[target] - top) - log_total);
    *entropy = (float)(log_total - weighted / total);
    *normaliser = (float)((double)top + log_total);
}

/* log p[target] and entropy of softmax(z), and log Σ e^z, [n] each, of logits z [n, v], in float32 always. */
void strop_softmax_forward(const float *z, const int64_t *target, float *logprob, float *entropy, float *normaliser,
                           long n, long v, int half) {
    (void)half;
    PARALLEL(n * v > 16384)
    for (long r = 0; r < n; r++) forward_row(z + r * v, v, target[r], logprob + r, entropy + r, normaliser + r);
}

INLINE void backward_row(const float *z, long v, float norm, float entropy, float up, float up_entropy, float scale,
                         float over, void *out, const int half) {
    for (long i = 0; i < v; i += 16) {
        const v16 logit = some(z + i, v - i), log_p = larger(logit - norm, splat(FARTHEST)), p = exp16(log_p);
        const v16 bend = logit * over;
        v16 grad = p * (up + up_entropy * (log_p + entropy)) * -scale;
        if (over != 0) grad *= 1.0f - bend * bend;
        if (v - i >= 16) {
            store(out, i, as_stored16(grad, half), half);
            continue;
        }
        for (long j = i; j < v; j++) put(out, j, grad[j - i], half);
    }
}

/* ∂/∂product [n, v] of Σ up · logprob + up_entropy · entropy, in float32 (in place, where out is z) or bfloat16:

       (up · (1[target] − p) − up_entropy · p (log p + entropy)) · scale · (1 − (z · over)²)

   of what `strop_softmax_forward` had and gave; no `up_entropy`: none. */
void strop_softmax_backward(void *out, const float *z, const int64_t *target, const float *normaliser,
                            const float *entropy, const float *up, const float *up_entropy, long n, long v, float scale,
                            float over, int half) {
    PARALLEL(n * v > 16384)
    for (long r = 0; r < n; r++) {
        const float *row = z + r * v, given = up ? up[r] : 0, other = up_entropy ? up_entropy[r] : 0;
        char *to = (char *)out + r * v * (half ? 2 : 4);
        const float logit = row[target[r]], log_p = fmaxf(logit - normaliser[r], FARTHEST), bend = logit * over;
        const float chosen = given - expf(log_p) * (given + other * (log_p + entropy[r]));
        if (half) backward_row(row, v, normaliser[r], entropy[r], given, other, scale, over, to, 1);
        else backward_row(row, v, normaliser[r], entropy[r], given, other, scale, over, to, 0);
        put(to, target[r], chosen * scale * (1 - bend * bend), half);
    }
}
