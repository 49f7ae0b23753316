// matrix_units.cuh is tensor_cores.cuh now; the next release drops this name.
// The functions and types of the header have the same names as before.
#pragma once

#include "tensor_cores.cuh"
