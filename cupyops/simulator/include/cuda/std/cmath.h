// Replaces <cuda/std/cmath> by the names that the C++ library has, too.
#pragma once

#include "../../../cuda/library_only.h"
#include <cmath>
#include "../../../cuda/text_only.h"

namespace cuda {
namespace std {

using ::std::abs;
using ::std::fabs;
using ::std::sqrt;
using ::std::exp;
using ::std::log;
using ::std::log2;
using ::std::log10;
using ::std::pow;
using ::std::sin;
using ::std::cos;
using ::std::tan;
using ::std::sinh;
using ::std::cosh;
using ::std::tanh;
using ::std::asin;
using ::std::acos;
using ::std::atan;
using ::std::atan2;
using ::std::floor;
using ::std::ceil;
using ::std::round;
using ::std::trunc;
using ::std::fmin;
using ::std::fmax;
using ::std::fmod;
using ::std::hypot;
using ::std::isnan;
using ::std::isinf;
using ::std::isfinite;

}  // namespace std
}  // namespace cuda
