/* Attention over short prompts: one sample and head of keys at a time, all of it in the caches of a core.
 *
 * Kernels made for long sequences spend most of their time on the way to the products of short ones. Computed in float32,
 * of float32 or of bf16. Multiply-adds fuse here (setup.py): a vote is a measurement, and no weight is written.
 * It is called through ctypes; what computes it is torch's own threads, as in directions/_stream.c.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

#pragma GCC target("arch=x86-64-v3")
#define INLINE static inline __attribute__((always_inline))

enum { LANES = 8, ROWS = 4, TOKENS = 128, WIDTH = 128 }; /* of a vector; of queries at a time; the longest prompt; the widest head */

/* Tensors [samples, heads, tokens, width] by their strides in elements, the last of which is 1. */
typedef struct { const char *data; int64_t sample, head, token; } tensor;

typedef struct {
    tensor query, key, value;
    const uint8_t *mask; /* which keys each query sees, by its strides; NULL: all */
    int64_t mask_sample, mask_token;
    char *out; /* [samples, tokens, heads, width] */
    int64_t samples, groups, heads_of_group, tokens, width;
    float scale;
    int32_t bf16, causal;
    int64_t next;
} problem;

typedef struct { void (*run)(void (*)(void *), void *, unsigned, unsigned); int (*number)(void); unsigned threads; } team;

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES))); /* which may wrap */

INLINE float float_of(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
INLINE uint32_t bits_of(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }
INLINE vec same(float x) { return (vec){0} + x; }
INLINE vec at(const float *x) { vec v; memcpy(&v, x, sizeof v); return v; }
INLINE void put(float *x, vec v) { memcpy(x, &v, sizeof v); }
INLINE vec chosen(ints first, vec a, vec b) { return (vec)(((ints)a & first) | ((ints)b & ~first)); }
INLINE int64_t whole(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

INLINE uint16_t nearest(float x)
{
    uint32_t bits = bits_of(x);
    return x == x ? (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16) : 0x7FC0;
}

INLINE void load(float *restrict to, const tensor *x, int64_t place, int64_t n, int bf16, float scale)
{
    const uint16_t *halves = (const uint16_t *)x->data + place;
    const float *floats = (const float *)x->data + place;
    if (bf16) for (int64_t i = 0; i < n; i++) to[i] = scale * float_of((uint32_t)halves[i] << 16);
    else for (int64_t i = 0; i < n; i++) to[i] = scale * floats[i];
}

/* e**x for x <= 0: zero below -87, and NaN of NaN. After Cephes' expf. */
INLINE vec exponential(vec x)
{
    const vec magic = same(0x1.8p23f); /* adding it rounds to a whole number, in the lowest bits */
    vec rounded = x * 1.44269504f + magic, n = rounded - magic;
    vec r = x - n * 0.693359375f - n * -2.12194440e-4f, y = same(1.9875691500e-4f);
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    words scaled = (words)y + ((words)rounded << 23);
    return (vec)(((ints)scaled & (x > -87.0f)) | ((ints)x & (x != x)));
}

/* out[row] = sum over i < count of a[row][i] times b[i], for ROWS rows and `vectors` vectors of columns. */
INLINE void tile(int vectors, const float *a, int64_t a_stride, const float *b, int64_t b_stride, int64_t count,
                        float *out, int64_t out_stride)
{
    vec sums[ROWS][2] = {0};
    for (int64_t i = 0; i < count; i++)
        for (int v = 0; v < vectors; v++) {
            vec columns = at(b + i * b_stride + v * LANES);
            for (int r = 0; r < ROWS; r++) sums[r][v] += a[r * a_stride + i] * columns;
        }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < vectors; v++) put(out + r * out_stride + v * LANES, sums[r][v]);
}

INLINE void product(const float *a, int64_t a_stride, const float *b, int64_t b_stride, int64_t count, float *out,
                           int64_t out_stride, int64_t columns)
{
    int64_t c = 0;
    for (; c + 2 * LANES <= columns; c += 2 * LANES) tile(2, a, a_stride, b + c, b_stride, count, out + c, out_stride);
    for (; c < columns; c += LANES) tile(1, a, a_stride, b + c, b_stride, count, out + c, out_stride);
}

/* Replace scores by their weights, of which the softmax is each divided by their sum; return that. */
INLINE float weigh(float *scores, int64_t columns)
{
    vec most = at(scores), sum = {0};
    for (int64_t c = LANES; c < columns; c += LANES) {
        vec some = at(scores + c);
        most = chosen(some > most, some, most);
    }
    float largest = most[0], total = 0.0f;
    for (int i = 1; i < LANES; i++) largest = most[i] > largest ? most[i] : largest;
    if (largest == -INFINITY) largest = 0.0f; /* no key is seen: all weights are zero */
    for (int64_t c = 0; c < columns; c += LANES) {
        vec weights = exponential(at(scores + c) - largest);
        put(scores + c, weights);
        sum += weights;
    }
    for (int i = 0; i < LANES; i++) total += sum[i];
    return total;
}

/* Leave out the keys that a query does not see. */
INLINE void hide(float *scores, int64_t columns, const problem *p, int64_t sample, int64_t token)
{
    int64_t seen = p->causal ? token + 1 : p->tokens;
    if (p->mask) {
        const uint8_t *row = p->mask + sample * p->mask_sample + token * p->mask_token;
        for (int64_t c = 0; c < seen; c++) scores[c] = row[c] ? scores[c] : -INFINITY;
    }
    for (int64_t c = seen; c < columns; c++) scores[c] = -INFINITY;
}

/* The heads of a sample that share one head of keys and values. */
static void attend(const problem *p, int64_t sample, int64_t group)
{
    static _Thread_local _Alignas(64) float keys[WIDTH * TOKENS], values[TOKENS * WIDTH]; /* too large for some stacks */
    _Alignas(64) float query[ROWS * WIDTH], scores[ROWS * TOKENS], result[ROWS * WIDTH];
    int64_t tokens = p->tokens, width = p->width, padded = whole(tokens), heads = p->groups * p->heads_of_group;
    const tensor *q = &p->query, *k = &p->key, *v = &p->value;
    for (int64_t t = 0; t < padded; t++) {
        if (t >= tokens) memset(query, 0, width * sizeof(float));
        else load(query, k, sample * k->sample + group * k->head + t * k->token, width, p->bf16, 1.0f);
        for (int64_t d = 0; d < width; d++) keys[d * padded + t] = query[d];
        if (t < tokens)
            load(values + t * width, v, sample * v->sample + group * v->head + t * v->token, width, p->bf16, 1.0f);
    }
    for (int64_t head = group * p->heads_of_group; head < (group + 1) * p->heads_of_group; head++)
        for (int64_t first = 0; first < tokens; first += ROWS) {
            int64_t rows = tokens - first < ROWS ? tokens - first : ROWS;
            int64_t seen = p->causal ? first + rows : tokens, columns = whole(seen);
            float sums[ROWS];
            for (int64_t r = 0; r < ROWS; r++) { /* those beyond the last one are computed, and not read */
                int64_t token = first + (r < rows ? r : 0);
                load(query + r * width, q, sample * q->sample + head * q->head + token * q->token, width, p->bf16, p->scale);
            }
            product(query, width, keys, padded, width, scores, columns, columns);
            for (int64_t r = 0; r < rows; r++) {
                hide(scores + r * columns, columns, p, sample, first + r);
                sums[r] = weigh(scores + r * columns, columns);
            }
            product(scores, columns, values, width, seen, result, width, width);
            for (int64_t r = 0; r < rows; r++) {
                float *from = result + r * width, share = sums[r] == 0.0f ? 0.0f : 1.0f / sums[r];
                int64_t place = ((sample * tokens + first + r) * heads + head) * width;
                if (p->bf16) for (int64_t d = 0; d < width; d++) ((uint16_t *)p->out)[place + d] = nearest(from[d] * share);
                else for (int64_t d = 0; d < width; d++) ((float *)p->out)[place + d] = from[d] * share;
            }
        }
}

static void take_groups(void *given)
{
    problem *all = given;
    int64_t number;
    while ((number = __atomic_fetch_add(&all->next, 1, __ATOMIC_RELAXED)) < all->samples * all->groups)
        attend(all, number / all->groups, number % all->groups);
}

/* Attend by a team, if there is one. */
EXPORT void cyber0_attention(const team *by, problem *all)
{
    all->next = 0;
    if (by) by->run(take_groups, all, by->threads, 0);
    else take_groups(all);
}

EXPORT int cyber0_attention_runs(void) { return __builtin_cpu_supports("x86-64-v3") != 0; }

#else /* processors and compilers that it was not tried with */
EXPORT void cyber0_attention(const void *by, void *all) { (void)by, (void)all; }
EXPORT int cyber0_attention_runs(void) { return 0; }
#endif
