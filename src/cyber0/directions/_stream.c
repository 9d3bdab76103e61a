/* The direction stream on a CPU: the operations of stream.py, in the same order, a chunk in the first-level cache at a
 * time. docs/stream.md specifies it.
 *
 * Flags that matter (setup.py): -ffp-contract=off, since fused multiply-adds would give other bits; -fno-math-errno and
 * -fno-trapping-math, since otherwise the square root cannot be vectorised, which makes it seven times slower;
 * -fno-wrapv, since Python builds ask for the opposite.
 * It is called through ctypes, which releases the interpreter's lock; the caller starts the threads, or names a team of
 * them that is there already.
 */
#include <fenv.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif
#if defined(__x86_64__) && defined(__GLIBC__) && __GNUC__ >= 12 && !defined(__clang__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"))) /* the best one is picked when loaded */
#define MULTIPLIES /* 32 x 32 -> 64 bits by its own instruction, which no compiler finds by itself */
#include <immintrin.h>
#else
#define CLONES
#endif

enum { CHUNK = 2048, BITS_PER_BLOCK = 128 };
enum { COLUMNS = CHUNK / 4 + 2 * BITS_PER_BLOCK / 4 }; /* blocks of a chunk whose ends lie inside blocks, and some */
enum { ROUNDING = 0x524E4452 };

typedef struct { uint32_t k0, k1, t, l, r, bits; float unit, coefficient; } direction; /* key.PACKED */

static inline float float_of(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline uint32_t bits_of(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }

#include "_philox.h"

/* sqrt(-2 log((k + 1) / 2**24)) of the upper 24 bits k, as in stream.py; powers of two are folded, which is exact. */
static inline float radius_of(uint32_t a)
{
    /* u's bits, less the exponent of 1, so that mantissas from sqrt(1/2) to sqrt(2) share an exponent */
    int32_t bits = (int32_t)bits_of((float)((int32_t)(a >> 8) + 1)) + (0x004AFB0D - (24 << 23) - (127 << 23));
    float e = (float)(bits >> 23), x = float_of((uint32_t)(bits & 0x007FFFFF) + 0x3F3504F3u) - 1.0f, z = x * x;
    float twice = x + x, y = 7.0376836292e-2f * x + -1.1514610310e-1f;
    y = y * x + 1.1676998740e-1f;
    y = y * x + -1.2420140846e-1f;
    y = y * x + 1.4249322787e-1f;
    y = y * x + -1.6668057665e-1f;
    y = y * x + 2.0000714765e-1f;
    y = y * x + -2.4999993993e-1f;
    y = y * x + 3.3333331174e-1f;
    y = y * twice * z;
    y = y + e * (2 * -2.12194440e-4f);
    y = y - z;
    return sqrtf(-((twice + y) + e * (2 * 0.693359375f)));
}

/* As in stream.py; octants and signs by bits. */
static inline void box_muller(uint32_t a, uint32_t b, float *restrict cosine, float *restrict sine)
{
    float radius = radius_of(a);
    int32_t k = (int32_t)((b << 3) >> 8);
    float t = (float)(b & 0x20000000u ? 0x1000000 - k : k) * (0.78539816339744831f * 0x1p-24f), z = t * t;
    float s = ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * t + t;
    float c = ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z - 0.5f * z + 1.0f;
    uint32_t flips = b ^ (b << 1), swap = flips & 0x40000000u;
    *cosine = radius * float_of(bits_of(swap ? s : c) ^ (flips & 0x80000000u));
    *sine = radius * float_of(bits_of(swap ? c : s) ^ (b & 0x80000000u));
}

CLONES static void normals(float *restrict z, words w, int count)
{
    const uint32_t *restrict w0 = w[0], *restrict w1 = w[1], *restrict w2 = w[2], *restrict w3 = w[3];
    for (int64_t i = 0; i < count; i++) {
        box_muller(w0[i], w1[i], z + 4 * i, z + 4 * i + 1);
        box_muller(w2[i], w3[i], z + 4 * i + 2, z + 4 * i + 3);
    }
}

static void gaussian_blocks(float *restrict z, uint64_t first, int count, const direction *restrict d)
{
    words w;
    words_of(w, first, 1, count, d);
    normals(z, w, count);
}

CLONES static void signs(float *restrict z, words w, int count)
{
    for (int64_t i = 0; i < count; i++)
        for (int j = 0; j < 4; j++)
            for (int bit = 0; bit < 32; bit++)
                z[128 * i + 32 * j + bit] = float_of(0xBF800000u ^ (w[j][i] >> bit) << 31);
}

static void rademacher_blocks(float *restrict z, uint64_t first, int count, const direction *restrict d)
{
    words w;
    words_of(w, first, 1, count, d);
    signs(z, w, count);
}

CLONES static void scale(float *restrict z, int n, float factor)
{
    for (int64_t i = 0; i < n; i++) z[i] = z[i] * factor;
}

/* Room for a chunk whose ends lie inside blocks. */
typedef struct { float z[CHUNK + 2 * BITS_PER_BLOCK]; } scratch;

/* Whole blocks first .. last of a direction. */
static void generate_blocks(float *z, uint64_t first, uint64_t last, const direction *d)
{
    uint64_t lanes = d->bits ? BITS_PER_BLOCK : 4, wrap = (first | 0xFFFFFFFFu) + 1, middle = last < wrap ? last : wrap;
    void (*blocks)(float *restrict, uint64_t, int, const direction *restrict) = d->bits ? rademacher_blocks : gaussian_blocks;
    blocks(z, first, (int)(middle - first), d);
    if (middle < last) blocks(z + (middle - first) * lanes, middle, (int)(last - middle), d);
    if (d->unit != 1.0f) scale(z, (int)((last - first) * lanes), d->unit);
}

/* Coordinates start .. start + n (n <= CHUNK) of a direction; returns where in the scratch the first one is. */
static float *generate(scratch *s, uint64_t start, int n, const direction *d)
{
    uint64_t lanes = d->bits ? BITS_PER_BLOCK : 4, first = start / lanes;
    generate_blocks(s->z, first, (start + n + lanes - 1) / lanes, d);
    return s->z + (start - first * lanes);
}

static inline uint16_t nearest(float x)
{
    uint32_t bits = bits_of(x);
    return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16);
}

CLONES static const float *load(const void *weights, int bf16, int64_t offset, int n, float *restrict room)
{
    if (!bf16) return (const float *)weights + offset;
    const uint16_t *w = (const uint16_t *)weights + offset;
    for (int64_t i = 0; i < n; i++) room[i] = float_of((uint32_t)w[i] << 16);
    return room;
}

/* What `add` does, of bf16 to both signs in bf16. */
CLONES static void add_bf16(const uint16_t *w, const float *restrict z, float c, int n, uint16_t *plus,
                            uint16_t *restrict minus)
{
    for (int64_t i = 0; i < n; i++) {
        float x = float_of((uint32_t)w[i] << 16), step = c * z[i];
        minus[i] = nearest(x - step);
        plus[i] = nearest(x + step);
    }
}

/* plus = w + c z and, unless it is NULL, minus = w - c z, as float32 or rounded to the nearest bf16. In place is allowed:
 * plus may be w. */
CLONES static void add(const float *w, const float *restrict z, float c, int n, void *plus, void *minus, int bf16)
{
    float *plus32 = plus, *minus32 = minus;
    uint16_t *plus16 = plus, *minus16 = minus;
    if (bf16 && minus)
        for (int64_t i = 0; i < n; i++) {
            float x = w[i], step = c * z[i];
            minus16[i] = nearest(x - step);
            plus16[i] = nearest(x + step);
        }
    else if (bf16)
        for (int64_t i = 0; i < n; i++) plus16[i] = nearest(w[i] + c * z[i]);
    else if (minus)
        for (int64_t i = 0; i < n; i++) {
            float x = w[i], step = c * z[i];
            minus32[i] = x - step;
            plus32[i] = x + step;
        }
    else
        for (int64_t i = 0; i < n; i++) plus32[i] = w[i] + c * z[i];
}

CLONES static void accumulate(float *restrict u, const float *restrict z, float coefficient, int n)
{
    for (int64_t i = 0; i < n; i++) u[i] = u[i] + coefficient * z[i];
}

/* out = w - (u + c z), or u + c z where w is NULL. In place is allowed: out may be w. */
CLONES static void subtract_last(const float *w, const float *restrict u, const float *restrict z, float c, int n,
                                 float *out)
{
    if (w)
        for (int64_t i = 0; i < n; i++) out[i] = w[i] - (u[i] + c * z[i]);
    else
        for (int64_t i = 0; i < n; i++) out[i] = u[i] + c * z[i];
}

CLONES static void subtract(const float *restrict w, float *restrict u, int n)
{
    for (int64_t i = 0; i < n; i++) u[i] = w[i] - u[i];
}

CLONES static void subtract_from(float *restrict w, const float *restrict u, int n)
{
    for (int64_t i = 0; i < n; i++) w[i] = w[i] - u[i];
}

/* To bf16 by stochastic rounding: 16 random bits are added below the ones that stay; the lower half becomes zero. */
static inline float rounded(float x, uint32_t half) { return float_of((bits_of(x) + half) & 0xFFFF0000u); }

static void rounding_words(words w, uint64_t first, int count, const direction *restrict d)
{
    direction rounding = {d->k0, d->k1 ^ ROUNDING, d->t, 0, 0, 0, 0, 0};
    words_of(w, first, 1, count, &rounding);
}

CLONES static void in_order(words w, uint32_t *restrict out, int count)
{
    for (int64_t i = 0; i < count; i++)
        for (int j = 0; j < 4; j++) out[4 * i + j] = w[j][i];
}

/* Random bits of coordinates start .. start + n (n <= CHUNK); returns where in `room` those of the first one are. Those of
 * an even coordinate are the lower half of a word, those of the next one the upper half, as they lie in memory. */
typedef struct { uint16_t halves[CHUNK + 16]; } rounding_room;

static const uint16_t *rounding_bits(rounding_room *room, uint64_t start, int n, const direction *restrict d)
{
    words w;
    uint32_t ordered[4 * COLUMNS];
    uint64_t first = start / 8, last = (start + n + 7) / 8, wrap = (first | 0xFFFFFFFFu) + 1;
    int count = (int)(last - first), before_wrap = last < wrap ? count : (int)(wrap - first);
    rounding_words(w, first, before_wrap, d);
    in_order(w, ordered, before_wrap);
    if (before_wrap < count) {
        rounding_words(w, wrap, count - before_wrap, d);
        in_order(w, ordered + 4 * before_wrap, count - before_wrap);
    }
    memcpy(room->halves, ordered, 16 * count);
    return room->halves + (start - 8 * first);
}

CLONES static void round_all(float *restrict x, const uint16_t *restrict halves, int n)
{
    for (int64_t i = 0; i < n; i++) x[i] = rounded(x[i], halves[i]);
}

CLONES static void round_to(uint16_t *restrict out, const float *restrict x, const uint16_t *restrict halves, int n)
{
    for (int64_t i = 0; i < n; i++) out[i] = (uint16_t)((bits_of(x[i]) + halves[i]) >> 16);
}

CLONES static void upper_halves(const float *restrict x, int n, uint16_t *restrict out)
{
    for (int64_t i = 0; i < n; i++) out[i] = (uint16_t)(bits_of(x[i]) >> 16);
}

/* out = w - (u + c z), rounded, of bf16. In place is allowed: out may be w. */
CLONES static void subtract_rounded(const uint16_t *w, const float *restrict u, const float *restrict z, float c,
                                    const uint16_t *restrict halves, int n, uint16_t *out)
{
    for (int64_t i = 0; i < n; i++) {
        float x = float_of((uint32_t)w[i] << 16) - (u[i] + c * z[i]);
        out[i] = (uint16_t)((bits_of(x) + halves[i]) >> 16);
    }
}

CLONES static int64_t squared(const float *restrict z, int n)
{
    int64_t total = 0;
    for (int64_t i = 0; i < n; i++) total += (int32_t)(z[i] * z[i] * 0x1p20f); /* z * z < 34 */
    return total;
}

static inline int at_most_chunk(int64_t left) { return left < CHUNK ? (int)left : CHUNK; }

EXPORT void cyber0_fill(float *out, int64_t size, uint64_t start, const direction *d)
{
    scratch s;
    uint64_t lanes = d->bits ? BITS_PER_BLOCK : 4;
    for (int64_t i = 0; i < size; i += CHUNK) {
        int n = at_most_chunk(size - i);
        if ((start + i) % lanes == 0 && n % lanes == 0)
            generate_blocks(out + i, (start + i) / lanes, (start + i + n) / lanes, d);
        else
            memcpy(out + i, generate(&s, start + i, n, d), n * sizeof(float));
    }
}

EXPORT int64_t cyber0_squared_length(int64_t size, uint64_t start, const direction *d)
{
    scratch s;
    int64_t total = 0;
    for (int64_t i = 0; i < size; i += CHUNK) {
        int n = at_most_chunk(size - i);
        total += squared(generate(&s, start + i, n, d), n);
    }
    return total;
}

/* Round to nearest and keep subnormal numbers, whatever the process has asked its processor for. Asking takes as long as
 * half a chunk: so it is done around whole loops. */
#define EXACTLY(...) do { fenv_t found; fegetenv(&found); fesetenv(FE_DFL_ENV); __VA_ARGS__ fesetenv(&found); } while (0)

/* Copy to memory without taking its lines into the caches; both are multiples of 16 bytes, and so is the size. */
static void pour(void *to, const void *from, int64_t size)
{
#if defined(__x86_64__)
    for (int64_t i = 0; i < size; i += 16)
        _mm_stream_si128((__m128i *)((char *)to + i), _mm_load_si128((const __m128i *)((const char *)from + i)));
#else
    memcpy(to, from, size);
#endif
}

static void move(const void *weights, int weights16, void *plus, void *minus, int out16, int64_t size, uint64_t start,
                 const direction *d, int past_caches)
{
    scratch s;
    float room[CHUNK];
    _Alignas(64) float up[CHUNK], down[CHUNK];
    int64_t width = out16 ? 2 : 4;
    for (int64_t i = 0; i < size; i += CHUNK) {
        int n = at_most_chunk(size - i);
        const float *z = generate(&s, start + i, n, d);
        char *first = (char *)plus + i * width, *second = minus ? (char *)minus + i * width : NULL;
        int pours = past_caches && n == CHUNK && ((uintptr_t)first | (uintptr_t)second) % 64 == 0;
        void *to = pours ? (void *)up : first, *also = pours ? (void *)down : second;
        if (weights16 && out16 && minus) add_bf16((const uint16_t *)weights + i, z, d->coefficient, n, to, also);
        else add(load(weights, weights16, i, n, room), z, d->coefficient, n, to, also, out16);
        if (pours) pour(first, up, n * width);
        if (pours) pour(second, down, n * width);
    }
#if defined(__x86_64__)
    if (past_caches) _mm_sfence(); /* before another thread reads it */
#endif
}

EXPORT void cyber0_move(const void *weights, int weights16, void *plus, void *minus, int out16, int64_t size,
                        uint64_t start, const direction *d)
{
    EXACTLY(move(weights, weights16, plus, minus, out16, size, start, d, 0););
}

/* The same of some rows of a matrix that begins at coordinate `start`: row rows[i] goes to row i of plus and minus. */
EXPORT void cyber0_move_rows(const void *weights, int weights16, const int64_t *rows, int64_t count, int64_t width,
                             void *plus, void *minus, int out16, uint64_t start, const direction *d)
{
    EXACTLY(
        for (int64_t i = 0; i < count; i++) {
            const char *row = (const char *)weights + rows[i] * width * (weights16 ? 2 : 4);
            int64_t to = i * width * (out16 ? 2 : 4);
            move(row, weights16, (char *)plus + to, (char *)minus + to, out16, width, start + rows[i] * width, d, 0);
        }
    );
}

static void descend(const void *weights, int weights16, void *out, int out16, int64_t size, uint64_t start,
                    const direction *directions, int64_t count)
{
    scratch s;
    rounding_room bits;
    float room[CHUNK], u[CHUNK] = {0};
    const direction *last = directions + count - 1;
    for (int64_t i = 0; i < size; i += CHUNK) {
        int n = at_most_chunk(size - i);
        if (count > 1) memset(u, 0, sizeof u);
        for (const direction *d = directions; d < last; d++)
            accumulate(u, generate(&s, start + i, n, d), d->coefficient, n);
        const float *z = generate(&s, start + i, n, last);
        const uint16_t *halves = out16 ? rounding_bits(&bits, start + i, n, directions) : NULL;
        if (out16 && weights && weights16) {
            subtract_rounded((const uint16_t *)weights + i, u, z, last->coefficient, halves, n, (uint16_t *)out + i);
            continue;
        }
        const float *w = weights ? load(weights, weights16, i, n, room) : NULL;
        float *result = out16 ? room : (float *)out + i;
        subtract_last(w, u, z, last->coefficient, n, result);
        if (out16) round_to((uint16_t *)out + i, result, halves, n);
    }
}

EXPORT void cyber0_descend(const void *weights, int weights16, void *out, int out16, int64_t size, uint64_t start,
                           const direction *directions, int64_t count)
{
    EXACTLY(descend(weights, weights16, out, out16, size, start, directions, count););
}

/* Threads that are there already: OpenMP's GOMP_parallel, and omp_get_thread_num. */
typedef struct { void (*run)(void (*)(void *), void *, unsigned, unsigned); int (*number)(void); unsigned threads; } team;

/* A range of coordinates in parts, for the threads of a team. */
typedef struct {
    const char *weights; int weights16; char *plus, *minus; int out16; int64_t size; uint64_t start;
    const direction *directions; int64_t count, step, parts; char *taken; int (*number)(void); int past_caches;
} shared;

#if defined(_MSC_VER) /* where nobody has such a team */
#define __atomic_fetch_add(at, step, order) ((*(at) += (step)) - (step))
#define __atomic_exchange_n(at, value, order) (*(at) ? 1 : (*(at) = (value), 0))
#endif

/* A thread begins with the part of its own number: of a product, the same thread reads and writes the same part of a
 * matrix, mostly, and no core waits for what lies in the cache of another. Then it takes what others have not begun. */
static void take_parts(void *given)
{
    shared *all = given;
    int64_t in = all->weights16 ? 2 : 4, out = all->out16 ? 2 : 4, own = all->number();
    for (int64_t i = 0; i < all->parts; i++) {
        int64_t part = (own + i) % all->parts, first = part * all->step;
        if (__atomic_exchange_n(all->taken + part, 1, __ATOMIC_RELAXED)) continue;
        int64_t n = all->size - first < all->step ? all->size - first : all->step;
        const char *w = all->weights ? all->weights + first * in : NULL;
        char *plus = all->plus + first * out, *minus = all->minus ? all->minus + first * out : NULL;
        if (all->count) cyber0_descend(w, all->weights16, plus, all->out16, n, all->start + first, all->directions, all->count);
        else EXACTLY(move(w, all->weights16, plus, minus, all->out16, n, all->start + first, all->directions, all->past_caches););
    }
}

/* `cyber0_descend`, or `cyber0_move` where count is 0, by a team, in parts of `step` coordinates; `taken` is zero for each. */
EXPORT void cyber0_share(const team *by, int past_caches, int64_t step, char *taken, const void *weights, int weights16, void *plus,
                         void *minus, int out16, int64_t size, uint64_t start, const direction *directions, int64_t count)
{
    shared all = {weights, weights16, plus, minus, out16, size, start, directions, count, step, (size + step - 1) / step,
                  taken, by->number, past_caches};
    by->run(take_parts, &all, by->threads, 0);
}

#include "_replay.h"

/* A sphere direction that is short enough to stay in the cache until its length is known: so it is generated once.
 * Returns the factor that scales it. */
static float fill_sphere(float *out, int64_t dimension, const direction *d)
{
    cyber0_fill(out, dimension, 0, d);
    int64_t total = squared(out, (int)dimension);
    float unit = (float)(1.0 / sqrt((double)(total > 1 ? total : 1) / 0x1p20));
    scale(out, (int)dimension, unit);
    return unit;
}

/* Rows of which each thread of a team takes the next until none is left. */
typedef struct { float *out, *units; int64_t dimension; const direction *directions; int64_t count, next; } sphere_rows;

static void take_spheres(void *given)
{
    sphere_rows *all = given;
    int64_t row;
    EXACTLY(
        while ((row = __atomic_fetch_add(&all->next, 1, __ATOMIC_RELAXED)) < all->count)
            all->units[row] = fill_sphere(all->out + row * all->dimension, all->dimension, all->directions + row);
    );
}

/* Whole sphere directions as the rows of `out`, and what scales each; by a team, if there is one. */
EXPORT void cyber0_spheres(const team *by, float *out, float *units, int64_t dimension, const direction *directions,
                           int64_t count)
{
    sphere_rows all = {out, units, dimension, directions, count, 0};
    if (by) by->run(take_spheres, &all, by->threads, 0);
    else take_spheres(&all);
}

/* The updates of commits of sphere directions that are short enough to be kept, in `room`, until their length is known:
 * so each is generated once. */
EXPORT void cyber0_updates(float *updates, int64_t dimension, const direction *directions, int64_t commits,
                           int64_t width, float *room)
{
    int n = (int)dimension;
    for (int64_t commit = 0; commit < commits; commit++) {
        float *u = updates + commit * dimension;
        memset(u, 0, dimension * sizeof(float));
        for (const direction *d = directions + commit * width; d < directions + (commit + 1) * width; d++) {
            EXACTLY(
                fill_sphere(room, dimension, d);
                accumulate(u, room, d->coefficient, n);
            );
        }
    }
}

/* Weights that are part of the model, from coordinate `start` on, less each of the updates in turn. */
EXPORT void cyber0_subtract(void *weights, int bf16, int64_t size, uint64_t start, const float *updates,
                            int64_t dimension, const direction *directions, int64_t commits, int64_t width)
{
    rounding_room bits;
    float room[CHUNK], u[CHUNK];
    for (int64_t i = 0; i < size; i += CHUNK) {
        int n = at_most_chunk(size - i);
        for (int64_t commit = 0; commit < commits; commit++) {
            memcpy(u, updates + commit * dimension + start + i, n * sizeof(float));
            EXACTLY(subtract(load(weights, bf16, i, n, room), u, n););
            if (bf16) round_to((uint16_t *)weights + i, u, rounding_bits(&bits, start + i, n, directions + commit * width), n);
            else memcpy((float *)weights + i, u, n * sizeof(float));
        }
    }
}

CLONES static uint64_t mixed(const float *x, uint64_t start, int n)
{
    uint64_t total = 0;
    for (int64_t i = 0; i < n; i++) {
        uint64_t h = (start + i) * 0x9E3779B97F4A7C15u + bits_of(x[i]);
        h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9u;
        h = (h ^ (h >> 27)) * 0x94D049BB133111EBu;
        total += h ^ (h >> 31);
    }
    return total;
}

EXPORT uint64_t cyber0_fingerprint(const void *weights, int weights16, int64_t size, uint64_t start)
{
    float room[CHUNK];
    uint64_t total = 0;
    for (int64_t i = 0; i < size; i += CHUNK) {
        int n = at_most_chunk(size - i);
        total += mixed(load(weights, weights16, i, n, room), start + i, n);
    }
    return total;
}
