// Replaces <cuda/std/utility> by the names that the C++ library has, too.
#pragma once

#include "../../../cuda/library_only.h"
#include <utility>
#include "../../../cuda/text_only.h"

namespace cuda {
namespace std {

using ::std::pair;
using ::std::make_pair;
using ::std::move;
using ::std::forward;
using ::std::swap;
using ::std::exchange;
using ::std::declval;
using ::std::integer_sequence;
using ::std::index_sequence;
using ::std::make_index_sequence;
using ::std::get;

}  // namespace std
}  // namespace cuda
