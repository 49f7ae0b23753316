// Replaces <cuda/std/complex> by the names that the C++ library has, too.
#pragma once

#include "../../../cuda/library_only.h"
// <complex> includes the streams, which declare printf and clock. device.h and threads.h define macros of these names.
#pragma push_macro("printf")
#pragma push_macro("clock")
#undef printf
#undef clock
#include <complex>
#pragma pop_macro("clock")
#pragma pop_macro("printf")
#include "../../../cuda/text_only.h"

namespace cuda {
namespace std {

using ::std::complex;
using ::std::real;
using ::std::imag;
using ::std::abs;
using ::std::arg;
using ::std::norm;
using ::std::conj;
using ::std::proj;
using ::std::polar;
using ::std::exp;
using ::std::log;
using ::std::log10;
using ::std::pow;
using ::std::sqrt;
using ::std::sin;
using ::std::cos;
using ::std::tan;
using ::std::sinh;
using ::std::cosh;
using ::std::tanh;

}  // namespace std
}  // namespace cuda
