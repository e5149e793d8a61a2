/* Matrix products summed in float32: with weights packed beforehand (decoding), and with weights as they are, forward and
   backward (the update and the head). torch's products pay some ten microseconds a call, return no float32 of bfloat16,
   and emulate bfloat16 on a CPU without instructions for it. An output is summed over the inner dimension in one order,
   whatever the number of rows and wherever its operands lie: its bits depend on its own row only, and a trainer's logits
   are those of decoding.

   One source for every width of vectors. Weights in bfloat16 stay so in memory; where the CPU has no dot product for them
   (AVX-512 BF16, or the tiles of AMX), they are widened to float32 in registers and x comes in float32.
   Shapes: n rows, i inner size, o outputs, padded to whole panels. A step of the inner dimension is 32 bits of a weight:
   a float, or a pair of bfloat16. */

#include "vectors.h"

#if defined(__AVX512F__)
#define LANES 16 /* numbers in a vector */
#define WIDE 2   /* vectors in a panel */
#define TALL 8   /* rows of a tile: TALL · WIDE sums stay in registers */
#elif defined(__AVX2__) && defined(__FMA__)
#define LANES 8
#define WIDE 2
#define TALL 6
#elif defined(__aarch64__)
#define LANES 4
#define WIDE 4
#define TALL 6
#else
#define LANES 4
#define WIDE 2
#define TALL 4
#endif

#define PANEL (LANES * WIDE) /* outputs computed together */
#define FEW 64               /* rows that stay in the cache while all panels pass by */
#define MANY 1024            /* rows for which a panel is packed */
#define DEPTH 512            /* steps of a panel that stay in the first cache */
#define AHEAD 4096           /* words of 32 bits by which weights are fetched into the second cache before their use */
#define LONGEST 4096         /* rows that a gradient of weights is summed over at once */

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint32_t bits __attribute__((vector_size(4 * LANES), aligned(4)));

/* Outputs of a panel; 0 for a CPU on which torch's own products are the better ones. */
int strop_panel(void) {
#if LANES > 4 || defined(__aarch64__)
    return PANEL;
#else
    return 0;
#endif
}

/* Whether torch's own products of float32 are the better ones: with AVX-512 or on Intel's CPUs, which its library is
   tuned for. */
int strop_tuned(void) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    return __builtin_cpu_is("intel");
#else
    return 1;
#endif
}

/* Whether pairs of bfloat16 are multiplied as such: x then comes in bfloat16 too. */
int strop_dots(void) {
#ifdef __AVX512BF16__
    return 1;
#else
    return 0;
#endif
}

enum kind { FLOATS, PAIRS, DOTS }; /* of weights, and for DOTS of x too */

/* ------------------------------------------------------------------ packing */

/* A panel [depth, PANEL] of `rows` of w, `stride` steps apart; zeros behind the last row. */
INLINE void pack_rows(const uint32_t *w, long stride, long rows, long depth, uint32_t *to) {
    const long have = rows < PANEL ? rows : PANEL;
    for (long k = 0; k < depth; k += 16) {
        const long end = k + 16 < depth ? k + 16 : depth;
        for (long r = 0; r < have; r++)
            for (long c = k; c < end; c++) to[c * PANEL + r] = w[r * stride + c];
        for (long r = have; r < PANEL; r++)
            for (long c = k; c < end; c++) to[c * PANEL + r] = 0;
    }
}

/* Rows of w [o, depth] as panels [ceil(o / PANEL), depth, PANEL]. */
void strop_pack(const uint32_t *w, uint32_t *panels, long o, long depth) {
    const long count = (o + PANEL - 1) / PANEL;
    PARALLEL(o * depth > 262144)
    for (long p = 0; p < count; p++)
        pack_rows(w + p * PANEL * depth, depth, o - p * PANEL, depth, panels + p * PANEL * depth);
}

/* A panel [depth, PANEL] of `count` columns of b, whose `rows` rows are `stride` numbers apart; zeros behind the last row
   and column. In bfloat16 a step is a pair of rows. */
INLINE void pack_columns(const void *b, long stride, long rows, long count, long depth, uint32_t *to, const int half) {
    const long have = count < PANEL ? count : PANEL;
    for (long k = 0; k < depth; k++, to += PANEL) {
        if (!half) {
            const uint32_t *row = (const uint32_t *)b + k * stride;
            if (have == PANEL && k < rows) memcpy(to, row, PANEL * 4);
            else
                for (long c = 0; c < PANEL; c++) to[c] = k < rows && c < have ? row[c] : 0;
            continue;
        }
        const uint16_t *even = (const uint16_t *)b + 2 * k * stride, *odd = even + stride;
        if (have == PANEL && 2 * k + 1 < rows)
            for (long c = 0; c < PANEL; c++) to[c] = even[c] | (uint32_t)odd[c] << 16;
        else
            for (long c = 0; c < PANEL; c++) {
                to[c] = 2 * k < rows && c < have ? even[c] : 0;
                if (2 * k + 1 < rows && c < have) to[c] |= (uint32_t)odd[c] << 16;
            }
    }
}

/* PANEL columns of bfloat16 [rows, stride] as rows of `depth` pairs; zeros behind the last row and column. */
INLINE void turn_columns(const uint16_t *b, long stride, long rows, long count, long depth, uint32_t *to) {
    for (long k = 0; k < depth; k += 16) {
        const long end = k + 16 < depth ? k + 16 : depth;
        for (long c = 0; c < PANEL; c++)
            for (long at = k; at < end; at++) {
                const uint16_t *even = b + 2 * at * stride + c;
                const uint32_t odd = c < count && 2 * at + 1 < rows ? even[stride] : 0;
                to[c * depth + at] = (c < count ? *even : 0) | odd << 16;
            }
    }
}

/* ------------------------------------------------------------------ tiles */

/* Ask for `count` numbers early: left to the processor, few rows wait for the weights of the next panel. */
INLINE void fetch(const uint32_t *from, const int count) {
    for (int at = 0; at < count; at += 16) __builtin_prefetch(from + at, 0, 2);
}

/* sums [m, PANEL] += m rows of x, `row` bytes apart, times a panel of weights over `depth` steps. Numbers of x (pairs for
   DOTS) are `step` bytes apart. */
INLINE void tile(const char *x, long row, long step, const uint32_t *panel, float *sums, long depth, const int m,
                 const enum kind kind) {
    vec s[TALL][WIDE];
#pragma GCC unroll 8
    for (int r = 0; r < m; r++)
#pragma GCC unroll 4
        for (int v = 0; v < WIDE; v++) s[r][v] = *(const vec *)(sums + r * PANEL + v * LANES);
    for (long k = 0; k < depth; k++, panel += PANEL) {
        fetch(panel + AHEAD, PANEL);
        if (kind == PAIRS) {
            vec even[WIDE], odd[WIDE];
#pragma GCC unroll 4
            for (int v = 0; v < WIDE; v++) {
                const bits w = *(const bits *)(panel + v * LANES);
                even[v] = (vec)(w << 16), odd[v] = (vec)(w & 0xffff0000u);
            }
#pragma GCC unroll 8
            for (int r = 0; r < m; r++) {
                const float a = *(const float *)(x + r * row), b = *(const float *)(x + r * row + step);
#pragma GCC unroll 4
                for (int v = 0; v < WIDE; v++) s[r][v] += even[v] * a;
#pragma GCC unroll 4
                for (int v = 0; v < WIDE; v++) s[r][v] += odd[v] * b;
            }
            x += 2 * step;
            continue;
        }
        vec w[WIDE];
#pragma GCC unroll 4
        for (int v = 0; v < WIDE; v++) w[v] = *(const vec *)(panel + v * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < m; r++) {
            const float a = *(const float *)(x + r * row);
#pragma GCC unroll 4
            for (int v = 0; v < WIDE; v++) {
#ifdef __AVX512BF16__
                if (kind == DOTS) {
                    s[r][v] = (vec)_mm512_dpbf16_ps((__m512)s[r][v], (__m512bh)_mm512_set1_ps(a), (__m512bh)w[v]);
                    continue;
                }
#endif
                s[r][v] += w[v] * a;
            }
        }
        x += step;
    }
#pragma GCC unroll 8
    for (int r = 0; r < m; r++)
#pragma GCC unroll 4
        for (int v = 0; v < WIDE; v++) *(vec *)(sums + r * PANEL + v * LANES) = s[r][v];
}

#ifdef __AMX_BF16__
#define AMX_ROWS 32 /* two tiles of rows by two of outputs: half a panel each */

static int amx; /* whether the system lets this process use its tiles */

__attribute__((constructor)) static void ask_for_tiles(void) {
    amx = syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) == 0;
}

/* `tile` for at most AMX_ROWS rows of pairs next to each other. */
static void amx_tile(const char *x, long row, const uint32_t *panel, float *sums, long depth, int m) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    const int steps = depth < 16 ? (int)depth : 16, upper = m < 16 ? m : 16, lower = m - upper;
#define SHAPE(t, r, b) (shape.rows[t] = (uint8_t)(r), shape.bytes[t] = (r) ? (uint16_t)(b) : 0)
    SHAPE(0, upper, 64), SHAPE(1, upper, 64), SHAPE(2, lower, 64), SHAPE(3, lower, 64); /* sums */
    SHAPE(4, upper, 4 * steps), SHAPE(5, lower, 4 * steps);                             /* x */
    SHAPE(6, steps, 64), SHAPE(7, steps, 64);                                           /* weights */
#undef SHAPE
    __asm__ volatile("" ::: "memory"); /* what tiles are loaded from has been written; GCC's functions do not say so */
    _tile_loadconfig(&shape);
    const long line = PANEL * 4;
    float *below = sums + 16 * PANEL;
    _tile_loadd(0, sums, line);
    _tile_loadd(1, sums + 16, line);
    if (lower) {
        _tile_loadd(2, below, line);
        _tile_loadd(3, below + 16, line);
    }
    long k = 0;
    for (; k + steps <= depth; k += steps) {
        fetch(panel + k * PANEL + AHEAD, steps * PANEL);
        _tile_loadd(4, x + 4 * k, row);
        _tile_loadd(6, panel + k * PANEL, line);
        _tile_loadd(7, panel + k * PANEL + 16, line);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (!lower) continue;
        _tile_loadd(5, x + 4 * k + 16 * row, row);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, line);
    _tile_stored(1, sums + 16, line);
    if (lower) {
        _tile_stored(2, below, line);
        _tile_stored(3, below + 16, line);
    }
    _tile_release();
    if (k < depth) amx_tile(x + 4 * k, row, panel + k * PANEL, sums, depth - k, m);
}
#endif

/* The same for any number of rows. */
INLINE void tiles(const char *x, long block, long row, long step, const uint32_t *panel, float *sums, long first,
                  long last, long depth, const enum kind kind) {
#ifdef __AMX_BF16__
    if (kind == DOTS && amx && step == 4) {
        for (long r = first, m; r < last; r += m) {
            m = last - r < AMX_ROWS ? last - r : AMX_ROWS;
            amx_tile(x + r / PANEL * block + r % PANEL * row, row, panel, sums + (r - first) * PANEL, depth, (int)m);
        }
        return;
    }
#endif
    for (long r = first, m; r < last; r += m) {
        const char *from = x + r / PANEL * block + r % PANEL * row;
        float *own = sums + (r - first) * PANEL;
        m = last - r < TALL ? last - r : TALL;
#define TILE(m) tile(from, row, step, panel, own, depth, m, kind)
        switch (m) {
        case TALL: TILE(TALL); break;
#if TALL > 6
        case 7: TILE(7); break;
        case 6: TILE(6); break;
#endif
#if TALL > 4
        case 5: TILE(5); break;
        case 4: TILE(4); break;
#endif
        case 3: TILE(3); break;
        case 2: TILE(2); break;
        default: TILE(1);
        }
#undef TILE
    }
}

/* ------------------------------------------------------------------ products */

/* A product out [n, o] = x · weights. */
struct product {
    const char *x;         /* numbers; of the transpose of a gradient PANEL rows of them, those that are being computed */
    long block, row, step; /* bytes from PANEL rows to the next, from row to row and from number (pair of DOTS) to number */
    const void *w;         /* panels; or rows [o, i] or columns [i, o], which are packed on the way */
    enum { PACKED, ROWS, COLUMNS } layout;
    const float *bias;     /* for whole panels, or none */
    void *out;
    long n, i, o;
    int half, half_out, add; /* type of weights and of `out`; `add`: to the float32 that is there */
};

INLINE long steps_of(long i, int half) { return half ? (i + 1) / 2 : i; }

/* What the rows first to last of a panel of outputs begin with. */
INLINE void begin(const struct product *p, long from, long count, long first, long last, float *sums) {
    for (long r = first; r < last; r++, sums += PANEL) {
        if (p->add)
            memcpy(sums, (const float *)p->out + r * p->o + from, (size_t)count * 4);
        else if (p->bias)
            memcpy(sums, p->bias + from, PANEL * 4);
        else
            memset(sums, 0, PANEL * 4);
    }
}

INLINE void finish(const struct product *p, long from, long count, long first, long last, const float *sums) {
    for (long r = first; r < last; r++, sums += PANEL) {
        if (!p->half_out) {
            memcpy((float *)p->out + r * p->o + from, sums, (size_t)count * 4);
            continue;
        }
        uint16_t *to = (uint16_t *)p->out + r * p->o + from;
        if (count == PANEL)
            for (long c = 0; c < PANEL; c++) to[c] = rounded(sums[c]);
        else
            for (long c = 0; c < count; c++) to[c] = rounded(sums[c]);
    }
}

/* The rows first to last, at most MANY, of a panel of outputs. */
static void strip(const struct product *p, long panel, long first, long last) {
    static _Thread_local float sums[MANY * PANEL] __attribute__((aligned(64)));
    static _Thread_local uint32_t room[DEPTH * PANEL] __attribute__((aligned(64)));
    const long from = panel * PANEL, left = p->o - from, count = left < PANEL ? left : PANEL;
    const long steps = steps_of(p->i, p->half), numbers = p->half && !strop_dots() ? 2 : 1; /* of x in a step */
    begin(p, from, count, first, last, sums);
    for (long at = 0; at < steps; at += DEPTH) {
        const long depth = steps - at < DEPTH ? steps - at : DEPTH;
        const uint32_t *weights = room;
        if (p->layout == PACKED)
            weights = (const uint32_t *)p->w + (panel * steps + at) * PANEL;
        else if (p->layout == ROWS)
            pack_rows((const uint32_t *)p->w + from * steps + at, steps, left, depth, room);
        else if (p->half)
            pack_columns((const uint16_t *)p->w + 2 * at * p->o + from, p->o, p->i - 2 * at, left, depth, room, 1);
        else
            pack_columns((const float *)p->w + at * p->o + from, p->o, p->i - at, left, depth, room, 0);
        const char *x = p->x + at * numbers * p->step;
        if (!p->half) tiles(x, p->block, p->row, p->step, weights, sums, first, last, depth, FLOATS);
#ifdef __AVX512BF16__
        else tiles(x, p->block, p->row, p->step, weights, sums, first, last, depth, DOTS);
#else
        else tiles(x, p->block, p->row, p->step, weights, sums, first, last, depth, PAIRS);
#endif
    }
    finish(p, from, count, first, last, sums);
}

static void compute(const struct product *p) {
    const long rows = p->layout == PACKED ? FEW : MANY, panels = (p->o + PANEL - 1) / PANEL;
    const long jobs = panels * ((p->n + rows - 1) / rows);
    PARALLEL(p->n * p->i * p->o > 262144)
    for (long job = 0; job < jobs; job++) {
        const long first = job / panels * rows;
        strip(p, job % panels, first, first + rows < p->n ? first + rows : p->n);
    }
}

static struct product of_rows(const void *x, const void *w, void *out, long n, long i, long o, int half, int half_out) {
    const long size = half && strop_dots() ? 2 : 4, row = i * size;
    return (struct product){.x = x, .block = PANEL * row, .row = row, .step = 4, .w = w, .out = out, .n = n, .i = i,
                            .o = o, .half = half, .half_out = half_out};
}

/* out [n, o] = x [n, i] · weightᵀ + bias (float32, as many as the panels hold, or none). Weights are packed; `half`: they
   are bfloat16, and so is x where `strop_dots`, else float32. Sums are float32, and so is `out` unless `half_out`. */
void strop_multiply(const void *x, const void *packed, const float *bias, void *out, long n, long i, long o, int half,
                    int half_out) {
    struct product p = of_rows(x, packed, out, n, i, o, half, half_out);
    p.bias = bias;
    compute(&p);
}

/* The same of weights w [o, i] as they are; in bfloat16 i is even. */
void strop_linear(const void *x, const void *w, const float *bias, void *out, long n, long i, long o, int half,
                  int half_out) {
    struct product p = of_rows(x, w, out, n, i, o, half, half_out);
    p.layout = ROWS, p.bias = bias;
    compute(&p);
}

/* out [n, i] = g [n, o] · w [o, i]; types as above, in bfloat16 o is even. */
void strop_grad_input(const void *g, const void *w, void *out, long n, long i, long o, int half, int half_out) {
    struct product p = of_rows(g, w, out, n, o, i, half, half_out);
    p.layout = COLUMNS;
    compute(&p);
}

/* out [o, i] = gᵀ · x, or with `add` += (out is float32 then), of g [n, o] and x [n, i], n at most LONGEST, both bfloat16
   where `dots`, else g float32 and x of the type that `half` says; `panels` has room for x as panels
   [ceil(i / PANEL), steps, PANEL], steps being n or, for bfloat16, ceil(n / 2). */
void strop_grad_weight(const void *g, const void *x, uint32_t *panels, void *out, long n, long i, long o, int half,
                       int half_out, int add) {
    const long count = (i + PANEL - 1) / PANEL, steps = steps_of(n, half), size = steps * PANEL;
    const long dots = half && strop_dots(), wide = dots ? steps : half ? 2 * steps : steps; /* numbers of a column of g */
    PARALLEL(n * i > 65536)
    for (long p = 0; p < count; p++) {
        if (half) pack_columns((const uint16_t *)x + p * PANEL, i, n, i - p * PANEL, steps, panels + p * size, 1);
        else pack_columns((const float *)x + p * PANEL, i, n, i - p * PANEL, steps, panels + p * size, 0);
    }
    PARALLEL(n * i * o > 262144)
    for (long first = 0; first < o; first += PANEL) {
        static _Thread_local uint32_t rows[LONGEST * PANEL] __attribute__((aligned(64))); /* of the transpose of g */
        if (dots) turn_columns((const uint16_t *)g + first, o, n, o - first, wide, rows);
        else pack_columns((const float *)g + first, o, n, o - first, wide, rows, 0);
        const struct product p = {.x = (const char *)rows, .row = dots ? 4 * wide : 4, .step = dots ? 4 : PANEL * 4,
                                  .w = panels, .layout = PACKED, .out = out, .n = o, .i = n, .o = i, .half = half,
                                  .half_out = half_out, .add = add};
        for (long c = 0; c < count; c++) strip(&p, c, first, first + PANEL < o ? first + PANEL : o);
    }
}
