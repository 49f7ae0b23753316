// Replaces <cuda/std/tuple> by the names that the C++ library has, too.
#pragma once

#include "../../../cuda/library_only.h"
#include <tuple>
#include "../../../cuda/text_only.h"

namespace cuda {
namespace std {

using ::std::tuple;
using ::std::make_tuple;
using ::std::tie;
using ::std::get;
using ::std::tuple_size;
using ::std::tuple_element;
using ::std::tuple_cat;
using ::std::apply;
using ::std::ignore;

}  // namespace std
}  // namespace cuda
