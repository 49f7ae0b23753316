// Replaces <cuda/functional>: minimum and maximum.
#pragma once

#include "std/functional.h"

namespace cuda {

template <typename T = void> struct maximum { constexpr T operator()(const T& a, const T& b) const { return a < b ? b : a; } };
template <> struct maximum<void> {
    template <typename A, typename B> constexpr auto operator()(const A& a, const B& b) const { return a < b ? b : a; }
};
template <typename T = void> struct minimum { constexpr T operator()(const T& a, const T& b) const { return b < a ? b : a; } };
template <> struct minimum<void> {
    template <typename A, typename B> constexpr auto operator()(const A& a, const B& b) const { return b < a ? b : a; }
};

}  // namespace cuda
