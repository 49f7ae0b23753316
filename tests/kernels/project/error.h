// A header of a project with the name of a system's header, which a folder of -I comes before.
#pragma once

#include <stdexcept>

__device__ inline float plus_one(float v) { return v + 1; }
inline void failed(const char* what) { throw std::runtime_error(what); }
