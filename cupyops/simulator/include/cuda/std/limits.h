// Replaces <cuda/std/limits> by the names that the C++ library has, too.
#pragma once

#include "../../../cuda/library_only.h"
#include <limits>
#include "../../../cuda/text_only.h"

namespace cuda {
namespace std {

using ::std::numeric_limits;

}  // namespace std
}  // namespace cuda
