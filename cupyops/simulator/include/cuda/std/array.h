// Replaces <cuda/std/array> by the names that the C++ library has, too.
#pragma once

#include "../../../cuda/library_only.h"
#include <array>
#include "../../../cuda/text_only.h"

namespace cuda {
namespace std {

using ::std::array;
using ::std::get;
using ::std::tuple_size;
using ::std::tuple_element;

}  // namespace std
}  // namespace cuda
