/* The costly steps of rules on a CPU. Each sum is taken in one fixed order, so every machine gets the
 * same bits; distances.py and rows.py have the same operations in NumPy. -ffp-contract=off (setup.py) matters: a fused multiply-add
 * would round once where two operations round twice. Called through ctypes.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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
typedef int64_t mask __attribute__((vector_size(64), aligned(8), may_alias));
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

enum { LANES = 16 }; /* columns that are sorted side by side */

static inline __attribute__((always_inline)) void exchange(wide *low, wide *high)
{
    for (int half = 0; half < LANES / WIDE; half++) {
        mask a = (mask)low[half], b = (mask)high[half], below = low[half] < high[half];
        low[half] = (wide)((a & below) | (b & ~below));
        high[half] = (wide)((b & below) | (a & ~below));
    }
}

/* Sort each of LANES columns: Knuth, The Art of Computer Programming 5.2.2, Algorithm M, by Batcher. No branch depends
 * on a value, so all columns take the same steps. */
static inline __attribute__((always_inline)) void sort_columns(double (*x)[LANES], int64_t n)
{
    int64_t top = 1;
    while (top < n) top *= 2;
    for (int64_t p = top / 2; p > 0; p /= 2)
        for (int64_t q = top / 2, r = 0, d = p;; d = q - p, q /= 2, r = p) {
            for (int64_t i = 0; i < n - d; i++)
                if ((i & p) == r) exchange((wide *)x[i], (wide *)x[i + d]);
            if (q == p) break;
        }
}

/* columns first .. last of out[batch][k] = the mean of rows[batch][n][k] without the `dropped` smallest and largest, added
 * in ascending order; gives 0 where something is not a number or too large, and leaves that to the caller */
EXPORT CLONES int64_t cyber0_trimmed(const double *rows, double *out, int64_t batch, int64_t n, int64_t k, int64_t dropped,
                                     int64_t first, int64_t last)
{
    double(*x)[LANES] = malloc((size_t)n * sizeof *x);
    int64_t fine = x != NULL;
    for (int64_t b = 0; fine && b < batch; b++, rows += n * k, out += k)
        for (int64_t start = first; start < last; start += LANES) {
            int64_t width = last - start < LANES ? last - start : LANES;
            double sum[LANES] = {0}, check = 0;
            if (width < LANES) memset(x, 0, (size_t)n * sizeof *x);
            for (int64_t i = 0; i < n; i++) memcpy(x[i], rows + i * k + start, (size_t)width * sizeof(double));
            for (int64_t i = 0; i < n; i++)
                for (int64_t c = 0; c < LANES; c++) fine &= x[i][c] == x[i][c];
            sort_columns(x, n);
            for (int64_t c = 0; c < LANES; c++) sum[c] = x[dropped][c];
            for (int64_t i = dropped + 1; i < n - dropped; i++)
                for (int64_t c = 0; c < LANES; c++) sum[c] += x[i][c];
            for (int64_t c = 0; c < width; c++) {
                out[start + c] = sum[c] / (double)(n - 2 * dropped) + 0.0; /* no zero is negative */
                check += sum[c] * 0.0;                                     /* not a number, if a sum is too large */
            }
            fine &= check == 0;
        }
    free(x);
    return fine;
}
