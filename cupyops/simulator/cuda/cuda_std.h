// CUDA's C++ library: in the simulator, the library of the host compiler.
#pragma once
namespace cuda { namespace std { using namespace ::std; } }
