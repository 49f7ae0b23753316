// Names the header beside it, which another header names as parts/once.h.
#include "once.h"
#include "../parts/once.h"

__device__ inline float twice(float v) { return OF_TWO * v; }
