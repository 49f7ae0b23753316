// Names of std that kernels have under nvcc: those of CUDA's C++ library, by its headers, and functions, each below a comment with its
// names. A text gets those that it uses.

// add_const, add_const_t, add_cv, add_cv_t, add_lvalue_reference, add_lvalue_reference_t, add_pointer, add_pointer_t,
// add_rvalue_reference, add_rvalue_reference_t, add_volatile, aligned_storage, aligned_storage_t, alignment_of,
// alignment_of_v, bool_constant, common_type, common_type_t, conditional, conditional_t, conjunction, conjunction_v, decay,
// decay_t, disjunction, disjunction_v, enable_if, enable_if_t, extent, extent_v, false_type, integral_constant,
// invoke_result, invoke_result_t, is_arithmetic, is_arithmetic_v, is_array, is_array_v, is_assignable, is_base_of,
// is_base_of_v, is_class, is_class_v, is_const, is_const_v, is_constructible, is_constructible_v, is_convertible,
// is_convertible_v, is_copy_constructible, is_default_constructible, is_default_constructible_v, is_empty, is_empty_v,
// is_enum, is_enum_v, is_floating_point, is_floating_point_v, is_function, is_function_v, is_fundamental, is_fundamental_v,
// is_integral, is_integral_v, is_invocable, is_invocable_v, is_lvalue_reference, is_lvalue_reference_v, is_null_pointer,
// is_object, is_object_v, is_pointer, is_pointer_v, is_reference, is_reference_v, is_rvalue_reference,
// is_rvalue_reference_v, is_same, is_same_v, is_scalar, is_scalar_v, is_signed, is_signed_v, is_standard_layout,
// is_standard_layout_v, is_trivial, is_trivial_v, is_trivially_copyable, is_trivially_copyable_v,
// is_trivially_default_constructible, is_unsigned, is_unsigned_v, is_void, is_void_v, is_volatile, is_volatile_v,
// make_signed, make_signed_t, make_unsigned, make_unsigned_t, negation, negation_v, rank, rank_v, remove_all_extents,
// remove_all_extents_t, remove_const, remove_const_t, remove_cv, remove_cv_t, remove_extent, remove_extent_t,
// remove_pointer, remove_pointer_t, remove_reference, remove_reference_t, remove_volatile, remove_volatile_t, true_type,
// underlying_type, underlying_type_t, void_t
#include <cuda/std/type_traits>

// assignable_from, common_reference_with, common_with, constructible_from, convertible_to, copy_constructible, copyable,
// default_initializable, derived_from, destructible, equality_comparable, equality_comparable_with, floating_point,
// integral, invocable, movable, move_constructible, predicate, regular, regular_invocable, same_as, semiregular,
// signed_integral, swappable, totally_ordered, unsigned_integral
#include <cuda/std/concepts>

// denorm_absent, denorm_indeterminate, denorm_present, float_denorm_style, float_round_style, numeric_limits,
// round_indeterminate, round_to_nearest, round_toward_infinity, round_toward_neg_infinity, round_toward_zero
#include <cuda/std/limits>

// as_const, declval, exchange, index_sequence, index_sequence_for, integer_sequence, make_index_sequence,
// make_integer_sequence, make_pair, pair
#include <cuda/std/utility>

// array
#include <cuda/std/array>

// byte
#include <cuda/std/cstddef>

// advance, begin, bidirectional_iterator_tag, data, distance, end, forward_iterator_tag, input_iterator_tag,
// iterator_traits, make_reverse_iterator, next, output_iterator_tag, prev, random_access_iterator_tag, reverse_iterator,
// size
#include <cuda/std/iterator>

// apply, forward_as_tuple, get, ignore, make_tuple, tie, tuple, tuple_cat, tuple_element, tuple_element_t, tuple_size,
// tuple_size_v
#include <cuda/std/tuple>

// bit_and, bit_not, bit_or, bit_xor, divides, equal_to, greater, greater_equal, less, less_equal, logical_and, logical_not,
// logical_or, minus, modulus, multiplies, negate, not_equal_to, plus
#include <cuda/std/functional>

// unary_function
template <class A, class R> struct unary_function {
    typedef A argument_type;
    typedef R result_type;
};

// binary_function
template <class A, class B, class R> struct binary_function {
    typedef A first_argument_type;
    typedef B second_argument_type;
    typedef R result_type;
};

// iterator
template <class C, class T, class D = decltype((char*)0 - (char*)0), class P = T*, class R = T&> struct iterator {
    typedef C iterator_category;
    typedef T value_type;
    typedef D difference_type;
    typedef P pointer;
    typedef R reference;
};

// real
template <class C> __host__ __device__ auto real(const C& z) -> decltype(z.real()) { return z.real(); }

// imag
template <class C> __host__ __device__ auto imag(const C& z) -> decltype(z.imag()) { return z.imag(); }

// conj
template <class C> __host__ __device__ auto conj(const C& z) -> decltype(C(z.real(), -z.imag())) {
    return C(z.real(), -z.imag());
}

// norm
template <class C> __host__ __device__ auto norm(const C& z) -> decltype(z.real() * z.real() + z.imag() * z.imag()) {
    return z.real() * z.real() + z.imag() * z.imag();
}

// max
template <class T> __host__ __device__ constexpr const T& max(const T& a, const T& b) { return a < b ? b : a; }
template <class T, class F> __host__ __device__ constexpr const T& max(const T& a, const T& b, F less) {
    return less(a, b) ? b : a;
}
template <class T> __host__ __device__ constexpr T max(initializer_list<T> values) {
    T found = *values.begin();
    for (const T& v : values) found = found < v ? v : found;
    return found;
}

// min
template <class T> __host__ __device__ constexpr const T& min(const T& a, const T& b) { return b < a ? b : a; }
template <class T, class F> __host__ __device__ constexpr const T& min(const T& a, const T& b, F less) {
    return less(b, a) ? b : a;
}
template <class T> __host__ __device__ constexpr T min(initializer_list<T> values) {
    T found = *values.begin();
    for (const T& v : values) found = v < found ? v : found;
    return found;
}

// swap
template <class T> __host__ __device__ constexpr void swap(T& a, T& b) {
    T c = a;
    a = b;
    b = c;
}

// bit_cast
#ifndef __cpp_lib_bit_cast
template <class To, class From> __host__ __device__ constexpr To bit_cast(const From& from) {
    static_assert(sizeof(To) == sizeof(From), "a bit_cast needs types of one size");
    return __builtin_bit_cast(To, from);
}
#endif

// clamp
template <class T> __host__ __device__ constexpr const T& clamp(const T& v, const T& low, const T& high) {
    return v < low ? low : high < v ? high : v;
}
