// Replaces <cuda/std/cstddef> by the names that the C++ library has, too.
#pragma once

#include "../../../cuda/library_only.h"
#include <cstddef>
#include "../../../cuda/text_only.h"

namespace cuda {
namespace std {

using ::std::size_t;
using ::std::ptrdiff_t;
using ::std::nullptr_t;
using ::std::byte;

}  // namespace std
}  // namespace cuda
