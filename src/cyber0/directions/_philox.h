/* Random words of many blocks at a time: Philox4x32-10 (Salmon et al., 2011). Part of _stream.c. */

static inline void philox(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
        c[0] = (uint32_t)(p1 >> 32) ^ c[1] ^ k0;
        c[2] = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[1] = (uint32_t)p1;
        c[3] = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

typedef uint32_t words[4][COLUMNS]; /* word j of block i is [j][i] */

/* Words of blocks first, first + step, ... of a direction: `count` of them, rounded up to whole vectors. The low word of
 * the block number must not wrap inside them. */
#define BLOCK(i) ((uint32_t)first + step * (uint32_t)(i))

CLONES static void words_anywhere(words w, uint64_t first, uint32_t step, int count, const direction *restrict d)
{
    uint32_t *restrict w0 = w[0], *restrict w1 = w[1], *restrict w2 = w[2], *restrict w3 = w[3];
    const uint32_t k0 = d->k0, k1 = d->k1, c1 = d->r | (uint32_t)(first >> 32) << 16, c2 = d->l, c3 = d->t;
    for (int64_t i = 0; i < count; i++) {
        uint32_t c[4] = {BLOCK(i), c1, c2, c3};
        philox(c, k0, k1);
        w0[i] = c[0], w1[i] = c[1], w2[i] = c[2], w3[i] = c[3];
    }
}

#ifdef MULTIPLIES
/* The same with a block in the lower half of each 64-bit lane, where the product reads it: even blocks in a, odd in b. */
#define WORDS(name, arch, bytes, product)                                                                              \
    __attribute__((target("arch=" arch))) static void name(words w, uint64_t first, uint32_t step, int count,          \
                                                           const direction *restrict d)                               \
    {                                                                                                                  \
        typedef uint64_t lanes __attribute__((vector_size(bytes)));                                                    \
        const lanes zero = {0}, m0 = zero + 0xD2511F53u, m1 = zero + 0xCD9E8D57u, low = zero + 0xFFFFFFFFu;            \
        lanes even;                                                                                                    \
        for (int i = 0; i < bytes / 8; i++) even[i] = BLOCK(2 * i);                                                    \
        for (int i = 0; i < count; i += bytes / 4, even += step * (bytes / 4)) {                                       \
            lanes a0 = even, a1 = zero + (d->r | (uint32_t)(first >> 32) << 16), a2 = zero + d->l, a3 = zero + d->t;   \
            lanes b0 = even + step, b1 = a1, b2 = a2, b3 = a3;                                                         \
            uint32_t k0 = d->k0, k1 = d->k1;                                                                           \
            _Pragma("GCC unroll 10") for (int round = 0; round < 10; round++) {                                        \
                lanes p = product(a0, m0), q = product(a2, m1), s = product(b0, m0), t = product(b2, m1);              \
                a0 = q >> 32 ^ a1 ^ (zero + k0), a2 = p >> 32 ^ a3 ^ (zero + k1), a1 = q, a3 = p;                      \
                b0 = t >> 32 ^ b1 ^ (zero + k0), b2 = s >> 32 ^ b3 ^ (zero + k1), b1 = t, b3 = s;                      \
                k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;                                                                  \
            }                                                                                                          \
            lanes out[4] = {b0 << 32 | (a0 & low), b1 << 32 | (a1 & low), b2 << 32 | (a2 & low), b3 << 32 | (a3 & low)}; \
            for (int j = 0; j < 4; j++) memcpy(w[j] + i, out + j, bytes);                                              \
        }                                                                                                              \
    }
#define PRODUCT_512(a, b) (lanes)_mm512_mul_epu32((__m512i)(a), (__m512i)(b))
#define PRODUCT_256(a, b) (lanes)_mm256_mul_epu32((__m256i)(a), (__m256i)(b))
WORDS(words_v4, "x86-64-v4", 64, PRODUCT_512)
WORDS(words_v3, "x86-64-v3", 32, PRODUCT_256)
#endif

static void words_of(words w, uint64_t first, uint32_t step, int count, const direction *restrict d)
{
#ifdef MULTIPLIES
    if (__builtin_cpu_supports("x86-64-v4")) words_v4(w, first, step, count, d);
    else if (__builtin_cpu_supports("x86-64-v3")) words_v3(w, first, step, count, d);
    else
#endif
        words_anywhere(w, first, step, count, d);
}
