/* The two costly steps of distance-based rules on a CPU. Each sum is taken in one fixed order, so every machine gets the
 * same bits; distances.py has the same operations in NumPy. -ffp-contract=off (setup.py) matters: a fused multiply-add
 * would round once where two operations round twice. Called through ctypes.
 */
#include <stdint.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif
#if defined(__x86_64__) && defined(__GLIBC__) && __GNUC__ >= 12 && !defined(__clang__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

typedef double wide __attribute__((vector_size(64), aligned(8), may_alias)); /* eight sums in a register */
enum { WIDE = 8, ACROSS = 2 * WIDE, ALONG = 4 * WIDE };

/* out[batch][n][n] = the squared distances, summed over columns[batch][k][n] in order; n is a multiple of ACROSS */
EXPORT CLONES void cyber0_distances(const double *columns, double *out, int64_t batch, int64_t n, int64_t k)
{
    for (int64_t b = 0; b < batch; b++, columns += k * n, out += n * n) {
        for (int64_t i = 0; i < n; i += 2)
            for (int64_t j = 0; j <= i; j += ACROSS) {
                wide *above = (wide *)(out + i * n + j), *below = (wide *)(out + (i + 1) * n + j);
                wide s = {0}, t = {0}, u = {0}, v = {0};
                for (const double *column = columns; column < columns + k * n; column += n) {
                    const wide *other = (const wide *)(column + j);
                    wide d = column[i] - other[0], e = column[i] - other[1];
                    wide f = column[i + 1] - other[0], g = column[i + 1] - other[1];
                    s += d * d, t += e * e, u += f * f, v += g * g;
                }
                above[0] = s, above[1] = t, below[0] = u, below[1] = v;
            }
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < i; j++) out[j * n + i] = out[i * n + j];
    }
}

static inline __attribute__((always_inline)) void mix_columns(const double *weights, const double *rows, const int64_t *order,
                                                              double *out, int64_t m, int64_t n, int64_t k)
{
    for (int64_t i = 0; i < m; i += 2) {
        int64_t pair = i + 1 < m; /* the last row of an odd number is its own partner */
        const double *first = weights + i * n, *second = first + pair * n;
        wide *above = (wide *)(out + i * k), *below = (wide *)(out + (i + pair) * k);
        wide p = {0}, q = {0}, r = {0}, s = {0}, t = {0}, u = {0}, v = {0}, w = {0};
        for (int64_t j = 0; j < n; j++) {
            const wide *row = (const wide *)(rows + order[j] * k);
            double x = first[order[j]], y = second[order[j]];
            p += x * row[0], q += x * row[1], r += x * row[2], s += x * row[3];
            t += y * row[0], u += y * row[1], v += y * row[2], w += y * row[3];
        }
        above[0] = p, above[1] = q, above[2] = r, above[3] = s;
        below[0] = t, below[1] = u, below[2] = v, below[3] = w;
    }
}

/* columns first .. last of out[batch][m][k] = weights[batch][m][n] times rows[batch][n][k], added in order[batch][n] */
EXPORT CLONES void cyber0_mix(const double *weights, const double *rows, const int64_t *order, double *out, int64_t batch,
                              int64_t m, int64_t n, int64_t k, int64_t first, int64_t last)
{
    for (int64_t b = 0; b < batch; b++, weights += m * n, rows += n * k, order += n, out += m * k) {
        int64_t c = first;
        for (; c + ALONG <= last; c += ALONG) mix_columns(weights, rows + c, order, out + c, m, n, k);
        for (; c < last; c++)
            for (int64_t i = 0; i < m; i++) {
                double sum = 0;
                for (int64_t j = 0; j < n; j++) sum += weights[i * n + order[j]] * rows[order[j] * k + c];
                out[i * k + c] = sum;
            }
    }
}
