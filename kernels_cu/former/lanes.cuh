// lanes.cuh is vector.cuh now, Lanes<T, N> is Vector<T, N>, and its elements are .element[k]; the next release drops these names.
// A text with Lanes<T, N> and `.lane[k]` compiles until the next release.
#pragma once

#include "vector.cuh"

template <typename T, int N> struct alignas(N * sizeof(T)) Lanes {
    T lane[N];
};
