// Replaces <cuda/std/functional>: the function objects.
#pragma once

namespace cuda {
namespace std {

#define CUPYOPS_FUNCTION(NAME, EXPRESSION)                                                                    \
    template <typename T = void> struct NAME { constexpr auto operator()(const T& a, const T& b) const { return EXPRESSION; } }; \
    template <> struct NAME<void> {                                                                           \
        template <typename A, typename B> constexpr auto operator()(const A& a, const B& b) const { return EXPRESSION; } \
    };
CUPYOPS_FUNCTION(plus, a + b)
CUPYOPS_FUNCTION(minus, a - b)
CUPYOPS_FUNCTION(multiplies, a * b)
CUPYOPS_FUNCTION(divides, a / b)
CUPYOPS_FUNCTION(modulus, a % b)
CUPYOPS_FUNCTION(logical_and, a && b)
CUPYOPS_FUNCTION(logical_or, a || b)
CUPYOPS_FUNCTION(not_equal_to, a != b)
CUPYOPS_FUNCTION(bit_and, a & b)
CUPYOPS_FUNCTION(bit_or, a | b)
CUPYOPS_FUNCTION(bit_xor, a ^ b)
CUPYOPS_FUNCTION(less, a < b)
CUPYOPS_FUNCTION(less_equal, a <= b)
CUPYOPS_FUNCTION(greater, a > b)
CUPYOPS_FUNCTION(greater_equal, a >= b)
CUPYOPS_FUNCTION(equal_to, a == b)
#undef CUPYOPS_FUNCTION
#define CUPYOPS_FUNCTION(NAME, EXPRESSION)                                                                    \
    template <typename T = void> struct NAME { constexpr auto operator()(const T& a) const { return EXPRESSION; } }; \
    template <> struct NAME<void> {                                                                           \
        template <typename A> constexpr auto operator()(const A& a) const { return EXPRESSION; }              \
    };
CUPYOPS_FUNCTION(negate, -a)
CUPYOPS_FUNCTION(logical_not, !a)
CUPYOPS_FUNCTION(bit_not, ~a)
#undef CUPYOPS_FUNCTION

}  // namespace std
}  // namespace cuda
