// Replaces <cuda/std/type_traits> by the names that the C++ library has, too.
#pragma once

#include "../../../cuda/library_only.h"
#include <type_traits>
#include "../../../cuda/text_only.h"

namespace cuda {
namespace std {

using ::std::integral_constant;
using ::std::true_type;
using ::std::false_type;
using ::std::is_same;
using ::std::is_same_v;
using ::std::is_integral;
using ::std::is_integral_v;
using ::std::is_floating_point;
using ::std::is_floating_point_v;
using ::std::is_arithmetic;
using ::std::is_arithmetic_v;
using ::std::is_signed;
using ::std::is_signed_v;
using ::std::is_unsigned;
using ::std::is_unsigned_v;
using ::std::is_pointer;
using ::std::is_pointer_v;
using ::std::is_trivially_copyable;
using ::std::is_trivially_copyable_v;
using ::std::conditional;
using ::std::conditional_t;
using ::std::enable_if;
using ::std::enable_if_t;
using ::std::decay;
using ::std::decay_t;
using ::std::remove_reference;
using ::std::remove_reference_t;
using ::std::remove_const;
using ::std::remove_const_t;
using ::std::remove_cv;
using ::std::remove_cv_t;
using ::std::make_unsigned;
using ::std::make_unsigned_t;
using ::std::make_signed;
using ::std::make_signed_t;
using ::std::common_type;
using ::std::common_type_t;
using ::std::void_t;

}  // namespace std
}  // namespace cuda
