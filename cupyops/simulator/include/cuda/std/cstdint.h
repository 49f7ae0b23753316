// Replaces <cuda/std/cstdint> by the names that the C++ library has, too.
#pragma once

#include "../../../cuda/library_only.h"
#include <cstdint>
#include "../../../cuda/text_only.h"

namespace cuda {
namespace std {

using ::std::int8_t;
using ::std::int16_t;
using ::std::int32_t;
using ::std::int64_t;
using ::std::uint8_t;
using ::std::uint16_t;
using ::std::uint32_t;
using ::std::uint64_t;
using ::std::intptr_t;
using ::std::uintptr_t;

}  // namespace std
}  // namespace cuda
