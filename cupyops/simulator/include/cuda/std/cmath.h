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
using ::std::acosh;
using ::std::asinh;
using ::std::atanh;
using ::std::cbrt;
using ::std::copysign;
using ::std::erf;
using ::std::erfc;
using ::std::exp2;
using ::std::expm1;
using ::std::fdim;
using ::std::fma;
using ::std::ilogb;
using ::std::ldexp;
using ::std::lgamma;
using ::std::llrint;
using ::std::llround;
using ::std::log1p;
using ::std::logb;
using ::std::lrint;
using ::std::lround;
using ::std::nearbyint;
using ::std::nextafter;
using ::std::remainder;
using ::std::remquo;
using ::std::rint;
using ::std::scalbln;
using ::std::scalbn;
using ::std::signbit;
using ::std::tgamma;
using ::std::isnan;
using ::std::isinf;
using ::std::isfinite;

}  // namespace std
}  // namespace cuda
