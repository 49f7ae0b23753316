// Conversions between float and the narrower formats of matrix instructions, on bits: no header of CUDA is needed.
#pragma once

namespace cupyops_ptx {

inline float float_of_bits(unsigned bits) { return cupyops_bits<float>(bits); }

// Rounds to the nearest number, ties to even, of a format with `exponent` and `mantissa` bits, and returns its bits.
inline unsigned narrowed(float x, int exponent, int mantissa, bool to_zero = false) {
    const unsigned sign = cupyops_bits<unsigned>(x) >> 31 << (exponent + mantissa), infinity = ((1u << exponent) - 1) << mantissa;
    if (x != x) return exponent == 8 ? 0x7FFF : (1u << (exponent + mantissa)) - 1;
    const double magnitude = fabs(double(x));
    if (magnitude == INFINITY) return sign | infinity;
    const int bias = (1 << (exponent - 1)) - 1, least = 1 - bias;
    int e = magnitude == 0.0 ? least : ilogb(magnitude);
    if (e < least) e = least;
    const double scaled = ldexp(magnitude, mantissa - e);
    const unsigned long long steps = (unsigned long long)(to_zero ? floor(scaled) : nearbyint(scaled));
    const unsigned long long bits = ((unsigned long long)(e - least) << mantissa) + steps;  // a carry raises the exponent
    return sign | unsigned(bits >= infinity ? (to_zero ? infinity - 1 : infinity) : bits);
}
// Returns the number of the bits of such a format.
inline float widened(unsigned bits, int exponent, int mantissa) {
    const unsigned all = (1u << exponent) - 1, e = bits >> mantissa & all, m = bits & ((1u << mantissa) - 1);
    const float sign = bits >> (exponent + mantissa) & 1 ? -1.0f : 1.0f;
    const int bias = (1 << (exponent - 1)) - 1;
    if (e == all) return m ? __builtin_nanf("") : sign * INFINITY;
    return sign * float(ldexp(double(e ? m | 1u << mantissa : m), (e ? int(e) : 1) - bias - mantissa));
}

// The element formats of matrix instructions.
struct half_format {
    static constexpr int bits = 16;
    static float widen(unsigned b) { return widened(b, 5, 10); }
    static unsigned narrow(float x) { return narrowed(x, 5, 10); }
};
struct bf16_format {
    static constexpr int bits = 16;
    static float widen(unsigned b) { return float_of_bits(b << 16); }
    static unsigned narrow(float x) { return narrowed(x, 8, 7); }
};
struct tf32_format {
    static constexpr int bits = 32;
    static float widen(unsigned b) { return float_of_bits(b & ~0x1FFFu); }  // the instruction ignores the lower bits
};
struct e4m3_format {
    static constexpr int bits = 8;
    static float widen(unsigned b) {  // the highest exponent has numbers, too; all bits set is NaN
        if ((b & 0x7F) == 0x7F) return __builtin_nanf("");
        const float magnitude = (b & 0x78) == 0x78 ? ldexpf(float(8 | (b & 7)), 5) : widened(b & 0x7F, 4, 3);
        return b & 0x80 ? -magnitude : magnitude;
    }
};
struct e5m2_format {
    static constexpr int bits = 8;
    static float widen(unsigned b) { return widened(b, 5, 2); }
};
struct s8_format {
    static constexpr int bits = 8;
    static int widen(unsigned b) { return (signed char)b; }
};
struct u8_format {
    static constexpr int bits = 8;
    static int widen(unsigned b) { return int(b & 255); }
};
struct s4_format {
    static constexpr int bits = 4;
    static int widen(unsigned b) { return int(b & 15) - int((b & 8) << 1); }
};
struct u4_format {
    static constexpr int bits = 4;
    static int widen(unsigned b) { return int(b & 15); }
};

}  // namespace cupyops_ptx
