/* Many commits in one pass over the weights. Part of _stream.c.
 *
 * Many commits of `width` directions each pass over a tile of weights that stays in the first-level cache. A tile
 * consists of whole blocks of every family, and does not cross a multiple of CHUNK, so that block numbers do not wrap
 * inside it. */
enum { PLANE = CHUNK / 8 };

typedef float planes[8][PLANE]; /* coordinate 8 i + h is [h][i]: vectors of words become vectors of weights */

CLONES static void add_normals(float *restrict u, float *restrict v, const uint32_t *restrict a,
                               const uint32_t *restrict b, int n, const direction *restrict d)
{
    const float unit = d->unit, coefficient = d->coefficient;
    for (int64_t i = 0; i < n; i++) {
        float cosine, sine;
        box_muller(a[i], b[i], &cosine, &sine);
        u[i] = u[i] + coefficient * (cosine * unit);
        v[i] = v[i] + coefficient * (sine * unit);
    }
}

/* A commit of one direction, without a sum of its own. */
CLONES static void subtract_normals(float *restrict x, float *restrict y, const uint32_t *restrict a,
                                    const uint32_t *restrict b, int n, const direction *restrict d)
{
    const float unit = d->unit, coefficient = d->coefficient;
    for (int64_t i = 0; i < n; i++) {
        float cosine, sine;
        box_muller(a[i], b[i], &cosine, &sine);
        x[i] = x[i] - (0.0f + coefficient * (cosine * unit));
        y[i] = y[i] - (0.0f + coefficient * (sine * unit));
    }
}

static void each_gaussian(planes x, uint64_t first, int n, const direction *d, int subtracts)
{
    words w;
    for (int odd = 0; odd < 2; odd++) {
        words_of(w, first + odd, 2, n, d);
        for (int j = 0; j < 4; j += 2)
            (subtracts ? subtract_normals : add_normals)(x[4 * odd + j], x[4 * odd + j + 1], w[j], w[j + 1], n, d);
    }
}

CLONES static void subtract_planes(planes x, planes u, int n)
{
    for (int h = 0; h < 8; h++)
        for (int64_t i = 0; i < n; i++) x[h][i] = x[h][i] - u[h][i];
}

CLONES static void round_planes(planes x, words w, int n)
{
    for (int j = 0; j < 4; j++)
        for (int64_t i = 0; i < n; i++) {
            x[2 * j][i] = rounded(x[2 * j][i], w[j][i] & 0xFFFFu);
            x[2 * j + 1][i] = rounded(x[2 * j + 1][i], w[j][i] >> 16);
        }
}

static void fold_gaussian(float *tile, int n, uint64_t base, int bf16, const direction *d, int64_t commits, int64_t width)
{
    planes x, u;
    words w;
    for (int i = 0; i < n; i++) x[i % 8][i / 8] = tile[i];
    for (int64_t commit = 0; commit < commits; commit++, d += width) {
        if (width == 1) each_gaussian(x, base / 4, n / 8, d, 1);
        else {
            memset(u, 0, sizeof u);
            for (int64_t i = 0; i < width; i++) each_gaussian(u, base / 4, n / 8, d + i, 0);
            subtract_planes(x, u, n / 8);
        }
        if (!bf16) continue;
        rounding_words(w, base / 8, n / 8, d);
        round_planes(x, w, n / 8);
    }
    for (int i = 0; i < n; i++) tile[i] = x[i % 8][i / 8];
}

/* x + c where a bit is set, x - c where it is not. */
CLONES static void add_signs(float *restrict x, words w, int count, float c)
{
    uint32_t minus = bits_of(-c);
    for (int64_t i = 0; i < count; i++)
        for (int j = 0; j < 4; j++)
            for (int bit = 0; bit < 32; bit++)
                x[128 * i + 32 * j + bit] += float_of(minus ^ (w[j][i] << (31 - bit) & 0x80000000u));
}

static void fold_signs(float *x, int n, uint64_t base, int bf16, const direction *d, int64_t commits, int64_t width)
{
    words w;
    rounding_room bits;
    float u[CHUNK];
    for (int64_t commit = 0; commit < commits; commit++, d += width) {
        if (width == 1 && d->coefficient * d->unit == 0.0f) continue; /* 0 + c z is +0 then, whatever the sign */
        if (width > 1) memset(u, 0, sizeof u);
        for (int64_t i = 0; i < width; i++) {
            float c = d[i].coefficient * d[i].unit;
            words_of(w, base / BITS_PER_BLOCK, 1, n / BITS_PER_BLOCK, d + i);
            add_signs(width > 1 ? u : x, w, n / BITS_PER_BLOCK, width > 1 ? c : -c);
        }
        if (width > 1) subtract_from(x, u, n);
        if (!bf16) continue;
        round_all(x, rounding_bits(&bits, base, n, d), n);
    }
}

EXPORT void cyber0_fold(void *weights, int bf16, int64_t size, uint64_t start, const direction *directions,
                        int64_t commits, int64_t width)
{
    float tile[CHUNK];
    for (int64_t i = 0; i < size;) {
        uint64_t first = start + i, base = first / BITS_PER_BLOCK * BITS_PER_BLOCK, end = (first / CHUNK + 1) * CHUNK;
        int before = (int)(first - base), n = (int)((int64_t)(end - first) < size - i ? (int64_t)(end - first) : size - i);
        int whole = (before + n + BITS_PER_BLOCK - 1) / BITS_PER_BLOCK * BITS_PER_BLOCK;
        memset(tile, 0, sizeof tile);
        const float *w = load(weights, bf16, i, n, tile + before);
        if (!bf16) memcpy(tile + before, w, n * sizeof(float));
        EXACTLY(
            if (directions->bits) fold_signs(tile, whole, base, bf16, directions, commits, width);
            else fold_gaussian(tile, whole, base, bf16, directions, commits, width);
        );
        if (bf16) upper_halves(tile + before, n, (uint16_t *)weights + i);
        else memcpy((float *)weights + i, tile + before, n * sizeof(float));
        i += n;
    }
}
