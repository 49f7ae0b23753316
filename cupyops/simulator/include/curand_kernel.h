// Replaces cuRAND's curand_kernel.h: the generators Philox4x32-10 and XORWOW, with the bits that a GPU gives. The states
// have the sizes of cuRAND's. Sources: J. K. Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (2011); G.
// Marsaglia, Xorshift RNGs (2003).
#pragma once

struct curandStateXORWOW {
    unsigned d, v[5];
    int boxmuller_flag, boxmuller_flag_double;
    float boxmuller_extra;
    double boxmuller_extra_double;
};
typedef curandStateXORWOW curandStateXORWOW_t;
typedef curandStateXORWOW curandState;
typedef curandStateXORWOW curandState_t;

struct curandStatePhilox4_32_10 {
    uint4 ctr, output;
    uint2 key;
    unsigned STATE;
    int boxmuller_flag, boxmuller_flag_double;
    float boxmuller_extra;
    double boxmuller_extra_double;
};
typedef curandStatePhilox4_32_10 curandStatePhilox4_32_10_t;

// XORWOW: a linear generator of 160 bits, and a counter.

namespace cupyops_random {

inline void step(unsigned (&v)[5]) {
    const unsigned t = v[0] ^ v[0] >> 2;
    for (int i = 0; i < 4; ++i) v[i] = v[i + 1];
    v[4] = v[4] ^ v[4] << 4 ^ t ^ t << 1;
}
// The matrix of 2^k steps over GF(2), for each k up to 130: what each bit of the state becomes. A subsequence has 2^67
// steps.
struct Powers {
    bool known;
    unsigned of[131][160][5];
};
// Not instrumented: the table belongs to no array of the launch, and its first computation takes millions of accesses.
CUPYOPS_QUIET inline void skip(unsigned (&state)[5], unsigned long long count, int first) {
    static Powers powers;
    if (!powers.known) {
        for (int bit = 0; bit < 160; ++bit) {
            unsigned v[5] = {};
            v[bit / 32] = 1u << bit % 32;
            const unsigned t = v[0] ^ v[0] >> 2;
            const unsigned next[5] = {v[1], v[2], v[3], v[4], v[4] ^ v[4] << 4 ^ t ^ t << 1};
            for (int i = 0; i < 5; ++i) powers.of[0][bit][i] = next[i];
        }
        for (int k = 1; k <= 130; ++k)
            for (int bit = 0; bit < 160; ++bit) {
                unsigned result[5] = {};
                const unsigned(&once)[5] = powers.of[k - 1][bit];
                for (int b = 0; b < 160; ++b)
                    if (once[b / 32] >> b % 32 & 1)
                        for (int i = 0; i < 5; ++i) result[i] ^= powers.of[k - 1][b][i];
                for (int i = 0; i < 5; ++i) powers.of[k][bit][i] = result[i];
            }
        powers.known = true;
    }
    for (int k = 0; count >> k; ++k) {
        if (count >> k & 1) {
            unsigned result[5] = {};
            for (int b = 0; b < 160; ++b)
                if (state[b / 32] >> b % 32 & 1)
                    for (int i = 0; i < 5; ++i) result[i] ^= powers.of[first + k][b][i];
            for (int i = 0; i < 5; ++i) state[i] = result[i];
        }
        if (k == 63) break;
    }
}

}  // namespace cupyops_random

inline void skipahead(unsigned long long n, curandStateXORWOW* state) {
    unsigned v[5];
    for (int i = 0; i < 5; ++i) v[i] = state->v[i];
    cupyops_random::skip(v, n, 0);
    for (int i = 0; i < 5; ++i) state->v[i] = v[i];
    state->d += 362437u * unsigned(n);
}
// The counter does not change: 2^67 steps are a multiple of its period.
inline void skipahead_sequence(unsigned long long n, curandStateXORWOW* state) {
    unsigned v[5];
    for (int i = 0; i < 5; ++i) v[i] = state->v[i];
    cupyops_random::skip(v, n, 67);
    for (int i = 0; i < 5; ++i) state->v[i] = v[i];
}
CUPYOPS_INTRINSIC void curand_init(unsigned long long seed, unsigned long long subsequence, unsigned long long offset, curandStateXORWOW* state) {
    const unsigned t0 = 1099087573u * (unsigned(seed) ^ 0xAAD26B49u), t1 = 2591861531u * (unsigned(seed >> 32) ^ 0xF7DCEFDDu);
    *state = {6615241u + t1 + t0, {123456789u + t0, 362436069u ^ t0, 521288629u + t1, 88675123u ^ t1, 5783321u + t0}, 0, 0, 0.0f, 0.0};
    if (subsequence) skipahead_sequence(subsequence, state);
    if (offset) skipahead(offset, state);
}
CUPYOPS_INTRINSIC unsigned curand(curandStateXORWOW* state) {
    cupyops_random::step(state->v);
    state->d += 362437u;
    return state->v[4] + state->d;
}

// Philox4x32-10: ten rounds on a counter of 128 bits, whose lower half counts blocks of four numbers.

namespace cupyops_random {

inline uint4 philox(uint4 c, uint2 key) {
    for (int round = 0; round < 10; ++round) {
        const unsigned long long a = 0xD2511F53ull * c.x, b = 0xCD9E8D57ull * c.z;
        c = {unsigned(b >> 32) ^ c.y ^ key.x, unsigned(b), unsigned(a >> 32) ^ c.w ^ key.y, unsigned(a)};
        key.x += 0x9E3779B9u;
        key.y += 0xBB67AE85u;
    }
    return c;
}
// Adds to the counter, whose carry goes through all 128 bits.
inline void count(curandStatePhilox4_32_10* s, unsigned long long low, unsigned long long high) {
    const unsigned __int128 before = ((unsigned __int128)((unsigned long long)s->ctr.w << 32 | s->ctr.z) << 64) | ((unsigned long long)s->ctr.y << 32 | s->ctr.x);
    const unsigned __int128 after = before + ((unsigned __int128)high << 64) + low;
    s->ctr = {unsigned(after), unsigned(after >> 32), unsigned(after >> 64), unsigned(after >> 96)};
    s->output = philox(s->ctr, s->key);
}

}  // namespace cupyops_random

inline void skipahead(unsigned long long n, curandStatePhilox4_32_10* state) {
    const unsigned place = state->STATE + unsigned(n & 3);
    state->STATE = place & 3;
    cupyops_random::count(state, n / 4 + place / 4, 0);
}
inline void skipahead_sequence(unsigned long long n, curandStatePhilox4_32_10* state) { cupyops_random::count(state, 0, n); }
CUPYOPS_INTRINSIC void curand_init(unsigned long long seed, unsigned long long subsequence, unsigned long long offset, curandStatePhilox4_32_10* state) {
    *state = {uint4{0, 0, 0, 0}, uint4{0, 0, 0, 0}, uint2{unsigned(seed), unsigned(seed >> 32)}, 0, 0, 0, 0.0f, 0.0};
    skipahead_sequence(subsequence, state);
    skipahead(offset, state);
}
CUPYOPS_INTRINSIC unsigned curand(curandStatePhilox4_32_10* state) {
    const unsigned place = state->STATE;
    const unsigned numbers[4] = {state->output.x, state->output.y, state->output.z, state->output.w};
    state->STATE = (place + 1) & 3;
    if (place == 3) cupyops_random::count(state, 1, 0);
    return numbers[place];
}
CUPYOPS_INTRINSIC uint4 curand4(curandStatePhilox4_32_10* state) {
    unsigned numbers[8] = {state->output.x, state->output.y, state->output.z, state->output.w};
    cupyops_random::count(state, 1, 0);
    numbers[4] = state->output.x, numbers[5] = state->output.y, numbers[6] = state->output.z, numbers[7] = state->output.w;
    const unsigned* const first = numbers + (state->STATE & 3);
    return {first[0], first[1], first[2], first[3]};
}

// Distributions. A uniform number lies in (0, 1].

namespace cupyops_random {

inline float uniform(unsigned x) { return float(x) * 0x1p-32f + 0x1p-33f; }
inline double uniform_double(unsigned x, unsigned y) { return double((unsigned long long)x ^ (unsigned long long)y << 21) * 0x1p-53 + 0x1p-54; }
// The transform of Box and Muller.
inline float2 normal(unsigned x, unsigned y) {
    const float turn = 0x1p-32f * 6.2831855f, angle = fmaf(float(y), turn, turn / 2), radius = sqrtf(-2.0f * logf(uniform(x)));
    return {radius * sinf(angle), radius * cosf(angle)};
}
inline double2 normal_double(unsigned x0, unsigned x1, unsigned y0, unsigned y1) {
    const double angle = double((unsigned long long)y0 ^ (unsigned long long)y1 << 21) * 0x1p-52 + 0x1p-53;
    const double radius = sqrt(-2.0 * log(uniform_double(x0, x1)));
    return {radius * sinpi(angle), radius * cospi(angle)};
}
// Returns the second number of a pair if the state has it, else makes a pair.
template <typename State, typename Pair> inline float one(State* state, Pair pair) {
    if (state->boxmuller_flag == 1) {
        state->boxmuller_flag = 0;
        return state->boxmuller_extra;
    }
    const float2 both = pair();
    state->boxmuller_extra = both.y;
    state->boxmuller_flag = 1;
    return both.x;
}
template <typename State, typename Pair> inline double one_double(State* state, Pair pair) {
    if (state->boxmuller_flag_double == 1) {
        state->boxmuller_flag_double = 0;
        return state->boxmuller_extra_double;
    }
    const double2 both = pair();
    state->boxmuller_extra_double = both.y;
    state->boxmuller_flag_double = 1;
    return both.x;
}

}  // namespace cupyops_random

#define CUPYOPS_RANDOM(STATE)                                                                                             \
    CUPYOPS_INTRINSIC float curand_uniform(STATE* state) { return cupyops_random::uniform(curand(state)); }               \
    CUPYOPS_INTRINSIC float2 curand_normal2(STATE* state) {                                                               \
        const unsigned x = curand(state), y = curand(state);                                                              \
        return cupyops_random::normal(x, y);                                                                              \
    }                                                                                                                     \
    CUPYOPS_INTRINSIC float curand_normal(STATE* state) {                                                                 \
        return cupyops_random::one(state, [=] { return curand_normal2(state); });                                         \
    }
CUPYOPS_RANDOM(curandStateXORWOW)
CUPYOPS_RANDOM(curandStatePhilox4_32_10)
#undef CUPYOPS_RANDOM

CUPYOPS_INTRINSIC double curand_uniform_double(curandStateXORWOW* state) {
    const unsigned x = curand(state), y = curand(state);
    return cupyops_random::uniform_double(x, y);
}
// Philox takes one number for a double, so the double has 32 random bits.
CUPYOPS_INTRINSIC double curand_uniform_double(curandStatePhilox4_32_10* state) { return double(curand(state)) * 0x1p-32 + 0x1p-32; }
CUPYOPS_INTRINSIC double2 curand_normal2_double(curandStateXORWOW* state) {
    const unsigned a = curand(state), b = curand(state), c = curand(state), d = curand(state);
    return cupyops_random::normal_double(a, b, c, d);
}
CUPYOPS_INTRINSIC double2 curand_normal2_double(curandStatePhilox4_32_10* state) {
    const uint4 x = curand4(state);
    return cupyops_random::normal_double(x.x, x.y, x.z, x.w);
}
CUPYOPS_INTRINSIC double curand_normal_double(curandStateXORWOW* state) {
    return cupyops_random::one_double(state, [=] { return curand_normal2_double(state); });
}
CUPYOPS_INTRINSIC double curand_normal_double(curandStatePhilox4_32_10* state) {
    return cupyops_random::one_double(state, [=] { return curand_normal2_double(state); });
}
CUPYOPS_INTRINSIC float4 curand_uniform4(curandStatePhilox4_32_10* state) {
    const uint4 x = curand4(state);
    return {cupyops_random::uniform(x.x), cupyops_random::uniform(x.y), cupyops_random::uniform(x.z), cupyops_random::uniform(x.w)};
}
CUPYOPS_INTRINSIC double2 curand_uniform2_double(curandStatePhilox4_32_10* state) {
    const uint4 x = curand4(state);
    return {cupyops_random::uniform_double(x.x, x.y), cupyops_random::uniform_double(x.z, x.w)};
}
CUPYOPS_INTRINSIC float4 curand_normal4(curandStatePhilox4_32_10* state) {
    const uint4 x = curand4(state);
    const float2 a = cupyops_random::normal(x.x, x.y), b = cupyops_random::normal(x.z, x.w);
    return {a.x, a.y, b.x, b.y};
}
